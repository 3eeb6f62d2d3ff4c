"""Export of Keras models that have no search: names, dtypes, custom layers and large weights."""

import importlib.metadata
import resource
import signal
import subprocess
import sys

import keras
import numpy as np
import onnx_ir
import onnxruntime
import pytest
from graphs import graph_of

from keras_bahdanau import BahdanauAttention
from keras_bahdanau_export import export
from keras_bahdanau_export.graph.canonical import save_model
from keras_bahdanau_export.graph.passes import editing
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.parity import verify
from keras_bahdanau_export.trace import as_functional, forward_signature
from keras_bahdanau_export.tracing_process import trace_in_subprocess
from keras_bahdanau_runtime import CorruptArtifactError, Translator, UnsupportedArtifactError
from keras_bahdanau_runtime.errors import ArtifactError, UnsupportedModelError
from keras_bahdanau_runtime.manifest import read_manifest


def test_the_call_of_any_keras_model_exports(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    hidden = keras.layers.Embedding(2, 4, mask_zero=True)(ids)
    hidden = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True))(hidden)
    hidden = BahdanauAttention(5)(hidden, hidden)  # self-attention
    context = BahdanauAttention(5)(hidden[:, -1], hidden)
    model = keras.Model(ids, {"odds": keras.layers.Dense(2, name="odds")(context)})
    parity = export(model, tmp_path / "artifact", format=["onnx", "tf_saved_model"])
    assert parity.difference < 1e-5 and parity.backend == "tensorflow"
    assert verify(model, tmp_path / "artifact", count=2).examples == 2
    signature = read_manifest(tmp_path / "artifact").signatures["model.onnx"]
    assert signature["inputs"] == [
        {"name": "ids", "dtype": "int32", "axes": ["batch", "ids_axis_1"]}
    ]
    assert signature["outputs"] == [{"name": "odds", "dtype": "float32", "axes": ["batch", 2]}]
    with pytest.raises(UnsupportedArtifactError, match="only the forward pass"):
        Translator(tmp_path / "artifact")


def test_constants_of_a_functional_model_are_exported(tmp_path):
    x = keras.Input((200,), name="x")
    is_first = keras.ops.arange(200) < 3
    model = keras.Model(x, x * keras.ops.where(is_first, 2.0, keras.ops.ones(200)))
    export(model, tmp_path / "artifact", output_names=["y"])
    session = onnxruntime.InferenceSession(tmp_path / "artifact" / "model.onnx")
    [y] = session.run(["y"], {"x": np.ones((1, 200), "float32")})
    assert y.tolist() == [[2.0] * 3 + [1.0] * 197]


def test_where_does_not_read_the_value_that_is_not_selected(tmp_path):
    x = keras.Input((4,), name="x")
    is_large = x > 1.0
    number = keras.ops.where(is_large, 7.0, keras.ops.exp(1000 * x))  # infinite for some of x
    both = keras.ops.where(is_large, x < 3.0, x < 0.0)
    model = keras.Model(x, [number, keras.ops.cast(both, "int32")])
    export(model, tmp_path / "artifact", output_names=["number", "both"])
    session = onnxruntime.InferenceSession(tmp_path / "artifact" / "model.onnx")
    feeds = {"x": np.array([[2, 4, 0, -1]], "float32")}
    number, both = session.run(["number", "both"], feeds)
    assert number.tolist() == [[7.0, 7.0, 1.0, 0.0]]
    assert both.tolist() == [[1, 0, 0, 1]]


def test_argmax_and_argmin_of_floats_are_exported(tmp_path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, [keras.ops.argmax(x, axis=-1), keras.ops.argmin(x, axis=-1)])
    export(model, tmp_path / "artifact", output_names=["largest", "smallest"])
    session = onnxruntime.InferenceSession(tmp_path / "artifact" / "model.onnx")
    # Keras orders -0 below 0.
    feeds = {"x": np.array([[1, 3, 2, -1], [-4, -0.0, 0.0, -4], [0.0, 2, 2, -0.0]], "float32")}
    largest, smallest = session.run(["largest", "smallest"], feeds)
    assert largest.tolist() == [1, 2, 1]
    assert smallest.tolist() == [3, 0, 3]


OWN_LAYER = """
import keras

@keras.saving.register_keras_serializable(package="own")
class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs
"""


def test_tracing_in_a_process_that_cannot_import_a_layer_raises_an_error(tmp_path, monkeypatch):
    module = tmp_path / "own_layers.py"
    module.write_text(OWN_LAYER)
    monkeypatch.syspath_prepend(tmp_path)
    x = keras.Input((3,), name="x")
    model = keras.Model(x, importlib.import_module("own_layers").Doubled(name="y")(x))
    module.unlink()
    with pytest.raises(ArtifactError, match=r"No module named 'own_layers'"):
        trace_in_subprocess(model, ExportOptions(), tmp_path)


