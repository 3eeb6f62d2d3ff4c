"""Export under TensorFlow: an artifact gives the results of its model."""

import hashlib
import importlib.metadata
import itertools
import json
import resource
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnxruntime.quantization import quantize_dynamic
from test_passes import assert_fixed_dimensions_change_nothing, graph_of

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    Ensemble,
    GreedySearch,
    RNNEncoderDecoder,
    RNNSearch,
    Sampling,
    Tokenizer,
)
from keras_bahdanau.search import Decode
from keras_bahdanau_export import export
from keras_bahdanau_export.call import call_signature, functional
from keras_bahdanau_export.graph.passes import graph
from keras_bahdanau_export.jobs import job_for
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.parity import (
    CallParity,
    Parity,
    _drawn,
    call_tolerance,
    compare,
    difference,
    random_sources,
    verify,
)
from keras_bahdanau_export.serialized import in_float32
from keras_bahdanau_export.tracing_process import write_elsewhere
from keras_bahdanau_runtime import (
    CorruptArtifactError,
    ParityError,
    Translator,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.errors import ArtifactError, UnsupportedModelError
from keras_bahdanau_runtime.ids import BOS, PAD, UNK
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.operators import check_onnx_file
from keras_bahdanau_runtime.session import MAX_CUDA_GRAPH_SHAPES
from keras_bahdanau_runtime.signature import ENCODER_FILE, MODEL_FILE, STEP_FILE
from keras_bahdanau_runtime.stepper import Stepper
from keras_bahdanau_runtime.text.batches import pad

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["a man on a bike", "two dogs run", "a dog on a bike"]
SMALL = dict(units=6, embedding_dim=5, attention_units=4, maxout_units=5, initializer=None)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, ["ein Mann", "zwei Hunde", "ein Hund"], vocabulary_size=280)


@pytest.fixture(scope="module")
def model(tokenizer):
    keras.utils.set_random_seed(3)
    model = RNNSearch(tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size, **SMALL)
    model.build()
    model.tokenizer = tokenizer
    return model


@pytest.fixture(scope="module")
def artifact(model, tmp_path_factory):
    """One export that the tests share: both formats, a beam of three, the model's tokenizer."""
    path = tmp_path_factory.mktemp("export") / "artifact"
    parity = export(
        model,
        path,
        format=["onnx", "tf_saved_model"],
        search=BeamSearch(3, length_penalty=0.6),
        max_length=9,
        max_source_length=30,
        texts=TEXTS,
        stepwise=True,
    )
    return path, parity


def test_every_source_gets_the_same_tokens(artifact):
    _, parity = artifact
    assert parity.sentences == 16 + len(TEXTS)
    assert parity.equal + parity.ties == parity.sentences
    assert parity.score_difference < 1e-4
    assert parity.alignment_difference < 1e-5
    assert parity.backend == "tensorflow"


def test_the_manifest_records_search_parity_and_files(artifact):
    path, parity = artifact
    manifest = read_manifest(path)
    search = {"class": "BeamSearch", **BeamSearch(3, length_penalty=0.6).get_config()}
    assert manifest.search == json.loads(json.dumps({**search, "max_length": 9}))
    assert manifest.max_source_length == 30
    assert manifest.parity == json.loads(json.dumps({**parity.to_json(), "tf32": False}))
    assert {"model.onnx", "tokenizer.json"} < set(manifest.files)  # the tokenizer of the model


@pytest.fixture(scope="module")
def signatures(artifact):
    """The functions of the SavedModel."""
    import tensorflow as tf

    return tf.saved_model.load(str(artifact[0] / "saved_model")).signatures


