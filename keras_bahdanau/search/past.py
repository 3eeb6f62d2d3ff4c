"""What constraints need of the earlier steps of a search."""

from typing import Any, NamedTuple

from keras import ops, tree

from keras_bahdanau.search.required import Progress, extend
from keras_bahdanau_runtime.ids import PAD


class Past(NamedTuple):
    """Earlier steps of `R` hypotheses. A part that no constraint needs is `()`.

    Attributes:
        tokens: `(R, T)` int32 tokens so far, `PAD` at later positions.
        matches: `(R, T)` int32, for each position how many of the tokens before it are also the
            last tokens of the hypothesis.
        coverage: `(R, Tx)` float32 sums of the attention weights.
        progress: The `Progress` in the required phrases.
        parents: `(R,)` int32, the row of the other parts that each hypothesis continues; `()` for
            its own. The next step reorders the parts, unless no constraint applies.
    """

    tokens: Any = ()
    matches: Any = ()
    coverage: Any = ()
    progress: Any = ()
    parents: Any = ()


def has(part):
    """Return whether a part of a `Past` is a tensor."""
    return not isinstance(part, tuple)


def add_step(past, t, tokens, weights, rows, phrases=None):
    """Return the `Past` at step `t`.

    Args:
        past: The `Past` at the step before.
        t: Number of the step, a scalar int32 tensor.
        tokens: `(R,)` int32 last token of each hypothesis: the one at position `t - 1`.
        weights: `(R, Tx)` float32 attention weights of this step.
        rows: `R`, an int or a scalar tensor.
        phrases: `(R, P, L)` int32 required phrases, or `None`.
    """
    *parts, parents = past
    if has(parents):
        parts = tree.map_structure(lambda part: ops.take(part, parents, axis=0), parts)
    history, matches, coverage, progress = parts
    if has(history):
        last = ops.expand_dims(tokens, 1)
        is_last = ops.arange(ops.shape(history)[1], dtype="int32") == t - 1
        history = ops.where(is_last, last, history)
        if has(matches):
            is_match = ops.equal(_shifted(history, -1, rows), last)
            matches = ops.where(is_match, _shifted(matches, 0, rows) + 1, 0)
    if has(coverage):
        coverage = coverage + weights
    if phrases is not None:
        last = ops.where(t > 0, tokens, PAD)  # the start token is not a part of the output
        matches_of_phrases, met = extend(progress, phrases, ops.expand_dims(last, 1))
        progress = Progress(ops.squeeze(matches_of_phrases, 1), ops.squeeze(met, 1))
    return Past(history, matches, coverage, progress, parents)


def completes_ngram(past, t, n, rows):
    """Return where in `past.tokens` a token is that would complete an n-gram a second time.

    Args:
        past: A `Past`.
        t: Number of the step, a scalar int32 tensor.
        n: Number of tokens in the n-gram; a tensor may be 0 for none.
        rows: `R`, an int or a scalar tensor.

    Returns:
        `(R, T)` bool.
    """
    completes = ops.arange(ops.shape(past.tokens)[1], dtype="int32") < t
    if has(past.matches):
        # An n-gram ends at a position if the n - 1 tokens before it are the last ones.
        completes = ops.logical_and(completes, past.matches >= n - 1)
        return ops.logical_and(completes, n > 0)
    return ops.broadcast_to(completes, (rows, ops.shape(past.tokens)[1]))


def follows_prefix(past, t, prefix):
    """Return whether the first `t` tokens of each hypothesis are those of `prefix`, `(R,)` bool.

    Args:
        past: A `Past` with tokens.
        t: Number of the step, a scalar int32 tensor.
        prefix: `(R, T)` int32.
    """
    is_later = ops.arange(ops.shape(past.tokens)[1], dtype="int32") >= t
    return ops.all(ops.logical_or(is_later, ops.equal(past.tokens, prefix)), axis=1)


def _shifted(table, first, rows):
    """Return `(R, T)` int32 `table` moved right by one column, with `first` in the first one."""
    return ops.concatenate([ops.full((rows, 1), first, dtype="int32"), table[:, :-1]], axis=1)
