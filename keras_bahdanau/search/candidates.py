"""Candidate tokens of one step: constraints on the logits, and the selection of the best."""

import keras
from keras import ops

from keras_bahdanau.search.history import take_flat
from keras_bahdanau_runtime.ids import EOS, PAD

# Log-probability of a hypothesis or token that does not exist.
NEG_INF = float("-inf")


def forbid_ids(logits, t, forbidden, min_length):
    """Set the logits of forbidden ids, and of `EOS` before `min_length` tokens, to -inf.

    Args:
        logits: `(R, V)` float32.
        t: Number of the step, a scalar int32 tensor.
        forbidden: Ids that are never chosen.
        min_length: Minimum number of tokens in an output, `EOS` included, an int or a tensor.

    Returns:
        `(R, V)` float32 logits.
    """
    ids = ops.arange(logits.shape[-1], dtype="int32")
    barred = ops.logical_and(ids == EOS, t + 1 < min_length)
    for token in forbidden:
        barred = ops.logical_or(barred, ids == token)
    return ops.where(barred, NEG_INF, logits)


def penalize_repeated_tokens(logits, log_probs, t, tokens, penalty, rows, unused=None):
    """Lower the logits of tokens so that their log-probabilities are `penalty` times as large.

        log p = logit - logsumexp(logits);  logit + (penalty - 1) log p = logsumexp + penalty log p

    Args:
        logits: `(R, V)` float32.
        log_probs: `(R, V)` float32 log-softmax of the logits.
        t: Number of the step, a scalar int32 tensor.
        tokens: `(R, T)` int32; the first `t` of each row are chosen already.
        penalty: At least 1.
        rows: `R`, an int or a scalar tensor.
        unused: As for `set_tokens`.

    Returns:
        `(R, V)` float32 logits.
    """
    is_chosen = ops.arange(ops.shape(tokens)[1], dtype="int32") < t
    is_chosen = ops.broadcast_to(is_chosen, (rows, ops.shape(tokens)[1]))
    indices = row_starts(rows, logits.shape[-1]) + tokens
    lowered = take_flat(logits, indices) + (penalty - 1.0) * take_flat(log_probs, indices)
    return set_tokens(logits, [(tokens, is_chosen, lowered)], rows, unused)


def is_repeated_token(ids, t, tokens):
    """Return whether each of `ids` `(R, n)` is one of the first `t` of `tokens` `(R, T)`."""
    is_chosen = ops.arange(ops.shape(tokens)[1], dtype="int32") < t
    same = ops.equal(ops.expand_dims(ids, 2), ops.expand_dims(tokens, 1))
    return ops.any(ops.logical_and(same, is_chosen), axis=-1)


def set_tokens(logits, changes, rows, unused=None):
    """Return logits `(R, V)` with other values at some tokens.

    Args:
        logits: `(R, V)` float32.
        changes: A list of `(tokens, is_set, values)`: `(R, n)` int32 tokens; whether each is set,
            `(R, n)` bool; and its value, `(R, n)` float32 or -inf for all. Equal tokens of a row
            must have equal values.
        rows: `R`, an int or a scalar tensor.
        unused: An id that is never chosen, whose logits become -inf; `None` if there is none.
    """
    if unused is None:  # one more column
        extended = ops.pad(logits, [[0, 0], [0, 1]])
        size = logits.shape[-1]
        return set_tokens(extended, changes, rows, unused=size)[:, :size]
    width, all_indices, all_values = logits.shape[-1], [], []
    for tokens, is_set, values in changes:
        # Tokens that are not set write -inf to the unused id.
        indices = row_starts(rows, width) + ops.where(is_set, tokens, unused)
        if isinstance(values, float):
            values = ops.full((rows, ops.shape(tokens)[1]), NEG_INF, dtype=logits.dtype)
        else:
            values = ops.where(is_set, values, NEG_INF)
        # Separately, so that an exported graph computes what no step changes before its loop.
        all_indices.append(ops.reshape(indices, (-1, 1)))
        all_values.append(ops.reshape(values, (-1,)))
    indices, values = ops.concatenate(all_indices), ops.concatenate(all_values)
    flat = ops.scatter_update(ops.reshape(logits, (-1,)), indices, values)
    return ops.reshape(flat, (-1, width))


def allow_completions(logits, allowed, forced, is_completion, size):
    """Allow only the token of the prefix and its completions, where there are any.

    Args:
        logits: `(R, V)` float32, without the other constraints, which do not apply to the prefix.
        allowed: `(R, V)` float32, -inf where another constraint forbids a token.
        forced: `(R,)` int32 tokens of the prefix, `PAD` where the choice is free.
        is_completion: `(B, V)` or `(1, V)` bool, whether a token may end the prefix at this step.
        size: Number of hypotheses `R / B`, an int or a scalar tensor.

    Returns:
        `(allowed, forced)`. Rows with completions are -inf at all other tokens, and have no forced
        token.
    """
    width = logits.shape[-1]
    shape, is_completion = (-1, size, width), ops.expand_dims(is_completion, 1)
    allowed, logits = ops.reshape(allowed, shape), ops.reshape(logits, shape)
    by_sentence = ops.reshape(forced, (-1, size, 1))
    is_own = ops.equal(ops.arange(width, dtype="int32"), by_sentence)
    only = ops.where(is_own, logits, ops.where(is_completion, allowed, NEG_INF))
    has_choice = ops.any(is_completion, axis=-1, keepdims=True)
    has_choice = ops.logical_and(has_choice, ops.not_equal(by_sentence, PAD))
    allowed = ops.reshape(ops.where(has_choice, only, allowed), (-1, width))
    return allowed, ops.where(ops.reshape(has_choice, (-1,)), PAD, forced)


def row_starts(rows, width):
    """Return the index of the first number of each row in a flattened table, `(rows, 1)` int32."""
    return ops.expand_dims(ops.arange(rows, dtype="int32") * width, -1)


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
