"""Selection of the next hypotheses of a beam, by group (diverse beam search, arXiv 1610.02424)."""

from typing import Any, NamedTuple

from keras import ops

from keras_bahdanau.search.history import entries
from keras_bahdanau.search.ranking import NEVER, best_first


class Selection(NamedTuple):
    """The hypotheses of a beam after a step.

    Attributes:
        live_places: `(B, K)` int32, the candidates that are live next, of all `(B * K * W,)`. Where
            too few of them go on, others fill the places.
        ended: `(B, K)` float32 scores of the ended hypotheses that are kept, best first in each
            group; -inf for one that does not exist.
        ended_places: `(B, K)` int32, the candidates that they are, if they have just ended.
        ended_parents: `(B, K)` int32, the rows that they continue: of `(B * K,)` if they have just
            ended, else the `kept_rows`.
    """

    live_places: Any
    ended: Any
    ended_places: Any
    ended_parents: Any


def select(scores, ids, ending, kept, kept_rows, first_rows, groups, diversity):
    """Select the next hypotheses of a beam from candidates.

    The best candidates that do not end are live next. A candidate that ends is kept if it is among
    the best of all candidates, as many as the group has hypotheses, and its score is among the best
    of those kept.

    Args:
        scores: `(B, K, W)` float32, of the candidates.
        ids: `(B, K, W)` int32, their tokens.
        ending: `(B, K, W)` bool, whether a candidate ends.
        kept: `(B, K)` float32 scores of the ended hypotheses so far, best first in each group.
        kept_rows: `(B, K)` int32, their rows.
        first_rows: `(B, 1)` int32, `K` times the number of the sentence.
        groups: Number of groups, which divides `K`.
        diversity: Cost of a token for each hypothesis of an earlier group that chose it.

    Returns:
        A `Selection`, whose scores do not include that cost.
    """
    size, width = scores.shape[1:]
    members = size // groups
    going = ops.where(ending, NEVER, scores)
    ended_scores = ops.where(ending, scores, NEVER)
    selected, tokens = [], []  # of the groups so far
    for group in range(groups):

        def own(tensor, group=group):
            rows = slice(group * members, (group + 1) * members)
            return tensor if groups == 1 else tensor[:, rows]

        cost = 0.0
        for earlier in tokens:
            same = ops.equal(own(ids)[..., None], earlier[:, None, None, :])
            cost = cost + diversity * ops.sum(ops.cast(same, "float32"), axis=-1)
        ranked = (own(part) - cost if tokens else own(part) for part in (going, scores))
        (live, live_places), (_, places) = (
            best_first(ops.reshape(part, (-1, members * width)), members) for part in ranked
        )
        first = first_rows * width + group * members * width
        live_places, places = first + live_places, first + places
        best = entries(ended_scores, places)
        ended, order = best_first(ops.concatenate([own(kept), best], axis=1), members)
        order = order + (first_rows // size) * (2 * members)  # into (B * 2 * members,)
        parents = ops.concatenate([own(kept_rows), places // width], axis=1)
        ended_places = entries(ops.concatenate([places, places], axis=1), order)
        selected.append(Selection(live_places, ended, ended_places, entries(parents, order)))
        if len(selected) < groups:
            exists = ops.concatenate([live > NEVER, best > NEVER], axis=1)
            taken = entries(ids, ops.concatenate([live_places, places], axis=1))
            tokens.append(ops.where(exists, taken, -1))
    if groups == 1:
        return selected[0]
    return Selection(*(ops.concatenate(parts, axis=1) for parts in zip(*selected, strict=True)))


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
