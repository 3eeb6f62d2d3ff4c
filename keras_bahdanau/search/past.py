"""The earlier steps of a search, as far as constraints need them."""

from typing import Any, NamedTuple

from keras import ops, tree


class Past(NamedTuple):
    """Earlier steps of `R` hypotheses. A part that no constraint needs is `()`.

    Attributes:
        tokens: `(R, T)` int32 tokens so far, `PAD` at later positions.
        coverage: `(R, Tx)` float32 sums of the attention weights, plus 1 at positions that a
            coverage penalty does not count.
        parents: `(R,)` int32, the row of `tokens` and `coverage` with the earlier steps of each
            hypothesis; `()` if that is its own row. The next step reorders the parts, unless no
            constraint applies.
    """

    tokens: Any = ()
    coverage: Any = ()
    parents: Any = ()


def add_step(past, t, tokens, weights):
    """Return the `Past` at step `t`.

    Args:
        past: The `Past` at the step before.
        t: Number of the step, a scalar int32 tensor.
        tokens: `(R,)` int32 last token of each hypothesis: the one at position `t - 1`.
        weights: `(R, Tx)` float32 attention weights of this step.
    """
    *parts, parents = past
    if not isinstance(parents, tuple):
        parts = tree.map_structure(lambda part: ops.take(part, parents, axis=0), parts)
    history, coverage = parts
    if not isinstance(history, tuple):
        is_last = ops.arange(ops.shape(history)[1], dtype="int32") + 1 == t
        history = ops.where(is_last, ops.expand_dims(tokens, 1), history)
    if not isinstance(coverage, tuple):
        coverage = coverage + weights
    return Past(history, coverage, parents)


def completes_ngram(tokens, t, n):
    """Return where in `tokens` a token is that would complete an n-gram a second time.

    Args:
        tokens: `(R, T)` int32, of which the first `t` of each row are chosen already.
        t: Number of the step, a scalar int32 tensor.
        n: Number of tokens in the n-gram, a positive int, or a tensor that may be 0 for none.

    Returns:
        `(R, T)` bool.

    Example:

    >>> tokens = ops.array([[5, 6, 7, 5, 6, 0]])           # a second 7 would complete 5 6 7
    >>> ops.convert_to_numpy(completes_ngram(tokens, 5, 3)).tolist()
    [[False, False, True, False, False, False]]
    """
    positions = ops.arange(ops.shape(tokens)[1], dtype="int32")
    # The last token of a longer n-gram has no position.
    n = min(n, tokens.shape[1] + 1) if isinstance(n, int) else n
    back = ops.arange(n if isinstance(n, int) else ops.maximum(n, 1), dtype="int32")
    # The tokens before each position, `(R, T, n)`, the last one first.
    before = ops.maximum(ops.expand_dims(positions - 1, 1) - back, 0)
    before = ops.take(tokens, before, axis=1)
    same = ops.equal(before, ops.expand_dims(ops.take(before, t, axis=1), 1))
    count = ops.sum(ops.where(same, ops.cast(back < n - 1, "int32"), 0), axis=-1)
    # The count at which a position can end an n-gram, -1 if it cannot.
    can_end_ngram = ops.logical_and(positions >= n - 1, n > 0)
    is_second = ops.equal(count, ops.where(can_end_ngram, n - 1, -1))
    return ops.logical_and(is_second, positions < t)


def follows_prefix(past, t, prefix):
    """Return whether the first `t` tokens of each hypothesis are those of `prefix`, `(R,)` bool.

    Args:
        past: A `Past` with tokens.
        t: Number of the step, a scalar int32 tensor.
        prefix: `(R, T)` int32.
    """
    is_later = ops.arange(ops.shape(past.tokens)[1], dtype="int32") >= t
    return ops.all(ops.logical_or(is_later, ops.equal(past.tokens, prefix)), axis=1)
