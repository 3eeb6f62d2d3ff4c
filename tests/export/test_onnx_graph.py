"""Corrections of the conversion by tf2onnx."""

import contextlib

import keras
import numpy as np
import onnx_ir
import onnxruntime
from keras import ops

from keras_bahdanau_export.graph import fast_tf2onnx
from keras_bahdanau_export.graph.canonical import canonicalize
from keras_bahdanau_export.graph.writer import convert


def test_scattered_numbers_with_equal_ids_are_summed():
    import tensorflow as tf

    specs = [tf.TensorSpec([None], "int32"), tf.TensorSpec([None], "float32")]

    def sums(ids, numbers):
        return ops.scatter(ops.expand_dims(ids, -1), numbers, (5,))

    model = convert(tf.function(sums, input_signature=specs, autograph=False))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    inputs = np.array([1, 3, 1], "int32"), np.array([0.5, 2.0, 0.25], "float32")
    names = [part.name for part in session.get_inputs()]
    [output] = session.run(None, dict(zip(names, inputs, strict=True)))
    assert output.tolist() == [0.0, 0.75, 0.0, 2.0, 0.0]


def test_a_graph_is_that_of_tf2onnx_without_our_faster_methods(monkeypatch):
    import tensorflow as tf

    scale = keras.Variable(np.array([0.5, 2.0], "float32"))

    def step(i, x):
        doubled = x * 2
        unused = ops.exp(doubled)

        def if_large():
            return ops.cond(i > 1, lambda: doubled * scale, lambda: unused * 0 + x)

        return i + 1, ops.cond(ops.sum(x) > 3, if_large, lambda: x + scale)

    @tf.function(input_signature=[tf.TensorSpec((2,), "float32", "x")], autograph=False)
    def loop(x):
        return {"y": ops.while_loop(lambda i, x: i < 4, step, (0, x))[1]}

    graphs = []
    for _ in range(2):
        model = onnx_ir.serde.deserialize_model(convert(loop))
        canonicalize(model)
        graphs.append(onnx_ir.serde.serialize_model(model).SerializeToString(deterministic=True))
        for name in ("fast_tf2onnx", "without_messages"):
            monkeypatch.setattr(fast_tf2onnx, name, contextlib.nullcontext)
    assert graphs[0] == graphs[1]
    assert graphs[0].count(b"then_branch") >= 2
