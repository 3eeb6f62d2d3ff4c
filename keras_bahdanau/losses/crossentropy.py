"""Losses over target words: the cross-entropy of tokens, and of attention to given alignments."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_bahdanau.distribution import batch_mean, batch_sum
from keras_bahdanau.losses.projection import Projection, nan_unless_known
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import PAD

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def check_logits(labels, logits):
    """Raises a `ValueError` unless `logits` is shaped like `labels`, with one axis more."""
    places = zip(labels.shape, logits.shape, strict=False)
    if len(logits.shape) != len(labels.shape) + 1 or any(
        None not in sizes and sizes[0] != sizes[1] for sizes in places
    ):
        raise ValueError(
            "Argument `y_pred` must be logits (B, Ty, V) of `y_true`, ids (B, Ty) or (B, Ty, 1). "
            f"Received: y_true of shape {tuple(labels.shape)}, y_pred of {tuple(logits.shape)}"
        )


def token_ids(y_true, y_pred):
    """`y_true` as a tensor `(B, Ty)`.

    Args:
        y_true: `(B, Ty)` ids, or `(B, Ty, 1)` as Keras's sparse losses take them.
        y_pred: `(B, Ty, V)` tensor, or a `Projection`.
    """
    labels = ops.convert_to_tensor(y_true)
    if len(labels.shape) == len(y_pred.shape) and labels.shape[-1] == 1:
        labels = ops.squeeze(labels, -1)
    return labels


def token_losses(labels, logits, label_smoothing=0.0):
    """`-(1 - s) log p(y_i) - s / V sum_v log p(v)` in nats, for each place, padding too.

    Args:
        labels: `(B, Ty)` int tensor of ids.
        logits: `(B, Ty, V)` float tensor.
        label_smoothing: The share `s`.

    Returns:
        `(B, Ty)` float32 tensor.
    """
    check_logits(labels, logits)
    labels, logits = ops.cast(labels, "int32"), ops.cast(logits, "float32")
    log_probs = ops.log_softmax(logits, axis=-1)
    picked = _picked(log_probs, ops.expand_dims(labels, -1))
    if label_smoothing:
        picked = (1.0 - label_smoothing) * picked + label_smoothing * ops.mean(log_probs, axis=-1)
    return -picked


def _picked(log_probs, labels):
    """The numbers of the labels `(B, Ty, 1)` among `(B, Ty, V)`: `(B, Ty)`; NaN of unknown ones."""
    vocabulary = log_probs.shape[-1]
    if keras.config.backend() == "tensorflow":
        # Its gradient of a gather is a sum over segments, slow on a processor: 52 ms a loss of
        # 1,024 places and 8,000 ids, and 29 ms so. On the others the gather is the faster one.
        hit = ops.equal(labels, ops.arange(vocabulary, dtype="int32"))
        picked = ops.sum(ops.where(hit, log_probs, 0.0), axis=-1)
    else:
        picked = ops.squeeze(ops.take_along_axis(log_probs, labels, axis=-1), -1)
    return nan_unless_known(picked, ops.squeeze(labels, -1), vocabulary)


def predicted(y_pred):
    """`y_pred` as a tensor, unless it is a `Projection`."""
    return y_pred if isinstance(y_pred, Projection) else ops.convert_to_tensor(y_pred)


def per_word(sample_weight, like):
    """`sample_weight`, `(B,)`, `(B, 1)` or `(B, Ty)`, in a shape that broadcasts to `like`.

    Raises:
        ValueError: If it has another shape.
    """
    weight = ops.cast(sample_weight, "float32")
    missing = len(like.shape) - len(weight.shape)
    sizes = zip(weight.shape, like.shape, (like.shape[0], 1), strict=False)
    if missing < 0 or not all(size in (None, of, one) or of is None for size, of, one in sizes):
        raise ValueError(
            "Argument `sample_weight` must be (B,), (B, 1) or (B, Ty) for words of shape "
            f"{tuple(like.shape)}. Received: shape {tuple(weight.shape)}"
        )
    return ops.reshape(weight, (*ops.shape(weight), *[1] * missing)) if missing > 0 else weight


def weighed(losses, weight):
    """Their product, and 0 where a weight is 0, though the loss there be no finite number."""
    return ops.where(ops.equal(weight, 0.0), 0.0, losses * weight)


class _Reduced(keras.losses.Loss):
    """Keras's reduction and nothing else: of losses that are computed already."""

    def call(self, y_true, y_pred):
        return y_pred


