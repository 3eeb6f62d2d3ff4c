"""Alignments: links between words, phrases, Pharaoh text, pictures (arXiv 1409.0473, figure 3).

A link is a pair (source place, target place), both counted from 0.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import require

Link = tuple[int, int]


def hard_alignment(alignment: ArrayLike, threshold: float | None = None) -> list[Link]:
    """The links of one soft alignment.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights; rows of zeros, as after the end of
            a hypothesis, get no link.
        threshold: Every place with at least this weight is linked; `None` links each target word
            to the one source word with the largest weight, the first of equals.

    Returns:
        Links in the order of the target.

    Raises:
        ValueError: If `alignment` is not two-dimensional, or `threshold` not above 0 and at most 1.

    Example:

    >>> hard_alignment([[0.9, 0.1], [0.4, 0.6], [0.0, 0.0]])
    [(0, 0), (1, 1)]
    """
    weights = np.asarray(alignment, dtype="float64")
    if weights.ndim != 2:
        raise ValueError(
            "Argument `alignment` must be (target places, source places). "
            f"Received: shape {weights.shape}"
        )
    if threshold is None:
        best = weights.argmax(axis=1)
        return [(int(best[i]), i) for i in np.flatnonzero(weights.any(axis=1)).tolist()]
    check_range("threshold", threshold, float, 0, 1, open_low=True)
    return [(int(j), int(i)) for i, j in np.argwhere(weights >= threshold)]


def to_pharaoh(links: Iterable[Link]) -> str:
    """Links as one line of Pharaoh format, sorted by the source; see `read_alignments`.

    Example:

    >>> to_pharaoh([(1, 0), (0, 1)])
    '0-1 1-0'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(set(links)))


def phrase_spans(links: Iterable[Link], max_length: int = 7) -> list[tuple[range, range]]:
    """Pairs of source and target spans that the links hold together (Och and Ney 2004).

    A pair of spans is a phrase if at least one link lies in both, and none leads out of either.
    Unaligned words at the borders are left out.

    Args:
        links: Links of one pair of sentences.
        max_length: Number of words that neither span exceeds.

    Returns:
        Sorted `(source span, target span)` pairs.

    Raises:
        ValueError: If `max_length` is not an int of at least 1.

    Example:

    >>> phrase_spans([(0, 0), (1, 2), (2, 1)], max_length=2)
    [(range(0, 1), range(0, 1)), (range(1, 2), range(2, 3)), (range(1, 3), range(1, 3)), \
(range(2, 3), range(1, 2))]
    """
    check_range("max_length", max_length, int, 1)
    links = set(links)
    found = set()
    targets = sorted({target for _, target in links})
    for first in targets:
        for last in targets:
            if not first <= last < first + max_length:
                continue
            sources = [source for source, target in links if first <= target <= last]
            low, high = min(sources), max(sources)
            inside = {target for source, target in links if low <= source <= high}
            if high - low < max_length and min(inside) >= first and max(inside) <= last:
                found.add((low, high + 1, first, last + 1))
    return [(range(a, b), range(c, d)) for a, b, c, d in sorted(found)]


def replace_unknowns(
    tokens: Sequence[str],
    source_tokens: Sequence[str],
    alignment: ArrayLike,
    unknown: str = "<unk>",
    dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Puts a source word in the place of each unknown word (Luong et al. 2015, arXiv 1410.8206).

    Args:
        tokens: `Ty` output words.
        source_tokens: `Tx` source words.
        alignment: `(Ty, Tx)` float array of attention weights.
        unknown: The word to replace.
        dictionary: Translations of source words; a word that is not in it is copied.

    Returns:
        The output words, each unknown one replaced by its best aligned source word.

    Raises:
        ValueError: If the shape of `alignment` does not fit the words.

    Example:

    >>> replace_unknowns(["<unk>", "schläft"], ["Rex", "sleeps"], [[0.9, 0.1], [0.2, 0.8]])
    ['Rex', 'schläft']
    """
    weights = np.asarray(alignment, dtype="float64")
    expected = (len(tokens), len(source_tokens))
    if weights.shape != expected:
        raise ValueError(
            f"Argument `alignment` must be (target words, source words), {expected}. "
            f"Received: {weights.shape}"
        )
    best = {target: source_tokens[source] for source, target in hard_alignment(weights)}
    dictionary = {} if dictionary is None else dictionary
    return [
        dictionary.get(best[i], best[i]) if token == unknown and i in best else token
        for i, token in enumerate(tokens)
    ]


def plot_alignment(
    alignment: ArrayLike,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    path: str | os.PathLike[str] | None = None,
    title: str | None = None,
) -> Any:
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
        MissingDependencyError: matplotlib is not installed.
    """
    weights = np.asarray(alignment, dtype="float32")
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected:
        raise ValueError(
            f"Argument `alignment` must be (target tokens, source tokens), {expected}. "
            f"Received: {weights.shape}"
        )
    rows, columns = expected
    require("matplotlib", extra="plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.0 + 0.34 * columns, 1.6 + 0.34 * rows), dpi=120)
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
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
        figure.savefig(os.fspath(path), bbox_inches="tight")
    return figure


def _label(token: str) -> str:
    # A space would not be seen, a control character cannot be drawn, a dollar starts mathematics.
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in token)
    return shown.replace(" ", "\N{OPEN BOX}").replace("$", r"\$")
