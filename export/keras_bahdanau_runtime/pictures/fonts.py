"""Fonts for texts of any script: those installed that hold the characters."""

import functools
import logging
import os
import re
import unicodedata
from collections.abc import Iterable

logger = logging.getLogger("keras_bahdanau_runtime")
# What stands behind the script in Unicode's name of a character, as in "OLD ITALIC LETTER A".
_SCRIPT = re.compile(
    r"(.+?) (?:LETTER|CHARACTER|SYLLABLE|SYLLABICS|SIGN|VOWEL|DIGIT|CAPITAL|SMALL)\b"
)
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO")


def families_for(texts: Iterable[str]) -> list[str]:
    """Families of fonts that together hold the characters of texts, for matplotlib's `family`.

    The configured fonts come first; each further one holds the most of what is still missing.
    Characters that no installed font holds are named in the log, with fonts that do.

    Args:
        texts: What is to be drawn.

    Returns:
        Names of families, at least one.
    """
    from matplotlib import font_manager, rcParams

    missing = {ord(letter) for text in texts for letter in text if letter.isprintable()}
    missing -= {ord(" ")}
    families = list(rcParams["font.family"])
    for family in families:
        own = font_manager.findfont(font_manager.FontProperties(family=[family]))
        missing -= _characters(os.fspath(own))
    if not missing:
        return families
    known = {entry.fname: entry for entry in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - set(known):  # installed since it looked
        _add(path)
    entries = sorted(font_manager.fontManager.ttflist, key=_unlikeness)
    while missing:
        best = max(entries, key=lambda entry: len(missing & _characters(entry.fname)))
        found = missing & _characters(best.fname)
        if not found:
            logger.warning("%s", _advice(missing))
            break
        families.append(best.name)
        missing -= found
    return families


def _advice(missing: Iterable[int]) -> str:
    letters = [chr(code) for code in sorted(missing)]
    wanted = ", ".join(dict.fromkeys(map(_font_for, letters)))
    shown = "".join(letters[:12]) + ("..." if len(letters) > 12 else "")
    return (
        f"No installed font holds {shown!r}, which the picture shows as boxes. Install {wanted} "
        "(Debian's packages: fonts-noto-core, fonts-noto-cjk), or draw the alignment as .html."
    )


def _font_for(letter: str) -> str:
    """A free font that holds the letter, as far as its name tells."""
    name = unicodedata.name(letter, "")
    if name.startswith(_CJK):
        return "Noto Sans CJK"
    if unicodedata.category(letter)[0] == "S":
        return "Noto Emoji" if ord(letter) >= 0x1F000 else "Noto Sans Symbols"
    match = _SCRIPT.match(name)
    script = match[1] if match else name.partition(" ")[0]
    return f"Noto Sans {script.title()}".rstrip()


def _unlikeness(entry: object) -> tuple[bool, ...]:
    """How far a font is from an upright sans serif of ordinary weight; the least comes first."""
    name = getattr(entry, "name", "")
    return (
        getattr(entry, "style", "normal") != "normal",
        getattr(entry, "weight", 400) not in (400, "normal", "regular"),
        "Sans" not in name,
        not name.startswith("Noto"),
    )


def _add(path: str) -> None:
    from matplotlib import font_manager

    try:
        font_manager.fontManager.addfont(path)
    except Exception as error:  # of a broken font, whatever is wrong with it
        logger.info("The font %s cannot be read: %s", path, error)


@functools.cache
def _characters(path: str) -> frozenset[int]:
    """The characters that a font file holds, none if it has no outlines to draw them with."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        # The font of last resort holds a box for every character.
        drawn = font.scalable and not font.family_name.startswith("Last Resort")
        return frozenset(font.get_charmap()) if drawn else frozenset()
    except Exception:  # as above
        return frozenset()
