"""Cross-entropy of tokens, and of attention weights with reference alignments."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_bahdanau.distribution import batch_mean, batch_sum
from keras_bahdanau.losses.projection import Projection, nan_unless_id
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class _Reduced(keras.losses.Loss):
    """Keras's reduction of losses that are computed already."""

    def call(self, y_true, y_pred):
        return y_pred


class _WordLoss(keras.losses.Loss):
    """Base class of losses with one number per target word, averaged over the words that count.

    Keras would divide the sum by the number of positions, padding included.
    """

    def __init__(self, reduction, name):
        # Always float32: float16 and bfloat16 cannot represent large ids or sums of losses.
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def targets(self, y_true, y_pred):
        """Return `y_true` as a tensor in the shape that the other methods read."""
        return ops.convert_to_tensor(y_true)

    def counts(self, y_true):
        """Return a `(B, Ty)` bool tensor, True for words that count."""
        raise NotImplementedError

    def word_weights(self, y_true):
        """Return `(B, Ty)` float32 weights of words, or `None`."""
        return None

    def total(self, y_true, y_pred, weight):
        """Return the sum of all losses times their weights `(B, Ty)`, a float32 scalar."""
        return ops.sum(apply_weight(self.call(y_true, y_pred), weight))

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_pred = convert_predictions(y_pred)
        y_true = self.targets(y_true, y_pred)
        count = ops.cast(self.counts(y_true), "float32")
        word_weights = self.word_weights(y_true)
        weight = count if word_weights is None else count * word_weights
        if sample_weight is not None:
            weight = weight * broadcast_weight(sample_weight, like=count)
        if self.reduction == "mean_with_sample_weight":
            count = weight
        if self.reduction in _MEANS:
            # Keras takes the mean of this single number, too, and then divides it by the number of
            # replicas.
            losses = batch_mean(self.total(y_true, y_pred, weight), ops.sum(count))[None]
        elif self.reduction == "sum":
            losses = batch_sum(self.total(y_true, y_pred, weight))[None]
        else:
            losses = apply_weight(self.call(y_true, y_pred), weight)
        # With a name, because TensorFlow rejects a default scope name with a leading underscore.
        reduce = _Reduced(name=self.name, reduction=self.reduction, dtype="float32")
        return reduce(losses, losses)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class TokenCrossentropy(_WordLoss):
    """Mean cross-entropy per token in nats, without padding.

        loss = mean over real tokens of  -(1 - s) log p(y_i) - s / V sum_v log p(v)

    The mean is over all real tokens of the batch, so it does not depend on their distribution over
    rows. It is computed in float32 for logits of any dtype.

    Two options reduce the cost of large vocabularies. They take effect in `fit`, `evaluate` and
    other steps of a `Seq2Seq`, but not where logits are passed to the loss. Both require that the
    metrics of `compile` are `TokenAccuracy` and `Perplexity`.

    - With a `chunk_size` a step computes the logits of that many positions at a time instead of
      all `(B, Ty, V)`. Loss, gradients and metrics are the same.
    - A `sampled` softmax (Jean et al. 2015, arXiv 1412.2007) normalizes the probabilities in
      training over the labels of the batch and uniformly sampled ids, with importance weights.
      Metrics in training use these ids, too. `evaluate` uses all ids.

    Args:
        label_smoothing: Fraction `s` of the target distribution that is uniform over the
            vocabulary, in [0, 1) (Szegedy et al. 2016, arXiv 1512.00567, section 7).
        reduction: "sum_over_batch_size" or "mean" divides the sum by the number of real tokens,
            "mean_with_sample_weight" by the sum of their weights, "sum" by 1. "none" or `None`
            returns the losses `(B, Ty)`, zero at padding.
        name: Name of the loss.
        chunk_size: Maximum number of positions whose logits are computed at once; all if `None`.
        sampled: Minimum number of sampled ids in addition to the labels. A step computes the logits
            of `B Ty + sampled` of the `V` ids. `None` for the full softmax.
        class_weight: Dict from ids to weights of their tokens' losses, 1 for other ids; or `None`.
            Use it instead of the `class_weight` of `fit`, from which Keras computes one weight per
            row instead of per token. `Seq2Seq.fit` rejects that argument, but other models apply
            the wrong weights.

    Call arguments:
        y_true: `(B, Ty)` or `(B, Ty, 1)` int tensor of ids. Positions with `PAD` (0) are ignored.
            An id outside of the vocabulary makes the loss NaN; with a `chunk_size` the backend may
            raise an error instead.
        y_pred: `(B, Ty, V)` float tensor of logits. Its Keras mask is ignored.
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` weights of the losses, or `None`.

    Returns:
        A float32 scalar, or `(B, Ty)` without reduction.

    Raises:
        ValueError: If `label_smoothing` is outside [0, 1), `chunk_size` or `sampled` is not a
            positive int or is used without a reduction, `class_weight` does not map ids to
            non-negative numbers, or `y_pred` does not have the shape of `y_true` with one more
            axis.

    Example:

    >>> import numpy as np
    >>> loss = TokenCrossentropy()(np.array([[4, 0]]), np.zeros((1, 2, 8)))
    >>> round(float(loss), 4)                                         # log 8
    2.0794
    """

    def __init__(
        self,
        label_smoothing=0.0,
        reduction="sum_over_batch_size",
        name="token_crossentropy",
        chunk_size=None,
        sampled=None,
        class_weight=None,
    ):
        super().__init__(reduction, name)
        check_range("label_smoothing", label_smoothing, float, 0, 1, open_high=True)
        for option, value in {"chunk_size": chunk_size, "sampled": sampled}.items():
            if value is not None:
                check_range(option, value, int, 1)
                if reduction not in (*_MEANS, "sum"):
                    raise argument_error(
                        "reduction", f"be a mean or a sum with `{option}`", reduction
                    )
        self.label_smoothing = label_smoothing
        self.chunk_size = chunk_size
        self.sampled = sampled
        self.class_weight = None if class_weight is None else _checked_weights(class_weight)
        self._weight_table = None if class_weight is None else _weight_table(self.class_weight)

    @property
    def computes_logits(self):
        """Whether the loss computes the logits from a `Projection`."""
        return self.chunk_size is not None or self.sampled is not None

    def total(self, y_true, y_pred, weight):
        if not isinstance(y_pred, Projection):
            return super().total(y_true, y_pred, weight)
        check_logits(y_true, y_pred)
        return y_pred.total(y_true, weight, self.label_smoothing, self.chunk_size, self.sampled)

    def call(self, y_true, y_pred):
        return token_losses(y_true, y_pred, self.label_smoothing)

    def targets(self, y_true, y_pred):
        return token_ids(y_true, y_pred)

    def counts(self, y_true):
        return ops.not_equal(y_true, PAD)

    def word_weights(self, y_true):
        if self._weight_table is None:
            return None
        ids = ops.clip(ops.cast(y_true, "int32"), 0, len(self._weight_table) - 1)
        return ops.take(ops.convert_to_tensor(self._weight_table), ids)

    def get_config(self):
        names = ("label_smoothing", "chunk_size", "sampled", "class_weight")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if "chunk" in config:  # the key in files of earlier versions
            config["chunk_size"] = config.pop("chunk")
        weights = config.get("class_weight")
        if weights is not None:  # JSON has str keys only
            config["class_weight"] = {int(key): weight for key, weight in weights.items()}
        return cls(**config)


