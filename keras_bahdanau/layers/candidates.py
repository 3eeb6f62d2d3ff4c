"""The ids that a sampled softmax is computed over."""

from typing import Any, NamedTuple

import keras
from keras import ops


class Candidates(NamedTuple):
    """Some of a vocabulary's ids.

    Attributes:
        ids: `(n,)` int32 tensor, ascending, no id twice.
        shares: `(n,)` float32 tensor, how probable it was that each would be among them.
    """

    ids: Any
    shares: Any


def sample_candidates(labels, sampled, vocabulary_size, seed):
    """All ids among the labels of a batch, and others of the vocabulary drawn evenly.

        Z = sum_v exp(l_v)  ~  sum_{v in C} exp(l_v - log q_v),     q_v = P(v in C)

    Divided by `q_v`, the sum over the candidates `C` has the whole sum as its expectation: the
    importance sampling of Jean et al. (2015, arXiv 1412.2007, section 3).

    The proposal is the batch, and an even draw beside it. Labels come as often as words do in the
    training text, so what is frequent is nearly always among them; then `q_v = 1`. The even draw,
    without replacement, covers the rest: with `d` different labels its `q_v = (n - d) / (V - d)` is
    exact. It takes no table of frequencies, and ids in no order of them. With all ids as candidates
    it is the whole softmax.

    Args:
        labels: `(N,)` int32 tensor of ids.
        sampled: How many candidates there are at least beside the labels. There are `n = N +
            sampled`, but `V` at most, whatever ids repeat in `labels`: a number known from shapes.
        vocabulary_size: The number of ids `V`.
        seed: A `keras.random.SeedGenerator`.

    Returns:
        `Candidates`.
    """
    size = vocabulary_size
    occurs = ops.scatter_update(
        ops.zeros((size,), dtype="float32"),
        ops.expand_dims(labels, -1),
        ops.ones_like(labels, dtype="float32"),
    )
    ranks = keras.random.uniform((size,), dtype="float32", seed=seed) + occurs
    # Unlike a top-k, a slice of more ids than there are is all of them.
    ids = ops.argsort(-ranks)[: ops.shape(labels)[0] + sampled]
    ids = ops.sort(ops.cast(ids, "int32"))
    different = ops.sum(occurs)
    drawn = ops.cast(ops.shape(ids)[0], "float32") - different
    share = drawn / ops.maximum(size - different, 1.0)
    return Candidates(ids, ops.where(ops.take(occurs, ids) > 0, 1.0, share))
