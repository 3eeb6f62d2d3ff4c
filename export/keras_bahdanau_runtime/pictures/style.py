"""The matplotlib style of the figures of this project."""

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any

from keras_bahdanau_runtime.errors import require

# Readable when a web page shows the picture at half of its size.
DPI = 160
# Blue, orange, green, purple and brown. Each has a contrast of at least 4.5 to white.
COLORS = ("#1261a0", "#b8480b", "#00755e", "#8a3f8f", "#7a5c00")
GRAY = "#757575"  # for baselines and the data itself

STYLE: Any = {  # settings by name; matplotlib has no public type for them
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "lines.linewidth": 2,
    "image.cmap": "Greys",
}


@contextlib.contextmanager
def saved_figure(
    path: str | os.PathLike[str] | IO[bytes], width: float, height: float
) -> Iterator[Any]:
    """Create a matplotlib figure in this style, and save it at the end of the `with` block.

    Args:
        path: Where to save the picture, as for `plot_alignment`.
        width: Width in inches.
        height: Height in inches.

    Yields:
        The empty figure. Its axes must be created inside of the block.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        yield figure
        figure.savefig(path)
