"""Candidate tokens of a step: constraints on the logits, and the best ones in a fixed order."""

import keras
from keras import ops

from keras_bahdanau_runtime.ids import EOS

# The log-probability of what does not exist.
NEVER = float("-inf")


def best_first(values, k):
    """Return the `k` largest of the last axis and their places, int32; the first of equals first.

    TensorFlow and JAX promise this order. `torch.topk` does not, so on torch equal values are
    ordered afterwards, except for values of -inf: they rank what does not exist.
    """
    if keras.config.backend() != "torch":
        found, places = ops.top_k(values, k)
        return found, ops.cast(places, "int32")
    # One value more than asked for shows whether the last one wanted is tied, too.
    found, places = ops.top_k(values, min(k + 1, values.shape[-1]))
    if bool(ops.any(found[..., 1:] - found[..., :-1] == 0)):  # NaN for two of -inf
        found, places = _of_equals_the_first(values, found[..., :k], places[..., :k])
    return found[..., :k], ops.cast(places[..., :k], "int32")


def _of_equals_the_first(values, found, places):
    """The largest `values` in order, given their `found` numbers, `(..., k)`, and any `places`."""
    k, size = found.shape[-1], values.shape[-1]
    last = found[..., -1:]
    ids = ops.arange(size, dtype=places.dtype)
    equal, _ = ops.top_k(ops.where(values == last, -ids, -size), k)
    # Those above the last one and the first of its equals, at least k of them; `size` is nothing.
    places = ops.sort(ops.concatenate([ops.where(found > last, places, size), -equal], axis=-1))
    found = ops.take_along_axis(values, ops.minimum(places, size - 1), axis=-1)
    order = ops.argsort(ops.where(places < size, -found, -NEVER), axis=-1)[..., :k]
    return ops.take_along_axis(found, order, axis=-1), ops.take_along_axis(places, order, axis=-1)


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
