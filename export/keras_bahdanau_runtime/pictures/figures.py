"""Input checks, labels, fonts and layout of the matplotlib figures."""

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

from keras_bahdanau_runtime.errors import argument_error, require
from keras_bahdanau_runtime.pictures.words import checked_weights

logger = logging.getLogger("keras_bahdanau_runtime")

# Weights (Ty, Tx), source tokens, target tokens.
Panel = tuple[ArrayLike, Sequence[str], Sequence[str]]

_STYLES = ("light", "paper")
_GAP = 0.25  # inches between and around panels
_COLORBAR = 0.8  # inches of the color bar and its labels
# The words after the script in the Unicode name of a character, as in "OLD ITALIC LETTER A".
_SCRIPT = re.compile(
    r"(.+?) (?:LETTER|CHARACTER|SYLLABLE|SYLLABICS|SIGN|VOWEL|DIGIT|CAPITAL|SMALL)\b"
)
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO")


def check_style(style: str) -> None:
    """Raise a `ValueError` for an unknown style."""
    if style not in _STYLES:
        raise argument_error("style", f"be one of {_STYLES}", style)


def check_suffix(path: str | os.PathLike[str] | IO[bytes] | None) -> None:
    """Check that matplotlib can write a file with the suffix of `path`.

    Raises:
        ValueError: The suffix is not that of a picture.
        MissingDependencyError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib.backend_bases import FigureCanvasBase

    if not isinstance(path, (str, os.PathLike)):
        return
    kinds, suffix = {*FigureCanvasBase.get_supported_filetypes()}, Path(path).suffix
    kinds.discard("pgf")  # text for LaTeX, which must be installed to write it
    if suffix and suffix[1:].lower() not in kinds:
        supported = ", ".join(f".{kind}" for kind in sorted(kinds))
        raise argument_error("path", f"end in one of {supported}", os.fspath(path))


def checked_panels(
    alignments: Sequence[Panel], titles: Sequence[str] | None = None
) -> list[tuple[NDArray[np.float32], Sequence[str], Sequence[str]]]:
    """Return alignments with their tokens, with the weights of each as an array.

    Raises:
        ValueError: There is no alignment, one does not have three parts or its shape does not match
            its tokens, or `titles` has another length.
    """
    for panel in alignments:
        if not isinstance(panel, (tuple, list)) or len(panel) != 3:
            raise argument_error(
                "alignments",
                "hold (alignment, source tokens, target tokens) for each sentence",
                panel,
            )
    panels = [(checked_weights(*panel), *panel[1:]) for panel in alignments]
    if not panels:
        raise argument_error("alignments", "hold an alignment", received="none")
    if titles is not None and len(titles) != len(panels):
        raise argument_error(
            "titles", f"hold a line for each alignment, {len(panels)}", received=str(len(titles))
        )
    return panels


def printable(text: str) -> str:
    """Escape dollars, which start mathematics, and replace control characters."""
    visible = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return visible.replace("$", r"\$")


def label(token: str) -> str:
    r"""Return the label of a token, with symbols for a space, a tab and an empty token.

    Example:

    >>> [label(token) for token in (" a", "", "b", "\tN")]
    ['␣a', '·', 'b', '⇥N']
    """
    spaces = str.maketrans(" \t", "\N{OPEN BOX}\N{RIGHTWARDS ARROW TO BAR}")
    return printable(token.translate(spaces)) or "\N{MIDDLE DOT}"


def arrange_and_save(
    figure: Any,
    panels: Sequence[Any],
    sizes: Sequence[tuple[float, float]],
    columns: int,
    scale: str | None,
    path: str | os.PathLike[str] | IO[bytes] | None,
) -> None:
    """Set the positions of all panels and the size of the figure, and save it.

    Args:
        figure: The matplotlib figure.
        panels: Its axes, each with an image.
        sizes: Width and height in inches of each image, without labels.
        columns: Largest number of panels in a row.
        scale: Label of a color bar at the right; `None` for no color bar.
        path: Where to save the figure, a path or an open file; `None` to not save it.
    """
    with warnings.catch_warnings():
        # `font_families` logs missing characters once, with advice.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        margins = [_margins(axes, *size) for axes, size in zip(panels, sizes, strict=True)]
        corners, width, height = _arrange(sizes, margins, columns)
        bar_height = min(4.0, max(1.2, sizes[0][1]))
        if scale:
            height = max(height, corners[0][1] + bar_height + _GAP)
        figure_size = width + (_COLORBAR if scale else 0.0), height
        figure.set_size_inches(figure_size)
        for axes, corner, size in zip(panels, corners, sizes, strict=True):
            axes.set_position(_relative_box(corner, size, figure_size))
        if scale:
            bar = _relative_box((width, corners[0][1]), (0.12, bar_height), figure_size)
            axes = figure.add_axes(bar)
            figure.colorbar(panels[-1].images[-1], cax=axes).set_label(scale, fontsize=9)
            axes.tick_params(labelsize=9)
        save_figure(figure, path)


def save_figure(figure: Any, path: str | os.PathLike[str] | IO[bytes] | None) -> None:
    """Save a matplotlib figure in the format of the path's suffix, by default as a PNG.

    Args:
        figure: The matplotlib figure.
        path: Where to save it, a path or an open file; `None` to not save it.
    """
    if path is not None:
        suffix = Path(path).suffix if isinstance(path, (str, os.PathLike)) else ""
        figure.savefig(path, dpi=figure.dpi, format=suffix.removeprefix(".") or "png")


def _margins(axes: Any, width: float, height: float) -> tuple[float, float, float, float]:
    """Measure the labels left, right, below and above an image of this size, in inches."""
    figure = axes.figure
    axes.set_position(_relative_box((0.0, 0.0), (width, height), figure.get_size_inches()))
    inner, outer = axes.get_window_extent(), axes.get_tightbbox()
    dpi = figure.dpi
    left, right = (inner.x0 - outer.x0) / dpi, (outer.x1 - inner.x1) / dpi
    return left, right, (inner.y0 - outer.y0) / dpi, (outer.y1 - inner.y1) / dpi


def _arrange(
    sizes: Sequence[tuple[float, float]],
    margins: Sequence[tuple[float, float, float, float]],
    columns: int,
) -> tuple[list[tuple[float, float]], float, float]:
    """Return the upper left corner of each image in inches, and the total width and height."""
    corners, width, y = [], 0.0, _GAP
    for first in range(0, len(sizes), columns):
        row = range(first, min(first + columns, len(sizes)))
        above, x = max(margins[k][3] for k in row), _GAP
        for k in row:
            left, right = margins[k][:2]
            corners.append((x + left, y + above))
            x += left + sizes[k][0] + right + _GAP
        width = max(width, x)
        y += above + max(sizes[k][1] + margins[k][2] for k in row) + _GAP
    return corners, width, y


def _relative_box(
    corner: tuple[float, float], size: tuple[float, float], figure_size: Sequence[float]
) -> tuple[float, float, float, float]:
    """Convert a box in inches from the upper left corner to matplotlib's figure coordinates."""
    (x, y), (width, height), (total_width, total_height) = corner, size, figure_size
    return (
        x / total_width,
        1.0 - (y + height) / total_height,
        width / total_width,
        height / total_height,
    )


