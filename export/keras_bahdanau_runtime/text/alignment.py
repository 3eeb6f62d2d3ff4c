"""Hard word alignments: links, phrases and Pharaoh format.

A link is a pair (source position, target position), both counted from 0.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import EOS, SPECIAL

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
        raise argument_error(
            "alignment",
            "be (target positions, source positions)",
            received=f"shape {weights.shape}",
        )
    if not weights.size:  # a blank line
        return []
    if threshold is None:
        best = weights.argmax(axis=1)
        return [(int(best[i]), i) for i in np.flatnonzero(weights.any(axis=1)).tolist()]
    check_range("threshold", threshold, float, 0, 1, open_low=True)
    return [(int(j), int(i)) for i, j in np.argwhere(weights >= threshold)]


def text_links(
    alignment: ArrayLike,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    threshold: float | None = None,
    pieces: bool = False,
) -> list[Link]:
    """Return the links between the words of two texts, as other aligners count them.

    Words are separated by white space, as in `text.split()`. The weights of the tokens of a source
    word are added, and those of a target word are averaged. A word that is aligned with the end of
    the other sentence has no link.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights.
        source_tokens: `Tx` readable pieces; see `Translation`.
        target_tokens: `Ty` readable pieces.
        threshold: As for `hard_alignment`.
        pieces: Whether to link tokens instead of words.

    Returns:
        Links sorted by target position.

    Raises:
        ValueError: The shape of `alignment` does not match the tokens, or `threshold` is not above
            0 and at most 1.

    Example:

    >>> weights = [[0.2, 0.7, 0.1, 0.0], [0.5, 0.3, 0.2, 0.0], [0.1, 0.0, 0.0, 0.9]]
    >>> text_links(weights, ["a", " bi", "ke", "</s>"], ["ein", " Rad", "</s>"])
    [(1, 0), (0, 1)]
    """
    weights = np.asarray(alignment, dtype="float64")
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected:
        raise argument_error(
            "alignment",
            f"be (target tokens, source tokens), {expected}",
            received=f"shape {weights.shape}",
        )
    counts = []
    for axis, tokens in enumerate((target_tokens, source_tokens)):
        count = len(tokens) - (list(tokens[-1:]) == [SPECIAL[EOS]])
        if not pieces:
            words = _word_positions(tokens[:count])
            count = max(words, default=-1) + 1
            words += [count] * (len(tokens) - len(words))  # the end of the sentence
            of_word = np.equal.outer(words, np.arange(count + 1)).astype("float64")
            if axis == 0:
                weights = (of_word / of_word.sum(axis=0).clip(1)).T @ weights
            else:
                weights = weights @ of_word
        counts.append(count)
    targets, sources = counts
    links = hard_alignment(weights, threshold)
    return [(j, i) for j, i in links if j < sources and i < targets]


def _word_positions(tokens: Sequence[str]) -> list[int]:
    """Return for each token the position of its first word in the joined text.

    A token without a letter, such as a space or a part of a character, belongs to the word of the
    next token.
    """
    firsts, word, is_inside = list[int | None](), -1, False
    for token in tokens:
        first = None
        for letter in token:
            was_inside, is_inside = is_inside, not letter.isspace()
            if is_inside:
                word += not was_inside
                first = word if first is None else first
        firsts.append(first)
    positions, following = list[int](), max(word, 0)
    for first in reversed(firsts):
        following = following if first is None else first
        positions.append(following)
    return positions[::-1]


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

    >>> phrase_spans([(0, 1), (1, 0)], max_length=2)
    [(range(0, 1), range(1, 2)), (range(0, 2), range(0, 2)), (range(1, 2), range(0, 1))]
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
        raise argument_error(
            "alignment", f"be (target words, source words), {expected}", received=str(weights.shape)
        )
    aligned = {target: source_tokens[source] for source, target in hard_alignment(weights)}
    dictionary = {} if dictionary is None else dictionary
    return [
        dictionary.get(aligned[i], aligned[i]) if token == unknown and i in aligned else token
        for i, token in enumerate(tokens)
    ]
