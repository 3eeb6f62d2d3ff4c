"""Words of a source that have no target id, numbered so that an output can copy them.

A tokenizer with `copied_words` has that many ids after those of its pieces, on both sides. For each
source text they represent its numbered words, in the order of their first occurrence.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from keras_bahdanau_runtime.ids import UNK
from keras_bahdanau_runtime.text.pieces import spelled_bytes
from keras_bahdanau_runtime.text.tokenizer_schema import raise_panic

MAX_COPIED_WORDS = 1024


class NumberedWords:
    """The words of source texts that have no target id, and their numbers.

    Words of the source vocabulary are equal if their ids are. Unknown words are equal if their
    texts are, without the space before them.

    Args:
        source: `tokenizers.Tokenizer` of the source language, whose pieces are words.
        target: That of the target language. The numbered words of a text have its normalization.
        copied_ids: As `Tokenizer.copied_ids` returns them: `UNK` for a word without a target id.
        limit: Largest number of words of a text that have a number.
    """

    def __init__(self, source: Any, target: Any, copied_ids: Sequence[int], limit: int) -> None:
        self._source, self._target = source, target
        self._copied_ids, self._limit = copied_ids, limit

    def encode(self, text: str, ids: list[int]) -> list[int]:
        """Return the ids of a source text, with those of numbered words instead of `UNK`.

        Args:
            text: The text, without its later columns.
            ids: Its ids. More ids may follow.
        """
        if UNK not in ids:
            return ids
        words, first = self._identified(text), len(self._copied_ids) - self._limit
        numbers = self._numbers(words)
        numbered = [
            first + numbers[word] if isinstance(word, str) and word in numbers else index
            for index, word in zip(ids, words, strict=False)
        ]
        return numbered + ids[len(words) :]

    def of_text(self, text: str) -> list[str]:
        """Return the numbered words of a source text, without its later columns, in their order."""
        words = [
            word if isinstance(word, str) else _word(self._source.id_to_token(word))
            for word in self._numbers(self._identified(text))
        ]
        normalizer = self._target.normalizer
        if normalizer is None:
            return words
        return [normalizer.normalize_str(word).removeprefix(" ") for word in words]

    def _identified(self, text: str) -> list[int | str | None]:
        """Return for each word its id, its text if it is unknown, `None` if it has a target id."""
        words: list[int | str | None] = []
        for piece in _split(self._source, text):
            index = self._source.token_to_id(piece)
            if index is None:
                words.append(_word(piece))
            else:
                words.append(index if self._copied_ids[index] == UNK else None)
        return words

    def _numbers(self, words: Sequence[int | str | None]) -> dict[int | str, int]:
        distinct = dict.fromkeys(word for word in words if word is not None)
        return {word: number for number, word in enumerate(islice(distinct, self._limit))}


def encode_numbered(
    target: Any, text: str, ids: list[int], words: Sequence[str], first_id: int
) -> list[int]:
    """Return the ids of a target text, with those of numbered words instead of `UNK`.

    Args:
        target: `tokenizers.Tokenizer` of the target language.
        text: The text.
        ids: Its ids.
        words: The numbered words of its source.
        first_id: The id of the first of them.
    """
    if not words or UNK not in ids:
        return ids
    numbers: dict[str, int] = {}
    for number, word in enumerate(words):
        numbers.setdefault(word, first_id + number)  # two source pieces may be the same word
    pieces = _split(target, text)
    numbered = [
        numbers.get(_word(piece), UNK) if index == UNK else index
        for index, piece in zip(ids, pieces, strict=False)
    ]
    return numbered + ids[len(pieces) :]


def _split(side: Any, text: str) -> list[str]:
    """Return the words of a text in the spelling of the vocabulary."""
    try:
        if side.normalizer is not None:
            text = side.normalizer.normalize_str(text)
        return [piece for piece, _ in side.pre_tokenizer.pre_tokenize_str(text)]
    except BaseException as error:
        raise_panic(error)


def _word(piece: str) -> str:
    """Return the text of a piece without the space before it."""
    return spelled_bytes(piece).decode("utf-8").removeprefix(" ")
