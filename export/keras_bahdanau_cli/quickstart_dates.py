"""Generated dates as people write them in many languages: the data of the quickstart.

Every text has exactly one date. Texts contain the month's name or begin with the year, so the order
of day and month is never ambiguous. No name means different months in two of the languages. This
excludes Croatian, where `listopad` is October; in Polish and Czech it is November.
"""

import datetime
import random
from collections.abc import Iterable
from functools import cache
from types import ModuleType

from keras_bahdanau_runtime.errors import argument_error

FIRST_DAY = datetime.date(1900, 1, 1)
LAST_DAY = datetime.date(2100, 12, 31)

# Maximum number of texts per day. Every day can be written in more ways, so drawing them ends.
TEXTS_PER_DAY = 40

_OWN_FORMATS = ("full", "long", "medium")

# Patterns in addition to the language's own formats, in the notation of Unicode CLDR.
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
    """Return random, unique pairs of a date as people write it and its ISO form.

    Days from 1900 to 2100, languages, and then the formats of a language are drawn uniformly. The
    same arguments give the same pairs.

    Args:
        count: Number of pairs, at most 40 for each day that is not excluded.
        seed: Seed of the random numbers.
        exclude: ISO dates that must not be drawn.

    Returns:
        A list of `(text, iso)`, for example `("5 mars 2024", "2024-03-05")`.
    """
    return _draw(count, random.Random(seed), set(exclude))


def split_dates(
    train: int, validation: int, test: int, seed: int = 0
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Return three lists of random pairs that have no date in common, and so no text.

    The test pairs are drawn first, so they do not depend on the number of other pairs.

    Args:
        train: Number of training pairs.
        validation: Number of validation pairs.
        test: Number of test pairs.
        seed: Seed of the random numbers.

    Returns:
        `(train, validation, test)`, each as `date_pairs` returns it.
    """
    generator = random.Random(seed)
    test_pairs = _draw(test, generator, set())
    exclude = {iso for _, iso in test_pairs}
    validation_pairs = _draw(validation, generator, exclude)
    exclude |= {iso for _, iso in validation_pairs}
    return _draw(train, generator, exclude), validation_pairs, test_pairs


def date_texts(day: datetime.date) -> set[str]:
    """Return all texts that `date_pairs` can write for one day."""
    return {_write(day, pattern, locale) for locale in LOCALES for pattern in _patterns(locale)}


def _draw(count: int, generator: random.Random, exclude: set[str]) -> list[tuple[str, str]]:
    first, last = FIRST_DAY.toordinal(), LAST_DAY.toordinal()
    days = [
        day
        for day in map(datetime.date.fromordinal, range(first, last + 1))
        if day.isoformat() not in exclude
    ]
    if not 0 <= count <= TEXTS_PER_DAY * len(days):
        raise argument_error(
            "count",
            f"be from 0 to {TEXTS_PER_DAY * len(days)}: {TEXTS_PER_DAY} texts for each of "
            f"{len(days)} days",
            received=str(count),
        )
    locales = sorted(LOCALES)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        day, locale = generator.choice(days), generator.choice(locales)
        pairs[_write(day, generator.choice(_patterns(locale)), locale)] = day.isoformat()
    return list(pairs.items())


@cache
def _patterns(locale: str) -> tuple[str, ...]:
    """Return the unambiguous patterns of a locale, each once."""
    own = (_babel_dates().get_date_format(f, locale=locale).pattern for f in _OWN_FORMATS)
    return tuple(dict.fromkeys(p for p in (*own, *LOCALES[locale]) if _is_unambiguous(p)))


def _is_unambiguous(pattern: str) -> bool:
    return "MMM" in pattern or pattern.startswith("y")


def _write(day: datetime.date, pattern: str, locale: str) -> str:
    text: str = _babel_dates().format_date(day, pattern, locale=locale)
    # People type plain spaces where CLDR has narrow, non-breaking ones.
    return " ".join(text.split())


def _babel_dates() -> ModuleType:
    try:
        import babel.dates
    except ImportError as error:
        raise ImportError(
            "Writing dates in many languages needs babel. "
            'Install it with: pip install "keras-bahdanau[cli]"'
        ) from error
    return babel.dates
