"""Options of the preparation of a corpus."""

import os
from dataclasses import dataclass

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import check_options, option
from keras_bahdanau_runtime.text.copied_words import MAX_COPIED_WORDS
from keras_bahdanau_runtime.text.tokenizer import (
    KINDS,
    MIN_VOCABULARY_SIZE,
    NORMALIZATIONS,
    Tokenizer,
)
from keras_bahdanau_runtime.text.tokenizer_schema import MAX_VOCABULARY_SIZE

AUTO = "auto"
NO_NORMALIZATION = "none"
WORD_KINDS = ("words", "symbols")  # whose unknown words can be copied
DEFAULT_COPIED_WORDS = 16  # of a model that copies
_SIDES = ("source_tokenizer", "target_tokenizer")
_TOKENIZERS = ("tokenizer", *_SIDES)
# Options of pieces to learn.
_LEARNED = ("vocabulary_size", "joint", "normalization", "copied_words")
TOKENIZER_OPTIONS = (*_LEARNED, *_TOKENIZERS)


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Options of the tokenizer of a corpus: for each side a file, or options of one to learn.

    Options that are `None`, and a `tokenizer` that is "auto", are chosen from the pairs; see
    `choose_tokenizer`.

    Raises:
        ValueError: A value has another type than its field or is outside its limits, or options
            contradict each other.
    """

    tokenizer: str = option(
        AUTO,
        "Kind of pieces to learn: bpe, words, characters, symbols (between spaces) or bytes; auto: "
        "chosen for each side from its texts; or a file: a tokenizer.json of this package or of "
        "Hugging Face, or a .model of SentencePiece.",
        panel="Data",
    )
    source_tokenizer: str | None = option(
        None, "Kind or file for the sources; that of --tokenizer if absent.", panel="Data"
    )
    target_tokenizer: str | None = option(
        None, "Kind or file for the translations; that of --tokenizer if absent.", panel="Data"
    )
    vocabulary_size: int | None = option(
        None,
        "Maximum number of pieces to learn; chosen from the number of words if absent.",
        limits={"low": MIN_VOCABULARY_SIZE, "high": MAX_VOCABULARY_SIZE},
        panel="Data",
    )
    joint: bool | None = option(
        None,
        "One vocabulary for both languages, or two. If absent: one for byte pairs on both sides, "
        "else two.",
        flags="--joint/--separate",
        panel="Data",
    )
    normalization: str | None = option(
        None,
        "Unicode form that the tokenizer converts all text to: none, nfc or nfkc; or nfd for "
        "sources and nfc for translations, which needs --separate. If absent: nfd for sources of "
        "composed characters such as Hangul, else none.",
        choices=(NO_NORMALIZATION, *NORMALIZATIONS),
        panel="Data",
    )
    copied_words: int | None = option(
        None,
        "Maximum number of different words of a source that can be copied although they are not in "
        f"the vocabularies, for words and symbols on both sides. If absent: {DEFAULT_COPIED_WORDS} "
        "for a run with --copy, else 0.",
        limits={"low": 0, "high": MAX_COPIED_WORDS},
        panel="Data",
    )

    def __post_init__(self) -> None:
        for name in _TOKENIZERS:
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        check_options(self)
        if not self.learns:
            self.check_left_out(_LEARNED, f"the tokenizer {self.sides[0]}")
        elif {"bytes"} == {side for side in self.sides if is_learned(side)}:
            self.check_left_out(("vocabulary_size",), "`tokenizer` bytes")
        other_kinds = [side for side in self.sides if side in KINDS and side not in WORD_KINDS]
        if self.copied_words and other_kinds:
            raise argument_error(
                "copied_words",
                f"be 0 or left out for `tokenizer` {other_kinds[0]}, because only words and "
                "symbols can be unknown",
                self.copied_words,
            )
        if self.joint and self.normalization == "nfd":
            raise argument_error("joint", "be False for nfd, the form of sources", received="True")
        source, target = self.sides
        is_open = AUTO in self.sides and all(map(is_learned, self.sides))
        if self.joint and source != target and not is_open:
            raise argument_error(
                "joint",
                "be False for sides with different tokenizers",
                received=f"True, for {source} and {target}",
            )

    def check_left_out(self, names: tuple[str, ...], owner: str) -> None:
        """Raise a `ValueError` for the first option that has a value."""
        for name in names:
            value = getattr(self, name)
            if value not in (None, AUTO):
                raise argument_error(name, f"be left out for {owner}", value)

    @property
    def sides(self) -> tuple[str, str]:
        """Kind or file of the tokenizer of sources and of targets; "auto" if it is chosen."""
        return self.source_tokenizer or self.tokenizer, self.target_tokenizer or self.tokenizer

    @property
    def learns(self) -> bool:
        """Whether the pieces of a side are learned."""
        return any(map(is_learned, self.sides))

    @property
    def is_open(self) -> bool:
        """Whether the texts must be read to choose an option."""
        needs_size = not {"bpe", "words"}.isdisjoint(self.sides)
        return (
            AUTO in self.sides
            or None in (self.joint, self.normalization)
            or (needs_size and self.vocabulary_size is None)
        )

    def load_sides(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """Load the tokenizer of each side; `None` for a side whose pieces are learned.

        Raises:
            ValueError: As `Tokenizer.load`.
            OSError: A file cannot be read.
        """
        source, target = self.sides
        first = None if is_learned(source) else Tokenizer.load(source)
        if target == source:
            return first, first
        return first, None if is_learned(target) else Tokenizer.load(target)


def is_learned(tokenizer: str) -> bool:
    """Return whether an option names pieces to learn, and not a file."""
    return tokenizer in (AUTO, *KINDS)


def join_sides(source: Tokenizer, target: Tokenizer, copied_words: int = 0) -> Tokenizer:
    """Return a tokenizer with the sources of one and the targets of another, maybe the same.

    Args:
        source: A `Tokenizer`.
        target: A `Tokenizer`.
        copied_words: Those of the joined one, if the two are not the same.
    """
    return source if source is target else Tokenizer.combine(source, target, copied_words)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(TokenizerOptions):
    """Options of `prepare`.

    Rules of `filter` drop pairs. A pair is counted for the first rule that it breaks, and the
    counts are in the manifest as `filtered`. Lengths are in characters, without spaces at both
    ends:

    - "length=3:500": each side has 3 to 500 characters; "length=500" has no minimum.
    - "ratio=3": the longer side has at most 3 times the characters of the shorter one.
    - "identical": drop pairs with two equal sides.
    - "duplicate": drop all but the first of equal pairs. It needs about 100 bytes of memory for
      each different pair.
    - "script=latin:cyrillic": drop pairs if most letters of the source are not Latin, or most of
      the target not Cyrillic.

    With `too_long="cut"` the last id of a cut sequence stays the last. The numbers of cut and of
    dropped pairs are logged. With fewer than 100,000 pairs, only this process encodes unless
    `processes` is given.

    Raises:
        ValueError: A value has another type than its field, or is outside its limits.

    Example:

    >>> PrepareOptions(vocabulary_size=300, normalization="nfc").too_long
    'cut'
    """

    filter: tuple[str, ...] = option(
        (),
        "Drop and count pairs: length=MIN:MAX in characters, ratio=LIMIT of the lengths, identical "
        "sides, duplicate pairs, or other scripts than script=SOURCE:TARGET, such as "
        "script=latin:cyrillic. May be repeated.",
        metavar="RULE",
        panel="Data",
    )
    sample: int = option(
        100_000,
        "Number of pairs that the pieces are learned from.",
        limits={"low": 1},
        panel="Data",
    )
    max_length: int | None = option(
        None,
        "Maximum tokens of a sentence; no limit by default.",
        limits={"low": 2},
        panel="Data",
    )
    too_long: str = option(
        "cut",
        "What to do with a pair above that limit: cut or drop.",
        choices=("cut", "drop"),
        panel="Data",
    )
    shard_pairs: int = option(
        250_000, "Approximate number of pairs in a shard.", limits={"low": 1}, panel="System"
    )
    seed: int = option(0, "Seed of the sample and the order.", limits={"low": 0}, panel="System")
    processes: int | None = option(
        None,
        "Number of encoding processes; one per core by default.",
        limits={"low": 1},
        panel="System",
    )
