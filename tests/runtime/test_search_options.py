"""Options of a search for one call, and constraints on single texts."""

import dataclasses
import functools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau_runtime import SearchOptions, Tokenizer, UnsupportedArtifactError
from keras_bahdanau_runtime.ids import UNK
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_options import (
    Constraints,
    check_constraints,
    check_prefix,
    check_room,
    constraint_inputs,
    encode_constraints,
    require_options,
    text_constraints,
)
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.signature import MODEL_FILE, OPTIONS, SAMPLE, TRANSLATE
from keras_bahdanau_runtime.text.tokenizer import KINDS

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
        search=ManifestSearch.from_json(search),
        packages={},
        parity={},
        other={},
    )


BEAM_MANIFEST = manifest(BEAM, [name for name in OPTIONS if name not in SAMPLING])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"beam_size": 6}, "`beam_size` must be an int of at least 1 and at most 5. Received: 6"),
        ({"max_length": 21}, "`max_length` must be an int of at least 1 and at most 20"),
        ({"min_length": 2.0}, "`min_length` must be an int of at least 0 and at most 20"),
        ({"min_length": 9, "max_length": 8}, "`min_length` must be at most `max_length`, 8."),
        ({"max_length": 1}, "`min_length` must be at most `max_length`, 1. Received: 2"),
    ],
)
def test_a_wrong_option_is_named_with_its_range(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SearchOptions(**values).check(BEAM_MANIFEST)


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


def outputs(constraints):
    """The ids of every output that follows a prefix or one of its completions."""
    return [
        constraints.prefix,
        *((*constraints.prefix[:at], index) for at, index in constraints.completions),
    ]


FILES = Path(__file__).resolve().parents[1] / "files" / "sentencepiece"
LINE = "ein Mann ein Manns café café naïve ein Rad 日本 日本 Fahrrad Fahrrad 12 !"
TOKENIZERS = {
    **{kind: functools.partial(Tokenizer.train, [LINE], [LINE], 320, kind=kind) for kind in KINDS},
    "nfc words": functools.partial(
        Tokenizer.train, [LINE], [LINE], kind="words", normalization="nfc"
    ),
    "nfkc": functools.partial(Tokenizer.train, [LINE], [LINE], 320, normalization="nfkc"),
    "no marks": functools.partial(Tokenizer.from_pieces, sorted({*LINE.split(" ")})),
    **{
        path.stem: functools.partial(Tokenizer.load, path) for path in sorted(FILES.glob("*.model"))
    },
}


@pytest.fixture(scope="module", params=TOKENIZERS.values(), ids=TOKENIZERS)
def each_tokenizer(request):
    return request.param()


@pytest.fixture(scope="module")
def words():
    return TOKENIZERS["words"](min_frequency=1)


TEXTS = st.text(st.sampled_from("ein MaRdcfé日 本ï!\n\u0301\ufb01\u2581<unk>the dog"), min_size=1)


@given(text=TEXTS)
def test_every_output_after_a_prefix_starts_with_its_text(each_tokenizer, text):
    try:
        constraints = encode_constraints(each_tokenizer, text)
    except ValueError as error:
        assert "`prefixes` must hold text that the tokenizer can spell exactly" in str(error)
        return
    for ids in outputs(constraints):
        # A completion may end within the next character.
        assert each_tokenizer.decode(ids).removesuffix("\ufffd").startswith(text)
        assert UNK not in ids


@given(text=TEXTS, others=st.lists(st.integers(4, 13), max_size=3))
def test_every_output_with_the_tokens_of_a_phrase_contains_its_text(each_tokenizer, text, others):
    try:
        [ids] = encode_constraints(each_tokenizer, required=[text]).required
    except ValueError as error:
        assert "spell exactly" in str(error) or "blank" in str(error)
        return
    assert UNK not in ids
    assert text in each_tokenizer.decode([*others, *ids, *others])


@pytest.mark.parametrize(
    "prefix, pieces, completions",
    [
        ("ein Ma", ["ein", " Mann"], [(1, " Manns")]),
        ("ein Mann", ["ein", " Mann"], [(1, " Manns")]),
        ("R", ["Rad"], []),
        ("Mann Ra", ["Mann", " Rad"], []),
    ],
)
def test_a_word_that_is_cut_off_is_completed(words, prefix, pieces, completions):
    constraints = encode_constraints(words, prefix)
    assert words.target_decoder().tokens(constraints.prefix) == pieces
    received = [(at, words.target_piece(index).decode()) for at, index in constraints.completions]
    assert received == completions


def test_any_word_follows_a_space(words):
    constraints = encode_constraints(words, "ein ")
    starting = words.target_ids_starting_with(b" ")
    assert len(constraints.prefix) == 2 and len(starting) > 5
    assert {constraints.prefix[1], *(i for _, i in constraints.completions)} == {*starting}


def test_a_completion_that_is_suppressed_does_not_complete_a_word(words):
    constraints = encode_constraints(words, "ein Ma", ["Mann"])
    assert words.target_decoder().tokens(constraints.prefix) == ["ein", " Manns"]
    assert constraints.completions == ()
    with pytest.raises(ValueError, match="'R', which it spells '<unk>'"):
        encode_constraints(words, "R", ["Rad"])


@pytest.mark.parametrize("text", ["Hund", "ein Mannx", "ein\tMann", "</s>", "<unk>", " "])
def test_text_with_unknown_pieces_is_refused(words, text):
    with pytest.raises(ValueError, match=r"`prefixes` must hold .* exactly\. .* which it spells"):
        encode_constraints(words, text)
    with pytest.raises(ValueError, match=r"`required` must (hold|have no blank)"):
        encode_constraints(words, required=[text])


def test_a_decomposed_character_is_shown_by_its_code_points():
    with pytest.raises(ValueError, match=r"Received: 'cafe\\u0301', which it spells 'caf\\xe9'"):
        encode_constraints(TOKENIZERS["nfc words"](), "cafe\u0301")


def test_a_prefix_of_split_text_is_split():
    split = Tokenizer.from_pieces(["Fuß@@", "ball", "ist"])
    assert encode_constraints(split, "Fuß@@ ball", required=["ist"]).prefix == (4, 5)
    assert encode_constraints(split, "Fu").prefix == (4,)
    with pytest.raises(ValueError, match="'Fußball', which it spells '<unk>'"):
        encode_constraints(split, "Fußball")


def test_a_prefix_that_ends_inside_of_a_mark_is_not_completed_with_the_mark():
    split = Tokenizer.from_pieces(["Ma@@", "nn", "a@b"])
    with pytest.raises(ValueError, match="'Ma@', which it spells '<unk>'"):
        encode_constraints(split, "Ma@")
    assert encode_constraints(split, "Ma@@").prefix == (4,)
    assert encode_constraints(split, "a@").prefix == (6,)


def test_padding_is_never_chosen_and_so_not_suppressed(tokenizer):
    assert encode_constraints(tokenizer, suppressed=[0, 5]).suppressed == (5,)


def test_an_error_of_one_text_may_be_kept_for_it(words):
    arguments = words, ["a", "b"], ["ein", "Hund"]
    with pytest.raises(ValueError, match="'Hund'"):
        text_constraints(*arguments)
    constraints = text_constraints(*arguments, on_error="keep")
    assert words.decode(constraints(0).prefix) == "ein"
    with pytest.raises(ValueError, match="'Hund'"):
        constraints(1)


@given(text=st.sampled_from(["ein Mann", "ein Manns", "café naïve", "日本 Rad"]), data=st.data())
def test_a_prefix_can_continue_with_the_tokens_of_a_text_that_starts_with_it(tokenizer, text, data):
    *words, _ = tokenizer.encode_target(text)
    prefix = text[: data.draw(st.integers(1, len(text)))]
    assert any(
        tuple(words[: len(ids)]) == ids for ids in outputs(encode_constraints(tokenizer, prefix))
    )


def test_completions_of_a_prefix_within_a_word(tokenizer):
    constraints = encode_constraints(tokenizer, "ein Man")
    assert tokenizer.target_decoder().tokens(constraints.prefix) == ["ein", " Ma", "n"]
    pieces = {(at, tokenizer.target_piece(index)) for at, index in constraints.completions}
    # The last one ends within the third character of "naïve".
    assert pieces == {(1, b" Mann"), (1, b" Manns"), (2, b"nn"), (2, b"na\xc3")}


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
    with pytest.raises(ValueError, match=r"`prefixes` must be a str\. Received: 5"):
        text_constraints(tokenizer, ["a"], [5])


def test_texts_have_their_own_prefix_and_phrases_and_share_suppressed_tokens(tokenizer):
    constraints = text_constraints(
        tokenizer, ["a", "b"], ["caf", None], [7], True, [None, ["ein Mann", "Rad"]]
    )
    assert [constraints(index).suppressed for index in (None, 0, 1)] == [(1, 7)] * 3
    assert constraints(0).prefix == tuple(tokenizer.encode_target("caf")[:-1])
    assert constraints(1).prefix == constraints(None).prefix == ()
    assert constraints(0).required == constraints(None).required == ()
    assert constraints(1).required == tuple(
        tuple(tokenizer.encode_target(phrase)[:-1]) for phrase in ("ein Mann", "Rad")
    )


@pytest.mark.parametrize(
    "required, message",
    [
        (
            [["ein"]],
            "`required` must have one list of str or None for each of 2 texts. Received: 1",
        ),
        ("ein", "`required` must have one list of str or None for each of 2 texts. Received: one"),
        (["ein", None], "`required` must have a list of str for each text. Received: one str"),
        ([[" "], []], "`required` must have no blank phrase. Received: ' '"),
        ([[5], []], "`required` must be a str. Received: 5"),
        ([["ein Mann"], []], "`suppressed`. Received: 'ein Mann', which contains ['Mann']"),
    ],
)
def test_wrong_phrases_are_named(tokenizer, required, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        text_constraints(tokenizer, ["a", "b"], None, ["Mann"], required=required)


def test_phrases_must_fit_the_output_and_need_the_option():
    constraints = Constraints(required=((5, 6), (7,)))
    with pytest.raises(UnsupportedArtifactError, match=r"no input .required.: .*Export it again"):
        require_options(manifest(BEAM, []), constraint_inputs([constraints]))
    with pytest.raises(ValueError, match=r"`required` must have at most 2 tokens.*Received: 3"):
        check_room(constraints, 2)


@pytest.mark.parametrize(
    "prefix, missing",
    [((), 5), ((5,), 4), ((5, 6), 3), ((7, 5, 6), 3), ((5, 6, 7, 8), 1), ((7, 8, 9, 5, 6, 4), 0)],
)
def test_a_prefix_counts_for_required_phrases(prefix, missing):
    constraints = Constraints(prefix, required=((5, 6), (7, 8, 9)))
    limit = len(prefix) + missing
    check_room(constraints, limit)
    if missing:
        with pytest.raises(ValueError, match=rf"at most {missing - 1} tokens .*: {missing}"):
            check_room(constraints, limit - 1)


def test_required_phrases_need_two_hypotheses():
    options = [name for name in OPTIONS if name == "required"]
    constraints = Constraints(required=((5, 6),))
    check_constraints(constraints, manifest(BEAM, options), 20, beam_size=2)
    with pytest.raises(ValueError, match=r"`beam_size` must be at least 2 .* Received: 1"):
        check_constraints(constraints, manifest(BEAM, options), 20, beam_size=1)


def test_suppressed_tokens_are_a_list(tokenizer):
    with pytest.raises(ValueError, match="`suppressed` must be a list of str or int"):
        encode_constraints(tokenizer, None, "Mann")


def test_rows_with_and_without_a_prefix_are_padded():
    row = Constraints((7, 8), ((0, 9), (1, 4)), (5,), ((6, 7, 8), (9,)))
    inputs = constraint_inputs([row, Constraints(), Constraints(required=((5,),))])
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "prefix": [[7, 8], [0, 0], [0, 0]],
        "completions": [[[0, 9], [1, 4]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]],
        "suppressed": [[5], [0], [0]],
        "required": [
            [[6, 7, 8], [9, 0, 0]],
            [[0, 0, 0], [0, 0, 0]],
            [[5, 0, 0], [0, 0, 0]],
        ],
    }
    assert constraint_inputs([Constraints(), Constraints(suppressed=(5,))]).keys() == {"suppressed"}


def test_a_prefix_must_fit_the_output():
    constraints = Constraints(prefix=(5, 6, 7), completions=((1, 8),))
    check_prefix(constraints, 3)
    with pytest.raises(ValueError, match=r"at most 2 tokens each.*Received: 3"):
        check_prefix(constraints, 2)