def test_the_tracing_process_raises_the_error_of_an_unsupported_model(tmp_path):
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Dense(2, activation="gelu")(x))
    with pytest.raises(UnsupportedModelError, match=r"^The model uses an operation .*Erfc"):
        trace_in_subprocess(model, ExportOptions(), tmp_path)


MODEL_OF_MAIN = """
import keras
from keras_bahdanau_export.tracing_process import check_loadable

class Bare(keras.layers.Layer):
    def call(self, inputs):
        return inputs

@keras.saving.register_keras_serializable(package="own")
class Known(Bare):
    pass

@keras.saving.register_keras_serializable(package="own")
def known(x):
    return x

def bare(x):
    return x

x = keras.Input((3,))
activations = [keras.layers.Activation(function) for function in (bare, known, "tanh")]
for layer in (Bare(), Known(), *activations, keras.layers.Lambda(lambda x: x)):
    for imports in ((), ("a_module",)):
        try:
            check_loadable(keras.Model(x, layer(x)), imports)
            print("taken")
        except ValueError as error:
            print(str(error).rpartition("Received: ")[2])
"""


def test_classes_and_functions_that_a_process_cannot_import_are_named(tmp_path):
    """A module in `imports` may register what is registered in `__main__` here."""
    (tmp_path / "script.py").write_text(MODEL_OF_MAIN)
    command = [sys.executable, tmp_path / "script.py"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [
        *["the class Bare (not registered)"] * 2,
        *["the class Known (of __main__)", "taken"],
        *["the function bare (not registered)"] * 2,
        *["the function own>known (of __main__)", "taken"],
        *["taken"] * 2,
        *["a lambda"] * 2,
    ]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def test_the_error_for_a_model_without_inputs_shows_how_to_wrap_it(tmp_path):
    model = Subclassed()
    model(np.ones((1, 3), "float32"))
    with pytest.raises(ValueError, match=r"keras\.Model\(x, model\(x\)\), path\)"):
        export(model, tmp_path / "a")
    x = keras.Input((3,), name="x")
    as_functional(keras.Model(x, model(x)))


def names_of(model, **names):
    signature = forward_signature(as_functional(model), **names)
    return [[tensor.name for tensor in side] for side in (signature.inputs, signature.outputs)]


def test_every_input_and_output_has_a_unique_name():
    x, dense = keras.Input((3,), name="x"), keras.layers.Dense(2, name="dense")
    twice, relu = [dense(x), dense(x)], keras.layers.ReLU(name="relu")(x)
    assert names_of(keras.Model(x, [*twice, relu])) == [["x"], ["dense_0", "dense_1", "relu"]]
    by_key = keras.Model(x, {"z": twice[0], "b": relu})
    assert names_of(by_key) == [["x"], ["b", "z"]]
    assert names_of(by_key, input_names=["image"], output_names=["c", "d"]) == [
        ["image"],
        ["c", "d"],
    ]
    layers = keras.Input((3,), name="given"), keras.layers.Dense(2, name="last")
    assert names_of(keras.Sequential(layers)) == [["given"], ["last"]]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("x:0", "y", "`input_names` must be passed, .*Received: 'x:0'"),
        ("x", "class logits", "`output_names` must be passed, .*Received: 'class logits'"),
        ("x", "größe", "`output_names` must be passed, .*Received: 'größe'"),
        ("x", "", "`output_names` must be passed, .*Received: ''"),
    ],
)
def test_default_names_that_tensorflow_does_not_accept_are_refused(source, target, message):
    x = keras.Input((3,), name=source)
    model = keras.Model(x, {target: keras.layers.Dense(2)(x)})
    with pytest.raises(ValueError, match=message):
        names_of(model)
    assert names_of(model, input_names=["a"], output_names=["b"]) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"output_names": ["a"]},
            r"`output_names` must be a list of 2 names, instead of .*'dense_0'",
        ),
        ({"output_names": "ab"}, "`output_names` must be a list of 2 names.*Received: 'ab'"),
        ({"input_names": []}, "`input_names` must be a list of 1 names"),
        ({"output_names": ["a", "a"]}, r"a different name\. Received: \['a'\]"),
        ({"output_names": ["x", "a"]}, r"a different name\. Received: \['x'\]"),
        ({"output_names": ["a", "b c"]}, "must contain names of ASCII.*Received: 'b c'"),
        ({"output_names": ["a", 3]}, "must contain names of ASCII.*Received: 3"),
    ],
)
def test_invalid_input_and_output_names_are_refused(names, message):
    x, dense = keras.Input((3,), name="x"), keras.layers.Dense(2, name="dense")
    with pytest.raises(ValueError, match=message):
        names_of(keras.Model(x, [dense(x), dense(x)]), **names)


class Unregistered(keras.layers.Dense):
    pass


class ConvolvedSteps(keras.layers.Layer):
    def build(self, shape):
        self.convolutions = keras.layers.TimeDistributed(keras.layers.Conv2D(2, 1))
        self.convolutions.build((None, None, 2, 2, 1))

    def call(self, inputs):
        steps = keras.ops.reshape(inputs, (keras.ops.shape(inputs)[0], -1, 2, 2, 1))
        return self.convolutions(steps)

    def compute_output_shape(self, shape):
        return None, None, 2, 2, 2


