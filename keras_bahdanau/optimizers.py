"""Adam, a learning rate schedule, and the moving average of weights that an optimizer keeps."""

import contextlib
import math

import keras
from keras import ops

from keras_bahdanau.schedules import SCHEDULES
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error

__all__ = ["Adam", "WarmupSchedule", "ema_weights"]


@keras.saving.register_keras_serializable("keras_bahdanau")
class Adam(keras.optimizers.Adam):
    """Keras's Adam, with PyTorch's fused kernel on the torch backend.

    Keras on torch makes several temporaries as large as all weights at every update. The fused
    kernel reads and writes each weight once. The arguments, the variables and the results are those
    of `keras.optimizers.Adam`:

        m_t = beta_1 m_{t-1} + (1 - beta_1) g
        v_t = beta_2 v_{t-1} + (1 - beta_2) g^2
        theta_t = theta_{t-1} - rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m_t / (sqrt(v_t) + epsilon)

    Example:

    ```python
    model.compile(keras_bahdanau.optimizers.Adam(0.004, global_clipnorm=1.0), loss)
    ```
    """

    def update_step(self, gradient, variable, learning_rate):
        if keras.config.backend() != "torch":
            super().update_step(gradient, variable, learning_rate)
            return
        import torch
        from torch.optim.adam import adam

        # Not public, but what `update_step` of `keras.optimizers.Adam` itself uses.
        index = self._get_variable_index(variable)
        weights = variable.value
        updates = float(self.iterations)
        with torch.no_grad():
            adam(
                [weights],
                [gradient.to(weights.dtype)],
                [self._momentums[index].value],
                [self._velocities[index].value],
                [self._velocity_hats[index].value] if self.amsgrad else [],
                [torch.tensor(updates, device=weights.device)],
                fused=True,
                amsgrad=self.amsgrad,
                beta1=self.beta_1,
                beta2=self.beta_2,
                lr=float(learning_rate),
                weight_decay=0.0,  # Keras has applied it
                # PyTorch adds epsilon to the root of the corrected v_t.
                eps=self.epsilon / math.sqrt(1 - self.beta_2 ** (updates + 1)),
                maximize=False,
            )


@keras.saving.register_keras_serializable("keras_bahdanau")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak and then follows one of three curves.

    With update `t = 0, 1, ...` and `w` warmup updates,

        rate(t) = peak (t + 1) / w                                   while t < w, and then
        peak                                                         "constant"
        peak sqrt(max(w, 1) / max(t, 1))                             "inverse-sqrt"
        peak (1 + cos(pi min(1, (t - w) / (updates - w)))) / 2       "cosine"

    Args:
        peak: The largest learning rate.
        shape: "cosine", "inverse-sqrt" (arXiv 1706.03762) or "constant".
        updates: Number of updates of the whole run, after which "cosine" is zero.
        warmup: Number of updates until the peak, less than `updates`.
        batches: Number of batches per update: the optimizer's `gradient_accumulation_steps`. Keras
            passes a schedule the number of batches.

    Call arguments:
        step: Int scalar, the number of batches that the optimizer has processed.

    Returns:
        float32 scalar.

    Raises:
        ValueError: If a number is out of range or the shape unknown.

    Example:

    >>> rate = WarmupSchedule(1.0, "cosine", updates=12, warmup=2)
    >>> [round(float(rate(step)), 2) for step in (0, 1, 2, 7, 12)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, peak, shape="cosine", updates=10000, warmup=0, batches=1):
        super().__init__()
        check_range("peak", peak, float, 0, open_low=True)
        check_range("updates", updates, int, 1)
        check_range("warmup", warmup, int, 0, updates - 1)
        check_range("batches", batches, int, 1)
        if shape not in SCHEDULES:
            raise argument_error("shape", f"be one of {SCHEDULES}", shape)
        self.peak = peak
        self.shape = shape
        self.updates = updates
        self.warmup = warmup
        self.batches = batches

    def __call__(self, step):
        update = ops.cast(step // self.batches, "float32")
        if self.shape == "constant":
            decay = ops.ones_like(update)
        elif self.shape == "inverse-sqrt":
            decay = ops.sqrt(max(self.warmup, 1) / ops.maximum(update, 1.0))
        else:
            progress = (update - self.warmup) / (self.updates - self.warmup)
            decay = (1.0 + ops.cos(math.pi * ops.clip(progress, 0.0, 1.0))) / 2.0
        rise = (update + 1.0) / max(self.warmup, 1)
        return self.peak * ops.where(update < self.warmup, rise, decay)

    def get_config(self):
        names = ("peak", "shape", "updates", "warmup", "batches")
        return {name: getattr(self, name) for name in names}


def update_count(model):
    """Return the number of updates that the optimizer of a model has made."""
    # A distributed variable needs the conversion.
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


def uses_ema(model):
    """Whether the optimizer of a model keeps a moving average of its weights (`use_ema`)."""
    optimizer = getattr(model, "optimizer", None)
    # Under mixed_float16 Keras wraps it in a `LossScaleOptimizer`.
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "use_ema", False)


@contextlib.contextmanager
def ema_weights(model):
    """Replace the weights of a model by their exponential moving average in the block.

        m_t = decay m_{t-1} + (1 - decay) theta_t

    The weights stay as they are unless the optimizer has `use_ema` and has made an update.

    Args:
        model: A compiled model. On JAX do not call `evaluate` in the block, because it deletes the
            average; `HeldOutLoss` evaluates copies.

    Example:

    ```python
    model.compile(keras.optimizers.Adam(use_ema=True, ema_momentum=0.999), loss)
    model.fit(data)
    with ema_weights(model):
        model.save("mean.keras")
    ```
    """
    if not uses_ema(model) or update_count(model) == 0:
        yield
        return
    weights = model.trainable_variables
    # JAX arrays are immutable, so they need no copy. A single host cannot convert shared ones.
    saved = [
        weight.value
        if keras.config.backend() == "jax"
        else keras.ops.convert_to_numpy(weight).copy()
        for weight in weights
    ]
    model.optimizer.finalize_variable_values(weights)
    try:
        yield
    finally:
        for weight, value in zip(weights, saved, strict=True):
            weight.assign(value)
