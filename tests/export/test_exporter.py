"""Export on the backend under test; the artifact must say what the model says."""

import hashlib
import importlib
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
import onnxruntime
import pytest

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    Decode,
    Ensemble,
    GreedySearch,
    RNNEncoderDecoder,
    RNNSearch,
    Sampling,
    Tokenizer,
)
from keras_bahdanau_export import export
from keras_bahdanau_export.call import call_signature, functional
from keras_bahdanau_export.jobs import job_for
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
from keras_bahdanau_export.passes import graph
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
from keras_bahdanau_runtime.recorded import MOST_SHAPES
from keras_bahdanau_runtime.stepper import Stepper

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["a man on a bike", "two dogs run", "a dog on a bike"]
traced_as_on_torch = pytest.mark.skipif(
    keras.config.backend() == "jax", reason="A TensorFlow process traces it, as on torch."
)
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
    assert parity.backend == keras.config.backend()


def test_all_hypotheses_agree_with_keras(artifact, model, tokenizer):
    sources = np.zeros((3, 20), "int32")
    for row, text in zip(sources, TEXTS, strict=True):
        ids = tokenizer.encode_source(text)
        row[: len(ids)] = ids
    theirs = Translator(artifact[0]).translate_ids(sources)
    ours = model.generate(sources, search=BeamSearch(3, length_penalty=0.6), max_length=9)
    longest = ours.tokens.shape[2]
    np.testing.assert_array_equal(theirs["tokens"][:, :, :longest], ours.tokens)
    np.testing.assert_array_equal(theirs["lengths"], ours.lengths)
    np.testing.assert_allclose(theirs["scores"], ours.scores, atol=1e-4)
    np.testing.assert_allclose(theirs["alignments"][:, :, :longest], ours.alignments, atol=1e-5)


def test_the_manifest_says_what_was_written(artifact):
    path, parity = artifact
    manifest = read_manifest(path)
    search = {"class": "BeamSearch", **BeamSearch(3, length_penalty=0.6).get_config()}
    assert manifest.search == json.loads(json.dumps({**search, "max_length": 9}))
    assert manifest.max_source_length == 30
    assert manifest.parity == json.loads(json.dumps({**parity.to_json(), "tf32": False}))
    assert {"model.onnx", "tokenizer.json"} < set(manifest.files)  # that of the model


def test_the_saved_model_runs_without_this_package(artifact, model):
    tf = pytest.importorskip("tensorflow")
    loaded = tf.saved_model.load(str(artifact[0] / "saved_model"))
    source = np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    found = loaded.signatures["translate"](source=tf.constant(source))
    ours = model.generate(source, search=BeamSearch(3, length_penalty=0.6), max_length=9)
    np.testing.assert_array_equal(found["tokens"][:, :, : ours.tokens.shape[2]], ours.tokens)


def test_translations_come_in_order_and_with_alignments(artifact):
    found = Translator(artifact[0]).translate([TEXTS[1], "", TEXTS[0]])
    assert [len(t.source_tokens) for t in found][1] == 0
    assert "".join(found[0].source_tokens) == TEXTS[1] + "</s>"
    for translation in (found[0], found[2]):
        shape = (len(translation.tokens), len(translation.source_tokens))
        assert translation.alignment.shape == shape
        np.testing.assert_allclose(translation.alignment.sum(-1), 1.0, atol=1e-5)


def test_both_engines_give_the_same_translations(artifact, model, tokenizer, monkeypatch):
    monkeypatch.setattr(model, "tokenizer", tokenizer)
    texts = [*TEXTS, " ", "two dogs on a bike: \U0001f600"]
    theirs = Translator(artifact[0]).translate(texts, n_best=3, batch_size=2)
    ours = model.translate(
        texts, BeamSearch(3, length_penalty=0.6), max_length=9, n_best=3, batch_size=2
    )
    assert [len(hypotheses) for hypotheses in ours] == [3, 3, 3, 1, 3]
    pairs = zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True)
    for one, other in pairs:
        assert (one.text, one.tokens) == (other.text, other.tokens)
        assert one.source_tokens == other.source_tokens
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.alignment.dtype == other.alignment.dtype
        np.testing.assert_allclose(one.alignment, other.alignment, atol=1e-5)


