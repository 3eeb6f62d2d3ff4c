"""Export under TensorFlow: an artifact gives the results of its model."""

import contextlib
import importlib.metadata
import io
import itertools
import json
import runpy
import subprocess
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from graphs import assert_fixed_dimensions_change_nothing
from models import CONSTRAINTS, SMALL, TEXTS
from onnxruntime.quantization import quantize_dynamic

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    Ensemble,
    GreedySearch,
    RNNEncoderDecoder,
    RNNSearch,
)
from keras_bahdanau.layers import PointerGenerator
from keras_bahdanau.models import Shortlist
from keras_bahdanau.search import Decode
from keras_bahdanau_export import export
from keras_bahdanau_export.cuda.placement import find_fallbacks, summarize
from keras_bahdanau_export.model_config import to_float32
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.parity import random_sources, verify
from keras_bahdanau_export.trace import trace_and_write
from keras_bahdanau_export.tracing_process import trace_in_subprocess
from keras_bahdanau_runtime import SearchOptions, Translator
from keras_bahdanau_runtime.ids import BOS, PAD, UNK
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.operators import check_onnx_file
from keras_bahdanau_runtime.signature import ENCODER_FILE, MODEL_FILE, STEP_FILE
from keras_bahdanau_runtime.stepper import Stepper
from keras_bahdanau_runtime.text.batches import pad

ROOT = Path(__file__).resolve().parents[2]


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
    search["size"] = search.pop("beam_size")  # the name in manifests of every version
    assert manifest.search.document == json.loads(json.dumps({**search, "max_length": 9}))
    assert manifest.max_source_length == 30
    assert manifest.parity == json.loads(json.dumps({**parity.to_json(), "tf32": False}))
    assert {"model.onnx", "tokenizer.json"} < set(manifest.files)  # the tokenizer of the model


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
    command = [
        "node",
        "examples/translate_with_onnxruntime.mjs",
        artifact[0] / "model.onnx",
        "5,6,7,3",
        "8,3",
    ]
    output = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    ids = [[int(token) for token in line.split(",")] for line in output.split()]
    assert ids == best_ids(artifact[0])


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
    # onnxruntime mentions each option, an initializer that is also an input.
    lines = capfd.readouterr().err.splitlines()
    assert all("appears in graph inputs" in line for line in lines), lines


def test_graphs_name_their_producer_and_describe_their_computation(artifact, captioning):
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


@pytest.fixture(scope="module")
def greedy(tmp_path_factory):
    """A model with a fixed context, its greedy search, the parity and what its export prints."""
    keras.utils.set_random_seed(6)
    model = RNNEncoderDecoder(300, 300, **SMALL)  # the search ranks the vocabulary in chunks
    model.build()
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 1.2, weights.shape) for weights in model.get_weights()])
    path = tmp_path_factory.mktemp("greedy") / "artifact"
    # The first arguments have the order of keras.Model.export.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = model.export(path, "onnx", True, None, search=GreedySearch(), max_length=6)
    assert result is None  # as in Keras
    return model, path, verify(model, path), printed.getvalue()


def test_a_greedy_search_with_a_fixed_context_exports(greedy):
    _, path, parity, printed = greedy
    assert parity.equal == parity.sentences
    assert printed == f"Saved artifact at '{path}'. {parity}\n"


@pytest.mark.usefixtures("eager_models")
def test_a_greedy_search_has_only_constraints(greedy):
    model, path, *_ = greedy
    assert [option.name for option in read_manifest(path).search_signature.options] == CONSTRAINTS
    source = np.array([[5, 6, 7, 120, 3], [8, 3, 0, 0, 0], [99, 41, 12, 3, 0]], "int32")
    prefix = np.array([[4, 9, 200], [7, 0, 0], [0, 0, 0]], "int32")
    translator, expected = Translator(path), model.generate(source, GreedySearch(), 6)
    assert_equal(translator.search(source), expected)
    inputs = {"repetition_penalty": np.array(1.4, "float32"), "prefix": prefix}
    penalized = model.generate(source, GreedySearch(repetition_penalty=1.4), 6, prefix=prefix)
    assert_equal(translator.search(source, inputs=inputs), penalized)
    assert not np.array_equal(penalized.tokens, expected.tokens)


