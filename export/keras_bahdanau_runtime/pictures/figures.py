"""What the figures share: labels, places, files."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from keras_bahdanau_runtime.errors import require

_STYLES = ("light", "paper")
_GAP = 0.25  # inches between panels, and around them
_BAR = 0.75  # inches of the bar of shades and what is written at it


def checked_style(style: str) -> None:
    """Raises a ValueError for a style of pictures that there is not."""
    if style not in _STYLES:
        raise ValueError(f"Argument `style` must be one of {_STYLES}. Received: {style!r}")


def checked_ending(path: str | os.PathLike[str] | IO[bytes] | None) -> None:
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


def finish(
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