class _WordLoss(keras.losses.Loss):
    """A loss of one number for each target word, some of which count for nothing.

    Keras divides by the number of places, padding included; here the mean is over what counts.
    """

    def __init__(self, reduction, name):
        # Always float32: narrower types neither hold token ids nor sum losses.
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def targets(self, y_true, y_pred):
        """`y_true` as a tensor, in the shape that the other methods read."""
        return ops.convert_to_tensor(y_true)

    def counts(self, y_true):
        """`(B, Ty)` bool tensor: which words count."""
        raise NotImplementedError

    def word_weights(self, y_true):
        """`(B, Ty)` float32 tensor: factors of the losses by word, or `None`."""
        return None

    def total(self, y_true, y_pred, weight):
        """The sum of all losses, each times its weight `(B, Ty)`: a float32 scalar."""
        return ops.sum(weighed(self.call(y_true, y_pred), weight))

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_pred = predicted(y_pred)
        y_true = self.targets(y_true, y_pred)
        counted = ops.cast(self.counts(y_true), "float32")
        by_word = self.word_weights(y_true)
        weight = counted if by_word is None else counted * by_word
        if sample_weight is not None:
            weight = weight * per_word(sample_weight, like=counted)
        if self.reduction == "mean_with_sample_weight":
            counted = weight
        if self.reduction in _MEANS:
            # Of one number Keras takes the mean too, and so divides it among replicas.
            losses = batch_mean(self.total(y_true, y_pred, weight), ops.sum(counted))[None]
        elif self.reduction == "sum":
            losses = batch_sum(self.total(y_true, y_pred, weight))[None]
        else:
            losses = weighed(self.call(y_true, y_pred), weight)
        # Named, as TensorFlow takes no scope that begins with an underscore.
        reduce = _Reduced(name=self.name, reduction=self.reduction, dtype="float32")
        return reduce(losses, losses)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class TokenCrossentropy(_WordLoss):
    """Mean cross-entropy per token in nats; padding counts for nothing.

        loss = mean over real tokens of  -(1 - s) log p(y_i) - s / V sum_v log p(v)

    The mean is over the real tokens of the whole batch, however they are spread over its rows.
    It is computed in float32 whatever the type of the logits.

    For large vocabularies there are two options. They concern a `Seq2Seq` in `fit`, `evaluate` and
    their like; wherever there are logits already, they change nothing. With either of them the
    metrics of `compile` must be `TokenAccuracy` and `Perplexity`.

    - With a `chunk_size` a step computes the logits of that many positions at a time instead of
      all `(B, Ty, V)`. Loss, gradients and metrics are the same.
    - A `sampled` softmax (Jean et al. 2015, arXiv 1412.2007) takes in training the probabilities
      over the ids of the batch's labels and others drawn evenly, weighed so that they stand for the
      whole vocabulary; the metrics of training are of those ids, too. `evaluate` counts all ids.

    Args:
        label_smoothing: Share `s` of the target spread evenly over the vocabulary, in [0, 1)
            (Szegedy et al. 2016, arXiv 1512.00567, section 7).
        reduction: "sum_over_batch_size" or "mean" divides the sum by the number of real tokens,
            "mean_with_sample_weight" by the sum of their weights, "sum" by nothing; "none" or
            `None` gives the losses `(B, Ty)`, zero at padding.
        name: Name of the loss.
        chunk_size: How many places of a batch have their logits at once; all if `None`.
        sampled: How many ids at least are drawn beside the labels: a step has the logits of `B Ty +
            sampled` of the `V` ids. `None` for the whole softmax.
        class_weight: Dict from ids to factors of their tokens' losses, 1 for ids that it leaves
            out; or `None`. Use it in place of the `class_weight` of `fit`, of which Keras makes
            one weight for each row, not for each token. `Seq2Seq.fit` refuses that one, but a
            model of another class passes the wrong weights on without a word.

    Call arguments:
        y_true: `(B, Ty)` or `(B, Ty, 1)` int tensor of ids; places that hold `PAD` (0) are left
            out. An id outside the vocabulary makes the loss NaN; with a `chunk_size` the
            backend may raise an error instead.
        y_pred: `(B, Ty, V)` float tensor of logits. A Keras mask on it is not looked at.
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` factors of the losses, or `None`.

    Returns:
        A float32 scalar, or `(B, Ty)` without reduction.

    Raises:
        ValueError: If `label_smoothing` is outside [0, 1), `chunk_size` or `sampled` is not a
            positive int or comes without a reduction, `class_weight` does not map ids to
            non-negative numbers, or `y_pred` is not shaped like `y_true` with an axis more.

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
                    raise ValueError(
                        f"Argument `reduction` must be a mean or a sum with `{option}`. "
                        f"Received: {reduction!r}"
                    )
        self.label_smoothing = label_smoothing
        self.chunk_size = chunk_size
        self.sampled = sampled
        self.class_weight = None if class_weight is None else _checked_weights(class_weight)
        self._factors = None if class_weight is None else _factors(self.class_weight)

    @property
    def projects(self):
        """Whether it makes the logits itself, of a `Projection`."""
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
        if self._factors is None:
            return None
        ids = ops.clip(ops.cast(y_true, "int32"), 0, len(self._factors) - 1)
        return ops.take(ops.convert_to_tensor(self._factors), ids)

    def get_config(self):
        names = ("label_smoothing", "chunk_size", "sampled", "class_weight")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if "chunk" in config:  # the key in files of earlier versions
            config["chunk_size"] = config.pop("chunk")
        weights = config.get("class_weight")
        if weights is not None:  # JSON has no keys that are numbers
            config["class_weight"] = {int(key): of for key, of in weights.items()}
        return cls(**config)


def _checked_weights(class_weight):
    """`class_weight` as a dict of Python's own numbers, which a config can hold."""
    if not isinstance(class_weight, Mapping) or not class_weight:
        raise ValueError(
            "Argument `class_weight` must be a dict from ids to factors of their losses, such as "
            f"{{3: 5.0}}. Received: {class_weight!r}"
        )
    weights = {}
    for pair in class_weight.items():
        key, factor = (part.item() if isinstance(part, np.generic) else part for part in pair)
        check_range("class_weight", key, int, 0)
        check_range(f"class_weight[{key}]", factor, float, 0)
        weights[key] = factor
    return weights


