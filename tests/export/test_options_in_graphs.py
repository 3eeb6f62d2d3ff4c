"""Options of an exported search: at run time they do what the same settings do at export."""

import itertools
import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from models import CONSTRAINTS, model_of_many_lengths

from keras_bahdanau import BeamSearch, GreedySearch, Sampling
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export.cuda.placement import find_fallbacks
from keras_bahdanau_export.graph.writer import write_onnx
from keras_bahdanau_export.trace import search_defaults, search_function
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.search_options import Constraints, check_constraints
from keras_bahdanau_runtime.signature import MODEL_FILE, OPTIONS

pytestmark = pytest.mark.usefixtures("eager_models")

V, T = 300, 9  # a vocabulary that is ranked in chunks
SOURCE = np.array([[5, 6, 7, 120, 3], [8, 3, 0, 0, 0], [99, 41, 12, 3, 0]], "int32")
PREFIX = np.array([[4, 9, 200], [7, 0, 0], [0, 0, 0]], "int32")
REQUIRED = np.array([[[7, 4], [9, PAD]], [[PAD, PAD]] * 2, [[55, 56], [20, PAD]]], "int32")


@pytest.fixture(scope="module")
def model():
    return model_of_many_lengths(V)


def write(model, search, path, shortlist=None):
    function, signature = search_function(model, search, T, shortlist, options_are_inputs=True)
    write_onnx(function, signature, path, model.variables, defaults=search_defaults(search, T))
    return path


