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

    Divided by `q_v`, the sum over candidates `C` has the whole sum as its expectation: importance
    sampling as Jean et al. (2015, arXiv 1412.2007, section 3.2) have it. The proposal is the batch itself and an even one beside it: labels come as often as words do in the training
    text, so that what is frequent is nearly always there, with `q_v = 1` once it is; an even draw
    without replacement covers the rest, and its `q_v = (n - d) / (V - d)`, with `d` different
    labels, is exact. No table of frequencies is needed. With all ids as candidates it is the whole
    softmax.

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
    ones = ops.ones_like(labels, dtype="float32")
    occurs = ops.scatter_update(ops.zeros((size,), dtype="float32"), ops.expand_dims(labels, -1), ones)
    ranks = keras.random.uniform((size,), dtype="float32", seed=seed) + occurs
    # A slice, unlike a top-k, is of all ids where it would be of more.
    ids = ops.argsort(-ranks)[: ops.shape(labels)[0] + sampled]
    ids = ops.sort(ops.cast(ids, "int32"))
    different = ops.sum(occurs)
    drawn = ops.cast(ops.shape(ids)[0], "float32") - different
    share = drawn / ops.maximum(size - different, 1.0)
    return Candidates(ids, ops.where(ops.take(occurs, ids) > 0, 1.0, share))
