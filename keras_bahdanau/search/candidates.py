"""Candidate tokens of one step: constraints on the logits, and the selection of the best."""

import keras
from keras import ops

from keras_bahdanau_runtime.ids import EOS

# Log-probability of a hypothesis or token that does not exist.
NEG_INF = float("-inf")


def forbid_ids(logits, t, forbidden, min_length):
    """Set the logits of forbidden ids, and of `EOS` before `min_length` tokens, to -inf.

    Args:
        logits: `(R, V)` float32.
        t: Number of the step, a scalar int32 tensor.
        forbidden: Ids that are never chosen.
        min_length: Minimum number of tokens in an output, `EOS` included.

    Returns:
        `(R, V)` float32 logits.
    """
    ids = ops.arange(logits.shape[-1], dtype="int32")
    barred = ops.zeros((logits.shape[-1],), dtype="bool")
    for token in forbidden:
        barred = ops.logical_or(barred, ids == token)
    if min_length:
        early = ops.logical_and(ids == EOS, t + 1 < min_length)
        barred = ops.logical_or(barred, early)
    return ops.where(barred, NEG_INF, logits)


def forbid_repeated_ngrams(logits, t, tokens, n):
    """Set the logits of tokens that would complete an n-gram a second time to -inf.

    Args:
        logits: `(R, V)` float32.
        t: Number of the step, a scalar int32 tensor.
        tokens: `(R, T)` int32; the first `t` of each row are chosen already.
        n: Number of tokens in the n-gram.

    Returns:
        `(R, V)` float32 logits.
    """
    rows, length = ops.shape(tokens)[0], ops.shape(tokens)[1]
    positions = ops.arange(length, dtype="int32")
    # True where the tokens before a position equal the last tokens of the hypothesis.
    completes = ops.broadcast_to(positions < t, (rows, length))
    for back in range(1, n):
        shifted = ops.roll(tokens, back, axis=1)
        last = ops.take(tokens, ops.maximum(t - back, 0), axis=1)
        same = ops.logical_and(ops.equal(shifted, ops.expand_dims(last, 1)), positions >= back)
        completes = ops.logical_and(completes, ops.logical_and(same, t >= back))
    return set_tokens(logits, tokens, completes, NEG_INF)


def penalize_repeated_tokens(logits, t, tokens, penalty):
    """Lower the logits of tokens so that their log-probabilities are `penalty` times as large.

        log p = logit - logsumexp(logits);  logit + (penalty - 1) log p = logsumexp + penalty log p

    Args:
        logits: `(R, V)` float32.
        t: Number of the step, a scalar int32 tensor.
        tokens: `(R, T)` int32; the first `t` of each row are chosen already.
        penalty: At least 1.

    Returns:
        `(R, V)` float32 logits.
    """
    is_chosen = ops.broadcast_to(ops.arange(ops.shape(tokens)[1]) < t, ops.shape(tokens))
    chosen = ops.take_along_axis(logits, tokens, axis=1)
    log_probs = chosen - ops.logsumexp(logits, axis=-1, keepdims=True)
    return set_tokens(logits, tokens, is_chosen, chosen + (penalty - 1.0) * log_probs)


def is_repeated_token(ids, t, tokens):
    """Return whether each of `ids` `(R, n)` is one of the first `t` of `tokens` `(R, T)`."""
    is_chosen = ops.arange(ops.shape(tokens)[1]) < t
    same = ops.equal(ops.expand_dims(ids, 2), ops.expand_dims(tokens, 1))
    return ops.any(ops.logical_and(same, is_chosen), axis=-1)


def set_tokens(logits, tokens, is_set, values):
    """Return logits `(R, V)` with `values` at `tokens` where `is_set`.

    Args:
        logits: `(R, V)` float32.
        tokens: `(R, n)` int32. Equal tokens of a row must have equal values.
        is_set: `(R, n)` bool.
        values: `(R, n)` float32, or a float.
    """
    rows, count, size = ops.shape(tokens)[0], ops.shape(tokens)[1], logits.shape[-1]
    # Tokens that are not set write to one extra column, which is cut off at the end.
    columns = ops.where(is_set, tokens, size)
    row = ops.broadcast_to(ops.expand_dims(ops.arange(rows, dtype="int32"), 1), (rows, count))
    indices = ops.reshape(ops.stack([row, columns], axis=-1), (-1, 2))
    padded = ops.concatenate([logits, ops.zeros((rows, 1), dtype=logits.dtype)], axis=1)
    values = ops.broadcast_to(ops.cast(values, logits.dtype), (rows, count))
    return ops.scatter_update(padded, indices, ops.reshape(values, (-1,)))[:, :size]


def stable_top_k(values, k):
    """Return the `k` largest values of the last axis and their indices; ties keep their order.

    TensorFlow and JAX guarantee this order. `torch.topk` does not, so on torch ties are sorted
    afterwards, except for ties of -inf, which do not exist.

    Args:
        values: `(..., n)` float tensor.
        k: Number of values.

    Returns:
        `(values, indices)`, `(..., k)` each; indices are int32.
    """
    if keras.config.backend() != "torch":
        top, indices = ops.top_k(values, k)
        return top, ops.cast(indices, "int32")
    # One extra value shows whether the last one is tied with a value outside the top k.
    top, indices = ops.top_k(values, min(k + 1, values.shape[-1]))
    if bool(ops.any(top[..., 1:] - top[..., :-1] == 0)):  # -inf minus -inf is NaN
        top, indices = _sort_ties(values, top[..., :k], indices[..., :k])
    return top[..., :k], ops.cast(indices[..., :k], "int32")


def _sort_ties(values, top, indices):
    """Sort ties among the `top` values `(..., k)` by their index in `values`."""
    k, size = top.shape[-1], values.shape[-1]
    last = top[..., -1:]
    ids = ops.arange(size, dtype=indices.dtype)
    tied, _ = ops.top_k(ops.where(values == last, -ids, -size), k)
    # Indices of all values above the last one, then of its first ties; `size` marks no index.
    indices = ops.sort(ops.concatenate([ops.where(top > last, indices, size), -tied], axis=-1))
    top = ops.take_along_axis(values, ops.minimum(indices, size - 1), axis=-1)
    order = ops.argsort(ops.where(indices < size, -top, -NEG_INF), axis=-1)[..., :k]
    return ops.take_along_axis(top, order, axis=-1), ops.take_along_axis(indices, order, axis=-1)
