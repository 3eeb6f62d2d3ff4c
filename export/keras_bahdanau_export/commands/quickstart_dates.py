"""Dates as people write them, in many languages: the data of the quickstart, made on the spot.

Every text determines its date. A date is written either with the month's name or with the year
first, so no text leaves the order of day and month to be guessed, and no two of the languages below
give one name to two months (which is why Croatian is absent: its `listopad` is October, the Polish
and the Czech one November).
"""

import datetime
import random
from collections.abc import Iterable
from functools import cache
from types import ModuleType

FIRST_DAY = datetime.date(1900, 1, 1)
LAST_DAY = datetime.date(2100, 12, 31)

# Every day can be written in more ways than this, so that many texts of one day are always found.
TEXTS_PER_DAY = 40

_OWN_FORMATS = ("full", "long", "medium")

# Patterns beside the language's own formats, in the notation of Unicode CLDR.
_DAY_FIRST = ("d MMMM y", "EEEE d MMMM y", "EEE d MMM y")
_DAY_FIRST_COMMA = ("d MMMM y", "EEEE, d MMMM y", "EEE, d MMM y")
_DAY_FIRST_DOT = ("d. MMMM y", "EEEE d. MMMM y", "EEE d. MMM y")
_YEAR_FIRST = ("y-MM-dd", "y/MM/dd")

LOCALES: dict[str, tuple[str, ...]] = {
    "ar": _DAY_FIRST,
    "bg": _DAY_FIRST_COMMA,
    "bn": _DAY_FIRST_COMMA,
    "ca": (),
    "cs": _DAY_FIRST_DOT,
    "da": _DAY_FIRST_DOT,
    "de": ("d. MMMM y", "EEEE, d. MMMM y", "EEE, d. MMM y", "d. MMM y"),
    "el": _DAY_FIRST,
    "en": ("d MMMM y", "EEEE, d MMMM y", "EEE, MMM d, y", "d MMM y", "MMMM d y", *_YEAR_FIRST),
    "es": ("EEE, d 'de' MMM 'de' y", "d 'de' MMMM 'del' y"),
    "et": _DAY_FIRST_DOT,
    "fi": _DAY_FIRST_DOT,
    "fr": (*_DAY_FIRST, "'le' d MMMM y", "'le' EEEE d MMMM y"),
    "he": ("EEEE, d בMMM y",),
    "hi": _DAY_FIRST_COMMA,
    "hu": ("y. MMM d., EEE", *_YEAR_FIRST),
    "id": ("EEEE, d MMMM y", "EEE, d MMM y"),
    "it": _DAY_FIRST,
    "ja": ("y年MM月dd日", "y年M月d日(EEE)", "y/M/d", *_YEAR_FIRST),
    "ko": ("y년 M월 d일 (EEE)", *_YEAR_FIRST),
    "lt": _YEAR_FIRST,
    "nb": _DAY_FIRST_DOT,
    "nl": _DAY_FIRST,
    "pl": _DAY_FIRST_COMMA,
    "pt": ("EEE, d 'de' MMM 'de' y", "d MMMM y"),
    "ro": _DAY_FIRST_COMMA,
    "ru": _DAY_FIRST_COMMA,
    "sv": (*_DAY_FIRST, "'den' d MMMM y", *_YEAR_FIRST),
    "th": ("EEEE d MMMM y", "d MMMM y"),
    "tr": ("d MMMM y, EEEE", "d MMMM y EEE"),
    "uk": _DAY_FIRST_COMMA,
    "vi": ("'ngày' d MMMM 'năm' y", "EEEE, 'ngày' d MMMM 'năm' y"),
    "zh": ("y年MM月dd日", "y年M月d日 EEEE", "y/M/d", *_YEAR_FIRST),
}


def date_pairs(count: int, seed: int, exclude: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Draws unique pairs of a date as people write it and its ISO form.

    Days are drawn uniformly from 1900 to 2100, languages and then their formats uniformly too. The
    same arguments give the same pairs.

    Args:
        count: How many pairs, at most 40 for each day that is not excluded.
        seed: Where the random numbers start.
        exclude: ISO dates that must not be drawn.

    Returns:
        A list of `(text, iso)`, for example `("5 mars 2024", "2024-03-05")`.
    """
    return _draw(count, random.Random(seed), set(exclude))


def split_dates(
    train: int, validation: int, test: int, seed: int = 0
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Draws three lists of pairs that share no date, and so no text.

    The test pairs are drawn first: they stay the same however many the others are.

    Args:
        train: How many pairs to train on.
        validation: How many pairs to validate with.
        test: How many pairs to test with.
        seed: Where the random numbers start.

    Returns:
        `(train, validation, test)`, each as `date_pairs` gives them.
    """
    generator = random.Random(seed)
    test_pairs = _draw(test, generator, set())
    taken = {iso for _, iso in test_pairs}
    validation_pairs = _draw(validation, generator, taken)
    taken |= {iso for _, iso in validation_pairs}
    return _draw(train, generator, taken), validation_pairs, test_pairs


def date_texts(day: datetime.date) -> set[str]:
    """All the ways in which `date_pairs` may write one day."""
    return {_write(day, pattern, locale) for locale in LOCALES for pattern in _patterns(locale)}


def _draw(count: int, generator: random.Random, exclude: set[str]) -> list[tuple[str, str]]:
    first, last = FIRST_DAY.toordinal(), LAST_DAY.toordinal()
    days = [
        day
        for day in map(datetime.date.fromordinal, range(first, last + 1))
        if day.isoformat() not in exclude
    ]
    if not 0 <= count <= TEXTS_PER_DAY * len(days):
        raise ValueError(
            f"count must be between 0 and {TEXTS_PER_DAY * len(days)}, {TEXTS_PER_DAY} texts for "
            f"each of the {len(days)} days that may be drawn. Received: count={count}"
        )
    locales = sorted(LOCALES)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        day, locale = generator.choice(days), generator.choice(locales)
        pairs[_write(day, generator.choice(_patterns(locale)), locale)] = day.isoformat()
    return list(pairs.items())


@cache
def _patterns(locale: str) -> tuple[str, ...]:
    """The locale's patterns that leave no doubt about the order, each once."""
    own = (_babel_dates().get_date_format(f, locale=locale).pattern for f in _OWN_FORMATS)
    return tuple(dict.fromkeys(p for p in (*own, *LOCALES[locale]) if _is_unambiguous(p)))


def _is_unambiguous(pattern: str) -> bool:
    return "MMM" in pattern or pattern.startswith("y")


def _write(day: datetime.date, pattern: str, locale: str) -> str:
    text: str = _babel_dates().format_date(day, pattern, locale=locale)
    return " ".join(
        text.split()
    )  # people type plain spaces where CLDR has narrow, unbreakable ones


def _babel_dates() -> ModuleType:
    try:
        import babel.dates
    except ImportError as error:
        raise ImportError(
            "Writing dates in many languages needs babel. "
            'Install it with: pip install "keras-bahdanau[cli]"'
        ) from error
    return babel.dates