def _checked_weights(class_weight):
    """Return `class_weight` with Python numbers, which a config can contain."""
    if not isinstance(class_weight, Mapping) or not class_weight:
        raise argument_error(
            "class_weight",
            "be a dict from ids to weights of their losses, such as {3: 5.0}",
            class_weight,
        )
    weights = {}
    for item in class_weight.items():
        key, weight = (part.item() if isinstance(part, np.generic) else part for part in item)
        check_range("class_weight", key, int, 0)
        check_range(f"class_weight[{key}]", weight, float, 0)
        weights[key] = weight
    return weights


def _weight_table(class_weight):
    """Return the weights of all ids up to the largest of `class_weight`, then 1 for larger ids."""
    table = np.ones(max(class_weight) + 2, "float32")
    table[list(class_weight)] = list(class_weight.values())
    return table


def token_losses(labels, logits, label_smoothing=0.0):
    """Return `-(1 - s) log p(y_i) - s / V sum_v log p(v)` in nats at each position.

    Args:
        labels: `(B, Ty)` int tensor of ids.
        logits: `(B, Ty, V)` float tensor.
        label_smoothing: The fraction `s`.

    Returns:
        `(B, Ty)` float32 tensor, with the losses of padding.
    """
    check_logits(labels, logits)
    labels, logits = ops.cast(labels, "int32"), ops.cast(logits, "float32")
    log_probs = ops.log_softmax(logits, axis=-1)
    of_labels = _gather_labels(log_probs, ops.expand_dims(labels, -1))
    if label_smoothing:
        mean = ops.mean(log_probs, axis=-1)
        of_labels = (1.0 - label_smoothing) * of_labels + label_smoothing * mean
    return -of_labels


