"""Logits that are never all there: a loss over a vocabulary, some places of a batch at a time."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau_runtime.ids import PAD


class Projection:
    """What stands in the place of a batch's logits `(B, Ty, V)`, for a loss and for metrics.

    A loss asks for its `total`; with it come the `log_probs` and `right` that metrics read. The
    logits of a chunk of places are there while the chunk is worked on, and so are their gradients:
    that takes the three matrix products of a loss without chunks, where making the logits once
    more on the way back would take four.

    Args:
        features: `(B, Ty, R)` float tensor, what the output layer reads.
        kernel: `(R, V)` float tensor: the logits are `features kernel + bias`.
        bias: `(V,)` float tensor, or `None`.
        seed: The `keras.random.SeedGenerator` of sampled candidates.
        training: Whether the total is to have a gradient, and may be sampled.
        ranked: Whether to find `right`.

    Attributes:
        log_probs: `(B, Ty)` float32 tensor `log p(y_i)`, without gradient; `None` before `total`.
        right: `(B, Ty)` bool tensor, where `y_i` has the largest logit; `None` before `total`, and
            if it is not `ranked`.
    """

    def __init__(self, features, kernel, bias, seed, training, ranked):
        self.shape = features.shape
        self.features, self.kernel = features, kernel
        self.bias = ops.zeros((kernel.shape[1],), kernel.dtype) if bias is None else bias
        self.seed = seed
        self.training = training
        self.ranked = ranked
        self.log_probs = None
        self.right = None

    def total(self, labels, weight, label_smoothing=0.0, chunk_size=None, sampled=None):
        """`sum_i w_i (-(1 - s) log p(y_i) - s / V sum_v log p(v))`.

        Args:
            labels: `(B, Ty)` int tensor of ids. One outside of the vocabulary makes the total NaN,
                or the backend raise its error, unless its weight is 0.
            weight: `(B, Ty)` float32 tensor `w`; it gets no gradient.
            label_smoothing: The share `s`.
            chunk_size: How many places have their logits at once; all if `None`.
            sampled: Over how many ids, beside those of `labels`, the probabilities of a training
                step are normalised, see `sample_candidates`; all if `None`. The mean over `v` is
                exact all the same, as it is linear in the logits.

        Returns:
            Float32 scalar.
        """
        shape = ops.shape(labels)
        labels, weight = ops.reshape(ops.cast(labels, "int32"), (-1,)), ops.reshape(weight, (-1,))
        known = _are_known(labels, self.kernel.shape[1])
        labels = ops.where(ops.logical_or(known, ops.not_equal(weight, 0.0)), labels, PAD)
        features = ops.reshape(self.features, (-1, self.features.shape[-1]))
        read, kept = (features, self.kernel, self.bias), labels
        if self.training and sampled is not None:
            *read, kept = self._among_candidates(features, labels, sampled)
        # Slopes of features and kernel are sums in their dtype: float16 has no room for those of
        # small weights.
        most = ops.max(ops.abs(weight), initial=0.0)
        unit = ops.where(most > 0.0, most, 1.0)
        found = _sweep(*map(ops.stop_gradient, read), kept, weight / unit, chunk_size, self)
        self.log_probs = ops.reshape(found.log_probs, shape)
        self.right = ops.reshape(found.right, shape) if self.ranked else None
        losses = -(1.0 - label_smoothing) * found.log_probs
        # The logits that the loss is linear in are made for themselves, to have their gradients.
        linear = (1.0 - label_smoothing) * self._products(features, labels)
        if label_smoothing:
            mean = label_smoothing * self._means(features)
            linear = linear + mean
            losses = losses + label_smoothing * found.normalisers - ops.stop_gradient(mean)
        total = ops.sum(weight * nan_unless_known(losses, labels, self.kernel.shape[1]))
        if not self.training:
            return total
        slopes = [*(unit * slope for slope in found.slopes), -weight]
        return total + sum(
            _zero(value, slope) for value, slope in zip((*read, linear), slopes, strict=True)
        )

    def _among_candidates(self, features, labels, sampled):
        """Features, kernel and bias of sampled candidates, and which of them the labels are."""
        found = sample_candidates(labels, sampled, self.kernel.shape[1], self.seed)
        columns, bias = ops.take(self.kernel, found.ids, axis=1), ops.take(self.bias, found.ids)
        places = ops.cast(ops.searchsorted(found.ids, labels), "int32")
        return features, columns, ops.cast(bias, "float32") - ops.log(found.shares), places

    def _products(self, features, labels):
        """The logit of the label of each place, `(N,)` float32."""
        columns = ops.transpose(ops.take(self.kernel, labels, axis=1))  # (N, R)
        product = ops.sum(ops.cast(features, "float32") * ops.cast(columns, "float32"), axis=-1)
        return product + ops.cast(ops.take(self.bias, labels), "float32")

    def _means(self, features):
        """The mean logit of each place, `(N,)` float32."""
        mean = ops.mean(ops.cast(self.kernel, "float32"), axis=1)
        bias = ops.mean(ops.cast(self.bias, "float32"))
        return ops.matmul(ops.cast(features, "float32"), mean) + bias


def nan_unless_known(values, labels, vocabulary):
    """The `values`, and NaN where one of `labels`, shaped alike, is no id of the vocabulary."""
    return ops.where(_are_known(labels, vocabulary), values, float("nan"))


def _are_known(labels, vocabulary):
    return ops.logical_and(labels >= 0, labels < vocabulary)


def check_metrics(metrics):
    """Raises a `ValueError` unless all metrics can read a `Projection`."""
    for metric in metrics:
        if not hasattr(metric, "ranks"):
            raise ValueError(
                "Argument `metrics` must be of TokenAccuracy and Perplexity where the loss has a "
                f"`chunk_size` or is `sampled`: there are no logits to read. "
                f"Received: {metric.name!r}"
            )


class _Found(NamedTuple):
    """What a sweep over `N` places finds, float32.

    Attributes:
        log_probs: `(N,)` tensor, of the labels.
        normalisers: `(N,)` tensor `log sum_v exp(logit_v)`.
        right: `(N,)` bool tensor, where the label has the largest logit; or `None`.
        slopes: Gradients of `sum_i w_i normaliser_i`, of features, kernel and bias; empty if not
            wanted.
    """

    log_probs: Any
    normalisers: Any
    right: Any
    slopes: list


def _sweep(features, kernel, bias, labels, weight, chunk, wanted):
    """Makes the logits of `N` places, a chunk at a time; see `_Found`.

    Args:
        features: `(N, R)` float tensor.
        kernel: `(R, V)` float tensor.
        bias: `(V,)` float tensor.
        labels: `(N,)` int32 tensor.
        weight: `(N,)` float32 tensor.
        chunk: How many places make a chunk, or `None`.
        wanted: The `Projection`, which says whether gradients and ranks are.
    """
    places, width = ops.shape(features)[0], features.shape[-1]
    # One chunk at least: a device may have no row of a batch.
    count = 1 if chunk is None else places // chunk + 1
    size = -(-places // count)  # of all of them, which leaves less than a place each to fill up
    kernel, bias = ops.cast(kernel, features.dtype), ops.cast(bias, "float32")
    features, labels, weight = (_chunks(part, count, size) for part in (features, labels, weight))

    def body(i, state):
        found, *slopes = state
        of_chunk, exponentials, sums = _chunk(features[i], kernel, bias, labels[i], wanted.ranked)
        found = ops.slice_update(found, (i, 0, 0), of_chunk[None])
        if not wanted.training:
            return [found]
        # Of the logits: their probabilities, by weight.
        slope = exponentials * (ops.expand_dims(weight[i], -1) / sums)
        of_bias = ops.sum(slope, axis=0)
        slope = ops.cast(slope, features.dtype)
        of_features = ops.cast(ops.einsum("nv,rv->nr", slope, kernel), "float32")
        of_kernel = ops.cast(ops.einsum("nr,nv->rv", features[i], slope), "float32")
        return [
            found,
            ops.slice_update(slopes[0], (i, 0, 0), of_features[None]),
            slopes[1] + of_kernel,
            slopes[2] + of_bias,
        ]

    shapes = [(count, size, 2 + wanted.ranked)]
    if wanted.training:
        shapes += [(count, size, width), ops.shape(kernel), ops.shape(bias)]
    state = [ops.zeros(shape, dtype="float32") for shape in shapes]
    found, *slopes = ops.fori_loop(0, count, body, state)
    found = ops.reshape(found, (-1, 2 + wanted.ranked))[:places]
    if slopes:
        slopes[0] = ops.reshape(slopes[0], (-1, width))[:places]
    right = ops.cast(found[:, 2], "bool") if wanted.ranked else None
    return _Found(found[:, 0], found[:, 1], right, slopes)


def _chunk(features, kernel, bias, labels, ranked):
    """What is found of each of some places `(n, 2 or 3)`, `exp(logit - largest)` and its sum."""
    logits = ops.cast(ops.matmul(features, kernel), "float32") + bias  # (n, V)
    labels = ops.expand_dims(labels, -1)
    largest = ops.max(logits, axis=-1, keepdims=True)
    picked = ops.take_along_axis(logits, labels, axis=-1) - largest
    right = []
    if ranked:
        best = ops.cast(ops.argmax(logits, axis=-1, keepdims=True), "int32")  # the first of equals
        right = [ops.cast(ops.equal(best, labels), "float32")]
    exponentials = ops.exp(logits - largest)
    sums = ops.sum(exponentials, axis=-1, keepdims=True)
    found = [picked - ops.log(sums), largest + ops.log(sums), *right]
    return ops.concatenate(found, axis=-1), exponentials, sums


def _chunks(part, count, size):
    """`(N, ...)` as `(count, size, ...)`, filled up with zeros."""
    rest = tuple(part.shape[1:])
    missing = ops.zeros((count * size - ops.shape(part)[0], *rest), dtype=part.dtype)
    return ops.reshape(ops.concatenate([part, missing], axis=0), (count, size, *rest))


def _zero(value, slope):
    """0, with `slope` as its gradient of `value`."""
    value = ops.cast(value, "float32")
    return ops.sum((value - ops.stop_gradient(value)) * ops.stop_gradient(slope))


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
