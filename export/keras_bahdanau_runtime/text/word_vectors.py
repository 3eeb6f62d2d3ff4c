"""Pretrained word vectors in the text format of word2vec and fastText."""

import os
import re
from collections.abc import Container
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.text.corpus import iterate_lines


def read_word_vectors(
    path: str | os.PathLike[str], width: int, words: Container[str] = ()
) -> dict[str, NDArray[np.float32]]:
    r"""Read the vectors of some words.

    Each line has a word and the numbers of its vector, separated by spaces. The first line may have
    the number of words and their width instead. If a word occurs twice, the first vector is used.

    Args:
        path: UTF-8 text, such as `cc.en.300.vec`, plain or compressed.
        width: Number of components of each vector.
        words: Words to return. Without words only the first line is read.

    Returns:
        Arrays `(width,)` by word.

    Raises:
        ValueError: A line of one of the words, or the first line, has another width or a value that
            is not a finite number.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "words.vec")
    ...     _ = path.write_text("2 2\ndog 0.5 1\ncat 1 0\n")
    ...     read_word_vectors(path, 2, {"dog"})["dog"].tolist()
    [0.5, 1.0]
    """
    vectors: dict[str, NDArray[np.float32]] = {}
    for number, line in enumerate(iterate_lines(Path(path)), start=1):
        word, _, numbers = line.rstrip(" ").partition(" ")
        count = numbers.count(" ") + 1 if numbers else 0
        if number == 1:
            is_header = word.isdecimal() and re.fullmatch("[0-9]{1,9}", numbers) is not None
            _check_width(path, int(numbers) if is_header else count, width)
            if not words:
                break
            if is_header:
                continue
        if word in words and word not in vectors:
            if count != width:
                _raise_width(path, number, width, count)
            vectors[word] = _parse(path, number, numbers, width)
    return vectors


def _check_width(path: str | os.PathLike[str], received: int, width: int) -> None:
    if received != width:
        raise ValueError(
            f"{path}: expected vectors as wide as the embeddings, {width}. "
            f"Received: vectors of width {received}; set `embedding_dim` to it"
        )


def _parse(
    path: str | os.PathLike[str], number: int, numbers: str, width: int
) -> NDArray[np.float32]:
    try:
        vector = np.array([float(part) for part in numbers.split(" ")], np.float32)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {number}: expected numbers. Received: {error!s:.120}"
        ) from error
    if not np.isfinite(vector).all():
        _raise_width(path, number, width, len(vector))
    return vector


def _raise_width(path: str | os.PathLike[str], number: int, width: int, count: int) -> NoReturn:
    raise ValueError(
        f"{path}, line {number}: expected {width} finite numbers. Received: {count} numbers"
    )
