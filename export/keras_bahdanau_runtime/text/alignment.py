"""Hard word alignments: links, phrases and Pharaoh format.

A link is a pair (source position, target position), both counted from 0.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_bahdanau_runtime.checks import check_range

Link = tuple[int, int]


def hard_alignment(alignment: ArrayLike, threshold: float | None = None) -> list[Link]:
    """Return the links of a soft alignment.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights; rows of zeros, as after the end of
            a hypothesis, have no link.
        threshold: Link all positions with at least this weight; `None` to link each target word to
            the source word with the largest weight, the first if several are equal.

    Returns:
        Links sorted by target position.

    Raises:
        ValueError: `alignment` is not two-dimensional, or `threshold` is not above 0 and at most 1.

    Example:

    >>> hard_alignment([[0.9, 0.1], [0.4, 0.6], [0.0, 0.0]])
    [(0, 0), (1, 1)]
    """
    weights = np.asarray(alignment, dtype="float64")
    if weights.ndim != 2:
        raise ValueError(
            "Argument `alignment` must be (target positions, source positions). "
            f"Received: shape {weights.shape}"
        )
    if not weights.size:  # a blank line
        return []
    if threshold is None:
        best = weights.argmax(axis=1)
        return [(int(best[i]), i) for i in np.flatnonzero(weights.any(axis=1)).tolist()]
    check_range("threshold", threshold, float, 0, 1, open_low=True)
    return [(int(j), int(i)) for i, j in np.argwhere(weights >= threshold)]


def to_pharaoh(links: Iterable[Link]) -> str:
    """Format links as a line of Pharaoh format, sorted by source; see `read_alignments`.

    Args:
        links: Links of one pair of sentences.

    Example:

    >>> to_pharaoh([(1, 0), (0, 1)])
    '0-1 1-0'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(set(links)))


def phrase_spans(links: Iterable[Link], max_length: int = 7) -> list[tuple[range, range]]:
    """Return the phrase pairs of an alignment (Och and Ney 2004).

    Two spans are a phrase pair if at least one link is inside both, and no link connects one of
    them to a word outside the other. Unaligned words at the borders are excluded.

    Args:
        links: Links of one pair of sentences.
        max_length: Largest number of words of a span.

    Returns:
        Sorted `(source span, target span)` pairs.

    Raises:
        ValueError: `max_length` is not an int of at least 1.

    Example:

    >>> phrase_spans([(0, 0), (1, 2), (2, 1)], max_length=2)
    [(range(0, 1), range(0, 1)), (range(1, 2), range(2, 3)), (range(1, 3), range(1, 3)), \
(range(2, 3), range(1, 2))]
    """
    check_range("max_length", max_length, int, 1)
    links = set(links)
    phrases = set()
    targets = sorted({target for _, target in links})
    for first in targets:
        for last in targets:
            if not first <= last < first + max_length:
                continue
            sources = [source for source, target in links if first <= target <= last]
            low, high = min(sources), max(sources)
            inside = {target for source, target in links if low <= source <= high}
            if high - low < max_length and min(inside) >= first and max(inside) <= last:
                phrases.add((low, high + 1, first, last + 1))
    return [(range(a, b), range(c, d)) for a, b, c, d in sorted(phrases)]


def replace_unknowns(
    tokens: Sequence[str],
    source_tokens: Sequence[str],
    alignment: ArrayLike,
    unknown: str = "<unk>",
    dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Replace each unknown word by its aligned source word (Luong et al. 2015, arXiv 1410.8206).

    Args:
        tokens: `Ty` output words.
        source_tokens: `Tx` source words.
        alignment: `(Ty, Tx)` float array of attention weights.
        unknown: The word to replace.
        dictionary: Translations of source words; a missing word is copied.

    Returns:
        The output words, with each unknown word replaced by its best aligned source word.

    Raises:
        ValueError: The shape of `alignment` does not match the words.

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
    aligned = {target: source_tokens[source] for source, target in hard_alignment(weights)}
    dictionary = {} if dictionary is None else dictionary
    return [
        dictionary.get(aligned[i], aligned[i]) if token == unknown and i in aligned else token
        for i, token in enumerate(tokens)
    ]
