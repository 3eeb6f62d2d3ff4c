"""Forced decoding: the log-probabilities of given targets under a step function."""

from typing import Any, NamedTuple

from keras import ops

from keras_bahdanau.search.base import checked_step
from keras_bahdanau.search.history import take_flat, write_step
from keras_bahdanau_runtime.ids import PAD


class Scores(NamedTuple):
    """Log-probabilities of given targets.

    Attributes:
        totals: `(B,)` float32 log-probability of each target, in nats.
        log_probs: `(B, T)` float32 log-probability of each of its tokens; zero after its length.
        lengths: `(B,)` int32 number of tokens.
        alignments: `(B, T, Tx)` float32 attention weights; zero after the length.
        copied: `(B, T, Tx)` float32 share of the probability of each token that was copied from
            each source token; `None` for a model that does not copy.
    """

    totals: Any
    log_probs: Any
    lengths: Any
    alignments: Any
    copied: Any = None


def score_targets(step, state, start, target, memory_length):
    """Return the log-probabilities of given targets and the attention weights of their steps.

    Each step reads the token of the target before it. Nothing is searched, and no constraint or
    length penalty applies. The number of steps is the width of `target`, which may be dynamic.

    Args:
        step: The step function, see `Search`.
        state: Nest of tensors with `B` rows.
        start: `(B,)` int32 first tokens, usually `BOS`.
        target: `(B, T)` int32, padded with `PAD` at the right.
        memory_length: `Tx`, the width of the weights, an int or a scalar tensor.

    Returns:
        `Scores` of tensors.

    Raises:
        ValueError: If `step` does not return the values that `Search` describes.

    Example:

    >>> def uniform(tokens, state):                       # 8 tokens with equal probabilities
    ...     rows = ops.shape(tokens)[0]
    ...     return ops.zeros((rows, 8)), state, ops.ones((rows, 1))
    >>> target = ops.array([[5, 3], [3, 0]])
    >>> scores = score_targets(uniform, (), ops.array([2, 2]), target, 1)
    >>> ops.convert_to_numpy(scores.totals / ops.log(8.0)).round(3).tolist()
    [-2.0, -1.0]
    """
    step, target = checked_step(step, memory_length), ops.cast(target, "int32")
    rows, length = ops.shape(target)
    row = ops.arange(rows, dtype="int32")

    def advance(t, tokens, state, record):
        logits, state, weights = step(tokens, state)
        logits = ops.cast(logits, "float32")
        tokens = ops.take(target, t, axis=1)
        chosen = take_flat(logits, row * ops.shape(logits)[1] + tokens)
        log_probs = chosen - ops.logsumexp(logits, axis=-1)
        return (
            t + 1,
            tokens,
            state,
            write_step(record, t, (log_probs, ops.cast(weights, "float32"))),
        )

    record = ops.zeros((length, rows)), ops.zeros((length, rows, memory_length))
    zero = ops.convert_to_tensor(0, dtype="int32")
    *_, (log_probs, weights) = ops.while_loop(
        lambda t, tokens, state, record: t < length,
        advance,
        (zero, ops.cast(start, "int32"), state, record),
    )
    is_token = ops.not_equal(target, PAD)
    log_probs = ops.where(is_token, ops.transpose(log_probs), 0.0)
    alignments = ops.transpose(weights, (1, 0, 2))
    return Scores(
        totals=ops.sum(log_probs, axis=1),
        log_probs=log_probs,
        lengths=ops.sum(ops.cast(is_token, "int32"), axis=1),
        alignments=ops.where(ops.expand_dims(is_token, -1), alignments, 0.0),
    )
