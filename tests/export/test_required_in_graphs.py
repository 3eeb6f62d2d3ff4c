"""Required phrases of an exported beam search."""

import itertools

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from models import TEXTS

from keras_bahdanau import BeamSearch, GreedySearch, RNNSearch, Sampling
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export.cuda.placement import find_fallbacks
from keras_bahdanau_export.graph.writer import write_onnx
from keras_bahdanau_export.trace import search_defaults, search_function
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.ids import PAD

V, T = 60, 9
SOURCE = np.array([[5, 6, 7, 12, 3], [8, 3, 0, 0, 0], [9, 41, 12, 3, 0]], "int32")
REQUIRED = np.array([[[7, 4], [9, PAD]], [[PAD, PAD]] * 2, [[55, 56], [20, PAD]]], "int32")
PREFIX = np.array([[4, 9, 7], [7, 0, 0], [0, 0, 0]], "int32")


@pytest.fixture(scope="module")
def network():
    sizes = {"units": 6, "embedding_dim": 5, "attention_units": 4, "maxout_units": 5}
    model = RNNSearch(V, V, **sizes, reset_after=True)
    model.build()
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 1.2, weights.shape) for weights in model.get_weights()])
    return model


def open_graph(model, search, path, shortlist=None):
    """A function that runs the graph of a search with options."""
    function, signature = search_function(model, search, T, shortlist, with_options=True)
    write_onnx(function, signature, path, model.variables, defaults=search_defaults(search, T))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda **inputs: dict(
        zip(names, session.run(names, {"source": SOURCE, **inputs}), strict=True)
    )


def assert_equal(outputs, expected):
    """Check outputs of a graph against a `Generation`."""
    steps = expected.tokens.shape[-1]
    np.testing.assert_allclose(outputs["scores"], expected.scores, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(outputs["lengths"], expected.lengths)
    np.testing.assert_array_equal(outputs["tokens"][..., :steps], expected.tokens)
    np.testing.assert_allclose(outputs["alignments"][:, :, :steps], expected.alignments, atol=1e-4)


@pytest.fixture(scope="module")
def graph(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("required") / "model.onnx"
    return open_graph(network, BeamSearch(6), path), path


@pytest.mark.parametrize(
    "required", [REQUIRED, REQUIRED[:1], np.pad(REQUIRED, [[0, 0], [1, 2], [0, 3]])], ids=np.shape
)
def test_a_graph_finds_what_the_model_does(network, graph, required):
    run, _ = graph
    expected = network.generate(SOURCE, BeamSearch(6), T, required=required)
    assert_equal(run(required=required), expected)
    assert not np.array_equal(run()["tokens"], run(required=required)["tokens"])


def test_the_default_and_padding_require_nothing(network, graph):
    run, _ = graph
    expected = run()
    for empty in ([[[PAD]]], np.full((3, 2, 4), PAD)):
        outputs = run(required=np.array(empty, "int32"))
        for name, array in expected.items():
            np.testing.assert_array_equal(outputs[name], array)
    assert_equal(expected, network.generate(SOURCE, BeamSearch(6), T))


def test_required_phrases_go_with_the_other_options(network, graph):
    run, _ = graph
    penalties = {"coverage_penalty": 0.2, "repetition_penalty": 1.3}
    settings = {"no_repeat_ngram": 2, "min_length": 5, **penalties}
    constraints = {"prefix": PREFIX, "suppressed": np.array([[17, 5]], "int32")}
    for size in (2, 4):
        expected = network.generate(
            SOURCE, BeamSearch(size, 0.6, **settings), 8, **constraints, required=REQUIRED
        )
        options = {"beam_size": size, "no_repeat_ngram": 2, "min_length": 5, "max_length": 8}
        options = {name: np.array(value, "int32") for name, value in options.items()}
        options |= {
            name: np.array(value, "float32")
            for name, value in {"length_penalty": 0.6, **penalties}.items()
        }
        assert_equal(run(required=REQUIRED, **options, **constraints), expected)


def test_a_shortlist_contains_the_ids_of_the_phrases(network, tmp_path):
    rng = np.random.default_rng(2)
    table = rng.integers(4, V, (V, 3))
    shortlist = Shortlist(table, np.full(table.shape, 0.3), counts=np.arange(V), size=14)
    required = np.array([[[10, 11], [13, PAD]]], "int32")
    run = open_graph(network, BeamSearch(6), tmp_path / "model.onnx", shortlist)
    expected = network.generate(SOURCE, BeamSearch(6), T, shortlist=shortlist, required=required)
    assert_equal(run(required=required), expected)
    for tokens, length in zip(expected.tokens[:, 0], expected.lengths[:, 0], strict=True):
        text = tokens[:length].tolist()
        assert 13 in text and (10, 11) in itertools.pairwise(text)
    assert not np.isin([10, 11, 13], shortlist.candidates(SOURCE)).all()  # by their source


def test_required_phrases_run_on_cuda_alone(graph):
    assert find_fallbacks(onnx_ir.load(graph[1])) == []


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(1), Sampling(2)], ids=repr)
def test_a_search_without_a_beam_has_no_required_phrases(search):
    assert "required" not in search_defaults(search, T)
    assert "required" in search_defaults(BeamSearch(2), T)


# --- Texts ----------------------------------------------------------------------------------------


def test_texts_contain_their_phrases_and_equal_those_of_the_model(artifact, model):
    path, _ = artifact
    required = [["bike"], None, ["man", "a dog"]]
    translator, search = Translator(path), BeamSearch(3, length_penalty=0.6)
    received = translator.translate(TEXTS, required=required, n_best=2)
    expected = model.translate(TEXTS, search, 9, n_best=2, required=required)
    for ours, theirs, phrases in zip(received, expected, required, strict=True):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert all(phrase in each.text for each in ours for phrase in phrases or [])
    free = translator.translate(TEXTS[1:2], n_best=2)[0]
    assert [each.text for each in received[1]] == [each.text for each in free]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"required": [["a"]], "beam_size": 1}, "`beam_size` must be at least 2 .* Received: 1"),
        ({"required": [["a" * 30]]}, "`required` must have at most 9 tokens for a text"),
        ({"required": [["a"]], "suppressed": ["a"]}, "`required` .* also in `suppressed`"),
    ],
    ids=str,
)
def test_phrases_that_no_output_can_contain_are_refused(artifact, model, options, message):
    with pytest.raises(ValueError, match=message):
        Translator(artifact[0]).translate(["a dog"], **options)


def test_a_model_refuses_phrases_for_one_hypothesis(model):
    for options in ({"search": GreedySearch()}, {"beam_size": 1}, {"search": Sampling(2)}):
        with pytest.raises(ValueError, match=r"`required` needs a BeamSearch"):
            model.translate(["a dog"], required=[["a"]], **options)
