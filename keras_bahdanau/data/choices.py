"""Options that are chosen from the pairs, each with its reason and the flag that changes it."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

from keras_bahdanau.data.options import (
    AUTO,
    DEFAULT_COPIED_WORDS,
    NO_NORMALIZATION,
    WORD_KINDS,
    TokenizerOptions,
    is_learned,
)
from keras_bahdanau.data.text_statistics import (
    DEFAULT_SIZE,
    MAX_DECOMPOSED,
    MAX_NEW_WORDS,
    MAX_SYMBOLS,
    MIN_SENTENCE,
    MIN_SYMBOLS,
    PIECE_USES,
    VOCABULARY_SIZES,
    PairStatistics,
    Selection,
)
from keras_bahdanau_runtime.option_fields import flag_names

Options = TypeVar("Options", bound=TokenizerOptions)

_SIDES = "source-tokenizer, target-tokenizer"
# The rules of pieces for documentation: options, value and condition, in the order of the rules.
PIECE_RULES = (
    (
        _SIDES,
        "symbols",
        f"a text has at least {MIN_SYMBOLS} words, there are at most {MAX_SYMBOLS:,} different "
        f"words, and at most {MAX_NEW_WORDS:.0%} of the words of further texts are new",
    ),
    (
        _SIDES,
        "bpe",
        f"else, if a text has at least {MIN_SENTENCE} words",
    ),
    (_SIDES, "characters", "else"),
    (
        "vocabulary-size",
        f"{VOCABULARY_SIZES[0]} to {VOCABULARY_SIZES[-1]}",
        f"the largest of these sizes, each twice the one before, with at least {PIECE_USES} words "
        "of the shorter side for each piece",
    ),
    ("joint", "yes", "both sides have byte pairs"),
    (
        "normalization",
        "nfd",
        "source pieces are characters, and decomposition leaves at most "
        f"{MAX_DECOMPOSED:.0%} of the different ones",
    ),
    ("copied-words", str(DEFAULT_COPIED_WORDS), "`--copy`, and words or symbols on both sides"),
)
GIVEN = "given"  # reason of an option that is not chosen


class Choice(NamedTuple):
    """An option of a run and why it has its value.

    Args:
        option: Name of the option.
        value: Its value.
        reason: The reason in words; "given" for an option that the user has set.
        flag: Flag that changes it.
    """

    option: str
    value: Any
    reason: str
    flag: str

    @property
    def is_given(self) -> bool:
        """Whether the user has set the option."""
        return self.reason == GIVEN

    @property
    def text(self) -> str:
        """The value in words."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, int):
            return f"{self.value:,}"
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


def choice_of(options: Any, name: str, selection: Selection) -> Choice:
    """Return the choice of an option: its value if it has one, else that of the selection."""
    value = getattr(options, name)
    if value is not None:
        selection = Selection(value, GIVEN)
    return Choice(name, *selection, _flag(options, name))


def _flag(options: Any, name: str) -> str:
    [field] = [field for field in fields(options) if field.name == name]
    return flag_names(field)[-1]


def choose_tokenizer(options: TokenizerOptions, statistics: PairStatistics) -> list[Choice]:
    """Choose the options of the tokenizer that are open.

    Args:
        options: `TokenizerOptions`.
        statistics: `PairStatistics` of the texts.

    Returns:
        The choice of each option that matters for these texts, in the order of a table. The value
        of a `source_tokenizer` or `target_tokenizer` is a kind or a file.
    """
    choices = []
    statistics_of_sides = {
        "source_tokenizer": statistics.source,
        "target_tokenizer": statistics.target,
    }
    for (name, side), tokenizer in zip(statistics_of_sides.items(), options.sides, strict=True):
        selection = side.kind() if tokenizer == AUTO else Selection(tokenizer, GIVEN)
        choices.append(Choice(name, *selection, _flag(options, name)))
    source, target = (choice.value for choice in choices)
    kinds = [kind for kind in (source, target) if is_learned(kind)]
    if {"bpe", "words"} & set(kinds):
        choices.append(choice_of(options, "vocabulary_size", _size(source, target, statistics)))
    if len(kinds) == 2:
        is_joint = source == target == "bpe"
        reason = "the same byte pairs on both sides" if is_joint else "a vocabulary for each side"
        choices.append(choice_of(options, "joint", Selection(is_joint, reason)))
    if kinds:
        choices.append(choice_of(options, "normalization", _normalization(source, statistics)))
    copies = source in WORD_KINDS and target in WORD_KINDS and getattr(options, "copy", False)
    if copies or options.copied_words is not None:
        selection = Selection(DEFAULT_COPIED_WORDS, "unknown words can be copied")
        choices.append(choice_of(options, "copied_words", selection))
    return choices


def _size(source: str, target: str, statistics: PairStatistics) -> Selection:
    """Return the number of pieces for the side of byte pairs with fewer words."""
    sides = [
        side
        for kind, side in ((source, statistics.source), (target, statistics.target))
        if kind == "bpe"
    ]
    if not sides:
        return Selection(DEFAULT_SIZE, "the most frequent words")
    return min(sides, key=lambda side: side.words).vocabulary_size()


def _normalization(source: str, statistics: PairStatistics) -> Selection:
    side = statistics.source
    if source == "characters" and side.is_composed:
        return Selection(
            "nfd",
            f"{side.distinct_characters:,} different source characters are composed of "
            f"{side.decomposed_characters:,}",
        )
    return Selection(NO_NORMALIZATION, "texts stay as they are")


def apply_choices(options: Options, choices: Sequence[Choice]) -> Options:
    """Return options with the chosen values."""
    values = {choice.option: choice.value for choice in choices}
    sides = values.get("source_tokenizer"), values.get("target_tokenizer")
    if sides[0] is not None and sides[0] == sides[1]:
        values |= {"tokenizer": sides[0], "source_tokenizer": None, "target_tokenizer": None}
    return replace(options, **values)
