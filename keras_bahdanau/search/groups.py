"""Selection of the next hypotheses of a beam, by group (diverse beam search, arXiv 1610.02424)."""

from typing import Any, NamedTuple

from keras import ops

from keras_bahdanau.search.history import entries
from keras_bahdanau.search.ranking import NEVER, best_first


class Selection(NamedTuple):
    """The hypotheses of a beam after a step.

    Attributes:
        live: `(B, K)` float32 scores of the live hypotheses; -inf for one that does not exist.
        live_places: `(B, K)` int32, the candidates that they are, of all `(B * K * W,)`.
        ended: `(B, K)` float32 scores of the ended hypotheses that are kept, best first in each
            group; -inf for one that does not exist.
        ended_places: `(B, K)` int32, the candidates that they are, if they have just ended.
        slots: `(B, K)` int32, their places among those kept before; -1 if they have just ended.
    """

    live: Any
    live_places: Any
    ended: Any
    ended_places: Any
    slots: Any


def select(scores, ids, ending, kept, first_rows, groups, diversity):
    """Select the next hypotheses of a beam from candidates.

    The best candidates that do not end are live next. A candidate that ends is kept if it is among
    the best of all candidates, as many as the group has hypotheses, and its score is among the best
    of those kept.

    Args:
        scores: `(B, K, W)` float32, of the candidates.
        ids: `(B, K, W)` int32, their tokens.
        ending: `(B, K, W)` bool, whether a candidate ends.
        kept: `(B, K)` float32 scores of the ended hypotheses so far, best first in each group.
        first_rows: `(B, 1)` int32, `K` times the number of the sentence.
        groups: Number of groups, which divides `K`.
        diversity: Cost of a token for each hypothesis of an earlier group that chose it.

    Returns:
        A `Selection`, whose scores do not include that cost.
    """
    members, width = scores.shape[1] // groups, scores.shape[2]
    columns = members * width
    chosen, tokens = [], []  # of the groups so far
    for group in range(groups):
        rows = slice(group * members, (group + 1) * members)
        own, ends = (ops.reshape(part[:, rows], (-1, columns)) for part in (scores, ending))
        ranked = own
        for earlier in tokens:
            same = ops.equal(ids[:, rows, :, None], earlier[:, None, None, :])
            cost = diversity * ops.sum(ops.cast(same, "float32"), axis=-1)
            ranked = ranked - ops.reshape(cost, (-1, columns))
        first = first_rows * width + group * columns
        live, live_places = best_first(ops.where(ends, NEVER, ranked), members)
        best, places = best_first(ranked, members)
        live_places, places = first + live_places, first + places
        if tokens:  # without the cost
            live = ops.where(live > NEVER, entries(scores, live_places), NEVER)
            best = entries(scores, places)
        best = ops.where(entries(ending, places), best, NEVER)
        ended, order = best_first(ops.concatenate([kept[:, rows], best], axis=1), members)
        is_new = order >= members
        place = first_rows // groups + ops.maximum(order - members, 0)
        chosen.append(
            Selection(
                live=live,
                live_places=live_places,
                ended=ended,
                ended_places=entries(places, place),
                slots=ops.where(is_new, -1, order + group * members),
            )
        )
        if len(chosen) < groups:
            exists = ops.concatenate([live > NEVER, best > NEVER], axis=1)
            taken = entries(ids, ops.concatenate([live_places, places], axis=1))
            tokens.append(ops.where(exists, taken, -1))
    if groups == 1:
        return chosen[0]
    return Selection(*(ops.concatenate(parts, axis=1) for parts in zip(*chosen, strict=True)))


def repeats(tokens, scores):
    """Whether a hypothesis repeats an earlier one, `(B, K)` bool.

    Args:
        tokens: `(T, B, K)` int32, padded with `PAD`.
        scores: `(B, K)` float32; -inf for a hypothesis that does not exist.
    """
    same = ops.all(ops.equal(ops.expand_dims(tokens, 3), ops.expand_dims(tokens, 2)), axis=0)
    same = ops.logical_and(same, ops.expand_dims(scores > NEVER, 1))
    ids = ops.arange(tokens.shape[2], dtype="int32")
    earlier = ops.expand_dims(ids, 1) > ops.expand_dims(ids, 0)
    return ops.any(ops.logical_and(same, earlier), axis=2)
