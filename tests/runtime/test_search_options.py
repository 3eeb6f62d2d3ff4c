"""Options of a search for one call, and constraints on single texts."""

import dataclasses
import re

import numpy as np
import pytest

from keras_bahdanau_runtime import SearchOptions, Tokenizer, UnsupportedArtifactError
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_options import (
    Constraints,
    check_prefix,
    constraint_inputs,
    encode_constraints,
    text_constraints,
)
from keras_bahdanau_runtime.signature import MODEL_FILE, OPTIONS, SAMPLE, TRANSLATE

BEAM = {"class": "BeamSearch", "size": 5, "max_length": 20, "min_length": 2}
SAMPLING = ("temperature", "top_k", "top_p")


def manifest(search, options):
    """A manifest of an artifact with these option inputs."""
    base = SAMPLE if search["class"] == "Sampling" else TRANSLATE
    signature = dataclasses.replace(base, options=tuple(OPTIONS[name] for name in options))
    return Manifest(
        folder="artifact",
        format_version=1,
        files={MODEL_FILE: None},
        signatures={MODEL_FILE: signature.to_json()},
        vocabulary={},
        max_source_length=None,
        search=search,
        packages={},
        parity={},
        other={},
    )


BEAM_MANIFEST = manifest(BEAM, [name for name in OPTIONS if name not in SAMPLING])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"beam_size": 6}, "`beam_size` must be an int of at least 1 and at most 5. Received: 6"),
        ({"beam_size": 0}, "`beam_size` must be an int of at least 1 and at most 5. Received: 0"),
        ({"length_penalty": float("nan")}, "`length_penalty` must be a number of at least 0"),
        ({"coverage_penalty": -1}, "`coverage_penalty` must be a number of at least 0"),
        ({"max_length": 21}, "`max_length` must be an int of at least 1 and at most 20"),
        ({"min_length": 2.0}, "`min_length` must be an int of at least 0 and at most 20"),
        ({"no_repeat_ngram": -1}, "`no_repeat_ngram` must be an int of at least 0"),
        ({"repetition_penalty": 0.5}, "`repetition_penalty` must be a number of at least 1"),
        ({"min_length": 9, "max_length": 8}, "`min_length` must be at most `max_length`, 8."),
        ({"max_length": 1}, "`min_length` must be at most `max_length`, 1. Received: 2"),
    ],
)
def test_a_wrong_option_is_named_with_its_range(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SearchOptions(**values).check(BEAM_MANIFEST)


def test_a_service_may_lower_the_largest_beam():
    SearchOptions(beam_size=3).check(BEAM_MANIFEST, max_beam_size=3)
    with pytest.raises(ValueError, match=r"at most 3\. Received: 4"):
        SearchOptions(beam_size=4).check(BEAM_MANIFEST, max_beam_size=3)


def test_an_unknown_option_is_named():
    with pytest.raises(ValueError, match=r"`beam` must be left out: the options of a search are"):
        SearchOptions.from_values({"beam": 5})


def test_an_older_artifact_must_be_exported_again():
    with pytest.raises(UnsupportedArtifactError, match=r"no input .beam_size.: .*Export it again"):
        SearchOptions(beam_size=2).check(manifest(BEAM, []))


def test_a_search_without_the_option_is_named():
    with pytest.raises(UnsupportedArtifactError, match="a BeamSearch has no such option"):
        SearchOptions(top_k=2).check(BEAM_MANIFEST)


def test_options_become_scalars_of_the_graphs_dtypes():
    inputs = SearchOptions(beam_size=3, length_penalty=1, top_p=0.5).inputs()
    assert {name: (value.shape, value.dtype.name) for name, value in inputs.items()} == {
        "beam_size": ((), "int32"),
        "length_penalty": ((), "float32"),
        "top_p": ((), "float32"),
    }


def test_the_smallest_of_the_length_limits_counts():
    ratio = {**BEAM, "max_length_ratio": 1.5}
    assert SearchOptions().output_limit(manifest(ratio, []), 4) == 6
    assert SearchOptions(max_length=5).output_limit(manifest(ratio, []), 4) == 5
    assert SearchOptions(max_length=5).output_limit(manifest(ratio, []), 2) == 3


@pytest.fixture(scope="module")
def tokenizer():
    text = "ein Mann ein Manns café café naïve ein Rad 日本 日本"
    return Tokenizer.train([text], [text], vocabulary_size=320)


@pytest.mark.parametrize(
    "prefix", ["e", "ein", "ein ", "ein Ma", "ein  M", " ", "caf", "日", "Zz!"]
)
def test_every_continuation_of_a_prefix_starts_with_its_text(tokenizer, prefix):
    constraints = encode_constraints(tokenizer, prefix)
    assert constraints.continuations
    for index in constraints.continuations:
        text = b"".join(map(tokenizer.target_piece, [*constraints.prefix, index]))
        expected = b"".join(map(tokenizer.target_piece, tokenizer.encode_target(prefix)[:-1]))
        assert text.startswith(expected)


def test_a_prefix_may_end_within_a_token(tokenizer):
    constraints = encode_constraints(tokenizer, "ein Ma")
    *_, mann = tokenizer.encode_target("ein Mann")[:-1]
    assert tokenizer.target_piece(mann) == b" Mann" and mann in constraints.continuations
    assert tokenizer.decode(constraints.prefix) == "ein"


def test_no_prefix_constrains_nothing(tokenizer):
    assert encode_constraints(tokenizer, "") == encode_constraints(tokenizer) == Constraints()


def test_a_suppressed_text_is_one_token_with_or_without_a_space(tokenizer):
    pieces = {
        tokenizer.target_piece(i) for i in encode_constraints(tokenizer, None, ["M"]).suppressed
    }
    assert b"M" in pieces and pieces <= {b"M", b" M"}
    assert encode_constraints(tokenizer, None, [7], disable_unknown=True).suppressed == (1, 7)
    with pytest.raises(ValueError, match="'ein Mann', 2 tokens"):
        encode_constraints(tokenizer, None, ["ein Mann"])
    with pytest.raises(ValueError, match="`suppressed` must be an int"):
        encode_constraints(tokenizer, None, [10**6])


def test_each_text_needs_a_prefix(tokenizer):
    with pytest.raises(ValueError, match="each of 2 texts"):
        text_constraints(tokenizer, ["a", "b"], ["x"])
    with pytest.raises(ValueError, match="one str"):
        text_constraints(tokenizer, ["a"], "x")


def test_rows_with_and_without_a_prefix_are_padded():
    inputs = constraint_inputs([Constraints(prefix=(7, 8), suppressed=(5,)), Constraints()])
    np.testing.assert_array_equal(inputs["prefix"], [[7, 8], [0, 0]])
    np.testing.assert_array_equal(inputs["suppressed"], [[5], [0]])
    assert inputs.keys() == {"prefix", "suppressed"}


def test_a_prefix_must_fit_the_output():
    constraints = Constraints(prefix=(5, 6), continuations=(7,))
    check_prefix(constraints, 3)
    with pytest.raises(ValueError, match=r"at most 2 tokens each.*Received: 3"):
        check_prefix(constraints, 2)