def font_families(texts: Iterable[str]) -> list[str]:
    """Return font families that together have the characters of texts, for matplotlib's `family`.

    The configured fonts come first, followed by the installed fonts with the largest number of
    missing characters. Characters that no installed font has are logged, with fonts to install.

    Args:
        texts: Texts to draw.

    Returns:
        Names of families, at least one.
    """
    from matplotlib import font_manager, rcParams

    missing = {ord(letter) for text in texts for letter in text if letter.isprintable()}
    missing -= {ord(" ")}
    families = list(rcParams["font.family"])
    for family in families:
        file = font_manager.findfont(font_manager.FontProperties(family=[family]))
        missing -= _characters(os.fspath(file))
    if not missing:
        return families
    listed_paths = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - listed_paths:  # installed recently
        _add_font(path)
    entries = sorted(font_manager.fontManager.ttflist, key=_style_distance)
    while missing:
        best = max(entries, key=lambda entry: len(missing & _characters(entry.fname)))
        characters = missing & _characters(best.fname)
        if not characters:
            logger.warning("%s", _advice(missing))
            break
        families.append(best.name)
        missing -= characters
    return families


def _advice(missing: Iterable[int]) -> str:
    letters = [chr(code) for code in sorted(missing)]
    fonts = ", ".join(dict.fromkeys(map(_font_for, letters)))
    sample = "".join(letters[:12]) + ("..." if len(letters) > 12 else "")
    return (
        f"No installed font has {sample!r}, so the picture shows boxes. Install {fonts} "
        "(Debian packages: fonts-noto-core, fonts-noto-cjk), or draw the alignment as .html."
    )


def _font_for(letter: str) -> str:
    """Return the name of a free font that probably has the letter."""
    name = unicodedata.name(letter, "")
    if name.startswith(_CJK):
        return "Noto Sans CJK"
    if unicodedata.category(letter)[0] == "S":
        return "Noto Emoji" if ord(letter) >= 0x1F000 else "Noto Sans Symbols"
    match = _SCRIPT.match(name)
    script = match[1] if match else name.partition(" ")[0]
    return f"Noto Sans {script.title()}".rstrip()


def _style_distance(entry: object) -> tuple[bool, ...]:
    """Return a sort key that puts upright sans serif fonts of normal weight first."""
    name = getattr(entry, "name", "")
    return (
        getattr(entry, "style", "normal") != "normal",
        getattr(entry, "weight", 400) not in (400, "normal", "regular"),
        "Sans" not in name,
        not name.startswith("Noto"),
    )


def _add_font(path: str) -> None:
    from matplotlib import font_manager

    try:
        font_manager.fontManager.addfont(path)
    except Exception as error:  # a broken font may raise anything
        logger.info("The font %s cannot be read: %s", path, error)


@functools.cache
def _characters(path: str) -> frozenset[int]:
    """Return the characters of a font file, none if it has no outlines."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        # The "last resort" font has a box for every character.
        is_usable = font.scalable and not font.family_name.startswith("Last Resort")
        return frozenset(font.get_charmap()) if is_usable else frozenset()
    except Exception:  # a broken font may raise anything
        return frozenset()
