"""Scheduled sampling: training partly on the model's own outputs."""

import keras
from keras import ops

from keras_bahdanau.layers.sequences import index_among_kept
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD

_SCHEDULES = ("constant", "linear", "exponential", "inverse_sigmoid")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class ScheduledSampling(keras.layers.Layer):
    """Choice of true or predicted tokens as a decoder's input (arXiv 1506.03099, 2.4).

    In training step `i` (a batch, starting with 0) each position of the decoder's input has the
    true token with probability `e_i`, and a token predicted by the model otherwise:

        constant:         e_i = k                            0 <= k <= 1
        linear:           e_i = max(floor, k - slope i)      0 <= k <= 1
        exponential:      e_i = max(floor, k^i)              0 < k < 1
        inverse_sigmoid:  e_i = max(floor, k / (k + exp(i / k)))    k >= 1

    The number of steps is a weight of the layer, so it is saved with the model.

    Args:
        schedule: "constant", "linear", "exponential" or "inverse_sigmoid".
        k: Constant of the schedule, a float.
        slope: Decrease per step with "linear", a float of at least 0.
        floor: Minimum of `e_i`, in [0, 1].
        sample: Whether to sample the predicted token from the model's distribution instead of
            taking the most probable one.
        seed: Int seed, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        ids: `(B, Ty)` int32 tensor, the true tokens, padded with 0 anywhere.
        training: Whether the call is part of training. Otherwise all tokens are true ones, and the
            step is not counted.

    Output shape:
        `(is_predicted, noise)`: `(B, Ty)` bool, True where the predicted token is read (never at
        the first token that is not padding), and `(B, Ty)` float32 random numbers in [0, 1) for
        `predict_tokens`. The `feedback` of a decoder reads those of its step, for example by
        `ops.take(is_predicted, t, axis=1)`.

    Raises:
        ValueError: If `schedule` is unknown or a number is out of range.

    Example:

    >>> sampling = ScheduledSampling("inverse_sigmoid", k=100.0)
    >>> [round(float(sampling.true_token_probability(step)), 2) for step in (0, 200, 460, 700)]
    [0.99, 0.93, 0.5, 0.08]
    """

    def __init__(
        self,
        schedule: str = "inverse_sigmoid",
        k: float = 1000.0,
        slope: float = 0.0,
        floor: float = 0.0,
        sample: bool = True,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if schedule not in _SCHEDULES:
            raise argument_error("schedule", f"be one of {_SCHEDULES}", schedule)
        if schedule == "inverse_sigmoid":
            check_range("k", k, float, 1)
        else:
            ends = schedule == "exponential"
            check_range("k", k, float, 0, 1, open_low=ends, open_high=ends)
        check_range("slope", slope, float, 0)
        check_range("floor", floor, float, 0, 1)
        self.schedule = schedule
        self.k = k
        self.slope = slope
        self.floor = floor
        self.sample = sample
        self.seed = seed
        self._seeds = keras.random.SeedGenerator(seed)
        self.batches = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            aggregation="only_first_replica",
            name="batches",
        )
        self.built = True

    def true_token_probability(self, step):
        """Return `e_i`, the probability of the true token in training step `step`.

        Args:
            step: Number of the step, a number or a scalar tensor.

        Returns:
            A scalar float32 tensor.
        """
        step = ops.cast(step, "float32")
        if self.schedule == "constant":
            return ops.convert_to_tensor(self.k, "float32")
        if self.schedule == "linear":
            probability = self.k - self.slope * step
        elif self.schedule == "exponential":
            probability = ops.power(self.k, step)
        else:
            probability = ops.sigmoid(ops.log(self.k) - step / self.k)
        return ops.maximum(probability, self.floor)

    def call(self, ids, training=None):
        shape = ops.shape(ids)
        if not training:
            return ops.zeros(shape, dtype="bool"), ops.zeros(shape, dtype="float32")
        coins, noise = (
            keras.random.uniform(shape, dtype="float32", seed=self._seeds) for _ in range(2)
        )
        is_after_first = index_among_kept(ops.not_equal(ids, PAD)) > 0
        is_sampled = coins >= self.true_token_probability(self.batches)
        is_predicted = ops.logical_and(is_sampled, is_after_first)
        self.batches.assign_add(1)
        return is_predicted, noise

    def predict_tokens(self, logits, noise):
        """Return the model's own tokens, without a gradient.

        Args:
            logits: `(B, V)` float tensor of the last step.
            noise: `(B,)` float32 random numbers in [0, 1).

        Returns:
            `(B,)` int32 ids.
        """
        logits = ops.stop_gradient(ops.cast(logits, "float32"))
        if not self.sample:
            return ops.cast(ops.argmax(logits, axis=-1), "int32")
        # Inverse of the cumulative distribution. Rounding may leave its last value below 1.
        cumulative = ops.cumsum(ops.softmax(logits, axis=-1), axis=-1)
        ids = ops.sum(ops.cast(cumulative <= ops.expand_dims(noise, -1), "int32"), axis=-1)
        return ops.minimum(ids, logits.shape[-1] - 1)

    def get_config(self):
        return {
            **super().get_config(),
            "schedule": self.schedule,
            "k": self.k,
            "slope": self.slope,
            "floor": self.floor,
            "sample": self.sample,
            "seed": self.seed,
        }