def test_the_saved_model_searches_as_keras_does(signatures, model):
    source = keras.ops.convert_to_tensor([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    tokens = signatures["translate"](source=source)["tokens"]
    expected = model.generate(source, search=BeamSearch(3, length_penalty=0.6), max_length=9)
    length = expected.tokens.shape[2]
    np.testing.assert_array_equal(tokens[:, :, :length], expected.tokens)


def test_the_saved_model_steps_as_keras_does(signatures, model):
    source = keras.ops.convert_to_tensor([[5, 6, 7, 3]], "int32")
    encoded = signatures["encode"](source=source)
    step = signatures["step"]
    names = step.structured_input_signature[1]
    inputs = {name: value for name, value in encoded.items() if name in names}
    tokens = keras.ops.convert_to_tensor([BOS], "int32")
    log_probs = step(tokens=tokens, **inputs)["log_probs"].numpy()
    expected = model.generate(source, GreedySearch(), max_length=1).totals[0, 0]
    assert log_probs.max() == pytest.approx(expected, abs=1e-5)


def test_translations_come_in_order_and_with_alignments(artifact):
    translations = Translator(artifact[0]).translate([TEXTS[1], "", TEXTS[0]])
    assert translations[1].source_tokens == []
    assert "".join(translations[0].source_tokens) == TEXTS[1] + "</s>"
    for translation in translations[::2]:
        shape = (len(translation.tokens), len(translation.source_tokens))
        assert translation.alignment.shape == shape
        np.testing.assert_allclose(translation.alignment.sum(-1), 1.0, atol=1e-5)


def test_artifact_and_model_give_the_same_translations(artifact, model):
    texts = [*TEXTS, " ", "two dogs on a bike: \U0001f600"]
    theirs = Translator(artifact[0]).translate(texts, n_best=3, batch_size=2)
    ours = model.translate(
        texts, BeamSearch(3, length_penalty=0.6), max_length=9, n_best=3, batch_size=2
    )
    assert [len(hypotheses) for hypotheses in ours] == [3, 3, 3, 1, 3]
    pairs = zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True)
    for expected, translation in pairs:
        assert (expected.text, expected.tokens) == (translation.text, translation.tokens)
        assert expected.source_tokens == translation.source_tokens
        assert expected.score == pytest.approx(translation.score, abs=1e-4)
        assert expected.alignment.dtype == translation.alignment.dtype
        np.testing.assert_allclose(expected.alignment, translation.alignment, atol=1e-5)


def test_steps_give_the_results_of_a_greedy_search(artifact, model, tokenizer):
    stepper = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None)
    for text in TEXTS:
        ids = np.array([tokenizer.encode_source(text)], "int32")
        ours = model.generate(ids, GreedySearch(), max_length=9)
        tokens, state_and_memory = [BOS], stepper.start(ids)
        for i in range(int(ours.lengths[0, 0])):
            log_probs, weights, state = stepper.step(
                np.array(tokens[-1:], "int32"), *state_and_memory
            )
            tokens.append(int(log_probs[0].argmax()))
            state_and_memory = state, state_and_memory[1]
            assert log_probs[0].max() == pytest.approx(ours.log_probs[0, 0, i], abs=1e-5)
            np.testing.assert_allclose(weights[0], ours.alignments[0, 0, i], atol=1e-5)
        np.testing.assert_array_equal(tokens[1:], ours.tokens[0, 0])


def test_steps_in_fixed_buffers_give_the_same_results(artifact):
    manifest = read_manifest(artifact[0])
    free = Stepper(manifest, "CPUExecutionProvider", None)
    fixed = Stepper(manifest, "CPUExecutionProvider", 1, fixed_buffers=True)
    sources = [[[5, 6, 7, 3], [8, 9, 3, 0]], [[9, 9, 3, 0], [5, 8, 7, 3]], [[4, 3], [3, 0]]]
    sources.append([[*[5] * 16, 3], [6, 3, *[PAD] * 15]])  # beyond 16
    for source in (np.array(ids, "int32") for ids in (*sources, sources[0])):
        ours, theirs = free.start(source), fixed.start(source)
        for tokens in ([BOS, BOS], [5, 6], [7, 3], [8, 9]):
            tokens = np.array(tokens, "int32")
            *expected, free_state = free.step(tokens, *ours)
            *results, fixed_state = fixed.step(tokens, *theirs)
            for a, b in zip(results, expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
            ours, theirs = (free_state, ours[1]), (fixed_state, theirs[1])


def test_lengths_share_buffers_and_only_buffers_of_the_last_shapes_are_kept(artifact):
    fixed = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None, fixed_buffers=True)
    starts = [fixed.start(np.full((1, length), 3, "int32")) for length in (1, 5, 16)]
    buffers = [{id(value) for part in start for value in part.values()} for start in starts]
    assert buffers[0] == buffers[1] == buffers[2]
    for rows in range(2, MAX_CUDA_GRAPH_SHAPES + 2):
        state, memory = fixed.start(np.full((rows, 2), 3, "int32"))
    log_probs, weights, _ = fixed.step(np.full(rows, BOS, "int32"), state, memory)
    assert (len(log_probs), weights.shape) == (rows, (rows, 2))
    with pytest.raises(ValueError, match="must be those of the last start"):
        fixed.step(np.array([BOS], "int32"), *starts[0])


