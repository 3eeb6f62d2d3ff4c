import sys
import unicodedata

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from keras_bahdanau.data import blocks
from keras_bahdanau.data.blocks import WordCache
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.lists(TEXT.filter(bool), max_size=8).map(" ".join)
LINES = ["a man's bike, isn't it?", "a man on 12 bikes", "é 😀 <s> ein Mann"] * 3


@pytest.fixture(scope="module", params=[None, "nfc", "nfkc", "nfd"])
def tokenizer(request):
    joint = request.param != "nfd"
    return Tokenizer.train(LINES, LINES, 320, joint, normalization=request.param)


@given(texts=st.lists(WORDS | TEXT, max_size=6))
@example(texts=["a  b", " a", "a ", "", " ", "a\tb c", "12 's 't' x2y", "a\u3000b", "\x1c a"])
def test_cache_returns_the_ids_of_the_tokenizer(tokenizer, texts):
    cache = WordCache(tokenizer.source, tokenizer.encode_sources)
    for _ in range(2):
        assert cache(texts) == tokenizer.encode_sources(texts)


def test_characters_that_a_unicode_form_splits_or_joins_do_not_join_words(tokenizer):
    characters = map(chr, range(sys.maxunicode + 1))
    spaced = [c for c in characters if " " in unicodedata.normalize("NFKC", c)]
    marks = ["\u0301", "\u0338", "\u1161", "\u3099"]  # they join the character before them
    assert len(spaced) > 50
    texts = [text for c in [*spaced, *marks] for text in (c, f"a {c} b", f"{c}a {c}b{c} e")]
    assert WordCache(tokenizer.source, tokenizer.encode_sources)(texts) == (
        tokenizer.encode_sources(texts)
    )


def test_each_word_is_encoded_once(tokenizer, monkeypatch):
    encoded_words = []

    def encode(texts):
        encoded_words.extend(texts)
        return tokenizer.encode_sources(texts)

    cache = WordCache(tokenizer.source, encode)
    assert cache(LINES) == tokenizer.encode_sources(LINES)
    assert sorted(encoded_words) == sorted({word for line in LINES for word in line.split()})
    monkeypatch.setattr(blocks, "_MAX_WORDS", len(encoded_words) + 1)
    # The cache is full, so it starts again with these two words.
    assert cache(["two words"]) == tokenizer.encode_sources(["two words"])
    encoded_words.clear()
    cache(["words a man"])
    assert sorted(encoded_words) == ["a", "man"]


def test_tokenizer_with_another_normalizer_encodes_whole_texts(tokenizer):
    other = tokenizers.Tokenizer.from_str(tokenizer.source.to_str())
    other.normalizer = tokenizers.normalizers.Lowercase()
    encode = Tokenizer(other).encode_sources
    assert WordCache(other, encode)(["A Man"]) == encode(["A Man"])
