"""What the matplotlib figures share: input checks, labels, fonts and layout."""

import functools
import logging
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.pictures.words import checked_weights

_STYLES = ("light", "paper")
_GAP = 0.25  # inches between panels, and around them
_BAR = 0.75  # inches of the bar of shades and what is written at it


def check_style(style: str) -> None:
    """Raises a ValueError for a style of pictures that there is not."""
    if style not in _STYLES:
        raise ValueError(f"Argument `style` must be one of {_STYLES}. Received: {style!r}")


def check_suffix(path: str | os.PathLike[str] | IO[bytes] | None) -> None:
    """Raises an error unless matplotlib is there and writes what the ending of a path names.

    Raises:
        ValueError: It names no kind of picture.
        MissingDependencyError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib.backend_bases import FigureCanvasBase

    if not isinstance(path, (str, os.PathLike)):
        return
    kinds, ending = {*FigureCanvasBase.get_supported_filetypes()}, Path(path).suffix
    kinds.discard("pgf")  # which is text for LaTeX, and needs one to be written
    if ending and ending[1:].lower() not in kinds:
        known = ", ".join(f".{kind}" for kind in sorted(kinds))
        raise ValueError(
            f"Argument `path` must end in one of {known}. Received: {os.fspath(path)!r}"
        )


def printable(text: str) -> str:
    """A text as it is drawn: a control character cannot be, and a dollar starts mathematics."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown.replace("$", r"\$")


def label(token: str) -> str:
    """A token as it is written beside a picture, with signs for what would not be seen.

    Example:

    >>> [label(token) for token in (" a", "", "b")]
    ['␣a', '·', 'b']
    """
    return printable(token).replace(" ", "\N{OPEN BOX}") or "\N{MIDDLE DOT}"


def arrange_and_save(
    figure: Any,
    panels: Sequence[Any],
    sizes: Sequence[tuple[float, float]],
    columns: int,
    scale: str | None,
    path: str | os.PathLike[str] | IO[bytes] | None,
) -> None:
    """Gives every panel its place and the figure its size, and writes it.

    Args:
        figure: The matplotlib figure.
        panels: Its axes, each with an image.
        sizes: Width and height in inches of each image, without what is written around it.
        columns: Most panels in a row.
        scale: What a bar of shades at the right is of; `None` for no bar.
        path: Where to write the figure, a path or an open file; `None` to write nothing.
    """
    with warnings.catch_warnings():
        # What no font holds is in the log, once and with what to do.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        around = [_measure(axes, *size) for axes, size in zip(panels, sizes, strict=True)]
        places, width, height = _places(sizes, around, columns)
        tall = min(4.0, max(1.2, sizes[0][1]))  # the bar, with room for what is written at it
        if scale:
            height = max(height, places[0][1] + tall + _GAP)
        whole = width + (_BAR if scale else 0.0), height
        figure.set_size_inches(whole)
        for axes, place, size in zip(panels, places, sizes, strict=True):
            axes.set_position(_box(place, size, whole))
        if scale:
            bar = _box((width, places[0][1]), (0.12, tall), whole)
            axes = figure.add_axes(bar)
            figure.colorbar(panels[-1].images[-1], cax=axes).set_label(scale, fontsize=8)
            axes.tick_params(labelsize=8)
        if path is not None:
            ending = Path(path).suffix if isinstance(path, (str, os.PathLike)) else ""
            figure.savefig(path, format=ending.removeprefix(".") or "png")


def _measure(axes: Any, width: float, height: float) -> tuple[float, float, float, float]:
    """Inches of what is written at the left, right, bottom and top of an image of this size."""
    figure = axes.figure
    axes.set_position(_box((0.0, 0.0), (width, height), figure.get_size_inches()))
    inner, outer = axes.get_window_extent(), axes.get_tightbbox()
    dpi = figure.dpi
    left, right = (inner.x0 - outer.x0) / dpi, (outer.x1 - inner.x1) / dpi
    return left, right, (inner.y0 - outer.y0) / dpi, (outer.y1 - inner.y1) / dpi


def _places(
    sizes: Sequence[tuple[float, float]],
    around: Sequence[tuple[float, float, float, float]],
    columns: int,
) -> tuple[list[tuple[float, float]], float, float]:
    """The left upper corner of each image in inches, and the width and height of all."""
    places, width, down = [], 0.0, _GAP
    for first in range(0, len(sizes), columns):
        row = range(first, min(first + columns, len(sizes)))
        above, along = max(around[k][3] for k in row), _GAP
        for k in row:
            left, right = around[k][:2]
            places.append((along + left, down + above))
            along += left + sizes[k][0] + right + _GAP
        width = max(width, along)
        down += above + max(sizes[k][1] + around[k][2] for k in row) + _GAP
    return places, width, down


def _box(
    corner: tuple[float, float], size: tuple[float, float], whole: Sequence[float]
) -> tuple[float, float, float, float]:
    """A box in inches from the left upper corner as matplotlib takes it: parts of the figure."""
    (x, y), (width, height) = corner, size
    return x / whole[0], 1.0 - (y + height) / whole[1], width / whole[0], height / whole[1]


logger = logging.getLogger("keras_bahdanau_runtime")
# What stands behind the script in Unicode's name of a character, as in "OLD ITALIC LETTER A".
_SCRIPT = re.compile(
    r"(.+?) (?:LETTER|CHARACTER|SYLLABLE|SYLLABICS|SIGN|VOWEL|DIGIT|CAPITAL|SMALL)\b"
)
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO")


def font_families(texts: Iterable[str]) -> list[str]:
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


# Weights (Ty, Tx), source tokens, target tokens.
Panel = tuple[ArrayLike, Sequence[str], Sequence[str]]


def checked_panels(
    alignments: Sequence[Panel], titles: Sequence[str] | None = None
) -> list[tuple[NDArray[np.float32], Sequence[str], Sequence[str]]]:
    """Several alignments with their tokens, the weights of each as an array.

    Raises:
        ValueError: If there is no alignment, one has not three parts or a shape that does not fit
            its tokens, or `titles` are not as many.
    """
    for panel in alignments:
        if not isinstance(panel, (tuple, list)) or len(panel) != 3:
            raise ValueError(
                "Argument `alignments` must hold (alignment, source tokens, target tokens) for "
                f"each sentence. Received: {panel!r:.80}"
            )
    panels = [(checked_weights(*panel), *panel[1:]) for panel in alignments]
    if not panels:
        raise ValueError("Argument `alignments` must hold an alignment. Received: none")
    if titles is not None and len(titles) != len(panels):
        raise ValueError(
            f"Argument `titles` must hold a line for each alignment, {len(panels)}. "
            f"Received: {len(titles)}"
        )
    return panels
