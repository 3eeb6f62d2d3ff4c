"""Rules that drop pairs of sentences, and count them.

| rule                    | drops a pair if                                                       |
|-------------------------|-----------------------------------------------------------------------|
| `length=MIN:MAX`        | a side has fewer or more characters; `length=MAX` has no minimum      |
| `ratio=LIMIT`           | one side has more than this many times the characters of the other    |
| `identical`             | both sides are equal                                                  |
| `duplicate`             | an earlier pair has the same sides                                    |
| `script=SOURCE:TARGET`  | most letters of a side are of another script, such as `latin:cyrillic` |

Spaces at both ends of a side do not count. If a source has several columns, only the first
one counts, except for `duplicate`.
"""

import functools
import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NoReturn

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.text.columns import first_column

# Scripts by name: how the Unicode names of their letters begin.
_SCRIPTS = {
    **{
        name: (f"{name.upper()} ",)
        for name in (
            "arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian",
            "greek", "gujarati", "gurmukhi", "hangul", "hebrew", "kannada", "khmer", "lao", "latin",
            "malayalam", "mongolian", "myanmar", "sinhala", "tamil", "telugu", "thai", "tibetan",
        )
    },
    "han": ("CJK ",),
    "japanese": ("CJK ", "HIRAGANA ", "KATAKANA ", "KATAKANA-HIRAGANA "),
    "korean": ("HANGUL ", "CJK "),
}  # fmt: skip

_Rule = Callable[[str, str], bool]


class PairFilter:
    """Filter of pairs by rules, in the order of the rules.

    Args:
        rules: Sequence of str, as in the table of this module.
        joins_columns: Whether sources have several columns, which are separated by tabs.

    Raises:
        ValueError: A rule is unknown or has an invalid value, or occurs twice.

    Example:

    >>> PairFilter(["length=3:100", "identical"]).broken_rule("Taxi", "Taxi")
    'identical'
    """

    def __init__(self, rules: Sequence[str], joins_columns: bool = False) -> None:
        if isinstance(rules, str) or not all(isinstance(rule, str) for rule in rules):
            raise argument_error("filter", "be a list of str", rules)
        repeated = [rule for rule, count in Counter(rules).items() if count > 1]
        if repeated:
            raise argument_error("filter", "have each rule once", rules)
        self._rules = [(rule, _parse(rule)) for rule in rules]
        self._joins_columns = joins_columns

    def broken_rule(self, source: str, target: str) -> str | None:
        """Return the first rule that drops a pair, or `None`."""
        compared = first_column(source).strip() if self._joins_columns else source.strip()
        source, target = source.strip(), target.strip()
        for name, breaks in self._rules:
            if breaks(source if name == "duplicate" else compared, target):
                return name
        return None


def _parse(rule: str) -> _Rule:
    """Return the function that tells whether a pair breaks a rule."""
    kind, _, value = rule.partition("=")
    if kind == "length":
        return _length(rule, value)
    if kind == "ratio":
        return _ratio(rule, value)
    if kind == "script":
        return _script(rule, value)
    if rule == "identical":
        return lambda source, target: source == target
    if rule == "duplicate":
        return _duplicate()
    _raise(rule, "a rule: length=MIN:MAX, ratio=LIMIT, identical, duplicate or script=NAME:NAME")


def _length(rule: str, value: str) -> _Rule:
    low, _, high = value.rpartition(":")
    try:
        limits = int(low or 0), int(high)
    except ValueError:
        limits = 1, 0
    if not 0 <= limits[0] <= limits[1] or ":" in low:
        _raise(rule, "length=MIN:MAX or length=MAX, such as length=3:500, in characters")

    def breaks(source: str, target: str) -> bool:
        shorter, longer = sorted((len(source), len(target)))
        return shorter < limits[0] or longer > limits[1]

    return breaks


def _ratio(rule: str, value: str) -> _Rule:
    try:
        limit = float(value)
    except ValueError:
        limit = 0.0
    if not 1 <= limit < float("inf"):
        _raise(rule, "ratio=LIMIT with a number from 1, such as ratio=3")

    def breaks(source: str, target: str) -> bool:
        shorter, longer = sorted((len(source), len(target)))
        return longer > limit * shorter

    return breaks


def _duplicate() -> _Rule:
    # Hashes need less memory than texts: about 100 bytes per pair. With 16 bytes, different pairs
    # practically never have the same hash.
    hashes: set[bytes] = set()

    def breaks(source: str, target: str) -> bool:
        text = f"{len(source)} {source}{target}".encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()
        is_known = digest in hashes
        hashes.add(digest)
        return is_known

    return breaks


def _script(rule: str, value: str) -> _Rule:
    names = value.split(":")
    if len(names) != 2 or not _SCRIPTS.keys() >= set(names):
        _raise(rule, f"script=SOURCE:TARGET with names from {', '.join(sorted(_SCRIPTS))}")
    source_script, target_script = (_SCRIPTS[name] for name in names)

    def breaks(source: str, target: str) -> bool:
        return _is_in_other_script(source, source_script) or _is_in_other_script(
            target, target_script
        )

    return breaks


def _is_in_other_script(text: str, script: tuple[str, ...]) -> bool:
    """Return whether most letters of a text are of another script; digits are not letters."""
    own = others = 0
    for character, count in Counter(text).items():
        if _is_letter_of(character, script):
            own += count
        elif character.isalpha():
            others += count
    return others > own


@functools.cache
def _is_letter_of(character: str, script: tuple[str, ...]) -> bool:
    return character.isalpha() and unicodedata.name(character, "").startswith(script)


def _raise(rule: str, expected: str) -> NoReturn:
    raise argument_error("filter", f"be {expected}", rule)