def _gather_labels(log_probs, labels):
    """Return the entries of `log_probs` `(B, Ty, V)` for labels `(B, Ty, 1)`, NaN for other ids."""
    vocabulary_size = log_probs.shape[-1]
    if keras.config.backend() == "tensorflow":
        # On a CPU the gradient of a gather is a slow sum over segments: 52 ms for the loss of 1,024
        # positions and 8,000 ids, against 29 ms with a mask. Other backends are faster with it.
        is_label = ops.equal(labels, ops.arange(vocabulary_size, dtype="int32"))
        of_labels = ops.sum(ops.where(is_label, log_probs, 0.0), axis=-1)
    else:
        of_labels = ops.squeeze(ops.take_along_axis(log_probs, labels, axis=-1), -1)
    return nan_unless_id(of_labels, ops.squeeze(labels, -1), vocabulary_size)


def check_logits(labels, logits):
    """Raise a `ValueError` unless `logits` has the shape of `labels` with one more axis."""
    sizes = zip(labels.shape, logits.shape, strict=False)
    if len(logits.shape) != len(labels.shape) + 1 or any(
        None not in pair and pair[0] != pair[1] for pair in sizes
    ):
        raise argument_error(
            "y_pred",
            "be logits (B, Ty, V) for `y_true` (B, Ty) or (B, Ty, 1)",
            received=f"y_true of shape {tuple(labels.shape)}, y_pred of {tuple(logits.shape)}",
        )


def token_ids(y_true, y_pred):
    """Return `y_true` as a tensor `(B, Ty)`.

    Args:
        y_true: `(B, Ty)` ids, or `(B, Ty, 1)` as for Keras's sparse losses.
        y_pred: `(B, Ty, V)` tensor, or a `Projection`.
    """
    like = y_pred.features if isinstance(y_pred, Projection) else y_pred
    labels = _with_known_rank(ops.convert_to_tensor(y_true), like, "y_true")
    if len(labels.shape) == len(y_pred.shape) and labels.shape[-1] == 1:
        labels = ops.squeeze(labels, -1)
    return labels


def convert_predictions(y_pred):
    """Return `y_pred` as a tensor, unless it is a `Projection`."""
    return y_pred if isinstance(y_pred, Projection) else ops.convert_to_tensor(y_pred)


def _with_known_rank(tensor, like, name):
    """Return a tensor `(B, ...)` as `(B, n)` if its rank is unknown, and unchanged otherwise.

    TensorFlow traces a compiled step with tensors of unknown rank after it has got tensors of two
    ranks, such as weights of rows and then weights of words.

    Args:
        tensor: Tensor of rank 1 or 2, or of a higher rank with a size of 1 on all other axes.
        like: Tensor with the same number of rows.
        name: Argument name for the message.
    """
    if getattr(tensor.shape, "rank", 0) is not None:  # only TensorFlow's shapes have a rank
        return tensor
    import tensorflow as tf

    shape, rows = tf.shape(tensor), ops.shape(like)[0]
    message = f"Argument `{name}` must have as many rows as `y_pred`."
    with tf.control_dependencies([tf.debugging.assert_equal(shape[0], rows, message)]):
        rows_and_words = tf.concat([shape, [1]], axis=0)[:2]
        return tf.ensure_shape(tf.reshape(tensor, rows_and_words), (None, None))