@pytest.mark.usefixtures("eager_models")
def test_a_search_trained_in_bfloat16_is_compared_in_float32(artifact, model, tokenizer):
    sizes = (tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
    trained = RNNSearch(*sizes, **SMALL, dtype="mixed_bfloat16", tokenizer=tokenizer)
    trained.build()
    trained.set_weights(model.get_weights())
    trained.compile("adam", "sparse_categorical_crossentropy")
    assert verify(trained, artifact[0]).score_difference < 1e-4
    models, search = (model, to_float32(trained)), BeamSearch(3)
    expected, translations = (each.translate(TEXTS, search, max_length=9) for each in models)
    for translation, reference in zip(translations, expected, strict=True):
        assert translation.text == reference.text
        # In bfloat16 they would agree to three digits.
        assert translation.score == pytest.approx(reference.score, rel=1e-5)


def test_the_process_that_traces_for_other_backends_gives_the_same_graphs(tmp_path):
    """The model has no search. `test_canonical.py` compares all graphs of a search."""
    import tensorflow as tf

    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    formats = ("onnx", "tf_saved_model")
    options = ExportOptions(format=formats, input_names=["pixels"], output_names=["odds"])
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    signatures = trace_and_write(model, options, folders[0])
    assert trace_in_subprocess(model, options, folders[1]) == signatures
    ours, theirs = ((folder / MODEL_FILE).read_bytes() for folder in folders)
    assert theirs == ours
    pixels = np.ones((1, 3), "float32")
    call = tf.saved_model.load(str(folders[1] / "saved_model")).signatures["call"]
    odds = call(pixels=keras.ops.convert_to_tensor(pixels))["odds"]
    np.testing.assert_allclose(odds, model(pixels), rtol=1e-6)


def test_a_file_that_the_tracing_process_cannot_write_or_read_is_named(captioning, tmp_path):
    model, *_ = captioning
    missing = Shortlist([[0, 7]] * 9, [[0, 1.0]] * 9, range(9), size=8)
    options = ExportOptions(shortlist=missing)  # which was not saved in the folder
    with pytest.raises(FileNotFoundError, match=r"No such file .*shortlist\.npz"):
        trace_in_subprocess(model, options, tmp_path)


def assert_equal(outputs, expected):
    """Check outputs of a graph against a `Generation`."""
    steps = expected.tokens.shape[2]
    np.testing.assert_array_equal(outputs["lengths"], expected.lengths)
    np.testing.assert_array_equal(outputs["tokens"][:, :, :steps], expected.tokens)
    np.testing.assert_allclose(outputs["scores"], expected.scores, rtol=1e-6, atol=1e-5)
    alignments = outputs["alignments"][:, :, :steps]
    np.testing.assert_allclose(alignments, expected.alignments, atol=1e-4)


@pytest.fixture(scope="module")
def ensemble(model, tokenizer, tmp_path_factory):
    """An ensemble whose second model copies, a beam search with every option, and their export."""
    keras.utils.set_random_seed(4)
    words = 8  # the last ids of both sides
    sizes = tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size
    ids = [index if index < sizes[1] - words else UNK for index in tokenizer.copied_ids()]
    copy = PointerGenerator(ids, copied_words=words, bias_initializer="ones")
    copying = RNNSearch(*sizes, **SMALL, copy=copy)
    copying.build()
    ensemble = Ensemble([model, copying], tokenizer=tokenizer)
    search = BeamSearch(
        4,
        coverage_penalty=0.1,
        n_best=2,
        early_stopping="best",
        normalization="plain",
        length_offset=1,
        groups=2,
        diversity=0.5,
        min_length=3,
        forbidden=(PAD, UNK, BOS),
        no_repeat_ngram=2,
        max_length_ratio=1.7,
    )
    path = tmp_path_factory.mktemp("ensemble") / "artifact"
    parity = export(ensemble, path, search=search, max_length=9, stepwise=True)
    return ensemble, search, path, parity


def test_an_ensemble_exports_with_its_steps(ensemble):
    ensemble, _, path, parity = ensemble
    assert parity.equal == parity.sentences
    assert read_manifest(path).max_source_length == 2048  # a model copies
    stepper = Stepper(read_manifest(path), "CPUExecutionProvider", None)
    log_probs, _, _ = stepper.step(
        np.array([BOS], "int32"), *stepper.start(np.array([[5, 6, 3]], "int32"))
    )
    ours = ensemble.generate([[5, 6, 3]], GreedySearch(), max_length=1)
    assert float(log_probs.max()) == pytest.approx(float(ours.totals[0, 0]), abs=1e-5)


@pytest.mark.usefixtures("eager_models")
def test_options_of_an_ensemble(ensemble):
    ensemble, search, path, _ = ensemble
    source = np.array([[5, 6, 3], [7, 3, 0]], "int32")
    prefix = np.array([[9, 8], [4, 0]], "int32")
    inputs = {"no_repeat_ngram": np.array(1, "int32"), "prefix": prefix}
    outputs = Translator(path).search(source, inputs=inputs)
    expected = ensemble.generate(source, replace(search, no_repeat_ngram=1), 9, prefix=prefix)
    assert_equal(outputs, expected)
    assert outputs["tokens"][0, :, :2].tolist() == [[9, 8]] * 2


def test_every_option_of_a_beam_exports(ensemble):
    _, _, path, parity = ensemble
    assert parity.equal == parity.sentences
    results = Translator(path).translate_ids([[5, 6, 3], [7, 3, 0]])
    assert results["tokens"].shape[:2] == (2, 2)
    # `min_length` keeps a hypothesis from ending, and the ratio cuts it at 5.1 and 3.4 tokens.
    assert (results["lengths"] >= 3).all() and (results["lengths"] <= [[5], [3]]).all()


@pytest.mark.usefixtures("eager_models")
def test_groups_have_a_fixed_beam(ensemble):
    ensemble, search, path, _ = ensemble
    options = [option.name for option in read_manifest(path).search_signature.options]
    assert "beam_size" not in options and "length_penalty" in options
    source, settings = np.array([[5, 6, 3], [7, 3, 0]], "int32"), {"no_repeat_ngram": 1}
    settings["length_penalty"] = 0.5
    outputs = Translator(path).search(source, inputs=SearchOptions(**settings).inputs())
    assert_equal(outputs, ensemble.generate(source, replace(search, **settings), 9))


def test_an_artifact_samples_as_keras_does(model, sampling):
    search, path, parity = sampling
    assert parity.equal == parity.sentences
    source = np.array([[5, 6, 3], [7, 3, 0]])
    translator = Translator(path)
    theirs, ours = translator.translate_ids(source), model.generate(source, search, max_length=9)
    np.testing.assert_array_equal(theirs["tokens"][:, :, : ours.tokens.shape[2]], ours.tokens)
    assert len(np.unique(theirs["tokens"][0], axis=0)) == 3
    same = translator.translate_ids(source, noise=np.zeros((2, 3, 9)))
    assert (same["tokens"] == same["tokens"][:, :1]).all()
    for noise in (np.zeros((2, 3, 8)), np.ones((2, 3, 9))):
        with pytest.raises(ValueError, match=r"`noise` must hold numbers in \[0, 1\) of shape"):
            translator.translate_ids(source, noise=noise)


SAMPLES = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.7},
    {"top_p": 0.9, "top_k": 5, "temperature": 1.5, "no_repeat_ngram": 1, "min_length": 4},
    {"repetition_penalty": 1.5, "top_k": 600},  # more than the vocabulary
]


