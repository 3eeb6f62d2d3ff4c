"""The additive score, and many of them in chunks: where (B, Tq, Tx, U) would arise."""

import keras
from keras import ops

# Floats of one chunk's hidden layer, (B, chunk, Tx, U), when no chunk size is given: 16 MiB.
_CHUNK_FLOATS = 2**22


def additive_scores(query, keys, vectors, features=None):
    """Scores every query against every key with a hidden layer between (A.1.2).

        e_ijh = v_h . tanh(q_i + k_j [+ f_ij])

    Args:
        query: `(B, G, U)` float tensor, projected queries.
        keys: `(B, Tx, U)` float tensor, projected keys.
        vectors: `(U, H)` float tensor, one column `v_h` for each head.
        features: `(B, G, Tx, U)` float tensor added inside the tanh, or `None`.

    Returns:
        `(B, G, Tx, H)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = additive_scores(np.zeros((1, 2, 3)), np.zeros((1, 4, 3)), np.ones((3, 1)))
    >>> tuple(scores.shape)
    (1, 2, 4, 1)
    """
    # Weights have the dtype of the Keras call that this is part of, and outside of any, in a
    # search, their own. So query, keys and features may differ in dtype.
    hidden = ops.add(ops.expand_dims(query, 2), ops.expand_dims(keys, 1))  # (B, G, Tx, U)
    if features is not None:
        hidden = hidden + ops.cast(features, hidden.dtype)
    *sizes, width = ops.shape(hidden)
    # A matrix before the tanh: JAX would keep its result twice for the gradient, as it came out of
    # the tanh and as it went into the product.
    hidden = ops.tanh(ops.reshape(hidden, (-1, width)))
    scores = ops.matmul(ops.cast(hidden, "float32"), ops.cast(vectors, "float32"))
    return ops.reshape(scores, (*sizes, vectors.shape[-1]))


def chunked_scores(query, keys, vectors, chunk_size=None):
    """`additive_scores` of many queries.

    The hidden layer exists for `chunk_size` queries at a time and is computed again in the backward
    pass, so that memory grows with `Tq * Tx`, not with `Tq * Tx * U`.

    Args:
        query: `(B, Tq, U)` float tensor, projected queries.
        keys: `(B, Tx, U)` float tensor, projected keys.
        vectors: `(U, H)` float tensor, one column `v_h` for each head.
        chunk_size: Number of queries scored at once; `None` chooses one, about 16 MiB of hidden
            layer.

    Returns:
        `(B, Tq, Tx, H)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = chunked_scores(np.zeros((1, 5, 3)), np.zeros((1, 4, 3)), np.ones((3, 1)), 2)
    >>> tuple(scores.shape)
    (1, 5, 4, 1)
    """
    query, keys = ops.convert_to_tensor(query), ops.convert_to_tensor(keys)
    (batch, count, width), steps = ops.shape(query), ops.shape(keys)[1]
    # A tensor of its own: TensorFlow counts the gradient twice where a variable is recomputed with.
    vectors = ops.reshape(vectors, (width, -1))
    known = all(isinstance(size, int) or ops.is_tensor(size) for size in (batch, count, steps))
    if not known or query.shape[1] == 1:
        # On JAX a size that is neither belongs to a trace that only asks for shapes.
        return additive_scores(query, keys, vectors)
    chunk = _chunk_size(batch, steps, width) if chunk_size is None else chunk_size
    chunks = _quotient_up(count, chunk)
    if isinstance(chunks, int):
        if chunks <= 1:
            return additive_scores(query, keys, vectors)
        chunk = _quotient_up(count, chunks)  # even chunks need the least padding
    scored = keras.remat(additive_scores)
    if keras.config.backend() == "torch":
        return _in_place(scored, query, keys, vectors, chunk)
    padding = ops.zeros((batch, chunks * chunk - count, width), dtype=query.dtype)
    parts = ops.reshape(ops.concatenate([query, padding], 1), (batch, chunks, chunk, width))
    scores = ops.map(lambda part: scored(part, keys, vectors), ops.transpose(parts, (1, 0, 2, 3)))
    scores = ops.transpose(scores, (1, 0, 2, 3, 4))  # (B, chunks, chunk, Tx, H)
    scores = ops.reshape(scores, (batch, chunks * chunk, steps, vectors.shape[-1]))[:, :count]
    # TensorFlow loses the number of queries in a slice; it is known again from here on.
    return ops.reshape(scores, (batch, count, steps, vectors.shape[-1]))


def project(inputs, kernel):
    """`inputs (..., M) @ kernel (M, N)` as one product of two matrices.

    `ops.matmul` on TensorFlow makes one of it too, but with a permutation that XLA no longer
    knows in the backward pass of a loop.

    Example:

    >>> import numpy as np
    >>> float(project(np.ones((1, 1, 2)), np.ones((2, 1)))[0, 0, 0])
    2.0
    """
    inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel)
    *sizes, width = ops.shape(inputs)
    product = ops.matmul(ops.reshape(inputs, (-1, width)), kernel)
    return ops.reshape(product, (*sizes, kernel.shape[-1]))


def _in_place(scored, query, keys, vectors, chunk):
    # `ops.map` on torch is a list of results. The C library's allocator puts each of them into the
    # room of the hidden layer just freed, where the next one then finds no place: memory grew by
    # the whole (B, Tq, Tx, U). One result that is written to leaves no such holes.
    batch, count, _ = query.shape
    scores = ops.zeros((batch, count, keys.shape[1], vectors.shape[-1]), dtype="float32")
    for start in range(0, count, chunk):
        part = scored(query[:, start : start + chunk], keys, vectors)
        scores[:, start : start + chunk] = part  # `ops.slice_update` copies all of it
    return scores


def _chunk_size(batch, steps, width):
    floats = batch * steps * width
    if isinstance(floats, int):
        return max(1, _quotient_up(_CHUNK_FLOATS, max(1, floats)))
    return ops.maximum(1, _quotient_up(_CHUNK_FLOATS, ops.maximum(1, floats)))


def _quotient_up(size, part):
    """`size / part`, rounded up, of positive ints; of negative ones ONNX rounds otherwise."""
    return (size + part - 1) // part