def test_steps_say_what_a_greedy_search_says(artifact, model, tokenizer):
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


def test_steps_in_fixed_buffers_are_the_same(artifact):
    manifest = read_manifest(artifact[0])
    free = Stepper(manifest, "CPUExecutionProvider", None)
    fixed = Stepper(manifest, "CPUExecutionProvider", 1, fixed=True)
    sources = [[[5, 6, 7, 3], [8, 9, 3, 0]], [[9, 9, 3, 0], [5, 8, 7, 3]], [[4, 3], [3, 0]]]
    sources.append([[*[5] * 16, 3], [6, 3, *[PAD] * 15]])  # beyond 16
    for source in (np.array(ids, "int32") for ids in (*sources, sources[0])):
        ours, theirs = free.start(source), fixed.start(source)
        for tokens in ([BOS, BOS], [5, 6], [7, 3], [8, 9]):
            tokens = np.array(tokens, "int32")
            *results, state = free.step(tokens, *ours)
            *same, other = fixed.step(tokens, *theirs)
            for a, b in zip(results, same, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
            ours, theirs = (state, ours[1]), (other, theirs[1])


def test_lengths_share_buffers_and_of_many_shapes_the_last_are_kept(artifact):
    fixed = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None, fixed=True)
    begun = [fixed.start(np.full((1, length), 3, "int32")) for length in (1, 5, 16)]
    places = [{id(value) for part in one for value in part.values()} for one in begun]
    assert places[0] == places[1] == places[2]
    for rows in range(2, MOST_SHAPES + 2):
        state, memory = fixed.start(np.full((rows, 2), 3, "int32"))
    log_probs, weights, _ = fixed.step(np.full(rows, BOS, "int32"), state, memory)
    assert (len(log_probs), weights.shape) == (rows, (rows, 2))
    with pytest.raises(ValueError, match="must be those of the last start"):
        fixed.step(np.array([BOS], "int32"), *begun[0])


def test_fixed_buffers_refuse_a_state_that_is_not_theirs(artifact):
    fixed = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None, fixed=True)
    state, memory = fixed.start(np.array([[5, 3]], "int32"))
    with pytest.raises(ValueError, match=r"`tokens` must be ints of shape \(1,\).*\(2,\)"):
        fixed.step(np.array([BOS, BOS], "int32"), state, memory)
    tokens = np.array([BOS], "int32")
    *_, after = fixed.step(tokens, state, memory)
    other = fixed.start(np.array([[6, 3]], "int32"))  # of the same shape, in the same places
    fixed.step(tokens, *other)
    for given in ((after, memory), (state, memory), other, (dict(other[0]), other[1])):
        with pytest.raises(ValueError, match="`state` and `memory` must be those of the last"):
            fixed.step(tokens, *given)


def test_a_translation_streams(artifact, model, tokenizer):
    translator = Translator(artifact[0])
    for text in TEXTS:
        ids = np.array([tokenizer.encode_source(text)], "int32")
        ours = model.generate(ids, GreedySearch(), max_length=9)
        expected = tokenizer.decode(ours.tokens[0, 0])
        assert "".join(translator.stream(text, max_length=9)) == expected
    assert list(translator.stream(" ")) == []


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
        settings.clear()  # as of an artifact that was exported with them
        settings.update(max_length=9, **limits)
        ours = model.generate(ids, GreedySearch(**limits), max_length=9).tokens[0, 0]
        assert ours.tolist() != free.tolist()
        assert "".join(translator.stream(TEXTS[0])) == tokenizer.decode(ours)


def test_the_example_needs_only_onnxruntime(artifact):
    example = runpy.run_path(str(ROOT / "examples" / "translate_with_onnxruntime.py"))
    sentences = [[5, 6, 7, 3], [8, 3]]
    found = example["translate"](str(artifact[0] / "model.onnx"), sentences)
    theirs = Translator(artifact[0]).translate_ids([[5, 6, 7, 3], [8, 3, 0, 0]])
    for ids, tokens, lengths in zip(found, theirs["tokens"], theirs["lengths"], strict=True):
        assert ids == tokens[0, : lengths[0]].tolist()


