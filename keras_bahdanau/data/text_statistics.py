"""Statistics of pairs of texts, and the rules that choose the pieces of each side from them."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from keras_bahdanau.data.blocks import Paths, raise_no_pair, read_blocks
from keras_bahdanau_runtime.text.columns import first_column
from keras_bahdanau_runtime.text.parallel import UTF_8_TEXT, TextFormat

SAMPLE_PAIRS = 100_000  # first pairs that are counted
_COPIED_PAIRS = 10_000  # whose characters are compared
_PIECES_OF_WORD = 1.3  # about, of byte pairs
_BLOCK_PAIRS = 10_000  # read at once
MIN_SYMBOLS = 2  # in a text
MAX_SYMBOLS = 1000  # different words of texts of symbols
MAX_NEW_WORDS = 0.02  # share among the words of further texts of symbols
MIN_SENTENCE = 5  # words
PIECE_USES = 30  # words of the texts for each byte-pair piece
VOCABULARY_SIZES = (500, 1000, 2000, 4000, 8000, 16000, 32000)
DEFAULT_SIZE = 8000  # of characters, symbols and words, which texts rarely reach
MAX_DECOMPOSED = 0.5  # share of the characters that decomposition leaves


class Selection(NamedTuple):
    """A value that the texts select, and the reason in words."""

    value: str | int | bool
    reason: str


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of the texts of one side.

    Words are the parts between spaces.

    Args:
        texts: Number of texts.
        words: Number of words.
        distinct_words: Number of different words.
        single_words: Number of words that occur once. Its share of all words estimates the share
            of words in further texts that are new (Good and Turing).
        characters: Number of characters.
        distinct_characters: Number of different characters, without spaces.
        decomposed_characters: The same in Unicode form NFD.
        longest_words: Largest number of words of a text.
        longest_characters: Largest number of characters of a text in Unicode form NFD.
    """

    texts: int
    words: int
    distinct_words: int
    single_words: int
    characters: int
    distinct_characters: int
    decomposed_characters: int
    longest_words: int
    longest_characters: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextStatistics":
        """Count the words and characters of texts."""
        split = [text.split() for text in texts]
        counts = Counter(chain.from_iterable(split))
        characters = set("".join(counts))
        return cls(
            texts=len(texts),
            words=counts.total(),
            distinct_words=len(counts),
            single_words=sum(count == 1 for count in counts.values()),
            characters=sum(map(len, texts)),
            distinct_characters=len(characters),
            decomposed_characters=len(set(_decompose("".join(characters)))),
            longest_words=max(map(len, split), default=0),
            longest_characters=max((len(_decompose(text)) for text in texts), default=0),
        )

    def kind(self) -> Selection:
        """Return the kind of pieces that these texts should be split into.

        The rules, in this order:

        - "symbols" if a text has two words or more, there are at most 1,000 different ones, and at
          most 2 % of the words of further texts are new: phonemes, tags, spelled numbers;
        - "bpe" if a text has at least 5 words: sentences;
        - else "characters": words, names, dates.

        Example:

        >>> TextStatistics.of(["read", "reader", "reads"]).kind().value
        'characters'
        """
        words = self.words / max(self.texts, 1)
        new = self.single_words / max(self.words, 1)
        if words >= MIN_SYMBOLS and self.distinct_words <= MAX_SYMBOLS and new <= MAX_NEW_WORDS:
            return Selection(
                "symbols",
                f"{words:.1f} words in a text, only {self.distinct_words:,} different ones, and "
                f"{new:.1%} of further words are new",
            )
        if words >= MIN_SENTENCE:
            return Selection("bpe", f"sentences of {words:.1f} words")
        length = self.characters / max(self.texts, 1)
        return Selection("characters", f"short texts of {length:.1f} characters")

    def vocabulary_size(self) -> Selection:
        """Return the number of byte-pair pieces: the largest size whose pieces are used often.

        There are at least 30 words for each piece, but at least 500 pieces and at most 32,000.
        """
        size = max(
            (size for size in VOCABULARY_SIZES if size * PIECE_USES <= self.words),
            default=VOCABULARY_SIZES[0],
        )
        return Selection(size, f"{self.words:,} words, about {self.words // size:,} for each piece")

    def length(self, kind: str) -> float:
        """Return the approximate mean number of pieces of a text, with the one at its end."""
        return _pieces(kind, self.words, self.characters) / max(self.texts, 1) + 1

    def longest(self, kind: str) -> int:
        """Return the approximate number of pieces of the longest text, with the one at its end."""
        return math.ceil(_pieces(kind, self.longest_words, self.longest_characters)) + 1

    @property
    def is_composed(self) -> bool:
        """Whether decomposition halves the number of different characters, as for Hangul."""
        return self.decomposed_characters <= MAX_DECOMPOSED * self.distinct_characters


