"""Probable words after the beginning of a translation."""

import numpy as np
import onnx.parser
import pytest
from copy_artifact import COPY_ENCODER, COPY_STEP, TOKENIZER, make
from onnx import numpy_helper

from keras_bahdanau_runtime import Tokenizer, Translator, UnsupportedArtifactError

IDS = TOKENIZER.get_vocab()
TEXT = "a man on a bike a man on a bike"
# Probabilities of the next token by the previous one. "Ġ" is a space.
BIGRAMS = {
    "<s>": {"Ġa": 0.9, "Ġbike": 0.1},
    "Ġa": {
        "Ġman": 0.5,
        "Ġb": 0.3,
        "Ġdog": 0.1,
        "Ġboat": 0.04,
        "</s>": 0.03,
        ",": 0.02,
        "<s>": 0.01,
    },
    "Ġb": {"oat": 0.6, "ik": 0.4},
    "oat": {"</s>": 0.9, "Ġon": 0.1},
    "Ġman": {"Ġon": 0.8, ",": 0.2},
    ",": {"a": 1.0},
    "a": {"Ġa": 1.0},
    "Ġdog": {"Ã": 1.0},  # "é" is two tokens
    "Ã": {"©": 1.0},
    "©": {"<s>": 0.9, "do": 0.5, "</s>": 0.25},  # the search forbids "<s>"
    "do": {"Ġon": 0.75},
}


def bigram_step():
    """Return a step graph whose log-probabilities depend only on the previous token."""
    table = np.full((290, 290), -30.0, np.float32)
    for previous, following in BIGRAMS.items():
        for token, probability in following.items():
            table[IDS[previous], IDS[token]] = np.log(probability)
    text = COPY_STEP.replace("OneHot (row, size, odds)", "Gather (table, tokens)", 1)
    model = onnx.parser.parse_model(text.replace("<int32", "<float[1] table = {0.0}, int32", 1))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "table"))
    return model


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path = tmp_path_factory.mktemp("alternatives") / "bigram"
    search = {"class": "BeamSearch", "size": 1, "max_length": 9, "forbidden": [IDS["<s>"]]}
    steps = (COPY_ENCODER, bigram_step())
    return Translator(make(path, steps=steps, search=search), "CPUExecutionProvider")


def words(alternatives):
    return [(each.text, round(each.probability, 6)) for each in alternatives]


def test_words_at_the_beginning(translator):
    assert words(translator.alternatives(TEXT, count=2)) == [("a", 0.9), ("bike", 0.1)]


def test_words_after_a_space_are_continued_to_their_end(translator):
    # "boat" is " b" and "oat", or one token. "dogédo" continues after a part of a character.
    expected = [("man", 0.5), ("boat", 0.3 * 0.6 + 0.04), ("dogédo", 0.1 * 0.5)]
    assert words(translator.alternatives(TEXT, "a ", count=4)) == expected


def test_without_a_space_a_sign_and_the_end_are_possible(translator):
    expected = [(" man", 0.5), (" boat", 0.22), (" dogédo", 0.05), ("", 0.03), (",", 0.02)]
    assert words(translator.alternatives(TEXT, "a", count=6)) == expected


def test_all_tokens_of_the_prefix_are_read(translator):
    assert words(translator.alternatives(TEXT, "a man,", count=1)) == [("a", 1.0)]


def test_a_word_has_at_most_eight_tokens(translator, monkeypatch):
    monkeypatch.setattr("keras_bahdanau_runtime.stepper._MAX_WORD_TOKENS", 1)
    [_, second] = translator.alternatives(TEXT, "a ", count=2)
    assert words([second]) == [("b", 0.3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "a"), "`text` must not be blank"),
        ((TEXT, 3), "`prefix` must be a str"),
        ((TEXT, "a" * 3 + "\ud800"), "`prefix` must be a str without lone surrogates"),
        ((TEXT, "a", 0), "`count` must be a positive integer"),
        ((TEXT, "a a a a a a a a a"), "`prefix` must have less than 9 tokens.*Received: 9"),
    ],
)
def test_wrong_arguments_are_named(translator, arguments, message):
    with pytest.raises(ValueError, match=message):
        translator.alternatives(*arguments)


def test_unknown_words_are_no_beginning(tmp_path):
    words = Tokenizer.train([TEXT], [TEXT], kind="words")
    path = make(tmp_path / "words", document=words._document(), steps=(COPY_ENCODER, COPY_STEP))
    translator = Translator(path, "CPUExecutionProvider")
    for prefix in ("a cat", "a m", "a <unk>", "a  "):
        with pytest.raises(ValueError, match=r"`prefix` must hold text .* spell exactly"):
            translator.alternatives(TEXT, prefix)
    with pytest.raises(ValueError, match=r"`prefixes` must hold text .* spell exactly"):
        translator.stream(TEXT, prefix="a cat")
    assert "".join(translator.stream(TEXT, prefix="a m")).startswith("a man")


def test_the_artifact_needs_steps(tmp_path):
    with pytest.raises(UnsupportedArtifactError, match="stepwise=True"):
        Translator(make(tmp_path / "whole"), "CPUExecutionProvider").alternatives(TEXT)
