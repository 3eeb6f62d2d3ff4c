"""Corrections of the conversion by tf2onnx."""

import numpy as np
import onnxruntime
from keras import ops

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