def _copied_share(pairs: Sequence[tuple[str, str]]) -> float:
    """Return the share of the characters of targets that are also in their sources.

    Example:

    >>> _copied_share([("walk", "walked"), ("go", "went")])  # 4 of 10
    0.4
    """
    copied = characters = 0
    for texts in pairs:
        source, target = (Counter("".join(text.split())) for text in texts)
        copied += (source & target).total()
        characters += target.total()
    return copied / max(characters, 1)


def _decompose(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def _pieces(kind: str, words: int, characters: int) -> float:
    number = {"characters": characters, "symbols": words, "words": words}
    return number.get(kind, _PIECES_OF_WORD * words)


@dataclass(frozen=True)
class PairStatistics:
    """Statistics of the first pairs of parallel text.

    Args:
        source: `TextStatistics` of the sources.
        target: `TextStatistics` of the targets.
        is_complete: Whether these are all pairs.
        copied: Share of the characters of the first 10,000 targets that are also in their sources,
            as often as there. Spaces do not count.
    """

    source: TextStatistics
    target: TextStatistics
    is_complete: bool = True
    copied: float = 0.0

    @property
    def pairs(self) -> int:
        """Number of counted pairs."""
        return self.source.texts

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], limit: int = SAMPLE_PAIRS) -> "PairStatistics":
        """Count the first pairs, at most `limit`.

        Example:

        >>> PairStatistics.of([("a", "b"), ("c", "d")], limit=1).pairs
        1
        """
        iterator = iter(pairs)
        sample = list(islice(iterator, limit))
        source, target = ([pair[side] for pair in sample] for side in (0, 1))
        return cls(
            TextStatistics.of(source),
            TextStatistics.of(target),
            is_complete=next(iterator, None) is None,
            copied=_copied_share(sample[:_COPIED_PAIRS]),
        )

    @classmethod
    def read(
        cls,
        sources: Paths,
        targets: Paths | None,
        text_format: TextFormat = UTF_8_TEXT,
        rules: Sequence[str] = (),
    ) -> "PairStatistics":
        """Read and count the first 100,000 pairs of files, with the first column of each source.

        Args:
            sources: Files of sources, or with both sides; see `read_blocks`.
            targets: Files of targets, or `None`.
            text_format: `TextFormat` of the files.
            rules: Rules of a `PairFilter`, which skips pairs.

        Raises:
            ValueError: There is no pair; or as `read_blocks`.
        """
        bad = filtered = 0

        def read_pairs() -> Iterable[tuple[str, str]]:
            nonlocal bad, filtered
            for block in read_blocks(
                sources, targets, None, _BLOCK_PAIRS, False, False, text_format, rules
            ):
                bad += block.bad
                filtered += block.filtered.total()
                texts = block.sources
                if text_format.joins_columns:
                    texts = [first_column(text) for text in texts]
                yield from zip(texts, block.targets, strict=True)

        statistics = cls.of(read_pairs())
        if not statistics.pairs:
            raise_no_pair(filtered > 0, bad)
        return statistics