def broadcast_weight(sample_weight, like):
    """Return a sample weight in a shape that broadcasts to `like` `(B, Ty)`.

    Args:
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` tensor.
        like: `(B, Ty)` tensor.

    Raises:
        ValueError: If the weight has another shape.
    """
    weight = _with_known_rank(ops.cast(sample_weight, "float32"), like, "sample_weight")
    missing = len(like.shape) - len(weight.shape)
    sizes = zip(weight.shape, like.shape, (like.shape[0], 1), strict=False)
    if missing < 0 or not all(size in (None, of, one) or of is None for size, of, one in sizes):
        raise argument_error(
            "sample_weight",
            f"be (B,), (B, 1) or (B, Ty) for words of shape {tuple(like.shape)}",
            received=f"shape {tuple(weight.shape)}",
        )
    return ops.reshape(weight, (*ops.shape(weight), *[1] * missing)) if missing > 0 else weight


def apply_weight(losses, weight):
    """Return `losses * weight`, and 0 where the weight is 0, even if the loss is not finite."""
    return ops.where(ops.equal(weight, 0.0), 0.0, losses * weight)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AlignmentCrossentropy(_WordLoss):
    """Guided alignment: mean cross-entropy of attention weights and a reference alignment.

        loss = mean over aligned target words i of  -sum_j A_ij log a_ij

    (Chen et al. 2016, arXiv 1607.01628; Mi et al. 2016, arXiv 1608.00112). The rows of
    `A` are normalized to sum to one. Rows of zeros (padding, and target words without a link) are
    ignored. The gradient is finite even where a weight is zero.

    Args:
        reduction: See `TokenCrossentropy`, with aligned words instead of real tokens.
        name: Name of the loss.

    Call arguments:
        y_true: `(B, Ty, Tx)` non-negative reference alignment: links, counts or probabilities.
        y_pred: `(B, Ty, Tx)` attention weights, whose rows sum to one.
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` weights of the losses, or `None`.

    Returns:
        A float32 scalar, or `(B, Ty)` without reduction.

    Raises:
        ValueError: If `y_true` and `y_pred` differ in shape.

    Example:

    >>> import numpy as np
    >>> reference = np.array([[[1, 0], [0, 0]]])                # the second word has no link
    >>> weights = np.array([[[0.5, 0.5], [0.9, 0.1]]])
    >>> round(float(AlignmentCrossentropy()(reference, weights)), 4)   # log 2
    0.6931
    """

    def __init__(self, reduction="sum_over_batch_size", name="alignment_crossentropy"):
        super().__init__(reduction, name)

    def call(self, y_true, y_pred):
        return alignment_losses(y_true, y_pred)

    def counts(self, y_true):
        return is_aligned(y_true)


def alignment_losses(reference, weights):
    """Return `-sum_j A_ij log a_ij` in nats per target word, with normalized rows of `A`.

    The gradient is finite even where a weight is zero.

    Args:
        reference: `(B, Ty, Tx)` non-negative links, counts or probabilities.
        weights: `(B, Ty, Tx)` attention weights, whose rows sum to one.

    Returns:
        `(B, Ty)` float32 tensor, zero for a row of zeros in `reference`.

    Raises:
        ValueError: If the shapes differ.
    """
    check_shape("weights", weights, "batch target_steps source_steps")
    batch, steps, positions = weights.shape
    pattern, note = "batch target_steps source_steps", ", like the attention weights"
    sizes = {"batch": batch, "target_steps": steps, "source_steps": positions}
    check_shape("alignment", reference, pattern, note=note, **sizes)
    reference, weights = ops.cast(reference, "float32"), ops.cast(weights, "float32")
    total = ops.sum(reference, axis=-1)
    # The lower bound is far below relevant weights, and its reciprocal is finite.
    entropies = reference * ops.log(ops.maximum(weights, 1e-30))
    return -ops.sum(entropies, axis=-1) / ops.where(total > 0.0, total, 1.0)


def is_aligned(reference):
    """Return `(B, Ty)` bool, True for target words with a link in `reference` `(B, Ty, Tx)`."""
    return ops.any(ops.greater(reference, 0), axis=-1)


def guided_alignment_loss(reference, weights):
    """Return the mean of `alignment_losses` over the aligned words of the batch, for `add_loss`."""
    count = ops.cast(is_aligned(reference), "float32")
    losses = alignment_losses(reference, weights)
    return batch_mean(ops.sum(losses * count), ops.sum(count))
