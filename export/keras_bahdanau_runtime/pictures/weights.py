"""What is to be drawn, and the one check of it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Weights (Ty, Tx), source tokens, target tokens.
Panel = tuple[ArrayLike, Sequence[str], Sequence[str]]


def checked_weights(
    alignment: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> NDArray[np.float32]:
    """The weights as an array, after a look at whether they fit the tokens.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights.
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.

    Raises:
        ValueError: If the shape of `alignment` does not fit the tokens.

    Example:

    >>> checked_weights([[1, 0]], ["a", "b"], ["c"]).tolist()
    [[1.0, 0.0]]
    """
    weights = np.asarray(alignment, dtype="float32")
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected:
        raise ValueError(
            f"Argument `alignment` must be (target tokens, source tokens), {expected}. "
            f"Received: shape {weights.shape}"
        )
    return weights


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
