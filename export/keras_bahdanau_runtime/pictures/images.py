"""Attention over an image: what each word looked at, drawn over the image itself."""

import os
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.pictures.figures import checked_ending, finish, label, printable
from keras_bahdanau_runtime.pictures.fonts import families_for

_WIDTH = 1.5  # inches of a panel
_HEAT = ((1.0, 0.8, 0.2, 0.0), (1.0, 0.4, 0.0, 0.6), (0.8, 0.0, 0.0, 0.85))  # from clear to red


def plot_image_alignment(
    alignment: ArrayLike,
    image: ArrayLike,
    tokens: Sequence[str],
    path: str | os.PathLike[str] | IO[bytes] | None = None,
    title: str = "",
    columns: int = 6,
) -> Any:
    """Draws an image, and once more for each word with the weights of its places as heat over it.

    Args:
        alignment: `(Ty, rows, columns)` float array of attention weights over the places of the
            image; those over a feature map that was flattened are `weights.reshape(-1, 8, 8)`.
        image: `(height, width)`, `(height, width, 1)` or `(height, width, 3)`, float in [0, 1] or
            int in [0, 255].
        tokens: `Ty` strings.
        path: Where to write the picture, PNG, SVG or PDF by its ending, or an open file for a PNG;
            `None` to write nothing.
        title: What is written above the image.
        columns: Most panels side by side.

    Returns:
        The matplotlib figure. All panels have one scale, from 0 to the largest weight.

    Raises:
        ValueError: If a shape is not as above, or `alignment` does not fit the tokens.
        MissingDependencyError: matplotlib is not installed.
    """
    check_positive(columns=columns)
    weights = np.asarray(alignment, dtype="float32")
    if weights.ndim != 3 or len(weights) != len(tokens) or 0 in weights.shape:
        raise ValueError(
            "Argument `alignment` must be (target tokens, rows, columns) with "
            f"{len(tokens)} target tokens. Received: shape {weights.shape}"
        )
    picture = _checked_image(image)
    checked_ending(path)
    from matplotlib.figure import Figure

    written = [printable(title), *map(label, tokens)]
    families = families_for(written)
    figure = Figure(dpi=120)
    height, width = picture.shape[:2]
    panels = []
    for number, text in enumerate(written):
        axes = figure.add_subplot(label=str(number))
        _draw(axes, picture, weights[number - 1] if number else None, float(weights.max()))
        axes.set_title(text, fontsize=10, family=families)
        panels.append(axes)
    sizes = [(_WIDTH, _WIDTH * height / width)] * len(panels)
    finish(figure, panels, sizes, columns, "attention weight", path)
    return figure


def _draw(
    axes: Any, picture: NDArray[np.float32], heat: NDArray[np.float32] | None, most: float
) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    height, width = picture.shape[:2]
    extent = (0, width, height, 0)
    if heat is None:
        axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, aspect="auto")
    else:
        # In grey, so that the colour is that of the weights alone.
        grey = picture.mean(axis=-1) if picture.ndim == 3 else picture
        axes.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, aspect="auto")
        heat_map = LinearSegmentedColormap.from_list("heat", _HEAT)
        axes.imshow(heat, cmap=heat_map, vmin=0.0, vmax=most, extent=extent, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])


def _checked_image(image: ArrayLike) -> NDArray[np.float32]:
    """The image as floats in [0, 1], grey ones without channels."""
    given = np.asarray(image)
    grey = given.ndim == 3 and given.shape[-1] == 1
    picture = given[..., 0] if grey else given
    if picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (3,)) or 0 in picture.shape:
        raise ValueError(
            "Argument `image` must be (height, width), (height, width, 1) or (height, width, 3). "
            f"Received: shape {given.shape}"
        )
    scale = 255.0 if np.issubdtype(given.dtype, np.integer) else 1.0
    return np.clip(picture.astype("float32") / scale, 0.0, 1.0)