def test_the_example_in_javascript_finds_the_same(artifact):
    try:
        subprocess.run(["node", "-e", "require('onnxruntime-web')"], check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("Needs node, and `npm install onnxruntime-web` here or in NODE_PATH.")
    command = ["node", "examples/translate.mjs", artifact[0] / "model.onnx", "5,6,7,3", "8,3"]
    answer = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    theirs = Translator(artifact[0]).translate_ids([[5, 6, 7, 3], [8, 3, 0, 0]])
    for line, tokens, lengths in zip(
        answer.split(), theirs["tokens"], theirs["lengths"], strict=True
    ):
        assert [int(token) for token in line.split(",")] == tokens[0, : lengths[0]].tolist()


def test_the_saved_model_steps_too(artifact, model):
    tf = pytest.importorskip("tensorflow")
    signatures = tf.saved_model.load(str(artifact[0] / "saved_model")).signatures
    found = signatures["encode"](source=tf.constant([[5, 6, 7, 3]]))
    step = signatures["step"]
    names = step.structured_input_signature[1]
    given = {name: part for name, part in found.items() if name in names}
    log_probs = step(tokens=tf.constant([BOS]), **given)["log_probs"]
    ours = model.generate([[5, 6, 7, 3]], GreedySearch(), max_length=1)
    assert float(tf.reduce_max(log_probs)) == pytest.approx(float(ours.totals[0, 0]), abs=1e-5)


def test_an_artifact_can_be_verified_again(artifact, model):
    assert verify(model, artifact[0], texts=TEXTS, count=5, seed=1).sentences == 5 + len(TEXTS)
    keras.utils.set_random_seed(4)
    other = RNNSearch.from_config(model.get_config())
    other.build()
    with pytest.raises(ParityError):
        verify(other, artifact[0])
    with pytest.raises(ValueError, match=r"`model` must be .* Received: a Sequential"):
        verify(keras.Sequential([keras.Input((2,))]), artifact[0])


@pytest.mark.parametrize(
    "arguments, named",
    [({"count": -1}, "`count`"), ({"seed": -1}, "`seed`"), ({"count": 0}, "sources")],
)
def test_a_comparison_of_nothing_is_refused(artifact, model, arguments, named):
    with pytest.raises(ValueError, match=named):
        verify(model, artifact[0], **arguments)


def test_the_call_of_any_keras_model_exports(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    hidden = keras.layers.Embedding(2, 4, mask_zero=True)(ids)
    hidden = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True))(hidden)
    hidden = BahdanauAttention(5)(hidden, hidden)  # of every place
    context = BahdanauAttention(5)(hidden[:, -1], hidden)
    model = keras.Model(ids, {"odds": keras.layers.Dense(2, name="odds")(context)})
    parity = export(model, tmp_path / "artifact", format=["onnx", "tf_saved_model"])
    assert parity.difference < 1e-5 and parity.backend == keras.config.backend()
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


def test_a_layer_of_the_users_own_is_found_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(OWN_LAYER)
    monkeypatch.syspath_prepend(tmp_path)
    own_layers = importlib.import_module("own_layers")
    x = keras.Input((3,), name="x")
    model = keras.Model(x, own_layers.Doubled(name="y")(x))
    assert export(model, tmp_path / "artifact").difference < 1e-6
    if keras.config.backend() != "tensorflow":
        (tmp_path / "own_layers.py").unlink()  # which the process that traces would import
        with pytest.raises(ArtifactError, match=r"No module named 'own_layers'"):
            export(model, tmp_path / "other")
        assert not (tmp_path / "other").exists()


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


