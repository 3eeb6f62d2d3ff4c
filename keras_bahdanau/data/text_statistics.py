"""What the pieces of a text are, from the text itself: symbols, characters or byte pairs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from keras_bahdanau_runtime.errors import argument_error

MAX_SYMBOLS = 1000
MAX_NEW_WORDS = 0.02
MIN_SENTENCE = 5
PIECE_USES = 40
VOCABULARY_SIZES = (500, 1000, 2000, 4000, 8000, 16000, 32000)


class Choice(NamedTuple):
    """A chosen value, and the reason in words."""

    value: str | int
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
    """

    texts: int
    words: int
    distinct_words: int
    single_words: int
    characters: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextStatistics":
        """Count the words and characters of texts.

        Raises:
            ValueError: There is no text.
        """
        counts = Counter[str]()
        number = characters = 0
        for text in texts:
            counts.update(text.split())
            number += 1
            characters += len(text)
        if not number:
            raise argument_error("texts", "hold a text", received="none")
        single = sum(count == 1 for count in counts.values())
        return cls(number, counts.total(), len(counts), single, characters)

    def kind(self) -> Choice:
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
        words = self.words / self.texts
        new = self.single_words / max(self.words, 1)
        if words >= 2 and self.distinct_words <= MAX_SYMBOLS and new <= MAX_NEW_WORDS:
            return Choice(
                "symbols",
                f"{words:.1f} words in a text, only {self.distinct_words:,} different ones, of "
                f"which {new:.1%} are new",
            )
        if words >= MIN_SENTENCE:
            return Choice("bpe", f"sentences of {words:.1f} words")
        return Choice("characters", f"short texts of {self.characters / self.texts:.1f} characters")

    def vocabulary_size(self) -> Choice:
        """Return the number of byte-pair pieces: the largest size whose pieces are used often.

        There are at least 40 words for each piece, but at least 500 pieces and at most 32,000.
        """
        size = max(
            (size for size in VOCABULARY_SIZES if size * PIECE_USES <= self.words),
            default=VOCABULARY_SIZES[0],
        )
        return Choice(size, f"{self.words:,} words, about {self.words // size:,} for each piece")
