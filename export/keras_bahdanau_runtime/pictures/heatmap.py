"""Heatmaps of alignments, one or several side by side (arXiv 1409.0473, figure 3)."""

import os
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.pictures.figures import (
    checked_ending,
    checked_style,
    finish,
    label,
    printable,
)
from keras_bahdanau_runtime.pictures.fonts import families_for
from keras_bahdanau_runtime.pictures.weights import Panel, checked_panels

_CELL = 0.34  # inches


def plot_alignment(
    alignment: ArrayLike,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    path: str | os.PathLike[str] | IO[bytes] | None = None,
    title: str | None = None,
    style: str = "light",
) -> Any:
    """Draws one alignment: source along x, generated tokens along y, shade by weight.

    Words instead of pieces: `plot_alignment(*word_alignment(alignment, source_tokens, tokens))`.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights in [0, 1].
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.
        path: Where to write the picture, PNG, SVG or PDF by its ending, or an open file for a PNG;
            `None` to write nothing.
        title: A line above the picture.
        style: As for `plot_alignments`.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: As `plot_alignments`.
        MissingDependencyError: matplotlib is not installed.
    """
    titles = None if title is None else [title]
    return plot_alignments([(alignment, source_tokens, target_tokens)], path, titles, style)


def plot_alignments(
    alignments: Sequence[Panel],
    path: str | os.PathLike[str] | IO[bytes] | None = None,
    titles: Sequence[str] | None = None,
    style: str = "light",
    columns: int = 4,
) -> Any:
    """Draws several alignments side by side, with cells of one size.

    Args:
        alignments: For each sentence `(alignment, source tokens, target tokens)`, as
            `plot_alignment` takes them and `word_alignment` returns them.
        path: Where to write the picture, PNG, SVG or PDF by its ending, or an open file for a PNG;
            `None` to write nothing.
        titles: A line above each; `None` for none.
        style: "light" draws weight dark on white, with lines between the cells and a scale;
            "paper" draws it as the paper's figure 3, from black for 0 to white for 1.
        columns: Most sentences side by side; further ones stand below.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: If there is no alignment, a shape does not fit its tokens, one has no words on a
            side, `titles` are not as many, or `style` is unknown.
        MissingDependencyError: matplotlib is not installed.
    """
    check_positive(columns=columns)
    checked_style(style)
    panels = checked_panels(alignments, titles)
    checked_ending(path)
    from matplotlib.figure import Figure

    texts = [label(token) for _, *sides in panels for side in sides for token in side]
    families = families_for([*texts, *map(printable, titles or ())])
    for number, (_, *sides) in enumerate(panels):
        if not all(sides):
            raise ValueError(
                "Argument `alignments` must have words on both sides. "
                f"Received: none on one side of alignments[{number}]"
            )
    figure = Figure(dpi=120)
    drawn = []
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(label=str(number))
        _draw(axes, *panel, style, families)
        if titles is not None:
            axes.set_title(printable(titles[number]), fontsize=10, family=families, pad=10)
        drawn.append(axes)
    sizes = [(_CELL * len(sources), _CELL * len(targets)) for _, sources, targets in panels]
    finish(figure, drawn, sizes, columns, "attention weight" if style == "light" else None, path)
    return figure


def _draw(
    axes: Any,
    weights: NDArray[np.float32],
    sources: Sequence[str],
    targets: Sequence[str],
    style: str,
    families: Sequence[str],
) -> None:
    paper = style == "paper"
    axes.imshow(weights, cmap="gray" if paper else "Greys", vmin=0.0, vmax=1.0, aspect="auto")
    font = {"family": families, "fontsize": 9}
    turned = {"rotation": 90, "ha": "center"} if paper else {"rotation": 60, "ha": "left"}
    axes.set_xticks(range(len(sources)), [label(token) for token in sources], **font, **turned)
    axes.set_yticks(range(len(targets)), [label(token) for token in targets], **font)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    if not paper:
        axes.set_xticks(np.arange(-0.5, len(sources)), minor=True)
        axes.set_yticks(np.arange(-0.5, len(targets)), minor=True)
        axes.grid(which="minor", color="0.9", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