def test_what_only_this_process_has_is_named_before_another_starts(tmp_path):
    """What is registered here a module named in `imports` may register, too."""
    (tmp_path / "script.py").write_text(MODEL_OF_MAIN)
    command = [sys.executable, tmp_path / "script.py"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
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


def test_a_model_that_does_not_know_its_inputs_is_told_what_to_write(tmp_path):
    model = Subclassed()
    model(np.ones((1, 3), "float32"))
    with pytest.raises(ValueError, match=r"keras\.Model\(x, model\(x\)\), path\)"):
        export(model, tmp_path / "a")
    x = keras.Input((3,), name="x")
    functional(keras.Model(x, model(x)))


def names_of(model, **names):
    signature = call_signature(functional(model), **names)
    return [[tensor.name for tensor in side] for side in (signature.inputs, signature.outputs)]


def test_every_input_and_output_has_a_name_of_its_own():
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
def test_names_that_no_graph_takes_are_refused(names, message):
    x, dense = keras.Input((3,), name="x"), keras.layers.Dense(2, name="dense")
    with pytest.raises(ValueError, match=message):
        names_of(keras.Model(x, [dense(x), dense(x)]), **names)


@pytest.fixture(scope="module")
def captioning(tmp_path_factory):
    """A CNN with a decoder and a search, exported; the model, the path, the parity."""
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


def test_onnxruntime_has_nothing_to_warn_of(artifact, captioning, capfd):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    for path in sorted([*artifact[0].glob("*.onnx"), captioning[1] / "model.onnx"]):
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""


def test_integers_and_infinities_are_compared_as_they_are():
    ours = np.array([1.0, -np.inf, 200.0])
    assert difference(ours, ours) == 0
    assert difference(ours, np.array([1.0, -np.inf, 198.0])) == pytest.approx(0.01)
    assert difference(ours, np.array([1.0, 3.0, 200.0])) == np.inf
    assert np.isnan(difference(ours, np.array([1.0, np.nan, 200.0])))
    ids = np.array([10**6, 5])
    assert difference(ids, ids) == 0 and difference(ids, ids + 1) == 1


def test_names_of_graphs_that_the_runtime_reads_are_fixed(model, tmp_path):
    with pytest.raises(ValueError, match="`output_names` must be None for a RNNSearch"):
        export(model, tmp_path / "a", output_names=["a", "b", "c", "d"])


def test_what_onnx_cannot_say_is_refused(tmp_path):
    x = keras.Input((3,), name="x")
    model = keras.Model(x, keras.layers.Activation(keras.ops.erfinv, name="y")(x))
    with pytest.raises(UnsupportedModelError, match="Erfinv"):
        export(model, tmp_path / "artifact")
    assert list(tmp_path.iterdir()) == []


def test_greedy_and_the_fixed_context_export_too(tmp_path, capsys):
    model = RNNEncoderDecoder(50, 40, **SMALL)
    model.build()
    path = tmp_path / "artifact"
    # The first arguments stand in the order of keras.Model.export.
    parity = model.export(path, "onnx", True, None, search=GreedySearch(), max_length=6)
    assert parity.equal == parity.sentences
    assert capsys.readouterr().out == f"Saved artifact at '{path}'. {parity}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"input_signature": [keras.InputSpec(shape=(None, 7))]},
            "`input_signature`.*max_source_length",
        ),
        ({"opset_version": 15}, "`opset_version` must be None.*Received: 15"),
        ({"is_static": True}, "`is_static` must be None.*TensorFlow traces"),
        ({"jax2tf_kwargs": {}}, "`jax2tf_kwargs` must be None.*TensorFlow traces"),
        ({"format": "litert"}, "`format`.*know nothing of a search.*Received: 'litert'"),
    ],
)
def test_arguments_of_keras_that_have_no_place_say_why(model, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / "a", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_onnxruntime_does_not_compute_in_are_refused(tmp_path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(2, dtype="bfloat16")(x))
    with pytest.raises(ValueError, match=r"dtype policies .*Received: .*'bfloat16'"):
        export(model, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_what_was_trained_in_bfloat16_is_exported_in_float32(model, tokenizer, tmp_path):
    sizes = (tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
    trained = RNNSearch(*sizes, **SMALL, dtype="mixed_bfloat16", tokenizer=tokenizer)
    trained.build()
    trained.set_weights(model.get_weights())
    trained.compile("adam", "sparse_categorical_crossentropy")
    path = tmp_path / "a"
    export(trained, path, search=BeamSearch(3), max_length=9, texts=TEXTS)
    verify(trained, path)
    found = Translator(path).translate(TEXTS, n_best=3)
    expected = model.translate(TEXTS, search=BeamSearch(3), max_length=9, n_best=3)
    assert [[one.text for one in each] for each in found] == [
        [one.text for one in each] for each in expected
    ]
    scores = [[[one.score for one in each] for each in side] for side in (found, expected)]
    # In bfloat16 they would agree to three digits.
    np.testing.assert_allclose(*scores, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_call_that_computes_in_a_mixture_is_exported_in_float32(tmp_path, policy):
    x = keras.Input((4,), name="x")
    dense = keras.layers.Dense(2, dtype=policy)
    export(keras.Model(x, dense(x)), tmp_path / "a", output_names=["y"])
    given = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    session = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx")
    kernel, bias = dense.get_weights()
    [found] = session.run(None, {"x": given})
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, given @ kernel + bias, rtol=1e-5, atol=1e-6)


@keras.saving.register_keras_serializable(package="test_exporter")
class Outer(keras.layers.Layer):
    """A layer that makes another, which names no policy."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(2)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


def test_the_layers_of_a_layer_compute_in_float32_whatever_the_global_policy(tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        outer = Outer(name="y")
        x = keras.Input((4,), name="x", dtype="float32")
        export(keras.Model(x, outer(x)), tmp_path / "a")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(before)
    given = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    [found] = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx").run(None, {"x": given})
    kernel, bias = outer.get_weights()
    np.testing.assert_allclose(found, given @ kernel + bias, rtol=1e-5, atol=1e-6)


def test_bfloat16_of_a_class_that_is_not_registered_says_what_to_do(tmp_path):
    class Own(keras.layers.Dense):
        pass

    x = keras.Input((4,), name="x")
    model = keras.Model(x, Own(2, dtype="mixed_bfloat16")(x))
    with pytest.raises(ValueError, match=r"bfloat16.*Received: the class Own \(not registered"):
        export(model, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_half_precision_agrees_to_three_digits(tmp_path):
    keras.utils.set_random_seed(0)
    x = keras.Input((None, 4), name="x")
    layer = keras.layers.GRU(5, dtype="float16", return_sequences=True, name="y")
    parity = export(keras.Model(x, layer(x)), tmp_path / "a")
    assert 1e-6 < parity.difference < 5e-3
    assert verify(keras.Model(x, layer(x)), tmp_path / "a", count=3) == parity


def test_ids_and_masks_to_compare_on_are_padded_at_the_right():
    rng = np.random.default_rng(0)
    for dtype in ("int32", "bool"):
        drawn = _drawn(keras.KerasTensor((None, None), dtype), 50, 7, False, rng)
        lengths = drawn.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(drawn, np.arange(7) < lengths)
        assert drawn.shape == (50, 7) and drawn.dtype == dtype and len(np.unique(lengths)) > 3


def test_inputs_to_compare_on_are_such_as_the_model_takes(tmp_path):
    x = keras.Input((None, 2), name="x")
    frames = keras.layers.Conv1D(3, 9)(keras.ops.log(x))  # of nine frames, and positive numbers
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


def test_candidates_that_int32_cannot_count_are_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"`max_length` must .*Received: 3 hypotheses"):
        export(model, tmp_path / "a", search=BeamSearch(3), max_length=2**30)
    assert not list(tmp_path.iterdir())


def test_the_process_that_traces_for_other_backends_gives_the_same_graph(artifact, model, tmp_path):
    """Of one set of weights, whatever the names and the order in the file."""
    job = job_for(model, "onnx", search=BeamSearch(3, length_penalty=0.6), max_length=9)
    write_elsewhere(job, tmp_path)
    ours, theirs = (
        structure(onnx.load(path / "model.onnx").graph, {}) for path in (artifact[0], tmp_path)
    )
    assert theirs == ours


def structure(graph, around):
    """A digest of each output of a graph: of how it is computed, not of any name."""
    known = {"": "", **around}
    known |= {value.name: digest("input", i) for i, value in enumerate(graph.input)}
    known |= {
        weight.name: digest(weight.data_type, *weight.dims, onnx.numpy_helper.to_array(weight))
        for weight in graph.initializer
    }
    for node in graph.node:  # which stand in the order of computation
        attributes = sorted((a.name, str(attribute_of(a, known))) for a in node.attribute)
        made = digest(node.op_type, attributes, [known[name] for name in node.input])
        known |= {name: digest(made, i) for i, name in enumerate(node.output)}
    return [known[value.name] for value in graph.output]


def attribute_of(attribute, known):
    if attribute.HasField("g"):
        return structure(attribute.g, known)
    if attribute.HasField("t"):
        return digest(attribute.t.data_type, onnx.numpy_helper.to_array(attribute.t))
    return onnx.helper.get_attribute_value(attribute)


def digest(*parts):
    parts = [part.tobytes() if isinstance(part, np.ndarray) else part for part in parts]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_weights_too_large_for_a_file_stand_beside_it(model, tmp_path, monkeypatch, precision):
    monkeypatch.setattr(graph, "LARGEST_FILE", 2000)  # bytes, not 2 GB
    path = tmp_path / "a"
    parity = export(
        model, path, search=GreedySearch(), max_length=4, tokenizer=False, precision=precision
    )
    assert parity.equal == parity.sentences
    assert set(read_manifest(path).files) == {"model.onnx", "model.onnx.data"}
    weights = 4 * model.count_params()
    whole = sum(file.stat().st_size for file in path.glob("model.onnx*"))
    nodes = (path / "model.onnx").stat().st_size
    assert nodes > 1000 and whole - nodes > 0.9 * weights / (1 if precision == "float32" else 4)
    (path / "model.onnx.data").write_bytes(b"\0" * (whole - nodes))
    with pytest.raises(CorruptArtifactError, match=r"model\.onnx\.data"):
        Translator(path)


def test_an_ensemble_exports_with_its_steps(model, tokenizer, tmp_path):
    keras.utils.set_random_seed(8)
    other = RNNSearch.from_config(model.get_config())
    other.build()
    ensemble = Ensemble([model, other])
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
    found = Translator(tmp_path / "artifact").translate_ids([[5, 6, 3], [7, 3, 0]])
    assert found["tokens"].shape[:2] == (2, 2)
    # `min_length` keeps a hypothesis from ending, and the ratio cuts it at 5.1 and 3.4 tokens.
    assert (found["lengths"] >= 3).all() and (found["lengths"] <= [[5], [3]]).all()


def test_an_artifact_that_samples_draws_as_keras_does(model, tmp_path):
    search = Sampling(3, temperature=1.5, top_k=40, top_p=0.9, seed=7)
    parity = export(model, tmp_path / "artifact", search=search, max_length=9)
    assert parity.equal == parity.sentences
    source = np.array([[5, 6, 3], [7, 3, 0]])
    translator = Translator(tmp_path / "artifact")
    theirs, ours = translator.translate_ids(source), model.generate(source, search, max_length=9)
    np.testing.assert_array_equal(theirs["tokens"][:, :, : ours.tokens.shape[2]], ours.tokens)
    assert len(np.unique(theirs["tokens"][0], axis=0)) == 3
    other = translator.translate_ids(source, noise=np.zeros((2, 3, 9)))
    assert (other["tokens"] == other["tokens"][:, :1]).all()  # the same numbers, the same outputs
    for noise in (np.zeros((2, 3, 8)), np.ones((2, 3, 9))):
        with pytest.raises(ValueError, match=r"`noise` must hold numbers in \[0, 1\) of shape"):
            translator.translate_ids(source, noise=noise)


def test_what_does_not_sample_takes_no_noise(artifact):
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
    ],
)
def test_wrong_arguments_are_named(model, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "a", **arguments)
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
    model = keras.Model(x, keras.layers.Dense(40, name="y")(x))  # of 6400 bytes
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


def test_sources_to_compare_on_are_up_to_the_limit():
    lengths = [len(source) for source in random_sources(9, 3, count=200)]
    assert set(lengths) == {1, 2, 3}
    assert max(map(len, random_sources(9, 1000, count=500))) == 40


def test_an_artifact_of_other_weights_fails_parity(artifact, tokenizer):
    keras.utils.set_random_seed(4)
    other = RNNSearch(tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size, **SMALL)
    other.build()
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    parity = compare(other, Translator(artifact[0]), sources, BeamSearch(3, 0.6), 9)
    assert parity.equal + parity.ties < parity.sentences
    with pytest.raises(ParityError, match="other tokens"):
        parity.enforce()


@pytest.mark.parametrize("output", ["scores", "alignments"])
def test_what_is_no_number_fails_parity(artifact, model, tokenizer, output, monkeypatch):
    translator = Translator(artifact[0])
    search = translator.search

    def spoiled(*given, **options):
        found = search(*given, **options)
        return {**found, output: np.full_like(found[output], np.nan)}

    monkeypatch.setattr(translator, "search", spoiled)
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    parity = compare(model, translator, sources, BeamSearch(3, 0.6), 9)
    with pytest.raises(ParityError, match="by nan"):
        parity.enforce()


def test_near_ties_count_where_the_model_confirms_their_score(
    artifact, model, tokenizer, monkeypatch
):
    """A narrower beam finds worse hypotheses of the same model, as one of near ties may."""
    vocabulary = tokenizer.source_vocabulary_size
    given = Translator(artifact[0]), random_sources(vocabulary, 30), BeamSearch(1, 0.6), 9
    parity = compare(model, *given)
    assert parity.equal + parity.ties < parity.sentences
    assert parity.score_difference > 1e-3
    monkeypatch.setattr("keras_bahdanau_export.parity._NEAR_TIE", 10.0)
    parity = compare(model, *given)
    assert parity.equal + parity.ties == parity.sentences
    keras.utils.set_random_seed(4)
    other = RNNSearch(vocabulary, tokenizer.target_vocabulary_size, **SMALL)
    other.build()
    parity = compare(other, *given)
    assert parity.equal + parity.ties < parity.sentences


@pytest.mark.parametrize(
    ("equal", "ties", "difference", "passes"),
    [
        (4, 0, 1e-6, True),
        (3, 1, 1e-6, True),
        (3, 0, 1e-6, False),
        (4, 0, 0.1, False),
        (4, 0, np.nan, False),
    ],
)
def test_parity_is_enforced(equal, ties, difference, passes):
    for differences in ((difference, 0.0), (0.0, difference)):
        parity = Parity(4, equal, ties, *differences, "jax")
        if passes:
            parity.enforce()
        else:
            with pytest.raises(ParityError):
                parity.enforce()


@pytest.mark.parametrize(("gap", "passes"), [(5e-4, True), (2e-3, False)])
def test_the_tolerance_of_a_search_is_a_thousandth(gap, passes):
    for gaps in ((gap, 0.0), (0.0, gap)):
        parity = Parity(4, 4, 0, *gaps, "jax")
        if passes:
            parity.enforce()
        else:
            with pytest.raises(ParityError):
                parity.enforce()


def test_the_tolerance_of_a_call_is_that_of_its_numbers():
    x = keras.Input((3,))
    for policy, gap in (("float32", 2e-4), ("mixed_bfloat16", 1e-2)):
        model = keras.Model(x, keras.layers.Dense(2, dtype=policy)(x))
        CallParity(3, gap / 4, "jax").enforce(call_tolerance(model))
        with pytest.raises(ParityError):
            CallParity(3, gap, "jax").enforce(call_tolerance(model))


def test_outputs_of_two_shapes_are_named_by_them():
    with pytest.raises(ParityError, match=r"Received: \(3, 1, 2\) for \(3, 7, 2\)"):
        difference(np.ones((3, 7, 2)), np.ones((3, 1, 2)))


def test_the_process_that_traces_finds_modules_beside_the_script(tmp_path, monkeypatch):
    (tmp_path / "beside_the_script.py").write_text(
        "import keras\n@keras.saving.register_keras_serializable(package='beside')\n"
        "class Half(keras.layers.Layer):\n    def call(self, x):\n        return x / 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    x = keras.Input((3,), name="x")
    model = keras.Model(x, importlib.import_module("beside_the_script").Half(name="y")(x))
    (tmp_path / "a").mkdir()
    write_elsewhere(job_for(model, "onnx"), tmp_path / "a")
    session = onnxruntime.InferenceSession(tmp_path / "a" / "model.onnx")
    [found] = session.run(None, {"x": np.array([[1, 2, 3]], "float32")})
    np.testing.assert_array_equal(found, [[0.5, 1, 1.5]])