@pytest.mark.usefixtures("eager_models")
@pytest.mark.parametrize("options", SAMPLES, ids=str)
def test_an_option_equals_the_setting_of_a_sampling_search(model, sampling, options):
    search, path, _ = sampling
    source = np.array([[5, 6, 7, 120, 3], [8, 3, 0, 0, 0], [99, 41, 12, 3, 0]], "int32")
    prefix = np.array([[4, 9, 200], [7, 0, 0], [0, 0, 0]], "int32")
    translator, inputs = Translator(path), SearchOptions(**options).inputs()
    noise, search = search.noise(3, 9), replace(search, **options)
    outputs = translator.search(source, noise=noise, inputs=inputs)
    assert_equal(outputs, model.generate(source, search, 9))
    outputs = translator.search(source, noise=noise, inputs={**inputs, "prefix": prefix})
    assert_equal(outputs, model.generate(source, search, 9, prefix=prefix))


def test_a_sampling_search_has_no_beam(sampling):
    options = {option.name for option in read_manifest(sampling[1]).search_signature.options}
    assert not {"beam_size", "length_penalty", "coverage_penalty"} & options
    assert {"temperature", "top_k", "top_p", "suppressed"} <= options


def test_options_of_a_sampling_search_run_on_cuda_alone(sampling):
    fallbacks = find_fallbacks(onnx_ir.load(sampling[1] / MODEL_FILE))
    assert {line.split(":")[0] for line in summarize(fallbacks)} == {"1 GRU"}  # of the encoder


def test_a_beam_search_takes_no_noise(artifact):
    with pytest.raises(ValueError, match="`noise` must be None"):
        Translator(artifact[0]).translate_ids([[5, 3]], noise=np.zeros((1, 3, 9)))


def test_an_existing_folder_is_refused(model, artifact):
    with pytest.raises(ValueError, match="artifact"):
        export(model, artifact[0])
    read_manifest(artifact[0])
