"""Convert alignments between tokens to alignments between words."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import SPECIAL

# Scripts without spaces between words, by the Unicode names of their letters.
_UNSPACED = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
_KINDS = {**dict.fromkeys("'’", "q"), ".": "d", ",": "c", "\u200c": "m", "\u200d": "m"}
# A word, in terms of kinds of characters: Letter, Number, mark, Unspaced letter, Space, and
# Punctuation and other signs. Some signs do not split a word: "don't", "e.g", "1,000.5".
_WORD = re.compile("[LNm]+(?:(?:(?<=[Lm])[qd](?=L)|(?<=N)[dc](?=N))[LNm]+)*|Um*|S|[Pqdcm]+")


def group_into_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Group tokens into words.

    A word begins at the start, after a space, and between letters, digits and other signs; in a
    script without spaces, at every token. A token with the start of a word begins a new word. Other
    tokens and combining marks belong to the word before, and spaces to the word after. Special
    tokens such as `"</s>"` are words of their own.

    Args:
        tokens: Readable pieces, which join to the text; see `Translation`.

    Returns:
        `(word, positions)` pairs: the words in order, with the positions of their tokens.

    Example:

    >>> group_into_words(["", "1", "9", "-", "0", "3", " wood", "en", "</s>"])
    [('19', [0, 1, 2]), ('-', [3]), ('03', [4, 5]), ('wooden', [6, 7]), ('</s>', [8])]
    """
    special = SPECIAL.values()
    pieces = ["" if token in special else token for token in tokens]
    kinds = "".join(map(_kind, "".join(pieces)))
    starts = {match.start() for match in _WORD.finditer(kinds)}
    words: list[tuple[str, list[int]]] = []
    length, is_complete = 0, True
    for position, (token, piece) in enumerate(zip(tokens, pieces, strict=True)):
        if is_complete or token in special or (length in starts and words[-1][0].strip()):
            words.append((token, [position]))
        else:
            words[-1] = (words[-1][0] + piece, [*words[-1][1], position])
        is_complete = token in special
        length += len(piece)
    return [(word.strip(), positions) for word, positions in words]


def word_alignment(
    alignment: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> tuple[NDArray[np.float32], list[str], list[str]]:
    """Sum the weights of each source word, and average them over each target word.

    A row of weights that sums to 1 still does. `group_into_words` defines the words.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights.
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.

    Returns:
        `(alignment, source words, target words)`, the arguments of `plot_alignment`.

    Raises:
        ValueError: The shape of `alignment` does not match the tokens.

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


def readable_alignment(
    alignment: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> tuple[NDArray[np.float32], list[str], list[str]]:
    """Return an alignment of words, or of tokens if a side has only one word.

    A single word would be a single row or column, which shows nothing. Tokens that are words, such
    as phonemes, are returned without the spaces between them.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights.
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.

    Returns:
        `(alignment, sources, targets)`, the arguments of `plot_alignment`.

    Raises:
        ValueError: The shape of `alignment` does not match the tokens.

    Example:

    >>> readable_alignment([[1, 0, 0], [0, 1, 0], [0, 0, 1]], ["h", "i", "</s>"],
    ...                    ["h", " ai", "</s>"])[1:]
    (['h', 'i', '</s>'], ['h', 'ai', '</s>'])
    """
    words = word_alignment(alignment, source_tokens, target_tokens)
    special = SPECIAL.values()
    if all(len([word for word in side if word not in special]) > 1 for side in words[1:]):
        return words
    tokens = source_tokens, target_tokens
    sources, targets = (
        side if len(side) == len(pieces) else list(pieces)
        for side, pieces in zip(words[1:], tokens, strict=True)
    )
    return checked_weights(alignment, *tokens), sources, targets


def checked_weights(
    alignment: ArrayLike, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> NDArray[np.float32]:
    """Return the weights as an array after comparing their shape with the tokens.

    Args:
        alignment: `(Ty, Tx)` float array of attention weights.
        source_tokens: `Tx` strings.
        target_tokens: `Ty` strings.

    Raises:
        ValueError: The shape of `alignment` does not match the tokens.

    Example:

    >>> checked_weights([[1, 0]], ["a", "b"], ["c"]).tolist()
    [[1.0, 0.0]]
    """
    weights = np.asarray(alignment, dtype="float32")
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected:
        raise argument_error(
            "alignment",
            f"be (target tokens, source tokens), {expected}",
            received=f"shape {weights.shape}",
        )
    return weights


def _kind(letter: str) -> str:
    if letter in _KINDS or letter.isspace():
        return _KINDS.get(letter, "S")
    category = unicodedata.category(letter)[0]
    if category == "L" and unicodedata.name(letter, "").startswith(_UNSPACED):
        return "U"
    return {"L": "L", "N": "N", "M": "m"}.get(category, "P")
