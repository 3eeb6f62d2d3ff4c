import numpy as np
import pytest

from keras_bahdanau_runtime.pictures.words import word_alignment, word_places
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

# Tokens, and the words that they are to make; a bar parts tokens.
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
def test_tokens_become_words(tokens, words):
    found = word_places(tokens.split("|"))
    assert " ".join(word for word, _ in found) == words
    places = [place for _, places in found for place in places]
    assert places == list(range(len(tokens.split("|"))))


def test_weights_are_summed_over_the_source_and_averaged_over_the_target():
    alignment = [[0.8, 0.1, 0.1, 0.0], [0.1, 0.6, 0.3, 0.0], [0.0, 0.2, 0.7, 0.1], [0, 0, 0, 1]]
    weights, sources, targets = word_alignment(
        alignment, ["das", " R", "ad", "</s>"], ["the", " bi", "ke", "</s>"]
    )
    assert (sources, targets) == (["das", "Rad", "</s>"], ["the", "bike", "</s>"])
    expected = [[0.8, 0.2, 0.0], [0.05, 0.9, 0.05], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(weights, expected, atol=1e-7)


def test_words_of_a_tokenizer_are_those_of_its_text():
    texts = ["Ein Mädchen (8) klettert.", "2024-01-31", "it's 3.5 km"]
    tokenizer = Tokenizer.train(texts, texts, vocabulary_size=262)
    found = [
        [word for word, _ in word_places(tokens)]
        for text in texts
        for tokens in (
            tokenizer.source_tokens(text),
            tokenizer.target_tokens(tokenizer.encode_target(text)),
        )
    ]
    assert found[0] == ["Ein", "Mädchen", "(", "8", ")", "klettert", ".", "</s>"]
    assert found[2] == ["2024", "-", "01", "-", "31", "</s>"]
    assert found[4] == ["it's", "3.5", "km", "</s>"]
    assert found[0::2] == found[1::2]


def test_refuses_a_shape_that_does_not_fit_the_tokens():
    with pytest.raises(ValueError, match=r"\(1, 2\)\. Received: shape \(2, 1\)"):
        word_alignment([[1.0], [1.0]], ["a", "b"], ["c"])
