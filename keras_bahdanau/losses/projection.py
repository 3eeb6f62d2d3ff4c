"""Projection onto a large vocabulary whose logits are computed inside the loss.

The loss is computed for chunks of positions, so that not all logits `(B, Ty, V)` are in memory at
once, or over a sample of the vocabulary (sampled softmax).
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.layers.copying import copied_increase, total_increase
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD


class Projection:
    """Features and output weights of a batch, passed to loss and metrics instead of the logits.

    `total` computes the loss, and with it `log_probs` and `correct` for the metrics. The logits of
    a chunk of positions and their gradients exist only while the chunk is processed. Computing the
    gradients in the forward pass takes three matrix products, as many as a loss without chunks.
    Recomputing the logits in the backward pass would take four.

    Args:
        features: `(B, Ty, R)` float tensor, the input of the output layer.
        kernel: `(R, V)` float tensor; the logits are `features @ kernel + bias`.
        bias: `(V,)` float tensor, or `None`.
        seed: `keras.random.SeedGenerator` for sampled candidates.
        training: Whether the total needs a gradient and may be sampled.
        needs_correct: Whether to compute `correct`.
        copied: The `Copied` weights of a model with a `PointerGenerator`, or `None`.

    Attributes:
        log_probs: `(B, Ty)` float32 tensor `log p(y_i)`, without gradient; `None` before `total`.
        correct: `(B, Ty)` bool tensor, True where `y_i` has the largest logit; `None` before
            `total` or without `needs_correct`.
    """

    def __init__(self, features, kernel, bias, seed, training, needs_correct, copied=None):
        self.shape = features.shape
        self.features, self.kernel = features, kernel
        self.bias = ops.zeros((kernel.shape[1],), kernel.dtype) if bias is None else bias
        self.seed = seed
        self.training = training
        self.needs_correct = needs_correct
        self.copied = copied
        self.log_probs = None
        self.correct = None

    def total(self, labels, weight, label_smoothing=0.0, chunk_size=None, sampled=None):
        """Return the total loss `sum_i w_i (-(1 - s) log p(y_i) - s / V sum_v log p(v))`.

        Args:
            labels: `(B, Ty)` int tensor of ids. If a label with a nonzero weight is outside of the
                vocabulary, the total is NaN, or the backend raises an error.
            weight: `(B, Ty)` float32 tensor `w`, without gradient.
            label_smoothing: The fraction `s`.
            chunk_size: Maximum number of positions in a chunk; all if `None`.
            sampled: Number of sampled ids, in addition to `labels`, over which the probabilities
                are normalized in training; see `sample_candidates`. All ids if `None`. The mean
                over `v` is exact in any case, because it is linear in the logits.

        Returns:
            Float32 scalar.
        """
        shape = ops.shape(labels)
        labels, weight = ops.reshape(ops.cast(labels, "int32"), (-1,)), ops.reshape(weight, (-1,))
        is_id = _is_id(labels, self.kernel.shape[1])
        labels = ops.where(ops.logical_or(is_id, ops.not_equal(weight, 0.0)), labels, PAD)
        features = ops.reshape(self.features, (-1, self.features.shape[-1]))
        tensors, columns = (features, self.kernel, self.bias), labels
        copied = () if self.copied is None else self._copied_rows(labels, label_smoothing)
        if self.training and sampled is not None:
            if copied:
                raise argument_error(
                    "sampled", "be None for a model that copies", sampled, of="TokenCrossentropy"
                )
            *tensors, columns = self._select_candidates(features, labels, sampled)
        # The gradients of features and kernel are sums in their dtype, where small weights would
        # underflow in float16. So weights are scaled to a maximum of 1.
        largest = ops.max(ops.abs(weight), initial=0.0)
        scale = ops.where(largest > 0.0, largest, 1.0)
        tensors_without_gradient = keras.tree.map_structure(ops.stop_gradient, (tensors, copied))
        result = _loss_in_chunks(
            *tensors_without_gradient, columns, weight / scale, chunk_size, self
        )
        log_probs = result.log_probs
        if copied:
            log_probs = log_probs + _label_increase(result.increase, copied)
        self.log_probs = ops.reshape(log_probs, shape)
        self.correct = ops.reshape(result.correct, shape) if self.needs_correct else None
        losses = -(1.0 - label_smoothing) * result.log_probs
        # The terms of the loss that are linear in the logits get their gradients from these logits.
        linear = (1.0 - label_smoothing) * self._label_logits(features, labels)
        if label_smoothing:
            mean = label_smoothing * self._mean_logits(features)
            linear = linear + mean
            losses = losses + label_smoothing * result.normalizers - ops.stop_gradient(mean)
        if copied:
            losses = losses + self._copied_losses(features, copied, result)
        total = ops.sum(weight * nan_unless_id(losses, labels, self.kernel.shape[1]))
        if not self.training:
            return total
        gradients = [*(scale * gradient for gradient in result.gradients), -weight]
        return total + sum(
            _zero_with_gradient(value, gradient)
            for value, gradient in zip((*tensors, linear), gradients, strict=True)
        )

    def _select_candidates(self, features, labels, sampled):
        """Sample candidates.

        Returns:
            Features, kernel and bias of the candidates, and the index of each label among them.
        """
        candidates = sample_candidates(labels, sampled, self.kernel.shape[1], self.seed)
        kernel = ops.take(self.kernel, candidates.ids, axis=1)
        bias = ops.take(self.bias, candidates.ids)
        indices = ops.cast(ops.searchsorted(candidates.ids, labels), "int32")
        bias = ops.cast(bias, "float32") - ops.log(candidates.probabilities)
        return features, kernel, bias, indices

    def _copied_rows(self, labels, label_smoothing):
        """Return the `_CopiedRows` of all positions.

        Args:
            labels: `(N,)` int32 tensor of ids.
            label_smoothing: The fraction `s`.
        """
        gate, mass, ids = self.copied
        width = ops.shape(mass)[-1]
        ids = ops.reshape(ops.broadcast_to(ops.expand_dims(ids, 1), ops.shape(mass)), (-1, width))
        is_label = ops.cast(ops.equal(ids, ops.expand_dims(labels, -1)), "float32")
        shares = (1.0 - label_smoothing) * is_label + label_smoothing / self.kernel.shape[1]
        gate, mass = ops.reshape(gate, (-1, 1)), ops.reshape(mass, (-1, width))
        return _CopiedRows(gate, mass, ids, is_label, shares)

    def _copied_losses(self, features, rows, result):
        """Return the change of the losses by copying, `(N,)`, with all gradients but of `log Z`.

        log Z' - log Z - (1 - s) (l'_y - l_y) - s / V sum_v (l'_v - l_v)
        """
        ids = self.copied.ids
        columns = ops.cast(ops.take(self.kernel, ids, axis=1), "float32")  # (R, B, Tx)
        sequences = ops.reshape(features, (ops.shape(ids)[0], -1, features.shape[-1]))
        logits = ops.einsum("btr,rbx->btx", ops.cast(sequences, "float32"), columns)
        logits = logits + ops.expand_dims(ops.cast(ops.take(self.bias, ids), "float32"), 1)
        logits = ops.reshape(logits, ops.shape(rows.mass))
        logits = result.source_logits + logits - ops.stop_gradient(logits)
        normalizers = ops.expand_dims(result.normalizers, -1)
        increase = copied_increase(logits, normalizers, rows.gate, rows.mass)
        total = ops.squeeze(total_increase(rows.gate, rows.mass), -1)
        return total - ops.sum(rows.shares * increase, axis=-1)

    def _label_logits(self, features, labels):
        """Return the logit of the label at each position, `(N,)` float32."""
        columns = ops.transpose(ops.take(self.kernel, labels, axis=1))  # (N, R)
        product = ops.sum(ops.cast(features, "float32") * ops.cast(columns, "float32"), axis=-1)
        return product + ops.cast(ops.take(self.bias, labels), "float32")

    def _mean_logits(self, features):
        """Return the mean logit at each position, `(N,)` float32."""
        mean = ops.mean(ops.cast(self.kernel, "float32"), axis=1)
        bias = ops.mean(ops.cast(self.bias, "float32"))
        return ops.matmul(ops.cast(features, "float32"), mean) + bias


def nan_unless_id(values, labels, vocabulary_size):
    """Return `values`, with NaN where a label is outside of the vocabulary."""
    return ops.where(_is_id(labels, vocabulary_size), values, float("nan"))


def _is_id(labels, vocabulary_size):
    return ops.logical_and(labels >= 0, labels < vocabulary_size)


def check_metrics(metrics):
    """Raise a `ValueError` unless all metrics can read a `Projection`."""
    for metric in metrics:
        if not hasattr(metric, "needs_correct"):
            raise argument_error(
                "metrics",
                "be of TokenAccuracy and Perplexity if the loss has a `chunk_size` or is "
                "`sampled`, because there are no logits to read",
                metric.name,
            )


class _CopiedRows(NamedTuple):
    """`Copied` of `N` positions, float32, for labels `y`.

    Attributes:
        gate: `(N, 1)` tensor.
        mass: `(N, Tx)` tensor.
        ids: `(N, Tx)` int32 tensor.
        is_label: `(N, Tx)` tensor, 1 where an id is the label.
        shares: `(N, Tx)` tensor, the probability of the ids in the smoothed target distribution.
    """

    gate: Any
    mass: Any
    ids: Any
    is_label: Any
    shares: Any


def _label_increase(increase, rows):
    """Return the change of `log p(y)` by copying, `(N,)`."""
    total = ops.squeeze(total_increase(rows.gate, rows.mass), -1)
    return ops.sum(rows.is_label * increase, axis=-1) - total


class _ChunkedLoss(NamedTuple):
    """Result of `_loss_in_chunks` for `N` positions, float32.

    Attributes:
        log_probs: `(N,)` tensor of the labels.
        normalizers: `(N,)` tensor `log sum_v exp(logit_v)`.
        correct: `(N,)` bool tensor, True where the label has the largest logit; or `None`.
        gradients: Gradients for features, kernel and bias of the terms of the loss with
            normalizers; empty if not in training.
        source_logits: `(N, Tx)` tensor of logits of the source's ids; `None` without copying.
        increase: `(N, Tx)` tensor, the increase of these logits by copying; or `None`.
    """

    log_probs: Any
    normalizers: Any
    correct: Any
    gradients: list
    source_logits: Any
    increase: Any


def _loss_in_chunks(tensors, copied, labels, weight, chunk_size, projection):
    """Compute log-probabilities, normalizers and gradients, one chunk of positions at a time.

    Args:
        tensors: Features `(N, R)`, kernel `(R, V)` and bias `(V,)`, float tensors.
        copied: `_CopiedRows`, or `()`.
        labels: `(N,)` int32 tensor.
        weight: `(N,)` float32 tensor.
        chunk_size: Maximum number of positions in a chunk, or `None`.
        projection: The `Projection`, which has `training` and `needs_correct`.

    Returns:
        A `_ChunkedLoss`.
    """
    features, kernel, bias = tensors
    count, width = ops.shape(features)[0], features.shape[-1]
    # At least one chunk: a replica may have no row of a batch.
    chunks = 1 if chunk_size is None else count // chunk_size + 1
    size = -(-count // chunks)  # equal sizes need less than one padding row per chunk
    kernel, bias = ops.cast(kernel, features.dtype), ops.cast(bias, "float32")
    features, labels, weight, copied = keras.tree.map_structure(
        lambda tensor: _split_chunks(tensor, chunks, size), (features, labels, weight, copied)
    )
    positions = ops.shape(copied.ids)[-1] if copied else 0

    def body(i, state):
        results, *gradients = state
        rows = _CopiedRows(*(part[i] for part in copied)) if copied else ()
        chunk, exponentials, sums, slope = _chunk(
            features[i], kernel, bias, labels[i], rows, projection.needs_correct
        )
        results = ops.slice_update(results, (i, 0, 0), chunk[None])
        if not projection.training:
            return [results]
        # The gradient of the logits: their probabilities times the weight.
        of_logits = exponentials * (ops.expand_dims(weight[i], -1) * slope / sums)
        of_bias = ops.sum(of_logits, axis=0)
        of_logits = ops.cast(of_logits, features.dtype)
        of_features = ops.cast(ops.einsum("nv,rv->nr", of_logits, kernel), "float32")
        of_kernel = ops.cast(ops.einsum("nr,nv->rv", features[i], of_logits), "float32")
        return [
            results,
            ops.slice_update(gradients[0], (i, 0, 0), of_features[None]),
            gradients[1] + of_kernel,
            gradients[2] + of_bias,
        ]

    columns = 2 + projection.needs_correct
    shapes = [(chunks, size, columns + 2 * positions)]
    if projection.training:
        shapes += [(chunks, size, width), ops.shape(kernel), ops.shape(bias)]
    state = [ops.zeros(shape, dtype="float32") for shape in shapes]
    results, *gradients = ops.fori_loop(0, chunks, body, state)
    results = ops.reshape(results, (-1, columns + 2 * positions))[:count]
    if gradients:
        gradients[0] = ops.reshape(gradients[0], (-1, width))[:count]
    correct = ops.cast(results[:, 2], "bool") if projection.needs_correct else None
    source_logits = increase = None
    if copied:
        source_logits, increase = ops.split(results[:, columns:], 2, axis=-1)
    return _ChunkedLoss(results[:, 0], results[:, 1], correct, gradients, source_logits, increase)


def _chunk(features, kernel, bias, labels, copied, needs_correct):
    """Compute the logits of one chunk of `n` positions and reduce them.

    Returns:
        Columns `(n, c)`: log-probability without copying, normalizer, `correct` if needed, and with
        copying `Tx` logits of the source's ids and their increase; `(n, V)` `exp(logit - max)`; its
        `(n, 1)` sums over `V`; and the derivative `(n, 1)`, or 1, of the loss by the normalizer.
    """
    logits = ops.cast(ops.matmul(features, kernel), "float32") + bias  # (n, V)
    labels = ops.expand_dims(labels, -1)
    largest = ops.max(logits, axis=-1, keepdims=True)
    exponentials = ops.exp(logits - largest)
    sums = ops.sum(exponentials, axis=-1, keepdims=True)
    label_logits = ops.take_along_axis(logits, labels, axis=-1) - largest
    normalizers = largest + ops.log(sums)
    columns = [label_logits - ops.log(sums), normalizers]
    if not copied:
        if needs_correct:
            best = ops.cast(ops.argmax(logits, axis=-1, keepdims=True), "int32")  # first of ties
            columns.append(ops.cast(ops.equal(best, labels), "float32"))
        return ops.concatenate(columns, axis=-1), exponentials, sums, 1.0
    source_logits = ops.take_along_axis(logits, copied.ids, axis=-1)
    increase = copied_increase(source_logits, normalizers, copied.gate, copied.mass)
    if needs_correct:
        # In the order of the sum for the label, so that equal logits stay equal.
        best = ops.max((source_logits - largest) + increase, axis=-1, keepdims=True)
        of_label = ops.sum(copied.is_label * increase, axis=-1, keepdims=True)
        is_best = label_logits + of_label >= ops.maximum(best, 0.0)
        columns.append(ops.cast(is_best, "float32"))
    # 1 - exp(-increase) is the derivative of the increase by the normalizer.
    slope = 1.0 + ops.sum(copied.shares * ops.expm1(-increase), axis=-1, keepdims=True)
    return ops.concatenate([*columns, source_logits, increase], -1), exponentials, sums, slope


def _split_chunks(tensor, chunks, size):
    """Return `(N, ...)` as `(chunks, size, ...)`, padded with zeros."""
    count, *rest = ops.shape(tensor)
    padding = ops.zeros((chunks * size - count, *rest), dtype=tensor.dtype)
    return ops.reshape(ops.concatenate([tensor, padding], axis=0), (chunks, size, *rest))


def _zero_with_gradient(value, gradient):
    """Return a scalar 0 whose gradient with respect to `value` is `gradient`."""
    value = ops.cast(value, "float32")
    return ops.sum((value - ops.stop_gradient(value)) * ops.stop_gradient(gradient))


class Candidates(NamedTuple):
    """Sampled ids of a vocabulary.

    Attributes:
        ids: `(n,)` int32 tensor, ascending, without duplicates.
        probabilities: `(n,)` float32 tensor, the probability of each id to be sampled.
    """

    ids: Any
    probabilities: Any


def sample_candidates(labels, sampled, vocabulary_size, seed):
    """Sample ids for a sampled softmax: all labels of a batch and uniformly drawn other ids.

        Z = sum_v exp(l_v)  ~  sum_{v in C} exp(l_v - log q_v),     q_v = P(v in C)

    With the division by `q_v`, the sum over the candidates `C` is an unbiased estimate of the whole
    sum: the importance sampling of Jean et al. (2015, arXiv 1412.2007, section 3).

    Labels occur as often as words in the training text, so frequent words are nearly always
    candidates, with `q_v = 1`. The other ids are drawn uniformly without replacement: with `d`
    different labels, `q_v = (n - d) / (V - d)`. So neither a table of frequencies nor a certain
    order of the ids is needed. With all ids as candidates the result is the full softmax.

    Args:
        labels: `(N,)` int32 tensor of ids.
        sampled: Minimum number of candidates in addition to the labels. The number of candidates
            is `n = min(N + sampled, V)`, which follows from shapes.
        vocabulary_size: Number of ids `V`.
        seed: A `keras.random.SeedGenerator`.

    Returns:
        `Candidates`.
    """
    size = vocabulary_size
    is_label = ops.scatter_update(
        ops.zeros((size,), dtype="float32"),
        ops.expand_dims(labels, -1),
        ops.ones_like(labels, dtype="float32"),
    )
    ranks = keras.random.uniform((size,), dtype="float32", seed=seed) + is_label
    # A slice instead of a top-k, because it may be longer than the vocabulary.
    ids = ops.argsort(-ranks)[: ops.shape(labels)[0] + sampled]
    ids = ops.sort(ops.cast(ids, "int32"))
    label_count = ops.sum(is_label)
    drawn = ops.cast(ops.shape(ids)[0], "float32") - label_count
    probability = drawn / ops.maximum(size - label_count, 1.0)
    return Candidates(ids, ops.where(ops.take(is_label, ids) > 0, 1.0, probability))
