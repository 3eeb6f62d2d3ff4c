"""Masks over time: the masked softmax and sparsemax, lengths, and the order of the kept steps.

Masks are boolean with True = keep. A function that needs padding at the right says so.
"""

import keras
from keras import ops

# Stands for minus infinity: finite, so that `masked - masked` is 0 and never NaN.
_MASKED_SCORE = -1e30


def masked_scores(scores, mask=None):
    """The scores in float32, and a finite one far below all others wherever `mask` is False.

    Args:
        scores: `(..., Tx)` float tensor; what stands at masked places, NaN included, is ignored.
        mask: `(..., Tx)` bool tensor that broadcasts against `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = masked_scores(np.array([[2.0, np.nan]]), np.array([[True, False]]))
    >>> float(scores[0, 0]), float(scores[0, 1]) < -1e29
    (2.0, True)
    """
    scores = ops.cast(scores, "float32")
    return scores if mask is None else ops.where(mask, scores, _MASKED_SCORE)


def kept_scores(scores):
    """The mask of what `masked_scores` returned: bool, shaped like the scores."""
    return scores > _MASKED_SCORE / 2


def masked_softmax(scores, mask=None):
    """Softmax over the last axis in float32, with zero weight wherever `mask` is False.

    A row whose places are all masked gets all-zero weights and zero gradients.

    Args:
        scores: `(..., Tx)` float tensor; what stands at masked places, NaN included, is ignored.
        mask: `(..., Tx)` bool tensor that broadcasts against `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 weights; each row sums to one, or to zero if it is fully masked.

    Example:

    >>> import numpy as np
    >>> weights = masked_softmax(np.zeros((1, 3)), np.array([[True, True, False]]))
    >>> [float(w) for w in weights[0]]
    [0.5, 0.5, 0.0]
    """
    weights = ops.softmax(masked_scores(scores, mask), axis=-1)
    # Masked places have no weight already, except in a row that has no others.
    return weights if mask is None else weights * ops.cast(mask, "float32")


def masked_sparsemax(scores, mask=None):
    """Sparsemax over the last axis in float32, with zero weight wherever `mask` is False.

        a = argmin over distributions p of |p - e|^2 = max(e - tau, 0)

    Most weights come out exactly zero (Martins and Astudillo 2016, arXiv 1602.02068, Eq. 2-4). A
    row whose places are all masked gets all-zero weights and zero gradients.

    Args:
        scores: `(..., Tx)` float tensor; what stands at masked places, NaN included, is ignored.
        mask: `(..., Tx)` bool tensor that broadcasts against `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 weights; each row sums to one, or to zero if it is fully masked.

    Example:

    >>> import numpy as np
    >>> [float(w) for w in masked_sparsemax(np.array([[1.0, 0.5, -1.0]]))[0]]
    [0.75, 0.25, 0.0]
    """
    scores = masked_scores(scores, mask)
    scores = scores - ops.stop_gradient(_reduce(ops.max, scores, keepdims=True))
    # The weight of a place that is 1 or more below the best is zero: clipped there, masked places
    # cannot spoil the sums.
    ranked = -ops.sort(-ops.maximum(ops.stop_gradient(scores), -2.0), axis=-1)
    rank = ops.cumsum(ops.ones_like(ranked), axis=-1)
    supported = 1.0 + rank * ranked > ops.cumsum(ranked, axis=-1)
    smallest = _reduce(ops.min, ops.where(supported, ranked, 0.0), keepdims=True)
    support = scores >= smallest
    if mask is not None:
        support = ops.logical_and(support, mask)
    size = ops.sum(ops.cast(support, "float32"), axis=-1, keepdims=True)
    total = ops.sum(ops.where(support, scores, 0.0), axis=-1, keepdims=True)
    return ops.where(support, scores - (total - 1.0) / ops.maximum(size, 1.0), 0.0)


def _reduce(extreme, values, keepdims=False):
    """`ops.max` or `ops.min` over the last axis, which Keras refuses to compute of an empty batch.

    The sum of an empty batch has the same shape, and like the extreme no numbers.
    """
    is_empty = 0 in tuple(values.shape[:-1])
    return (ops.sum if is_empty else extreme)(values, axis=-1, keepdims=keepdims)


