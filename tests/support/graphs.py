"""Small ONNX graphs from text, and their results before and after passes."""

import numpy as np
import onnx
import onnx_ir
import onnxruntime

from keras_bahdanau_export.graph.passes import optimizer

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def graph_of(text, **constants):
    """A model from ONNX's text form; `constants` become its initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def results(model, feeds, fixed=False):
    """Run a model; `fixed` sets its free dimensions to the sizes of the feeds."""
    onnx.checker.check_model(model)
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    options = onnxruntime.SessionOptions()
    for value in model.graph.input if fixed else ():
        shape = value.type.tensor_type.shape.dim
        for dim, size in zip(shape, feeds[value.name].shape, strict=True):
            if dim.dim_param:
                options.add_free_dimension_override_by_name(dim.dim_param, size)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def assert_fixed_dimensions_change_nothing(model, feeds):
    """Check that fixed dimensions give the same results; return the results by name."""
    free, fixed = (results(model, feeds, fixed) for fixed in (False, True))
    for a, b in zip(free, fixed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return dict(zip([value.name for value in model.graph.output], free, strict=True))


def bodies(graph):
    return [
        attribute.g
        for node in graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    ]


def operators(graph):
    return [node.op_type for node in graph.node]


def rewritten(model, *chosen, **feeds):
    """Run passes and check that the results are equal; return the graph and the counts."""
    before = results(model, feeds)
    lean = onnx_ir.serde.deserialize_model(model)
    counts = optimizer.optimize(lean, chosen)
    lean = onnx_ir.serde.serialize_model(lean)
    for a, b in zip(before, results(lean, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    return lean.graph, [counts[each.__name__] for each in chosen]


LOOP = """
agraph (float[2,3] x) => (float[2,3] last, float[5,2,3] all, float[3,3] weights) {
  last, weights, all = Loop <body = step (int64 i, bool go, float[2,3] h, float[3,3] w)
    => (bool still, float[2,3] new, float[3,3] same, float[2,3] out) {
      still = Identity(go)
      same = Identity(w)
      square = MatMul(w, w)
      product = MatMul(h, square)
      new = Tanh(product)
      out = Identity(new)
  }> (five, yes, x, kernel)
}
"""


def loop():
    return graph_of(LOOP, five=5, yes=True, kernel=normal(3, 3))