def test_fixed_buffers_refuse_another_state(artifact):
    fixed = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None, fixed_buffers=True)
    state, memory = fixed.start(np.array([[5, 3]], "int32"))
    with pytest.raises(ValueError, match=r"`tokens` must be ints of shape \(1,\).*\(2,\)"):
        fixed.step(np.array([BOS, BOS], "int32"), state, memory)
    tokens = np.array([BOS], "int32")
    *_, after = fixed.step(tokens, state, memory)
    new = fixed.start(np.array([[6, 3]], "int32"))  # the same shape, so the same buffers
    fixed.step(tokens, *new)
    for arguments in ((after, memory), (state, memory), new, (dict(new[0]), new[1])):
        with pytest.raises(ValueError, match="`state` and `memory` must be those of the last"):
            fixed.step(tokens, *arguments)


def test_a_stream_keeps_to_the_limits_of_the_search(artifact, model, tokenizer):
    translator = Translator(artifact[0])
    settings = translator.manifest.search
    ids = np.array([tokenizer.encode_source(TEXTS[0])], "int32")
    free = model.generate(ids, GreedySearch(), max_length=9).tokens[0, 0]
    for limits in (
        {"max_length_ratio": 0.5},
        {"forbidden": (PAD, BOS, int(free[0]))},
        {"no_repeat_ngram": 1},
        {"no_repeat_ngram": 2},
    ):
        settings.clear()  # as if the artifact had been exported with these limits
        settings.update(max_length=9, **limits)
        ours = model.generate(ids, GreedySearch(**limits), max_length=9).tokens[0, 0]
        assert ours.tolist() != free.tolist()
        assert "".join(translator.stream(TEXTS[0])) == tokenizer.decode(ours)


def test_the_example_needs_only_onnxruntime(artifact):
    example = runpy.run_path(str(ROOT / "examples" / "translate_with_onnxruntime.py"))
    sentences = [[5, 6, 7, 3], [8, 3]]
    translated = example["translate"](str(artifact[0] / "model.onnx"), sentences)
    assert translated == best_ids(artifact[0])


def best_ids(path):
    """The ids of the best hypotheses for [5, 6, 7, 3] and [8, 3]."""
    results = Translator(path).translate_ids([[5, 6, 7, 3], [8, 3, 0, 0]])
    pairs = zip(results["tokens"], results["lengths"], strict=True)
    return [tokens[0, : lengths[0]].tolist() for tokens, lengths in pairs]


