"""Phrases that outputs must contain: lexically constrained beam search.

Dynamic beam allocation (arXiv 1804.06609): the next token of each phrase is a candidate, and the
beam is divided among hypotheses with different numbers of phrase tokens. All functions are of
tensors. `P` phrases of up to `L` tokens belong to each hypothesis.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_bahdanau.search.candidates import NEG_INF, set_tokens
from keras_bahdanau_runtime.ids import PAD

# Logit of the next token of a phrase in the ranking of candidates, above all logits of a model.
_FIRST = 1e6


class Progress(NamedTuple):
    """Progress of hypotheses in their phrases.

    Attributes:
        matches: `(..., P, L)` bool, whether the last tokens of the hypothesis are the first tokens
            of the phrase up to this one.
        is_complete: `(..., P)` bool, whether the hypothesis contains the phrase; True for padding.
    """

    matches: Any
    is_complete: Any


def progress_of(tokens, t, phrases):
    """Return the `Progress` `(R, P, L)` of hypotheses.

    Args:
        tokens: `(R, T)` int32, of which the first `t` are chosen; `PAD` at the others, of which
            there is at least one.
        t: Number of tokens, a scalar int32 tensor.
        phrases: `(R, P, L)` int32, padded with `PAD` at the right. A phrase of only `PAD` requires
            nothing.
    """
    steps, length = ops.shape(tokens)[1], ops.shape(phrases)[2]
    starts = ops.expand_dims(ops.arange(steps, dtype="int32"), 1)
    places = ops.arange(length, dtype="int32")
    # The tokens from each start on, `(R, 1, T, L)`. The last token is `PAD`.
    following = ops.take(tokens, ops.minimum(starts + places, steps - 1), axis=1)
    following, phrases = ops.expand_dims(following, 1), ops.expand_dims(phrases, 2)
    is_token = ops.not_equal(phrases, PAD)
    differs = ops.logical_and(ops.not_equal(following, phrases), is_token)
    # Whether the phrase up to each of its tokens is at each start, `(R, P, T, L)`.
    is_present = ops.equal(ops.cumsum(ops.cast(differs, "int32"), axis=-1), 0)
    ends_here = ops.logical_and(is_token, ops.equal(starts + places + 1, t))
    return Progress(
        ops.any(ops.logical_and(is_present, ends_here), axis=2),
        ops.any(ops.all(is_present, axis=-1), axis=2),
    )


def extend(progress, phrases, tokens):
    """Return the `Progress` `(R, n, P, L)` after each of `n` alternative tokens.

    Args:
        progress: `Progress` `(R, P, L)`.
        phrases: `(R, P, L)` int32.
        tokens: `(R, n)` int32.

    Example:

    >>> phrases = ops.array([[[5, 6]]])
    >>> progress = progress_of(ops.array([[PAD]]), 0, phrases)
    >>> after = extend(progress, phrases, ops.array([[5, 6]]))
    >>> ops.convert_to_numpy(count_missing(after, phrases)).tolist()
    [[1, 2]]
    """
    is_token = ops.not_equal(phrases, PAD)
    is_later = is_token[:, :, 1:]
    # A token matches if the token before it in the phrase did.
    may_match = ops.concatenate(
        [is_token[:, :, :1], ops.logical_and(progress.matches[:, :, :-1], is_later)], axis=2
    )
    none_later = ops.zeros_like(is_token[:, :, :1])
    is_last = ops.logical_not(ops.concatenate([is_later, none_later], axis=2))
    same = ops.equal(ops.expand_dims(phrases, 1), tokens[:, :, None, None])
    matches = ops.logical_and(same, ops.expand_dims(may_match, 1))
    completes = ops.any(ops.logical_and(matches, ops.expand_dims(is_last, 1)), axis=-1)
    return Progress(matches, ops.logical_or(ops.expand_dims(progress.is_complete, 1), completes))


def count_missing(progress, phrases):
    """Return how many tokens hypotheses need at most to contain all phrases.

    These are the tokens of all phrases that are missing, without those that the hypothesis has
    already of one of them. The next token of that phrase makes it one less.

    Args:
        progress: `Progress` `(R, P, L)` or `(R, n, P, L)`.
        phrases: `(R, P, L)` int32.

    Returns:
        `(R,)` or `(R, n)` int32.
    """
    lengths = ops.sum(ops.cast(ops.not_equal(phrases, PAD), "int32"), axis=-1)
    if len(progress.is_complete.shape) == 3:
        lengths = ops.expand_dims(lengths, 1)
    is_missing = ops.logical_not(progress.is_complete)
    started = ops.where(is_missing, _positions(progress.matches, phrases), 0)
    return ops.sum(ops.where(is_missing, lengths, 0), axis=-1) - ops.max(started, axis=-1)


def rank_next_tokens_first(logits, progress, phrases, rows, unused=None):
    """Return logits that rank the next token of every missing phrase above all others.

    Tokens of phrases of which more is present come first.

    Args:
        logits: `(R, V)` float32.
        progress: `Progress` `(R, P, L)`.
        phrases: `(R, P, L)` int32.
        rows: `R`, an int or a scalar tensor.
        unused: As for `set_tokens`.
    """
    positions = _positions(progress.matches, phrases)
    is_next = ops.equal(
        ops.arange(ops.shape(phrases)[2], dtype="int32"), ops.expand_dims(positions, -1)
    )
    tokens = ops.sum(ops.where(is_next, phrases, PAD), axis=-1)
    tokens = ops.where(progress.is_complete, PAD, tokens)
    # Equal tokens need equal values.
    same = ops.equal(ops.expand_dims(tokens, 1), ops.expand_dims(tokens, 2))
    positions = ops.max(ops.where(same, ops.expand_dims(positions, 1), 0), axis=-1)
    values = _FIRST + ops.cast(positions, "float32")
    changes = [(tokens, ops.not_equal(tokens, PAD), values)]
    return set_tokens(logits, changes, rows, unused)


def rank_by_turns(scores, missing, size, num_banks):
    """Return numbers that rank the best candidate of each bank, then the second best, and so on.

    A bank is the candidates with an equal number of missing tokens. Banks with fewer missing tokens
    come first. So each bank gets an equal part of the beam, and what a bank does not fill is
    divided among the others.

    Args:
        scores: `(B, K, W)` float32; -inf for candidates that do not exist.
        missing: `(B, K, W)` int32 number of missing tokens, below `num_banks`.
        size: Number of hypotheses `K`, an int or a scalar tensor.
        num_banks: An int or a scalar tensor.

    Returns:
        `(B, K, W)` float32, the best highest; -inf for candidates that do not exist. Ties of the
        scores are ranked by their order.
    """
    width = scores.shape[-1]
    flat, banks = (ops.reshape(part, (-1, size * width)) for part in (scores, missing))
    order = ops.arange(size * width, dtype="int32")
    first, second = ops.expand_dims(flat, 2), ops.expand_dims(flat, 1)
    is_earlier = ops.expand_dims(order, 1) > order
    is_worse = ops.logical_or(first < second, ops.logical_and(ops.equal(first, second), is_earlier))
    same_bank = ops.equal(ops.expand_dims(banks, 2), ops.expand_dims(banks, 1))
    turns = ops.sum(ops.cast(ops.logical_and(is_worse, same_bank), "int32"), axis=-1)
    ranks = -ops.cast(turns * num_banks + banks, "float32")
    ranks = ops.where(flat > NEG_INF, ranks, NEG_INF)
    return ops.reshape(ranks, (-1, size, width))


def _positions(matches, phrases):
    """Return how many tokens of each phrase are the last ones of the hypothesis, int32."""
    counts = ops.arange(ops.shape(phrases)[2], dtype="int32") + 1
    return ops.max(ops.where(matches, counts, 0), axis=-1)