class Graph:
    """A session of a search, with the options as arguments."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.options = [value.name for value in self.session.get_overridable_initializers()]

    def run(self, **options):
        inputs = {name: np.array(v, OPTIONS[name].dtype) for name, v in options.items()}
        inputs["source"] = SOURCE
        names = [value.name for value in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs), strict=True))


def assert_equal(outputs, expected, atol=1e-5):
    """Check outputs of a graph against a `Generation`, or other outputs."""
    expected = expected if isinstance(expected, dict) else expected._asdict()
    assert outputs["scores"].shape == expected["scores"].shape
    np.testing.assert_allclose(outputs["scores"], expected["scores"], rtol=1e-6, atol=atol)
    np.testing.assert_array_equal(outputs["lengths"], expected["lengths"])
    steps = min(outputs["tokens"].shape[-1], expected["tokens"].shape[-1])
    assert not outputs["tokens"][..., steps:].any()
    for name in ("tokens", "alignments"):
        pair = (values[name][:, :, :steps] for values in (outputs, expected))
        np.testing.assert_allclose(*pair, atol=1e-4)


# --- Beams ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beam(model, tmp_path_factory):
    return Graph(write(model, BeamSearch(5), tmp_path_factory.mktemp("beam") / "model.onnx"))


def test_a_beam_has_the_options_of_its_search(beam):
    assert [value.name for value in beam.session.get_inputs()] == ["source"]
    assert beam.options == [
        "beam_size",
        "length_penalty",
        "coverage_penalty",
        *CONSTRAINTS,
        "required",
    ]


# Options at run time, the same settings of a search, and arguments of `generate`.
BEAMS = {
    "defaults": ({}, {}, {}),
    "beam_size 1": ({"beam_size": 1}, {"beam_size": 1}, {}),
    "beam_size 2": (
        {"beam_size": 2, "length_penalty": 0.0},
        {"beam_size": 2, "length_penalty": 0.0},
        {},
    ),
    "beam_size 4": ({"beam_size": 4, "min_length": 6}, {"beam_size": 4, "min_length": 6}, {}),
    "length_penalty": ({"length_penalty": 2.0}, {"length_penalty": 2.0}, {}),
    "coverage_penalty": ({"coverage_penalty": 0.3}, {"coverage_penalty": 0.3}, {}),
    "max_length": ({"max_length": 4}, {}, {"max_length": 4}),
    "no repeated token": ({"no_repeat_ngram": 1}, {"no_repeat_ngram": 1}, {}),
    "bigrams": ({"no_repeat_ngram": 2}, {"no_repeat_ngram": 2}, {}),
    "trigrams": (
        {"no_repeat_ngram": 3, "beam_size": 3},
        {"no_repeat_ngram": 3, "beam_size": 3},
        {},
    ),
    "repetition_penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}, {}),
    "prefix": ({"prefix": PREFIX}, {}, {"prefix": PREFIX}),
    "suppressed": ({"suppressed": [[EOS, 17]]}, {}, {"suppressed": [[EOS, 17]]}),
    "all": (
        {
            "beam_size": 3,
            "length_penalty": 0.6,
            "coverage_penalty": 0.2,
            "min_length": 5,
            "max_length": 7,
            "no_repeat_ngram": 2,
            "repetition_penalty": 1.2,
            "prefix": PREFIX,
            "suppressed": [[17, PAD], [EOS, 5], [PAD, PAD]],
        },
        {
            "beam_size": 3,
            "length_penalty": 0.6,
            "coverage_penalty": 0.2,
            "min_length": 5,
            "no_repeat_ngram": 2,
            "repetition_penalty": 1.2,
        },
        {"max_length": 7, "prefix": PREFIX, "suppressed": [[17, PAD], [EOS, 5], [PAD, PAD]]},
    ),
}


@pytest.mark.parametrize("options, settings, arguments", BEAMS.values(), ids=BEAMS)
def test_an_option_equals_the_setting_of_the_search(model, beam, options, settings, arguments):
    search = replace(BeamSearch(5), **settings)
    expected = model.generate(SOURCE, search, **{"max_length": T, **arguments})
    assert_equal(beam.run(**options), expected)


def test_suppressed_tokens_equal_forbidden_ones(model, beam):
    tokens = beam.run()["tokens"]
    ids = np.setdiff1d(tokens, [PAD, EOS])[:3].tolist()
    search = BeamSearch(5, forbidden=(0, 2, *ids))
    outputs = beam.run(suppressed=[ids])
    assert_equal(outputs, model.generate(SOURCE, search, T))
    assert not np.isin(outputs["tokens"], ids).any()


def test_an_empty_prefix_and_no_suppressed_token_change_nothing(beam):
    empty = np.zeros((3, 4), "int32")
    outputs, expected = beam.run(prefix=empty, suppressed=empty), beam.run()
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)


def test_one_row_of_constraints_is_for_all_sources(beam):
    one, each = ({"prefix": [[4, 9]] * n, "suppressed": [[17, 5]] * n} for n in (1, 3))
    outputs, expected = beam.run(**one), beam.run(**each)
    assert (outputs["tokens"][:, 0, :2] == [4, 9]).all()
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)


def test_a_beam_has_at_least_one_hypothesis_and_at_most_those_of_the_export(beam):
    for size, limited in ((0, 1), (-1, 1), (6, 5)):
        np.testing.assert_array_equal(
            beam.run(beam_size=size)["tokens"], beam.run(beam_size=limited)["tokens"]
        )


# --- Required phrases -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "required", [REQUIRED, REQUIRED[:1], np.pad(REQUIRED, [[0, 0], [1, 2], [0, 3]])], ids=np.shape
)
def test_required_phrases_are_those_of_the_model(model, beam, required):
    expected = model.generate(SOURCE, BeamSearch(5), T, required=required)
    outputs = beam.run(required=required)
    assert_equal(outputs, expected)
    assert not np.array_equal(beam.run()["tokens"], outputs["tokens"])


def test_padding_requires_nothing(beam):
    outputs, expected = beam.run(required=np.full((3, 2, 4), PAD)), beam.run()
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)


def test_required_phrases_go_with_the_other_options(model, beam):
    constraints = {"prefix": [[4, 9, 7], [7, 0, 0], [0, 0, 0]], "suppressed": [[17, 5]]}
    constraints["required"] = REQUIRED
    settings = {"coverage_penalty": 0.2, "no_repeat_ngram": 2, "repetition_penalty": 1.3}
    settings |= {"min_length": 5, "length_penalty": 0.6}
    for size in (2, 4):
        expected = model.generate(SOURCE, BeamSearch(size, **settings), 8, **constraints)
        outputs = beam.run(beam_size=size, max_length=8, **settings, **constraints)
        assert_equal(outputs, expected)


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(1), Sampling(2)], ids=repr)
def test_a_search_without_a_beam_has_no_required_phrases(search):
    assert "required" not in search_defaults(search, T)
    assert "required" in search_defaults(BeamSearch(2), T)


# --- Shortlists and devices -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def shortlist():
    table = np.random.default_rng(2).integers(4, V, (V, 3))
    return Shortlist(table, np.full(table.shape, 0.3), counts=np.arange(V), size=40)


FEW = BeamSearch(4, 0.6, n_best=2, early_stopping="never")


@pytest.fixture(scope="module")
def few(model, shortlist, tmp_path_factory):
    """A graph that ranks the ids of a shortlist and returns two hypotheses."""
    return Graph(write(model, FEW, tmp_path_factory.mktemp("few") / "model.onnx", shortlist))


def test_prefixes_without_room_in_one_shortlist_are_searched_in_parts(
    few, model, shortlist, tmp_path
):
    _, signature = search_function(model, FEW, T, shortlist, True)
    with publish(tmp_path / "artifact") as folder:
        shutil.copy(few.session._model_path, folder / MODEL_FILE)
        contents = {
            "vocabulary": {"source": V, "target": V},
            "search": {"class": "BeamSearch", **FEW.get_config(), "max_length": T},
            "signatures": {MODEL_FILE: signature.to_json()},
            "shortlist": {"ids": shortlist.size},
        }
        write_manifest(folder, contents)
    translator = Translator(tmp_path / "artifact", threads=1)
    prefix = np.arange(4, 4 + 48, dtype="int32").reshape(6, 8)  # and the shortlist has 40 ids
    outputs = translator.search(np.repeat(SOURCE, 2, axis=0), inputs={"prefix": prefix})
    np.testing.assert_array_equal(outputs["tokens"][:, 0, :8], prefix)
    with pytest.raises(ValueError, match=r"`prefixes` must have at most 36 different tokens .* 48"):
        check_constraints(Constraints(tuple(prefix.flat)), translator.manifest, 99)


def test_a_smaller_beam_returns_at_most_n_best(model, shortlist, few):
    for size in (1, 2, 3, 4):
        smaller = replace(FEW, beam_size=size, n_best=min(2, size))
        expected = model.generate(SOURCE, smaller, T, shortlist=shortlist)
        assert_equal(few.run(beam_size=size), expected)


def test_constraints_of_a_shortlist_are_ids_of_the_whole_vocabulary(model, shortlist, few):
    free = model.generate(SOURCE, FEW, T, shortlist=shortlist)
    assert_equal(few.run(), free)
    suppressed = np.setdiff1d(free.tokens, [PAD, EOS])[:2].tolist()
    expected = model.generate(
        SOURCE, replace(FEW, beam_size=2), T, PREFIX, shortlist, suppressed=[[*suppressed, 4]]
    )
    outputs = few.run(beam_size=2, prefix=PREFIX, suppressed=[[*suppressed, 4]])
    assert_equal(outputs, expected)
    assert outputs["tokens"][0, 0, :3].tolist() == [4, 9, 200]


def test_a_shortlist_contains_the_ids_of_the_phrases(model, shortlist, few):
    required = np.array([[[10, 11], [13, PAD]]])
    expected = model.generate(SOURCE, FEW, T, shortlist=shortlist, required=required)
    assert_equal(few.run(required=required), expected)
    for tokens, length in zip(expected.tokens[:, 0], expected.lengths[:, 0], strict=True):
        text = tokens[:length].tolist()
        assert 13 in text and (10, 11) in itertools.pairwise(text)
    assert not np.isin([10, 11, 13], shortlist.candidates(SOURCE)).all()  # by their source


def test_options_run_on_cuda_alone(beam):
    assert find_fallbacks(onnx_ir.load(beam.session._model_path)) == []


def test_no_loop_returns_logits_from_a_condition(beam):
    """A condition that returned `(R, V)` would copy it at every step."""
    graph = onnx.load(beam.session._model_path).graph
    (loop,) = [node for node in graph.node if node.op_type == "Loop"][-1:]
    body = onnx.helper.get_node_attr_value(loop, "body")
    (condition,) = [node for node in body.node if node.op_type == "If"]
    for name in ("then_branch", "else_branch"):
        branch = onnx.helper.get_node_attr_value(condition, name)
        for value in branch.output:
            assert V not in [size.dim_value for size in value.type.tensor_type.shape.dim]
