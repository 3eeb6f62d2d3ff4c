"""Diverse beam search: groups that avoid what earlier ones chose, arXiv 1610.02424."""

from keras import ops

from keras_bahdanau.search.history import entries, trace_back
from keras_bahdanau.search.ranking import NEVER, best_first


def choose_in_groups(scores, ids, alive, groups, diversity):
    """Chooses the next hypotheses of a beam group by group.

    Args:
        scores: `(B, K, W)` float32, of the candidates.
        ids: `(B, K, W)` int32, their tokens.
        alive: `(B, K)` bool, whether the hypothesis that a candidate continues has not ended.
        groups: Number of groups, which divides `K`.
        diversity: What a token costs for each time that an earlier group chose it.

    Returns:
        The scores `(B, K)` without that cost, and the places `(B, K)` in the candidates
        `(B, K * W)`.
    """
    (_, size, width), members = scores.shape, scores.shape[1] // groups
    # An ended hypothesis chooses no token: -1 is nobody's repetition.
    ids = ops.where(ops.expand_dims(alive, -1), ids, -1)
    chosen = []
    for group in range(groups):
        rows = slice(group * members, (group + 1) * members)
        part = scores[:, rows]
        for _, earlier in chosen:  # (B, members) tokens of an earlier group
            same = ops.equal(ids[:, rows, :, None], earlier[:, None, None, :])
            same = ops.logical_and(same, ids[:, rows, :, None] >= 0)
            part = part - diversity * ops.sum(ops.cast(same, "float32"), axis=-1)
        _, places = best_first(ops.reshape(part, (-1, members * width)), members)
        tokens = ops.take_along_axis(
            ops.reshape(ids[:, rows], (-1, members * width)), places, axis=1
        )
        chosen.append((places + group * members * width, tokens))
    places = ops.concatenate([places for places, _ in chosen], axis=1)
    together = ops.reshape(scores, (-1, size * width))
    return ops.take_along_axis(together, places, axis=1), places


def repeats(lengths, scores, history, stop):
    """Whether an earlier group found the same hypothesis, `(B, K)` bool.

    Args:
        lengths: `(B, K)` int32, of the hypotheses.
        scores: `(B, K)` float32, -inf for what does not exist and so repeats nothing.
        history: The `History` of the search.
        stop: Number of steps that were made, a scalar int32 tensor.
    """
    size = scores.shape[1]
    rows = ops.arange(ops.shape(history.parents)[1], dtype="int32")
    _, places = trace_back(history.parents, ops.reshape(rows, (-1, size)), stop)
    tokens = entries(history.tokens, places)  # (T, B, K)
    same = ops.all(ops.equal(ops.expand_dims(tokens, 3), ops.expand_dims(tokens, 2)), axis=0)
    same = ops.logical_and(same, ops.expand_dims(lengths, 2) == ops.expand_dims(lengths, 1))
    exists = ops.expand_dims(scores > NEVER, 1)
    ids = ops.arange(size, dtype="int32")
    earlier = ops.expand_dims(ids, 1) > ops.expand_dims(ids, 0)
    return ops.any(ops.logical_and(ops.logical_and(same, exists), earlier), axis=2)