def checked_mask(name, mask, sequences):
    """A mask over the time axis of `sequences` as a tensor, after a look at its shape and dtype.

    Args:
        name: What the caller calls the mask, for the message.
        mask: `(B, T)` bool, True = keep, or `None`.
        sequences: `(B, T, D)` tensor.

    Returns:
        The mask as a tensor, or `None`.

    Raises:
        ValueError: If the mask is not bool or not shaped like the sequences.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    expected = tuple(sequences.shape[:2])
    fits = len(mask.shape) == 2 and all(
        None in (size, of) or size == of for size, of in zip(mask.shape, expected, strict=True)
    )
    if not fits or keras.backend.standardize_dtype(mask.dtype) != "bool":
        raise ValueError(
            f"Argument `{name}` must be bool of shape {expected}, True = keep. "
            f"Received: {keras.backend.standardize_dtype(mask.dtype)} of shape {tuple(mask.shape)}"
        )
    return mask


def masks_by_query(queries, values, mask=None, attention_mask=None, causal=False):
    """The mask of the places that each query may read, and the mask of `values` with it.

    Places that `attention_mask` keeps from all queries of a row are masked as padding is, so that
    nothing they hold reaches a result or a gradient.

    Args:
        queries: `(B, Tq, N)` tensor; one row of queries may stand for all.
        values: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        attention_mask: `(B, Tq, Tx)` or `(1, Tq, Tx)` bool, or `None`.
        causal: Whether query `i` may read only places up to `i`.

    Returns:
        `(by_query, mask)`: `(B, Tq, Tx)` or `(1, Tq, Tx)` bool, `None` if every query may read
        every place; and `(B, Tx)` bool or `None`.

    Raises:
        ValueError: If `attention_mask` is not bool or has another shape.
    """
    by_query = None
    if causal:
        rows = ops.arange(ops.shape(queries)[1], dtype="int32")
        places = ops.arange(ops.shape(values)[1], dtype="int32")
        by_query = ops.expand_dims(ops.expand_dims(places, 0) <= ops.expand_dims(rows, 1), 0)
    if attention_mask is not None:
        attention_mask = _checked_attention_mask(attention_mask, queries, values)
        read = ops.broadcast_to(ops.any(attention_mask, axis=1), ops.shape(values)[:2])
        mask = read if mask is None else ops.logical_and(mask, read)
        by_query = attention_mask if by_query is None else ops.logical_and(by_query, attention_mask)
    return by_query, mask


def _checked_attention_mask(mask, queries, values):
    """The mask as a tensor, after a look at its shape and dtype."""
    mask = ops.convert_to_tensor(mask)
    expected = (values.shape[0], queries.shape[1], values.shape[1])
    fits = len(mask.shape) == 3 and all(
        None in (size, of) or size == of or (axis == 0 and size == 1)
        for axis, (size, of) in enumerate(zip(mask.shape, expected, strict=True))
    )
    if not fits or keras.backend.standardize_dtype(mask.dtype) != "bool":
        raise ValueError(
            "Argument `attention_mask` must be bool of shape (batch, queries, places), "
            f"{expected}, True = keep. "
            f"Received: {keras.backend.standardize_dtype(mask.dtype)} of shape {tuple(mask.shape)}"
        )
    return mask


def zero_masked(values, mask=None):
    """Sets the rows of `values` that `mask` drops to zero, whatever they held.

    Args:
        values: `(B, Tx, D)` tensor; NaN and inf at masked places do not survive.
        mask: `(B, Tx)` bool tensor, or `None` to keep everything.

    Returns:
        A tensor shaped like `values`.
    """
    if mask is None:
        return values
    return ops.where(ops.expand_dims(mask, -1), values, ops.zeros_like(values))


def sequence_lengths(mask):
    """Number of kept steps in each row.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B,)` int32 tensor.
    """
    return ops.sum(ops.cast(mask, "int32"), axis=1)


def reverse_by_length(sequences, lengths=None):
    """Reverses the first `lengths[b]` steps of each row and leaves the padding where it is.

    Applying it twice gives the input back. It lets an unmasked recurrent layer, which every
    backend runs fast, read sequences padded at the right backwards.

    Args:
        sequences: `(B, Tx, D)` tensor.
        lengths: `(B,)` int32 tensor, or `None` when every row is full.

    Returns:
        A tensor shaped like `sequences`.

    Example:

    >>> import numpy as np
    >>> reversed_ = reverse_by_length(np.array([[[1.0], [2.0], [0.0]]]), np.array([2]))
    >>> [float(x) for x in reversed_[0, :, 0]]
    [2.0, 1.0, 0.0]
    """
    if lengths is None:
        return ops.flip(sequences, axis=1)
    steps = ops.expand_dims(ops.arange(ops.shape(sequences)[1], dtype="int32"), 0)
    lengths = ops.expand_dims(ops.cast(lengths, "int32"), 1)
    order = ops.where(steps < lengths, lengths - 1 - steps, steps)
    return take_steps(sequences, order)


def kept_first(mask):
    """An order of the steps in which the kept ones come first, and keep their order.

    Gathered in this order, a sequence with any mask is one that is padded at the right.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, Tx)` int32 tensor of step numbers.

    Example:

    >>> import numpy as np
    >>> [int(step) for step in kept_first(np.array([[False, True, False, True]]))[0]]
    [1, 3, 0, 2]
    """
    steps = ops.shape(mask)[1]
    places = ops.arange(steps, dtype="int32")
    return ops.cast(ops.argsort(ops.where(mask, places, places + steps), axis=1), "int32")


def kept_so_far(mask):
    """The number of the last kept step up to each step, counted among the kept ones from 0.

    For kept steps it is the inverse of `kept_first`.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, Tx)` int32 tensor, -1 before the first kept step.

    Example:

    >>> import numpy as np
    >>> [int(number) for number in kept_so_far(np.array([[False, True, False, True]]))[0]]
    [-1, 0, 0, 1]
    """
    return ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1


def take_steps(sequences, steps):
    """Gather steps of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        steps: `(B, T)` int32 tensor of step numbers.

    Returns:
        `(B, T, D)` tensor.
    """
    return ops.take_along_axis(sequences, ops.expand_dims(steps, -1), axis=1)


def repeat_kept(sequences, mask=None):
    """Sets each masked step to the kept step before it, or to zero where there is none.

    It is what `keras.layers.RNN` returns at masked steps.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None` if every step is kept.

    Returns:
        A tensor shaped like `sequences`.

    Example:

    >>> import numpy as np
    >>> outputs = np.array([[[1.0], [2.0], [3.0]]])
    >>> repeated = repeat_kept(outputs, np.array([[False, True, False]]))
    >>> [float(x) for x in repeated[0, :, 0]]
    [0.0, 2.0, 2.0]
    """
    if mask is None:
        return sequences
    number = kept_so_far(mask)
    places = ops.take_along_axis(kept_first(mask), ops.maximum(number, 0), axis=1)
    return zero_masked(take_steps(sequences, places), number >= 0)


def last_places(mask):
    """The last kept place of each row, wherever its padding stands.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B,)` int32 tensor, -1 for a row that is masked as a whole.

    Example:

    >>> import numpy as np
    >>> [int(place) for place in last_places(np.array([[True, False], [False, True]]))]
    [0, 1]
    """
    places = ops.arange(ops.shape(mask)[1], dtype="int32")
    return _reduce(ops.max, ops.where(mask, places, -1))


def last_step(sequences, mask=None):
    """The last kept step of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None`. A fully masked row yields its first step.

    Returns:
        `(B, D)` tensor.
    """
    if mask is None:
        return sequences[:, -1]
    last = ops.maximum(last_places(mask), 0)
    return ops.squeeze(take_steps(sequences, ops.expand_dims(last, -1)), axis=1)


def first_step(sequences, mask):
    """The first kept step of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor. A fully masked row yields its first step.

    Returns:
        `(B, D)` tensor.
    """
    first = ops.argmax(ops.cast(mask, "int32"), axis=1)
    return ops.squeeze(take_steps(sequences, ops.expand_dims(first, -1)), axis=1)
