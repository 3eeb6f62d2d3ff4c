"""Pretrained word vectors as initial embeddings."""

import logging

from keras_bahdanau_runtime.ids import SPECIAL
from keras_bahdanau_runtime.text.word_vectors import read_word_vectors

logger = logging.getLogger("keras_bahdanau")


def set_word_vectors(model, side, path):
    r"""Set the embeddings of the pieces that are words of a file.

    A piece with a space at an end and the same piece without it are the same word. The other pieces
    keep their embeddings.

    Args:
        model: A built `Seq2Seq` with a tokenizer.
        side: "source" or "target".
        path: See `read_word_vectors`.

    Raises:
        ValueError: As `read_word_vectors`.

    Example:

    >>> import tempfile
    >>> tokenizer = Tokenizer.from_pieces(["dog", "cat"])
    >>> model = RNNSearch(6, 6, 4, 3, 4, 4, tokenizer=tokenizer)
    >>> model.build()
    >>> with tempfile.NamedTemporaryFile("w", suffix=".vec") as file:
    ...     _ = file.write("cat 1 2 3\n")
    ...     file.flush()
    ...     set_word_vectors(model, "source", file.name)
    >>> model.source_embedding.get_weights()[0][5].tolist()
    [1.0, 2.0, 3.0]
    """
    spelling = model.tokenizer.spellings[0 if side == "source" else 1]
    pieces = spelling.pieces(getattr(model.tokenizer, side).get_vocab())
    words = {
        index: piece.decode("utf-8", "replace").strip(" ")
        for index, piece in enumerate(pieces)
        if index not in SPECIAL
    }
    embedding = getattr(model, f"{side}_embedding")
    vectors = read_word_vectors(path, embedding.output_dim, set(words.values()))
    weights, *others = embedding.get_weights()
    indices = [index for index, word in words.items() if word in vectors]
    for index in indices:
        weights[index] = vectors[words[index]]
    embedding.set_weights([weights, *others])
    logger.info("%d of %d %s pieces have a vector in %s.", len(indices), len(words), side, path)
