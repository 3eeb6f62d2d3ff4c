"""Heatmaps of alignments (arXiv 1409.0473, figure 3), of weights over time, and over an image."""

import os
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.pictures.figures import (
    Panel,
    arrange_and_save,
    check_style,
    check_suffix,
    checked_panels,
    font_families,
    label,
    printable,
    save_figure,
)
from keras_bahdanau_runtime.pictures.style import DPI, STYLE

_CELL = 0.34  # inches


def plot_alignment(
    alignment: ArrayLike,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    path: str | os.PathLike[str] | IO[bytes] | None = None,
    title: str | None = None,
    style: str = "light",
) -> Any:
    """Draw an alignment: source tokens along x, target tokens along y, weights as shades.

    To draw words, use `plot_alignment(*word_alignment(alignment, source_tokens, tokens))`.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights in [0, 1].
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.
        path: Where to save the picture: a path with the suffix of a PNG, SVG or PDF, or an open
            file for a PNG; `None` to not save it.
        title: Title above the picture.
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
    scale: str = "attention weight",
) -> Any:
    """Draw several alignments side by side, with cells of the same size.

    Args:
        alignments: `(alignment, source tokens, target tokens)` for each sentence, as for
            `plot_alignment` and as `word_alignment` returns them.
        path: Where to save the picture: a path with the suffix of a PNG, SVG or PDF, or an open
            file for a PNG; `None` to not save it.
        titles: A title above each; `None` for none.
        style: "light" draws weights dark on white, with lines between the cells and a scale;
            "paper" draws them like figure 3 of the paper, from black for 0 to white for 1.
        columns: Largest number of sentences in a row.
        scale: Label of the scale.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: There is no alignment, a shape does not match its tokens, a side has no words,
            `titles` has another length, or `style` is unknown.
        MissingDependencyError: matplotlib is not installed.
    """
    check_positive(columns=columns)
    check_style(style)
    panels = checked_panels(alignments, titles)
    check_suffix(path)
    from matplotlib.figure import Figure

    texts = [label(token) for _, *sides in panels for side in sides for token in side]
    families = font_families([*texts, *map(printable, titles or ())])
    for number, (_, *sides) in enumerate(panels):
        if not all(sides):
            raise argument_error(
                "alignments",
                "have words on both sides",
                received=f"none on one side of alignments[{number}]",
            )
    figure = Figure(dpi=DPI)
    figure.set_layout_engine("none")  # `arrange_and_save` sets the positions
    all_axes = []
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(label=str(number))
        _draw_heatmap(axes, *panel, style, families)
        if titles is not None:
            axes.set_title(printable(titles[number]), fontsize=10, family=families, pad=10)
        all_axes.append(axes)
    sizes = [(_CELL * len(sources), _CELL * len(targets)) for _, sources, targets in panels]
    arrange_and_save(figure, all_axes, sizes, columns, scale if style == "light" else None, path)
    return figure


def _draw_heatmap(
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
    rotation = {"rotation": 90, "ha": "center"} if paper else {"rotation": 60, "ha": "left"}
    axes.set_xticks(range(len(sources)), [label(token) for token in sources], **font, **rotation)
    axes.set_yticks(range(len(targets)), [label(token) for token in targets], **font)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    _draw_frame(axes)
    if not paper:
        axes.set_xticks(np.arange(-0.5, len(sources)), minor=True)
        axes.set_yticks(np.arange(-0.5, len(targets)), minor=True)
        axes.grid(which="minor", color="0.9", linewidth=0.5)
        axes.tick_params(which="minor", length=0)


def _draw_frame(axes: Any) -> None:
    """Draw all four sides and no grid lines between ticks, whatever the settings of matplotlib."""
    axes.spines[:].set_visible(True)
    axes.grid(visible=False, which="both")


def plot_weights(
    weights: ArrayLike,
    path: str | os.PathLike[str] | IO[bytes] | None = None,
    title: str | None = None,
    source_positions: ArrayLike | None = None,
    target_positions: ArrayLike | None = None,
    source_label: str = "source position",
    target_label: str = "target position",
) -> Any:
    """Draw attention weights over long axes such as time, with ticks for some of the positions.

    `plot_alignment` has a label for each position instead, for tokens.

    Args:
        weights: `(Ty, Tx)` float array of attention weights.
        path: Where to save the picture: a path with the suffix of a PNG, SVG or PDF, or an open
            file for a PNG; `None` to not save it.
        title: Title above the picture.
        source_positions: `Tx` increasing numbers at equal distances for the x axis, such as
            `range(-96, 0)` for the hours before a forecast; 0 to `Tx - 1` if `None`.
        target_positions: `Ty` such numbers for the y axis, whose first is at the top.
        source_label: Label of the x axis, such as "hours before the forecast".
        target_label: Label of the y axis.

    Returns:
        The matplotlib figure, 7 inches wide. The darkest shade is the largest weight.

    Raises:
        ValueError: `weights` does not have two axes, is empty or has a number that is not finite,
            or positions are not as described.
        MissingDependencyError: matplotlib is not installed.

    Example:

    ```python
    hours = range(-96, 0)
    plot_weights(weights[0], "weights.png", source_positions=hours, source_label="hour")
    ```
    """
    array = np.asarray(weights, dtype="float32")
    if array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
        raise argument_error(
            "weights",
            "be finite numbers (target positions, source positions); write weights[0] for the "
            "first row of a batch",
            received=f"shape {array.shape}",
        )
    rows, columns = array.shape
    left, right, is_whole_x = _axis_range("source_positions", source_positions, columns)
    top, bottom, is_whole_y = _axis_range("target_positions", target_positions, rows)
    check_suffix(path)
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, min(5.0, max(2.0, 7.0 * rows / columns))))
        axes = figure.subplots()
        extent = (left, right, bottom, top)
        image = axes.imshow(array, vmin=0.0, aspect="auto", interpolation="nearest", extent=extent)
        axes.set(xlabel=printable(source_label), ylabel=printable(target_label))
        axes.xaxis.set_major_locator(MaxNLocator(integer=is_whole_x))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=is_whole_y))
        if title is not None:
            axes.set_title(printable(title))
        _draw_frame(axes)
        figure.colorbar(image, ax=axes, label="attention weight")
        save_figure(figure, path)
    return figure


def _axis_range(name: str, positions: ArrayLike | None, count: int) -> tuple[float, float, bool]:
    """Return both ends of an axis with `count` cells, and whether its positions are integers.

    Raises:
        ValueError: The positions are not `count` increasing numbers at equal distances.
    """
    values = np.arange(count) if positions is None else np.asarray(positions)
    is_number = np.issubdtype(values.dtype, np.number) and values.shape == (count,)
    numbers = values.astype("float64") if is_number else np.zeros(count)
    steps = np.diff(numbers)
    step = float(steps[0]) if count > 1 else 1.0
    if not is_number or not step > 0 or not np.allclose(steps, step):
        raise argument_error(name, f"be {count} increasing numbers at equal distances", positions)
    is_whole = bool((numbers == np.round(numbers)).all())
    return float(numbers[0]) - step / 2, float(numbers[-1]) + step / 2, is_whole


_WIDTH = 1.5  # inches of an image
# RGBA colors of the heatmap, from transparent yellow to red.
_HEAT = ((1.0, 0.8, 0.2, 0.0), (1.0, 0.4, 0.0, 0.6), (0.8, 0.0, 0.0, 0.85))


def plot_image_alignment(
    alignment: ArrayLike,
    image: ArrayLike,
    tokens: Sequence[str],
    path: str | os.PathLike[str] | IO[bytes] | None = None,
    title: str = "",
    columns: int = 6,
) -> Any:
    """Draw an image, and again for each word with its attention weights as a heatmap.

    Args:
        alignment: `(Ty, rows, columns)` float array of attention weights over the regions of the
            image; for a flattened feature map, pass `weights.reshape(-1, 8, 8)`.
        image: `(height, width)`, `(height, width, 1)` or `(height, width, 3)`, float in [0, 1] or
            int in [0, 255].
        tokens: `Ty` strings.
        path: Where to save the picture: a path with the suffix of a PNG, SVG or PDF, or an open
            file for a PNG; `None` to not save it.
        title: Title above the image.
        columns: Largest number of images in a row.

    Returns:
        The matplotlib figure. All images have the same scale, from 0 to the largest weight.

    Raises:
        ValueError: A shape is not as described, or `alignment` does not match the tokens.
        MissingDependencyError: matplotlib is not installed.
    """
    check_positive(columns=columns)
    weights = np.asarray(alignment, dtype="float32")
    if weights.ndim != 3 or len(weights) != len(tokens) or 0 in weights.shape:
        raise argument_error(
            "alignment",
            f"be (target tokens, rows, columns) with {len(tokens)} target tokens",
            received=f"shape {weights.shape}",
        )
    picture = _checked_image(image)
    check_suffix(path)
    from matplotlib.figure import Figure

    titles = [printable(title), *map(label, tokens)]
    families = font_families(titles)
    figure = Figure(dpi=DPI)
    figure.set_layout_engine("none")  # `arrange_and_save` sets the positions
    height, width = picture.shape[:2]
    panels = []
    for number, text in enumerate(titles):
        axes = figure.add_subplot(label=str(number))
        _draw_heat(axes, picture, weights[number - 1] if number else None, float(weights.max()))
        axes.set_title(text, fontsize=10, family=families)
        panels.append(axes)
    sizes = [(_WIDTH, _WIDTH * height / width)] * len(panels)
    arrange_and_save(figure, panels, sizes, columns, "attention weight", path)
    return figure


def _draw_heat(
    axes: Any, picture: NDArray[np.float32], heat: NDArray[np.float32] | None, largest: float
) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    height, width = picture.shape[:2]
    extent = (0, width, height, 0)
    if heat is None:
        axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, aspect="auto")
    else:
        # In gray, so that all color comes from the weights.
        gray = picture.mean(axis=-1) if picture.ndim == 3 else picture
        axes.imshow(gray, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, aspect="auto")
        heat_map = LinearSegmentedColormap.from_list("heat", _HEAT)
        axes.imshow(heat, cmap=heat_map, vmin=0.0, vmax=largest, extent=extent, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    _draw_frame(axes)


def _checked_image(image: ArrayLike) -> NDArray[np.float32]:
    """Return the image as floats in [0, 1], without a channel axis if it is gray."""
    array = np.asarray(image)
    is_gray = array.ndim == 3 and array.shape[-1] == 1
    picture = array[..., 0] if is_gray else array
    if picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (3,)) or 0 in picture.shape:
        raise argument_error(
            "image",
            "be (height, width), (height, width, 1) or (height, width, 3)",
            received=f"shape {array.shape}",
        )
    scale = 255.0 if np.issubdtype(array.dtype, np.integer) else 1.0
    return np.clip(picture.astype("float32") / scale, 0.0, 1.0)