def _factors(class_weight):
    """The factor of each id up to the largest of `class_weight`, and then 1, of those above it."""
    factors = np.ones(max(class_weight) + 2, "float32")
    factors[list(class_weight)] = list(class_weight.values())
    return factors


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AlignmentCrossentropy(_WordLoss):
    """Guided alignment: mean cross-entropy of the attention weights to a reference alignment.

        loss = mean over aligned target words i of  -sum_j A_ij log a_ij

    (Chen et al. 2016, arXiv 1607.01628; Mi et al. 2016, arXiv 1608.00112). The rows of
    `A` are normalised to sum to one. Rows of zeros, target words aligned to nothing and padding,
    count for nothing. The gradient is finite even where a weight is zero.

    Args:
        reduction: As in `TokenCrossentropy`, for aligned words in place of real tokens.
        name: Name of the loss.

    Call arguments:
        y_true: `(B, Ty, Tx)` non-negative reference alignment, links or counts or probabilities.
        y_pred: `(B, Ty, Tx)` attention weights, whose rows sum to one.
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` factors of the losses, or `None`.

    Returns:
        A float32 scalar, or `(B, Ty)` without reduction.

    Raises:
        ValueError: If `y_true` and `y_pred` differ in shape.

    Example:

    >>> import numpy as np
    >>> reference = np.array([[[1, 0], [0, 0]]])                # the second word has no source
    >>> weights = np.array([[[0.5, 0.5], [0.9, 0.1]]])
    >>> round(float(AlignmentCrossentropy()(reference, weights)), 4)   # log 2
    0.6931
    """

    def __init__(self, reduction="sum_over_batch_size", name="alignment_crossentropy"):
        super().__init__(reduction, name)

    def call(self, y_true, y_pred):
        return alignment_losses(y_true, y_pred)

    def counts(self, y_true):
        return aligned(y_true)


def alignment_losses(reference, weights):
    """`-sum_j A_ij log a_ij` in nats for each target word, `A`'s rows normalised to sum to one.

    The gradient is finite even where a weight is zero.

    Args:
        reference: `(B, Ty, Tx)` non-negative links, counts or probabilities.
        weights: `(B, Ty, Tx)` attention weights, whose rows sum to one.

    Returns:
        `(B, Ty)` float32 tensor, zero for a row of zeros in `reference`.

    Raises:
        ValueError: If the two differ in shape.
    """
    known = zip(reference.shape, weights.shape, strict=False)
    if len(reference.shape) != len(weights.shape) or any(
        None not in sizes and sizes[0] != sizes[1] for sizes in known
    ):
        raise ValueError(
            "The reference alignment and the attention weights must both be (B, Ty, Tx). "
            f"Received: shapes {tuple(reference.shape)} and {tuple(weights.shape)}"
        )
    reference, weights = ops.cast(reference, "float32"), ops.cast(weights, "float32")
    total = ops.sum(reference, axis=-1)
    # Far below any weight that matters, and its reciprocal is finite.
    entropies = reference * ops.log(ops.maximum(weights, 1e-30))
    return -ops.sum(entropies, axis=-1) / ops.where(total > 0.0, total, 1.0)


def aligned(reference):
    """`(B, Ty)` bool: which target words `reference` `(B, Ty, Tx)` aligns to anything."""
    return ops.any(ops.greater(reference, 0), axis=-1)


def guidance(reference, weights):
    """The mean of `alignment_losses` over the aligned words of the whole batch, for `add_loss`."""
    counted = ops.cast(aligned(reference), "float32")
    losses = alignment_losses(reference, weights)
    return batch_mean(ops.sum(losses * counted), ops.sum(counted))