def test_the_example_in_javascript_gives_the_same_ids(artifact):
    try:
        subprocess.run(["node", "-e", "require('onnxruntime-web')"], check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("Needs node, and `npm install onnxruntime-web` here or in NODE_PATH.")
    command = ["node", "examples/translate.mjs", artifact[0] / "model.onnx", "5,6,7,3", "8,3"]
    output = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    ids = [[int(token) for token in line.split(",")] for line in output.split()]
    assert ids == best_ids(artifact[0])


@pytest.fixture(scope="module")
def other_model(model):
    """The model with other weights."""
    keras.utils.set_random_seed(4)
    other = RNNSearch.from_config(model.get_config())
    other.build()
    return other


def test_an_artifact_can_be_verified_again(artifact, model, other_model):
    assert verify(model, artifact[0], texts=TEXTS, count=5, seed=1).sentences == 5 + len(TEXTS)
    with pytest.raises(ParityError, match="other tokens"):
        verify(other_model, artifact[0])
    with pytest.raises(ValueError, match=r"`model` must be .* Received: a Sequential"):
        verify(keras.Sequential([keras.Input((2,))]), artifact[0])


@pytest.mark.parametrize(
    "arguments, name",
    [({"count": -1}, "`count`"), ({"seed": -1}, "`seed`"), ({"count": 0}, "sources")],
)
def test_a_comparison_without_sources_is_refused(artifact, model, arguments, name):
    with pytest.raises(ValueError, match=name):
        verify(model, artifact[0], **arguments)


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
    with pytest.raises(UnsupportedArtifactError, match="the call of a model"):
        Translator(tmp_path / "artifact")


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
    job = job_for(model, ExportOptions())
    module.unlink()
    with pytest.raises(ArtifactError, match=r"No module named 'own_layers'"):
        write_elsewhere(job, tmp_path)


MODEL_OF_MAIN = """
import keras
from keras_bahdanau_export.tracing_process import _check_parts

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
            _check_parts(keras.Model(x, layer(x)), imports)
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
    functional(keras.Model(x, model(x)))


def names_of(model, **names):
    signature = call_signature(functional(model), **names)
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
    ("names", "message"),
    [
        ({"output_names": ["a"]}, r"`output_names` must be a list of 2 names, in .*'dense_0'"),
        ({"output_names": "ab"}, "`output_names` must be a list of 2 names.*Received: 'ab'"),
        ({"input_names": []}, "`input_names` must be a list of 1 names"),
        ({"output_names": ["a", "a"]}, r"a name of its own\. Received: \['a'\]"),
        ({"output_names": ["x", "a"]}, r"a name of its own\. Received: \['x'\]"),
        ({"output_names": ["a", "b c"]}, "must hold names of ASCII.*Received: 'b c'"),
        ({"output_names": ["a", 3]}, "must hold names of ASCII.*Received: 3"),
    ],
)
def test_invalid_input_and_output_names_are_refused(names, message):
    x, dense = keras.Input((3,), name="x"), keras.layers.Dense(2, name="dense")
    with pytest.raises(ValueError, match=message):
        names_of(keras.Model(x, [dense(x), dense(x)]), **names)


@pytest.fixture(scope="module")
def captioning(tmp_path_factory):
    """An exported CNN with a decoder and a search: the model, the path and the parity."""
    keras.utils.set_random_seed(5)
    decoder = AttentiveDecoder(keras.layers.GRUCell(6), BahdanauAttention(4))
    images = keras.Input((8, 8, 3), name="image")
    features = keras.layers.Conv2D(4, 4, strides=4)(images)
    annotations = keras.layers.Reshape((-1, 4))(features)
    layer = Decode(
        decoder,
        keras.layers.Embedding(12, 3),
        keras.layers.Dense(12, kernel_initializer=keras.initializers.RandomNormal(stddev=2.0)),
        BeamSearch(3),
        max_length=5,
        return_scores=True,
    )
    model = keras.Model(images, list(layer(annotations)))
    path = tmp_path_factory.mktemp("captioning") / "artifact"
    names = ["tokens", "weights", "scores", "lengths"]
    return model, path, export(model, path, input_names=["pixels"], output_names=names)


def test_a_search_in_a_functional_model_exports(captioning):
    model, path, parity = captioning
    assert parity.difference < 1e-5
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")
    names = ["tokens", "weights", "scores", "lengths"]
    theirs = session.run(names, {"pixels": pixels})
    ours = model.predict(pixels, verbose=0)
    assert len(np.unique(theirs[0][:, 0], axis=0)) > 1
    for a, b in zip(theirs, ours, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert verify(model, path, count=2).examples == 2


def test_onnxruntime_opens_the_graphs_without_warnings(artifact, captioning, capfd):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    for path in sorted([*artifact[0].glob("*.onnx"), captioning[1] / "model.onnx"]):
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""


def test_graphs_say_what_wrote_them_and_what_they_compute(artifact, captioning):
    version = importlib.metadata.version("keras-bahdanau")
    descriptions = {
        artifact[0] / MODEL_FILE: "BeamSearch of a RNNSearch: source ids in",
        artifact[0] / ENCODER_FILE: "Encoder of a RNNSearch: source ids in",
        artifact[0] / STEP_FILE: "Decoder step of a RNNSearch: last ids, memory and state in",
        captioning[1] / MODEL_FILE: f"Forward pass of the Keras model {captioning[0].name}",
    }
    for path, description in descriptions.items():
        model = onnx.load(path)
        assert (model.producer_name, model.producer_version) == ("keras_bahdanau", version)
        assert model.doc_string.startswith(description)
        assert (model.graph.name, model.model_version) == (path.stem, 1)
        metadata = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
        assert metadata == {"keras_bahdanau_version": version}


def test_the_runtime_accepts_a_graph_that_onnxruntime_quantized(artifact, tmp_path):
    path = tmp_path / MODEL_FILE
    quantize_dynamic(artifact[0] / MODEL_FILE, path, op_types_to_quantize=["MatMul"])
    assert "onnx.infer" in [entry.key for entry in onnx.load(path).metadata_props]
    check_onnx_file(path.read_bytes(), path, {})


def test_fixed_dimensions_change_no_step(artifact):
    encoder, step = (onnx.load(artifact[0] / name) for name in (ENCODER_FILE, STEP_FILE))
    source = np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    values = assert_fixed_dimensions_change_nothing(encoder, {"source": source})
    values["tokens"] = np.full(2, BOS, "int32")
    names = [value.name for value in step.graph.input]
    assert_fixed_dimensions_change_nothing(step, {name: values[name] for name in names})


def test_openvino_finds_the_tokens_that_onnxruntime_finds(artifact, model):
    openvino = pytest.importorskip("openvino")
    path, settings = artifact[0] / MODEL_FILE, {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    sources = random_sources(model.source_vocabulary_size, 12)
    for rows in (1, 5, len(sources)):
        source = pad(sources[:rows])
        (expected,) = session.run(["tokens"], {"source": source})
        np.testing.assert_array_equal(compiled({"source": source})["tokens"], expected)


def test_differences_are_relative_to_large_numbers_and_exact_for_integers():
    ours = np.array([1.0, -np.inf, 200.0])
    assert difference(ours, ours) == 0
    assert difference(ours, np.array([1.0, -np.inf, 198.0])) == pytest.approx(0.01)
    assert difference(ours, np.array([1.0, 3.0, 200.0])) == np.inf
    assert np.isnan(difference(ours, np.array([1.0, np.nan, 200.0])))
    ids = np.array([10**6, 5])
    assert difference(ids, ids) == 0 and difference(ids, ids + 1) == 1


class Unregistered(keras.layers.Dense):
    pass


@pytest.mark.parametrize(
    ("make_layer", "error", "message"),
    [
        (lambda: keras.layers.Activation(keras.ops.erfinv), UnsupportedModelError, "Erfinv"),
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


def test_a_greedy_search_with_a_fixed_context_exports(tmp_path, capsys):
    model = RNNEncoderDecoder(50, 40, **SMALL)
    model.build()
    path = tmp_path / "artifact"
    # The first arguments have the order of keras.Model.export.
    parity = model.export(path, "onnx", True, None, search=GreedySearch(), max_length=6)
    assert parity.equal == parity.sentences
    assert capsys.readouterr().out == f"Saved artifact at '{path}'. {parity}\n"


def test_a_search_trained_in_bfloat16_is_compared_in_float32(artifact, model, tokenizer):
    sizes = (tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
    trained = RNNSearch(*sizes, **SMALL, dtype="mixed_bfloat16", tokenizer=tokenizer)
    trained.build()
    trained.set_weights(model.get_weights())
    trained.compile("adam", "sparse_categorical_crossentropy")
    assert verify(trained, artifact[0]).score_difference < 1e-4
    models, search = (model, in_float32(trained)), BeamSearch(3)
    expected, translations = (each.translate(TEXTS, search, max_length=9) for each in models)
    for translation, reference in zip(translations, expected, strict=True):
        assert translation.text == reference.text
        # In bfloat16 they would agree to three digits.
        assert translation.score == pytest.approx(reference.score, rel=1e-5)


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


@keras.saving.register_keras_serializable(package="test_exporter")
class Outer(keras.layers.Layer):
    """A layer with an inner layer that has no policy of its own."""

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


def test_random_ids_and_masks_are_padded_at_the_right():
    rng = np.random.default_rng(0)
    for dtype in ("int32", "bool"):
        drawn = _drawn(keras.KerasTensor((None, None), dtype), 50, 7, False, rng)
        lengths = drawn.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(drawn, np.arange(7) < lengths)
        assert drawn.shape == (50, 7) and drawn.dtype == dtype and len(np.unique(lengths)) > 3


def test_random_inputs_are_long_enough_and_finite_for_the_model(tmp_path):
    x = keras.Input((None, 2), name="x")
    frames = keras.layers.Conv1D(3, 9)(keras.ops.log(x))  # needs nine frames, positive numbers
    model = keras.Model(x, keras.layers.GlobalMaxPooling1D(name="y")(frames))
    assert export(model, tmp_path / "a").difference < 1e-4
    for arguments, message in (
        ({"count": 0}, "`count` must be an int of at least 1"),
        ({"texts": TEXTS}, "`texts` must be left out"),
    ):
        with pytest.raises(ValueError, match=message):
            verify(model, tmp_path / "a", **arguments)
    short = keras.Model(x, keras.layers.GlobalMaxPooling1D()(keras.layers.Conv1D(4, 2)(x)))
    with pytest.raises(ValueError, match=r"outputs of shapes \[\(None, 3\)\]. Received: .*4\)"):
        verify(short, tmp_path / "a")
    long = keras.Model(x, keras.layers.GlobalMaxPooling1D()(keras.layers.Conv1D(3, 257)(x)))
    with pytest.raises(ValueError, match=r"have one of \(7, 16, 64, 256\) places"):
        verify(long, tmp_path / "a")


def test_the_process_that_traces_for_other_backends_gives_the_same_graph(artifact, model, tmp_path):
    """Names and the order in the file may differ."""
    options = ExportOptions(search=BeamSearch(3, length_penalty=0.6), max_length=9)
    job = job_for(model, options)
    write_elsewhere(job, tmp_path)
    ours, theirs = (
        structure(onnx.load(path / "model.onnx").graph, {}) for path in (artifact[0], tmp_path)
    )
    assert theirs == ours


def structure(graph, around):
    """A digest of the computation of each output of a graph, without the names of values."""
    digests = {"": "", **around}
    digests |= {value.name: digest("input", i) for i, value in enumerate(graph.input)}
    digests |= {
        weight.name: digest(weight.data_type, *weight.dims, onnx.numpy_helper.to_array(weight))
        for weight in graph.initializer
    }
    for node in graph.node:  # in the order of computation
        attributes = sorted((a.name, str(attribute_of(a, digests))) for a in node.attribute)
        result = digest(node.op_type, attributes, [digests[name] for name in node.input])
        digests |= {name: digest(result, i) for i, name in enumerate(node.output)}
    return [digests[value.name] for value in graph.output]


def attribute_of(attribute, digests):
    if attribute.HasField("g"):
        return structure(attribute.g, digests)
    if attribute.HasField("t"):
        return digest(attribute.t.data_type, onnx.numpy_helper.to_array(attribute.t))
    return onnx.helper.get_attribute_value(attribute)


def digest(*parts):
    parts = [part.tobytes() if isinstance(part, np.ndarray) else part for part in parts]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@pytest.mark.parametrize("precision, bytes_per_weight", [("float32", 4), ("int8", 1)])
def test_weights_too_large_for_one_file_are_in_a_second(
    tmp_path, monkeypatch, precision, bytes_per_weight
):
    monkeypatch.setattr(graph, "LARGEST_FILE", 2000)  # bytes
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
    monkeypatch.setattr(graph, "LARGEST_FILE", limit)
    text = "agraph (float[4] x) => (float[4] y) { y = Add(x, w) }"
    model = onnx_ir.serde.deserialize_model(graph_of(text, w=np.ones(4, "float32")))
    assert graph.save(model, tmp_path / "model.onnx") == is_external
    assert (tmp_path / "model.onnx.data").exists() == is_external


def test_texts_longer_than_the_limit_are_left_out(model, tokenizer):
    text = TEXTS[0]
    limit, references = len(tokenizer.encode_source(text)), ["long", "as long as the limit"]
    options = ExportOptions(texts=[2 * text, text], references=references, max_source_length=limit)
    job = job_for(model, options)
    job.check()
    assert (job.texts, job.references) == ([text], references[1:])


def test_an_ensemble_exports_with_its_steps(model, other_model, tmp_path):
    ensemble = Ensemble([model, other_model])
    parity = ensemble.export(tmp_path / "a", search=BeamSearch(2), max_length=5, stepwise=True)
    assert parity.equal == parity.sentences
    stepper = Stepper(read_manifest(tmp_path / "a"), "CPUExecutionProvider", None)
    log_probs, _, _ = stepper.step(
        np.array([BOS], "int32"), *stepper.start(np.array([[5, 6, 3]], "int32"))
    )
    ours = ensemble.generate([[5, 6, 3]], GreedySearch(), max_length=1)
    assert float(log_probs.max()) == pytest.approx(float(ours.totals[0, 0]), abs=1e-5)


def test_every_option_of_a_beam_exports(model, tmp_path):
    search = BeamSearch(
        4,
        coverage_penalty=0.1,
        n_best=2,
        normalization="plain",
        groups=2,
        diversity=0.5,
        min_length=3,
        forbidden=(PAD, UNK, BOS),
        no_repeat_ngram=2,
        max_length_ratio=1.7,
    )
    parity = export(model, tmp_path / "artifact", search=search, max_length=9)
    assert parity.equal == parity.sentences
    results = Translator(tmp_path / "artifact").translate_ids([[5, 6, 3], [7, 3, 0]])
    assert results["tokens"].shape[:2] == (2, 2)
    # `min_length` keeps a hypothesis from ending, and the ratio cuts it at 5.1 and 3.4 tokens.
    assert (results["lengths"] >= 3).all() and (results["lengths"] <= [[5], [3]]).all()


def test_an_artifact_samples_as_keras_does(model, tmp_path):
    search = Sampling(3, temperature=1.5, top_k=40, top_p=0.9, seed=7)
    parity = export(model, tmp_path / "artifact", search=search, max_length=9)
    assert parity.equal == parity.sentences
    source = np.array([[5, 6, 3], [7, 3, 0]])
    translator = Translator(tmp_path / "artifact")
    theirs, ours = translator.translate_ids(source), model.generate(source, search, max_length=9)
    np.testing.assert_array_equal(theirs["tokens"][:, :, : ours.tokens.shape[2]], ours.tokens)
    assert len(np.unique(theirs["tokens"][0], axis=0)) == 3
    same = translator.translate_ids(source, noise=np.zeros((2, 3, 9)))
    assert (same["tokens"] == same["tokens"][:, :1]).all()
    for noise in (np.zeros((2, 3, 8)), np.ones((2, 3, 9))):
        with pytest.raises(ValueError, match=r"`noise` must hold numbers in \[0, 1\) of shape"):
            translator.translate_ids(source, noise=noise)


def test_a_beam_search_takes_no_noise(artifact):
    with pytest.raises(ValueError, match="`noise` must be None"):
        Translator(artifact[0]).translate_ids([[5, 3]], noise=np.zeros((1, 3, 9)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "tflite"}, "format.*tflite"),
        ({"max_length": 0}, "max_length.*0"),
        ({"format": []}, r"format.*\[\]"),
        ({"max_source_length": 0}, "max_source_length.*0"),
        ({"tokenizer": "bpe"}, "tokenizer.*'bpe'"),
        ({"texts": ["a"], "tokenizer": False}, "tokenizer"),
        ({"texts": "a"}, "texts.*'a'"),
        ({"texts": ["a"], "references": ["b", "c"]}, "references.*1 texts.*2"),
        ({"texts": ["a", None]}, r"`texts\[1\]` must be a str"),
        ({"max_bleu_loss": "0.5"}, "`max_bleu_loss` must be a number .*'0.5'"),
        ({"max_bleu_loss": float("nan")}, "`max_bleu_loss` must be a number .*nan"),
        ({"imports": "module"}, "imports.*'module'"),
        ({"precision": "int4"}, "precision.*int4"),
        ({"precision": "int8", "format": "tf_saved_model"}, "precision.*int8"),
        ({"captured": True, "format": "tf_saved_model"}, "captured.*True"),
        ({"texts": ["a"], "format": "tf_saved_model"}, "`texts` .* left out .*1 texts"),
        ({"search": "greedy"}, "`search` must be a search.*'greedy'"),
        ({"search": BeamSearch}, "`search` must be a search"),
        ({"search": BeamSearch(forbidden=(0, 2, 999))}, "`search` must forbid ids .*999"),
        # More candidates than int32 can count.
        ({"search": BeamSearch(3), "max_length": 2**30}, "`max_length` must .*: 3 hypotheses"),
        # Names that the runtime reads are fixed.
        ({"output_names": list("abcd")}, "`output_names` must be None for a RNNSearch"),
        # Arguments of keras.Model.export that have no use here.
        ({"input_signature": [keras.InputSpec(ndim=2)]}, "`input_signature`.*max_source_length"),
        ({"opset_version": 15}, "`opset_version` must be None.*Received: 15"),
        ({"is_static": True}, "`is_static` must be None.*TensorFlow traces"),
        ({"jax2tf_kwargs": {}}, "`jax2tf_kwargs` must be None.*TensorFlow traces"),
        (
            {"max_lenght": 5},
            "`max_lenght` must be an option of an export. Did you mean `max_length`",
        ),
        ({"format": "litert"}, "`format`.*exports no search.*Received: 'litert'"),
    ],
)
def test_invalid_arguments_are_named(model, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / "a", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_generate_takes_no_search(tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.GRU(2)])
    for arguments in ({"search": GreedySearch()}, {"stepwise": True}, {"texts": ["a"]}):
        (name,) = arguments
        with pytest.raises(ValueError, match=f"`{name}` must .*only for models that generate"):
            export(model, tmp_path / "a", **arguments)
    with pytest.raises(ValueError, match=r"Keras's own `model\.export`"):
        export(model, tmp_path / "a", format="litert")
    with pytest.raises(ValueError, match="`model` must be a Keras model"):
        export(keras.layers.Dense(2), tmp_path / "a")


def test_a_model_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`model` must have weights"):
        RNNSearch(50, 40, **SMALL).export(tmp_path / "a")


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tokenizer, tmp_path):
    model = RNNSearch(50, 40, **SMALL)
    model.build()
    with pytest.raises(ValueError, match="at most the model's 50 source ids"):
        export(model, tmp_path / "a", tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused(model, artifact):
    with pytest.raises(ValueError, match="artifact"):
        export(model, artifact[0])
    read_manifest(artifact[0])


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


def test_random_sources_are_at_most_as_long_as_the_limit():
    lengths = [len(source) for source in random_sources(9, 3, count=200)]
    assert set(lengths) == {1, 2, 3}
    assert max(map(len, random_sources(9, 1000, count=500))) == 40


@pytest.mark.parametrize("output", ["scores", "alignments"])
def test_nan_fails_parity(artifact, model, tokenizer, output, monkeypatch):
    translator = Translator(artifact[0])
    search = translator.search

    def spoiled(*arguments, **options):
        results = search(*arguments, **options)
        return {**results, output: np.full_like(results[output], np.nan)}

    monkeypatch.setattr(translator, "search", spoiled)
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    parity = compare(model, translator, sources, BeamSearch(3, 0.6), 9)
    with pytest.raises(ParityError, match="by nan"):
        parity.enforce()


def test_near_ties_count_where_the_model_confirms_their_score(
    artifact, model, tokenizer, other_model, monkeypatch
):
    """A narrower beam finds worse hypotheses of the same model, as a search with near ties may."""
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    arguments = Translator(artifact[0]), sources, BeamSearch(1, 0.6), 9
    parity = compare(model, *arguments)
    assert parity.equal + parity.ties < parity.sentences
    assert parity.score_difference > 1e-3
    monkeypatch.setattr("keras_bahdanau_export.parity._NEAR_TIE", 10.0)
    parity = compare(model, *arguments)
    assert parity.equal + parity.ties == parity.sentences
    parity = compare(other_model, *arguments)
    assert parity.equal + parity.ties < parity.sentences


@pytest.mark.parametrize(
    ("equal", "ties", "difference", "passes"),
    [
        (4, 0, 1e-6, True),
        (3, 1, 1e-6, True),
        (3, 0, 1e-6, False),
        (4, 0, 5e-4, True),
        (4, 0, 2e-3, False),
        (4, 0, np.nan, False),
    ],
)
def test_parity_of_a_search_allows_near_ties_and_a_thousandth(equal, ties, difference, passes):
    for differences in ((difference, 0.0), (0.0, difference)):
        parity = Parity(4, equal, ties, *differences, "jax")
        if passes:
            parity.enforce()
        else:
            with pytest.raises(ParityError):
                parity.enforce()


def test_the_tolerance_of_a_call_depends_on_its_precision():
    x = keras.Input((3,))
    for policy, gap in (("float32", 2e-4), ("mixed_bfloat16", 1e-2)):
        model = keras.Model(x, keras.layers.Dense(2, dtype=policy)(x))
        CallParity(3, gap / 4, "jax").enforce(call_tolerance(model))
        with pytest.raises(ParityError):
            CallParity(3, gap, "jax").enforce(call_tolerance(model))


def test_the_error_for_outputs_of_different_shapes_names_both():
    with pytest.raises(ParityError, match=r"Received: \(3, 1, 2\) for \(3, 7, 2\)"):
        difference(np.ones((3, 7, 2)), np.ones((3, 1, 2)))
