"""`Translator` with search options, prefixes and constraints for each text.

The scores of the artifact show the options that its graph received; see `options_graph`.
"""

import pytest
from copy_artifact import COPY_STEPS, TOKENIZER, make, make_with_options

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.errors import UnsupportedArtifactError


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path = make_with_options(tmp_path_factory.mktemp("options") / "artifact", steps=COPY_STEPS)
    return Translator(path, threads=1)


def texts_and_scores(translations):
    return [(translation.text, translation.score) for translation in translations]


def test_options_reach_the_graph_and_only_for_their_call(translator):
    [[best, second]] = translator.translate(["a dog"], n_best=2, length_penalty=2, beam_size=1)
    assert (best.score, second.score) == (-6, 1000)
    [[best, second]] = translator.translate(["a dog"], n_best=2)
    assert (best.score, second.score) == (-3, 2000)


def test_each_text_keeps_its_prefix_in_batches_sorted_by_length(translator):
    texts = ["a", "a dog on a boat", " ", "a bike", "a man on a bike", "a dog"]
    prefixes = ["on", None, "a", "a boat", "a dog on", ""]
    translations = translator.translate(texts, batch_size=2, prefixes=prefixes)
    expected = ["on", "a dog on a boat", "", "a boat", "a dog on a bike", "a dog"]
    assert [translation.text for translation in translations] == expected


def test_suppressed_tokens_of_all_texts(translator):
    dog = TOKENIZER.token_to_id("Ġdog")
    rows = translator.translate(["a", "a man"], n_best=2, suppressed=["dog", 7, 1])
    assert [row[1].score for row in rows] == [2000 + dog + 7 + 1] * 2
    rows = translator.translate(["a", "a man"], n_best=2, disable_unknown=True)
    assert [row[1].score for row in rows] == [2001] * 2


def test_a_stream_of_texts_has_a_prefix_for_each(translator):
    texts, prefixes = ["a man"] * 5, ["on", None, "a boat", "", "on a"]
    stream = translator.translate_stream(iter(texts), window=2, prefixes=prefixes)
    expected = ["on man", "a man", "a boat", "a man", "on a"]
    assert [translation.text for translation in stream] == expected
    stream = translator.translate_stream(iter(texts), window=2, prefixes=[*prefixes, "a"])
    with pytest.raises(ValueError, match=r"`prefixes` must have one .* 5 texts\. Received: 6"):
        list(stream)


def test_a_stream_of_n_best_lists(translator):
    [[best, second]] = translator.translate_stream(["a dog"], n_best=2, beam_size=1)
    assert (best.text, second.score) == ("a dog", 1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 3}, "`beam_size` must be an int of at least 1 and at most 2. Received: 3"),
        ({"beams": 3}, "`beams` must be left out: the options of a search are ['beam_size',"),
        ({"prefixes": ["a", "b"]}, "`prefixes` must have one str or None for each of 1 texts"),
        ({"prefixes": ["a a a a a a"], "max_length": 5}, "`prefixes` must have at most 5 tokens"),
        ({"suppressed": "a"}, "`suppressed` must be a list of str or int. Received: 'a'"),
        ({"suppressed": [290]}, "`suppressed` must be an int of at least 0 and at most 275"),
        ({"required": [["a\ud800"]]}, "`required` must be a str without lone surrogates"),
    ],
)
def test_wrong_options_are_named(translator, options, message):
    with pytest.raises(ValueError) as raised:
        translator.translate(["a dog"], **options)
    assert message in str(raised.value)


def test_options_are_checked_without_texts(translator):
    with pytest.raises(ValueError, match="`beam_size`"):
        translator.translate([], beam_size=3)
    with pytest.raises(UnsupportedArtifactError, match="no input 'required'"):
        translator.translate(["a dog"], required=[["a"]])


def test_a_prefix_that_is_too_long_is_an_error_of_its_text(translator):
    prefixes = ["a a a a", "a dog"]
    translations = translator.translate(
        ["a man", "a man"], prefixes=prefixes, max_length=3, on_error="keep"
    )
    assert "`prefixes` must have at most 3 tokens" in translations[0].error
    assert translations[1].text == "a dog"


def test_an_artifact_without_options_must_be_exported_again(tmp_path):
    old = Translator(make(tmp_path / "old"))
    for options in ({"beam_size": 1}, {"suppressed": ["dog"]}, {"prefixes": ["a"]}):
        with pytest.raises(UnsupportedArtifactError, match="Export it again to set options"):
            old.translate(["a dog"], **options)
    assert old.translate(["a dog"], prefixes=[None], suppressed=[])[0].text == "a dog"


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (None, ["a", " man", " on", " a", " boat"]),
        ("a dog", ["a", " dog", " on", " a", " boat"]),
        # " man" is one token: the step prefers it to " m", "a".
        ("a ma", ["a", " man", " on", " a", " boat"]),
        # No token starts with " bar": the three tokens of "bar" are followed by " boat".
        ("a bar", ["a", " b", "a", "r", " boat"]),
    ],
)
def test_a_streamed_translation_starts_with_its_prefix(translator, prefix, expected):
    assert list(translator.stream("a man on a boat", prefix=prefix)) == expected


def test_a_prefix_of_a_stream_must_fit_the_output(translator):
    with pytest.raises(ValueError, match=r"`prefixes` must have at most 1 tokens.*Received: 2"):
        translator.stream("a man", max_length=1, prefix="a dog")
