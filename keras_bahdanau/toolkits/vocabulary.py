"""Vocabularies of other toolkits in the order of our ids."""

import numpy as np

from keras_bahdanau.text import Tokenizer


class Vocabulary:
    """Pieces of one language, and their ids in the other toolkit.

    Args:
        pieces: All pieces in the order of the toolkit's ids, with the special ones.
        special: The toolkit's spelling of padding, unknown, begin and end, in the order of our ids.

    Attributes:
        pieces: Pieces without the special ones.
        order: For each of our ids the toolkit's id, or `None` for a special piece that it lacks.
    """

    def __init__(self, pieces, special):
        ids = {piece: index for index, piece in enumerate(pieces)}
        ordinary = [index for index, piece in enumerate(pieces) if piece not in special]
        self.pieces = [pieces[index] for index in ordinary]
        self.order = [*map(ids.get, special), *ordinary]

    def reorder(self, weights, name):
        """Return a weight with a row per id of the toolkit, with the rows in the order of our ids.

        A special piece that the toolkit lacks has a row of zeros.

        Args:
            weights: `Weights` of the checkpoint.
            name: Name of a weight `(V', ...)`.

        Returns:
            `(V, ...)` array.

        Raises:
            ValueError: If the weight has another number of rows than the toolkit has ids.
        """
        rows = weights.take(name)
        size = sum(index is not None for index in self.order)
        if len(rows) != size:
            raise weights.error(f"{len(rows)} rows in {name} and a vocabulary of {size} pieces")
        zeros = np.zeros_like(rows[:1])
        return np.concatenate(
            [zeros if index is None else rows[index : index + 1] for index in self.order]
        )


def make_tokenizer(weights, source, target):
    """Return the `Tokenizer` of two vocabularies.

    Args:
        weights: `Weights` of the checkpoint, for the message.
        source: `Vocabulary` of the source language.
        target: `Vocabulary` of the target language.

    Raises:
        ValueError: If a piece is empty, contains a space, or occurs twice.
    """
    is_joint = source.pieces == target.pieces
    try:
        return Tokenizer.from_pieces(source.pieces, None if is_joint else target.pieces)
    except ValueError as error:
        raise weights.error(f"a vocabulary with an unsupported piece: {error}") from error
