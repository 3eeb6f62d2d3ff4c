"""Alignments between words, from those between the pieces of a tokenizer."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.ids import SPECIAL

# Scripts that put no space between words, by how Unicode names their letters.
_UNSPACED = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
_KINDS = {**dict.fromkeys("'’", "q"), ".": "d", ",": "c", "\u200c": "m", "\u200d": "m"}
# Over the kinds of characters: Letter, Number, mark, Unspaced letter, Space, and Punctuation and
# other signs, of which those in the middle of a word ("don't", "e.g", "1,000.5") do not part it.
_WORD = re.compile("[LNm]+(?:(?:(?<=[Lm])[qd](?=L)|(?<=N)[dc](?=N))[LNm]+)*|Um*|S|[Pqdcm]+")


def group_into_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words, and the places of the tokens that each consists of.

    A word begins at the start, after a space, and where letters, digits and other signs meet; of a
    script without spaces, with every token. A token that holds the start of a word begins one; the
    others, and combining marks, go with the word before, and spaces with the word behind. Special
    tokens such as `"</s>"` are words of their own.

    Args:
        tokens: Readable pieces, which join to the text; see `Translation`.

    Returns:
        `(word, places)` pairs in the order of the tokens. Each token is in one of them.

    Example:

    >>> word_places(["", "1", "9", "-", "0", "3", " wood", "en", "</s>"])
    [('19', [0, 1, 2]), ('-', [3]), ('03', [4, 5]), ('wooden', [6, 7]), ('</s>', [8])]
    """
    special = SPECIAL.values()
    pieces = ["" if token in special else token for token in tokens]
    kinds = "".join(map(_kind, "".join(pieces)))
    starts = {match.start() for match in _WORD.finditer(kinds)}
    words: list[tuple[str, list[int]]] = []
    length, closed = 0, True
    for place, (token, piece) in enumerate(zip(tokens, pieces, strict=True)):
        if closed or token in special or (length in starts and words[-1][0].strip()):
            words.append((token, [place]))
        else:
            words[-1] = (words[-1][0] + piece, [*words[-1][1], place])
        closed = token in special
        length += len(piece)
    return [(word.strip(), places) for word, places in words]


def word_alignment(
    alignment: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> tuple[NDArray[np.float32], list[str], list[str]]:
    """An alignment between words: weights summed over a source word, averaged over a target word.

    A row of weights that sums to 1 still does. `group_into_words` defines the words.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights.
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.

    Returns:
        `(alignment, source words, target words)`, what `plot_alignment` takes.

    Raises:
        ValueError: If the shape of `alignment` does not fit the tokens.

    Example:

    >>> weights, *words = word_alignment([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]], ["a", " b", "c"],
    ...                                  ["d", "e"])
    >>> weights.tolist(), words
    ([[0.25, 0.75]], [['a', 'bc'], ['de']])
    """
    weights = checked_weights(alignment, source_tokens, target_tokens)
    sources, targets = group_into_words(source_tokens), group_into_words(target_tokens)
    joined = np.zeros((len(targets), len(sources)), "float32")
    for i, (_, rows) in enumerate(targets):
        for j, (_, columns) in enumerate(sources):
            joined[i, j] = weights[np.ix_(rows, columns)].sum() / len(rows)
    return joined, [word for word, _ in sources], [word for word, _ in targets]


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


def _kind(letter: str) -> str:
    if letter in _KINDS or letter.isspace():
        return _KINDS.get(letter, "S")
    category = unicodedata.category(letter)[0]
    if category == "L" and unicodedata.name(letter, "").startswith(_UNSPACED):
        return "U"
    return {"L": "L", "N": "N", "M": "m"}.get(category, "P")
