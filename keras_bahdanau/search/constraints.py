"""What a hypothesis may not hold, as logits of -inf."""

from keras import ops

from keras_bahdanau.search.ranking import NEVER
from keras_bahdanau_runtime.ids import EOS


def without_ids(logits, t, forbidden, min_length):
    """`(R, V)` logits, -inf for `forbidden` ids, and for `EOS` before `min_length` tokens.

    Args:
        logits: `(R, V)` float32.
        t: Number of the step, a scalar int32 tensor.
        forbidden: Ids that are never chosen.
        min_length: Number of tokens, `EOS` included, before which no hypothesis ends.
    """
    ids = ops.arange(logits.shape[-1], dtype="int32")
    barred = ops.zeros((logits.shape[-1],), dtype="bool")
    for token in forbidden:
        barred = ops.logical_or(barred, ids == token)
    if min_length:
        early = ops.logical_and(ids == EOS, t + 1 < min_length)
        barred = ops.logical_or(barred, early)
    return ops.where(barred, NEVER, logits)


def without_repeats(logits, t, tokens, n):
    """`(R, V)` logits, -inf for what would complete an n-gram that stands in `tokens` already.

    Args:
        logits: `(R, V)` float32.
        t: Number of the step, a scalar int32 tensor.
        tokens: `(R, T)` int32, of which the first `t` are chosen.
        n: Number of tokens in the n-gram.
    """
    rows, length = ops.shape(tokens)[0], ops.shape(tokens)[1]
    places = ops.arange(length, dtype="int32")
    completes = ops.broadcast_to(places < t, (rows, length))  # would repeat the token at a place
    for back in range(1, n):
        # The token `back` before the place must be the one `back` before the next token.
        shifted = ops.roll(tokens, back, axis=1)
        last = ops.take(tokens, ops.maximum(t - back, 0), axis=1)
        same = ops.logical_and(ops.equal(shifted, ops.expand_dims(last, 1)), places >= back)
        completes = ops.logical_and(completes, ops.logical_and(same, t >= back))
    # What completes nothing writes into a column of its own.
    size = logits.shape[-1]
    columns = ops.where(completes, tokens, size)
    row = ops.broadcast_to(ops.expand_dims(ops.arange(rows, dtype="int32"), 1), (rows, length))
    indices = ops.reshape(ops.stack([row, columns], axis=-1), (-1, 2))
    padded = ops.concatenate([logits, ops.zeros((rows, 1), dtype=logits.dtype)], axis=1)
    barred = ops.full((rows * length,), NEVER, dtype=logits.dtype)
    return ops.scatter_update(padded, indices, barred)[:, :size]
