"""Vocabularies of other toolkits in the order of our ids."""

import numpy as np

from keras_bahdanau.text import Tokenizer
from keras_bahdanau_runtime.text.corpus import not_utf8
from keras_bahdanau_runtime.text.pieces import Spelling
from keras_bahdanau_runtime.text.split_text import mark_of, piece_tokenizer
from keras_bahdanau_runtime.text.tokenizer import MAX_VOCABULARY_SIZE

_MAX_BYTES = 2**26  # of a file


class Vocabulary:
    """Pieces of one language, and their ids in the other toolkit.

    Args:
        pieces: All pieces in the order of the toolkit's ids, with the special ones. If a piece
            occurs twice, texts are encoded with the last one, and a special piece is the first one.
        special: The toolkit's spelling of padding, unknown, begin and end, in the order of our ids.

    Attributes:
        pieces: Pieces without the special ones.
        order: For each of our ids the toolkit's id, or `None` for a special piece that it lacks.
    """

    def __init__(self, pieces, special):
        ids = {piece: index for index, piece in reversed([*enumerate(pieces)])}
        special_ids = [ids.get(piece) for piece in special]
        ordinary = [index for index in range(len(pieces)) if index not in special_ids]
        self.pieces = [pieces[index] for index in ordinary]
        self.order = [*special_ids, *ordinary]

    def take(self, weights, name, *shape):
        """Return a weight with a row per id of the toolkit, with the rows in the order of our ids.

        A special piece that the toolkit lacks has a row of zeros.

        Args:
            weights: `Weights` of the checkpoint.
            name: Name of a weight `(V', ...)`.
            *shape: The expected sizes of a row, `None` for any size.

        Returns:
            `(V, ...)` array.

        Raises:
            ValueError: If the weight has another number of rows than the toolkit has ids, or
                another shape.
        """
        rows = weights.take(name, None, *shape)
        size = sum(index is not None for index in self.order)
        if len(rows) != size:
            raise weights.error(f"{len(rows)} rows in {name} and a vocabulary of {size} pieces")
        reordered = np.zeros((len(self.order), *rows.shape[1:]), rows.dtype)
        has_row = [index is not None for index in self.order]
        reordered[has_row] = rows[[index for index in self.order if index is not None]]
        return reordered


def read_vocabulary(path):
    """Return the text of a vocabulary file, in which all forms of line ends are line feeds.

    The toolkits open their files in the text mode of Python, which keeps a byte order mark.

    Args:
        path: UTF-8 text.

    Raises:
        ValueError: If the file is too large, not UTF-8, or has more lines than a vocabulary.
    """
    with open(path, "rb") as file:
        contents = file.read(_MAX_BYTES + 1)
    if len(contents) > _MAX_BYTES:
        raise ValueError(f"{path}: expected a vocabulary of at most {_MAX_BYTES} bytes.")
    try:
        text = contents.decode("utf-8")
    except UnicodeDecodeError as error:
        number = contents.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {number}: {not_utf8(error)}") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (lines := text.count("\n")) > MAX_VOCABULARY_SIZE:
        raise ValueError(
            f"{path}: expected at most {MAX_VOCABULARY_SIZE} pieces. Received: {lines} lines"
        )
    return text


def make_tokenizer(weights, source, target, files, splits_missing=False, copied_words=0):
    """Return the `Tokenizer` of two vocabularies.

    Args:
        weights: `Weights` of the checkpoint, for the message.
        source: Pieces of the source language, without the special ones.
        target: Pieces of the target language.
        files: For each side the file that splits raw texts; see `Tokenizer.from_toolkit`. `None`
            for texts that are split already.
        splits_missing: See `Tokenizer.from_toolkit`.
        copied_words: See `Tokenizer`.

    Raises:
        ValueError: If a piece is not Unicode text, or occurs more than twice; or a file is not of a
            supported kind.
    """
    first = _side_tokenizer(weights, source, files[0], splits_missing)
    second = first
    if (source, files[0]) != (target, files[1]):
        second = _side_tokenizer(weights, target, files[1], splits_missing)
    return Tokenizer.combine(first, second, copied_words)


def _side_tokenizer(weights, pieces, file, splits_missing):
    if file is not None:
        try:
            return Tokenizer.from_toolkit(file, pieces, splits_missing)
        except ValueError as error:
            hint = "Pass `none` as the tokenizer to import a model of texts that are split already."
            raise ValueError(f"{error} {hint}") from error
    try:
        tokenizer = piece_tokenizer("pieces", pieces, strict=False)
    except ValueError as error:
        raise weights.error(f"a vocabulary with an unsupported piece: {error}") from error
    return Tokenizer(tokenizer, None, Spelling(mark=mark_of(pieces)))
