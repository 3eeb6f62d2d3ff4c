"""Scheduled sampling: training on the model's own outputs, more of them as training goes on."""

import keras
from keras import ops

from keras_bahdanau.layers.sequences import index_among_kept
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import PAD

_SCHEDULES = ("constant", "linear", "exponential", "inverse_sigmoid")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class ScheduledSampling(keras.layers.Layer):
    """Decides where a decoder in training reads its own last token (arXiv 1506.03099, 2.4).

    In training step `i` (a batch, counted from 0) each place keeps the true last token with
    probability `e_i` and otherwise gets one that the model predicts itself:

        constant:         e_i = k                            0 <= k <= 1
        linear:           e_i = max(floor, k - slope i)      0 <= k <= 1
        exponential:      e_i = max(floor, k^i)              0 < k < 1
        inverse_sigmoid:  e_i = max(floor, k / (k + exp(i / k)))    k >= 1

    The count is a weight of the layer: it is saved with the model and goes on where it stopped.

    Args:
        schedule: "constant", "linear", "exponential" or "inverse_sigmoid".
        k: The constant of the schedule, a float.
        slope: By how much "linear" falls in a step, a float of at least 0.
        floor: The least `e_i`, in [0, 1].
        sample: Whether the model's token is drawn from its distribution; else it is the likeliest.
        seed: Int, the randomness of the choices, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        ids: `(B, Ty)` int32 tensor, the true last tokens, padded with 0 at any place.
        training: Whether the call is part of training; only then the count moves on.

    Returns:
        `(own, numbers)`: `(B, Ty)` bool, where the model's token is to be read (never at the
        first id that is not padding), and `(B, Ty)` float32 in [0, 1), what to draw that token
        with, see `pick`. A decoder's `feedback` takes those of its step,
        `ops.take(own, t, axis=1)`.

    Raises:
        ValueError: If `schedule` is unknown or a number is out of its range.

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
            raise ValueError(
                f"Argument `schedule` must be one of {_SCHEDULES}. Received: {schedule!r}"
            )
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
        """Probability `e_i` of the true token in training step `step`, a float or scalar tensor."""
        step = ops.cast(step, "float32")
        if self.schedule == "constant":
            return ops.convert_to_tensor(self.k, "float32")
        if self.schedule == "linear":
            share = self.k - self.slope * step
        elif self.schedule == "exponential":
            share = ops.power(self.k, step)
        else:
            share = ops.sigmoid(ops.log(self.k) - step / self.k)
        return ops.maximum(share, self.floor)

    def call(self, ids, training=None):
        shape = ops.shape(ids)
        if not training:
            return ops.zeros(shape, dtype="bool"), ops.zeros(shape, dtype="float32")
        coins, numbers = (
            keras.random.uniform(shape, dtype="float32", seed=self._seeds) for _ in range(2)
        )
        later = index_among_kept(ops.not_equal(ids, PAD)) > 0
        own = ops.logical_and(coins >= self.true_token_probability(self.batches), later)
        self.batches.assign_add(1)
        return own, numbers

    def predict_tokens(self, logits, numbers):
        """The model's own tokens.

        Args:
            logits: `(B, V)` float tensor of the last step.
            numbers: `(B,)` float32 tensor in [0, 1), one for each draw.

        Returns:
            `(B,)` int32 ids; no gradient flows through them.
        """
        logits = ops.stop_gradient(ops.cast(logits, "float32"))
        if not self.sample:
            return ops.cast(ops.argmax(logits, axis=-1), "int32")
        # The id whose share of the line from 0 to 1 the number falls on; rounding may leave the
        # sum of all shares a little below 1.
        ends = ops.cumsum(ops.softmax(logits, axis=-1), axis=-1)
        ids = ops.sum(ops.cast(ends <= ops.expand_dims(numbers, -1), "int32"), axis=-1)
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