@pytest.mark.parametrize(
    ("make_layer", "error", "message"),
    [
        (lambda: keras.layers.Activation(keras.ops.erfinv), UnsupportedModelError, "Erfinv"),
        # tf2onnx needs the rank of the input of a convolution.
        (ConvolvedSteps, UnsupportedModelError, "tf2onnx cannot convert .*Conv2D"),
        (
            lambda: keras.layers.Dense(2, dtype="bfloat16"),
            ValueError,
            "dtype policies .*Received: .*'bfloat16'",
        ),
        (
            lambda: Unregistered(2, dtype="mixed_bfloat16"),
            ValueError,
            r"bfloat16.*Received: the class Unregistered \(not registered",
        ),
    ],
)
def test_layers_that_cannot_be_exported_are_refused(tmp_path, make_layer, error, message):
    x = keras.Input((4,), name="x")
    with pytest.raises(error, match=message):
        export(keras.Model(x, make_layer()(x)), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_layers_of_mixed_precision_are_exported_in_float32(tmp_path):
    x = keras.Input((4,), name="x")
    layers = [keras.layers.Dense(2, dtype=f"mixed_{name}") for name in ("bfloat16", "float16")]
    model = keras.Model(x, [layer(x) for layer in layers])
    export(model, tmp_path / "a", output_names=["y", "z"])
    inputs = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    session = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx")
    for layer, output in zip(layers, session.run(["y", "z"], {"x": inputs}), strict=True):
        kernel, bias = layer.get_weights()
        assert output.dtype == np.float32
        np.testing.assert_allclose(output, inputs @ kernel + bias, rtol=1e-5, atol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Outer(keras.layers.Layer):
    """A layer whose inner layer has no explicit dtype policy."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(2)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


def test_inner_layers_are_exported_in_float32_whatever_the_global_policy(tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        outer = Outer(name="y")
        x = keras.Input((4,), name="x", dtype="float32")
        export(keras.Model(x, outer(x)), tmp_path / "a")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(before)
    inputs = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    session = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx")
    kernel, bias = outer.get_weights()
    expected = inputs @ kernel + bias
    np.testing.assert_allclose(session.run(None, {"x": inputs})[0], expected, rtol=1e-5, atol=1e-6)


def test_half_precision_agrees_to_three_digits(tmp_path):
    keras.utils.set_random_seed(0)
    x = keras.Input((None, 4), name="x")
    layer = keras.layers.GRU(5, dtype="float16", return_sequences=True, name="y")
    parity = export(keras.Model(x, layer(x)), tmp_path / "a")
    assert 1e-6 < parity.difference < 5e-3
    assert verify(keras.Model(x, layer(x)), tmp_path / "a", count=3) == parity


@pytest.mark.parametrize("precision, bytes_per_weight", [("float32", 4), ("int8", 1)])
def test_weights_too_large_for_one_file_are_in_a_second(
    tmp_path, monkeypatch, precision, bytes_per_weight
):
    monkeypatch.setattr(editing, "MAX_WEIGHT_BYTES", 2000)  # bytes
    x = keras.Input((None, 64), name="x")
    model = keras.Model(x, keras.layers.Dense(64, name="y")(keras.layers.GRU(64)(x)))
    path = tmp_path / "a"
    assert export(model, path, precision=precision).difference < 1e-5
    assert set(read_manifest(path).files) == {"model.onnx", "model.onnx.data"}
    nodes, weights = (path / name for name in ("model.onnx", "model.onnx.data"))
    size = weights.stat().st_size
    assert nodes.stat().st_size > 500 and size > 0.9 * bytes_per_weight * model.count_params()
    weights.write_bytes(b"\0" * size)
    with pytest.raises(CorruptArtifactError, match=r"model\.onnx\.data"):
        verify(model, path)


@pytest.mark.parametrize("limit, is_external", [(16, False), (15, True)])
def test_the_size_of_weights_is_counted_in_bytes(tmp_path, monkeypatch, limit, is_external):
    monkeypatch.setattr(editing, "MAX_WEIGHT_BYTES", limit)
    text = "agraph (float[4] x) => (float[4] y) { y = Add(x, w) }"
    model = onnx_ir.serde.deserialize_model(graph_of(text, w=np.ones(4, "float32")))
    assert save_model(model, tmp_path / "model.onnx") == is_external
    assert (tmp_path / "model.onnx.data").exists() == is_external


def test_a_full_disk_leaves_no_half_artifact(tmp_path):
    x = keras.Input((40,), name="x")
    model = keras.Model(x, keras.layers.Dense(40, name="y")(x))  # 6400 bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a real write error of the system
    try:
        with pytest.raises(OSError):
            export(model, tmp_path / "artifact")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
