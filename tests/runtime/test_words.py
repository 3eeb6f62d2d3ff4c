import numpy as np
import pytest

from keras_bahdanau_runtime.pictures.words import (
    group_into_words,
    readable_alignment,
    word_alignment,
)
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

# Tokens, separated by bars, and the words that they form.
CASES = {
    "pieces": ("a| wood|en| play|ho|use| |.", "a wooden playhouse ."),
    "first piece of a target is empty": ("|1|9|9|4|-|0|3", "1994 - 03"),
    "apostrophe": ("don|'|t| '|a|'", "don't ' a '"),
    "numbers": ("1|,|0|0|0|.|5|,| |3|rd", "1,000.5 , 3rd"),
    "points": ("e|.|g|.| a|.|.|.", "e.g . a ..."),
    "a letter of several pieces": ("caf||é| ||日", "café 日"),
    "hindi": ("बत्|ति|याँ| बंद|।", "बत्तियाँ बंद ।"),
    "japanese": ("明かり|を|消|して", "明かり を 消 して"),
    "thai vowel signs": ("ก|ี|น|้ำ", "กี น้ำ"),
    "emoji": ("ok|👩|\u200d|🚀| 👍|🏽", "ok 👩\u200d🚀 👍🏽"),
    "arabic": ("أط|فئ| ال|أنوار", "أطفئ الأنوار"),
    "special": ("a|<unk>|b|</s>", "a <unk> b </s>"),
    "spaces only": (" | ", ""),
}


@pytest.mark.parametrize(("tokens", "words"), CASES.values(), ids=CASES)
def test_tokens_are_joined_to_words(tokens, words):
    result = group_into_words(tokens.split("|"))
    assert " ".join(word for word, _ in result) == words
    places = [place for _, places in result for place in places]
    assert places == list(range(len(tokens.split("|"))))


def test_weights_are_summed_over_source_tokens_and_averaged_over_target_tokens():
    alignment = [[0.8, 0.1, 0.1, 0.0], [0.1, 0.6, 0.3, 0.0], [0.0, 0.2, 0.7, 0.1], [0, 0, 0, 1]]
    weights, sources, targets = word_alignment(
        alignment, ["das", " R", "ad", "</s>"], ["the", " bi", "ke", "</s>"]
    )
    assert (sources, targets) == (["das", "Rad", "</s>"], ["the", "bike", "</s>"])
    expected = [[0.8, 0.2, 0.0], [0.05, 0.9, 0.05], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(weights, expected, atol=1e-7)


@pytest.mark.parametrize(
    ("source", "target", "sides"),
    [
        ("h|i|</s>", "h| ai|</s>", ["h|i|</s>", "h|ai|</s>"]),  # letters, and phonemes
        ("wo|od", "h|o|l|z", ["wo|od", "h|o|l|z"]),
        ("a| wo|od", "ho|lz", ["a| wo|od", "ho|lz"]),
        ("a| wo|od|</s>", "ein| Ho|lz|</s>", ["a|wood|</s>", "ein|Holz|</s>"]),
    ],
)
def test_tokens_are_shown_if_a_side_has_a_single_word(rng, source, target, sides):
    tokens = source.split("|"), target.split("|")
    alignment = rng.dirichlet(np.ones(len(tokens[0])), len(tokens[1]))
    weights, *shown = readable_alignment(alignment, *tokens)
    assert ["|".join(side) for side in shown] == sides
    assert weights.shape == (len(shown[1]), len(shown[0]))
    if weights.shape == alignment.shape:
        np.testing.assert_allclose(weights, alignment, rtol=1e-6)


def test_tokens_of_a_tokenizer_give_the_words_of_its_text():
    texts = ["Ein Mädchen (8) klettert.", "2024-01-31", "it's 3.5 km"]
    tokenizer = Tokenizer.train(texts, texts, vocabulary_size=262)
    expected = [
        ["Ein", "Mädchen", "(", "8", ")", "klettert", ".", "</s>"],
        ["2024", "-", "01", "-", "31", "</s>"],
        ["it's", "3.5", "km", "</s>"],
    ]
    for text, words in zip(texts, expected, strict=True):
        source = tokenizer.source_tokens(text)
        target = tokenizer.target_tokens(tokenizer.encode_target(text))
        for tokens in (source, target):
            assert [word for word, _ in group_into_words(tokens)] == words


def test_alignment_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(1, 2\)\. Received: shape \(2, 1\)"):
        word_alignment([[1.0], [1.0]], ["a", "b"], ["c"])
