"""Coverage attention of Tu et al. (2016) and See, Liu and Manning (2017)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.distribution import batch_mean
from keras_bahdanau.layers.attention.bahdanau import HistoryAttention
from keras_bahdanau.layers.attention.base import group_rows
from keras_bahdanau.layers.sequences import checked_mask, register_named_tuple
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_range

# Lower bound of the fertility, so that coverage is never divided by zero.
_MIN_FERTILITY = 1e-6


@register_named_tuple
class CoverageMemory(NamedTuple):
    """A `Memory` with the fertility of each position.

    Attributes:
        keys: See `Memory`.
        values: See `Memory`.
        mask: See `Memory`.
        dropout: See `Memory`.
        fertility: `(B, Tx)` float32 `Phi_j`, or `None` if it is 1.
    """

    keys: Any
    values: Any
    mask: Any = None
    dropout: Any = None
    fertility: Any = None


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class CoverageAttention(HistoryAttention):
    """Additive attention with a coverage vector (arXiv 1704.04368, Eq. 10-13).

    The coverage of a position is the sum of its previous weights.

        c_ij = sum over i' < i of a_i'j / Phi_j
        e_ij = v_a . tanh(W_a s_i + U_a h_j + w_c c_ij + b)

    `Phi_j` is 1, or with `fertility=N` a learned total amount of attention for the position
    (arXiv 1601.04811, section 3.1.1):

        Phi_j = N sigmoid(U_f h_j)

    Args:
        units: Width `U` of the alignment model.
        fertility: Maximum fertility `N`, a positive float; `None` for `Phi_j` = 1.
        coverage_loss_weight: Factor of the term that is added to the loss, the mean of
            `coverage_loss` over real target steps. This term does not depend on `Phi`.
        use_bias: Whether to add the bias `b`.
        **kwargs: Passed to `BahdanauAttention`: `normalize`, `num_heads`, `normalizer`, `dropout`,
            initializers, regularizers, constraints. With several heads the coverage and the
            returned weights are the mean over the heads.

    Call arguments: see `Attention.call`. Queries are taken in order, so `use_causal_mask` and
        `attention_mask` are not supported.

    Raises:
        ValueError: If `fertility` is not positive, or `coverage_loss_weight` is negative.

    Example:

    >>> import numpy as np
    >>> attention = CoverageAttention(units=8, coverage_loss_weight=0.5)
    >>> context = attention(np.ones((2, 5, 3)), np.ones((2, 7, 6)))
    >>> tuple(context.shape), len(attention.losses)
    ((2, 5, 6), 1)
    >>> float(attention.penalty(np.array([[[1.0, 0.0], [1.0, 0.0]]])))
    0.25
    """

    def __init__(
        self,
        units: int,
        fertility: float | None = None,
        coverage_loss_weight: float = 0.0,
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(units, use_bias=use_bias, **kwargs)
        if fertility is not None:
            check_range("fertility", fertility, float, 0, open_low=True)
        check_range("coverage_loss_weight", coverage_loss_weight, float, 0)
        self.fertility = fertility
        self.coverage_loss_weight = coverage_loss_weight

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.coverage_kernel = self._add_kernel("coverage_kernel", 1, self.units)
        if self.fertility is not None:
            self.fertility_kernel = self._add_kernel("fertility_kernel", self._value_width, 1)

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Return projected keys, annotations and fertility; see `Attention.memory`."""
        memory = super().memory(values, key, mask, training, steps)
        if self.fertility is None:
            return CoverageMemory(*memory)
        values, _, _ = self.prepare_memory(values, mask=mask)
        logits = ops.cast(ops.matmul(values, self.fertility_kernel), "float32")
        fertility = self.fertility * ops.sigmoid(ops.squeeze(logits, -1))
        return CoverageMemory(*memory, ops.maximum(fertility, _MIN_FERTILITY))

    def initial_state(self, memory):
        """Return a coverage of zeros, `(B, Tx)` float32."""
        return self._zero_weights(memory)

    def features(self, state):
        """Return `w_c c_ij`, `(B * G, Tx, U)`."""
        return ops.expand_dims(state, -1) * ops.cast(self.coverage_kernel, "float32")

    def next_state(self, state, weights, memory):
        """Return the coverage after a step with `weights` `(B * G, Tx)`."""
        if memory.fertility is None:
            return state + weights
        increments = group_rows(weights, memory.fertility) / ops.expand_dims(memory.fertility, 1)
        return state + ops.reshape(increments, ops.shape(weights))

    @property
    def has_penalty(self):
        """Whether there is a coverage loss."""
        return self.coverage_loss_weight > 0

    def penalty(self, weights, query_mask=None):
        """Return the weighted mean coverage loss, a scalar, or `None`; see `Attention.penalty`."""
        if not self.has_penalty:
            return None
        losses = coverage_loss(weights, query_mask)
        is_real = ops.ones_like(losses)
        if query_mask is not None:
            is_real = ops.cast(query_mask, "float32")
        return self.coverage_loss_weight * batch_mean(ops.sum(losses), ops.sum(is_real))

    def get_config(self):
        return {
            **super().get_config(),
            "fertility": self.fertility,
            "coverage_loss_weight": self.coverage_loss_weight,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if "coverage_loss" in config:  # the key in files of earlier versions
            config["coverage_loss_weight"] = config.pop("coverage_loss")
        return super().from_config(config)


def coverage_loss(weights, mask=None):
    """Coverage loss per step: the overlap of its attention weights with previous ones.

        c_ij = sum over i' < i of a_i'j
        loss_i = sum_j min(a_ij, c_ij)

    (See et al. 2017, arXiv 1704.04368, Eq. 10 and 12). It is zero at the first step and at most
    one. Added to the loss as a weighted mean over real steps, it reduces repetitions.

    Args:
        weights: `(B, Ty, Tx)` attention weights of all steps.
        mask: `(B, Ty)` bool tensor, True = real target step, or `None`. Masked steps have a loss
            of zero and do not contribute to the coverage.

    Returns:
        `(B, Ty)` float32 tensor.

    Raises:
        ValueError: If `weights` is not `(B, Ty, Tx)`, or the mask has another shape or dtype.

    Example:

    >>> import numpy as np
    >>> weights = np.array([[[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]]])
    >>> [float(loss) for loss in coverage_loss(weights)[0]]
    [0.0, 0.25, 0.75]
    """
    check_shape("weights", weights, "batch target_steps source_steps")
    weights = ops.cast(weights, "float32")
    mask = checked_mask("mask", mask, weights)
    if mask is not None:
        weights = ops.where(ops.expand_dims(mask, -1), weights, 0.0)
    before = ops.pad(ops.cumsum(weights, axis=1)[:, :-1], ((0, 0), (1, 0), (0, 0)))
    return ops.sum(ops.minimum(weights, before), axis=-1)
