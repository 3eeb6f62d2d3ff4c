"""Pictures of alignments (arXiv 1409.0473, figure 3)."""

from pathlib import Path

import numpy as np


def plot_alignment(alignment, source_tokens, target_tokens, path=None, title=None):
    """Draws one alignment: source along x, generated tokens along y, darkness by weight.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights in [0, 1].
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.
        path: Where to write the picture, PNG, SVG or PDF by its ending; `None` to write nothing.
        title: A line above the picture.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: If the shape of `alignment` does not fit the tokens.
    """
    alignment = np.asarray(alignment, dtype="float32")
    expected = (len(target_tokens), len(source_tokens))
    if alignment.shape != expected:
        raise ValueError(
            f"Argument `alignment` must be (target tokens, source tokens), {expected}. "
            f"Received: {alignment.shape}"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Drawing needs matplotlib: pip install "keras-bahdanau[plot]"') from error

    rows, columns = alignment.shape
    figure = Figure(figsize=(2.0 + 0.34 * columns, 1.6 + 0.34 * rows), dpi=120)
    axes = figure.add_subplot()
    image = axes.imshow(alignment, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(columns), [_label(t) for t in source_tokens], rotation=60, ha="left")
    axes.set_yticks(range(rows), [_label(t) for t in target_tokens])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=9)
    axes.tick_params(axis="x", rotation=60)
    axes.set_xticks(np.arange(-0.5, columns), minor=True)
    axes.set_yticks(np.arange(-0.5, rows), minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label="attention weight")
    if title:
        figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    if path is not None:
        figure.savefig(Path(path), bbox_inches="tight")
    return figure


def _label(token):
    # A space would not be seen, a control character cannot be drawn, a dollar starts mathematics.
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in token)
    return shown.replace(" ", "\N{OPEN BOX}").replace("$", r"\$")
