"""Monotonic attention of Raffel et al. (2017)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.layers.attention.bahdanau import HistoryAttention
from keras_bahdanau.layers.attention.base import Attention, ScoredAttention
from keras_bahdanau.layers.sequences import register_named_tuple
from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error

# Number of doublings if the source length is unknown while tracing: enough for 2**20 positions.
_DOUBLINGS = 20


@register_named_tuple
class MonotonicMemory(NamedTuple):
    """The `Memory` of the inner mechanism with noise for its scores.

    Attributes:
        keys: See `Memory`.
        values: See `Memory`.
        mask: See `Memory`.
        dropout: See `Memory`.
        noise: `(B, steps, Tx)` float32, one row per step, or `None` without noise.
    """

    keys: Any
    values: Any
    mask: Any = None
    dropout: Any = None
    noise: Any = None


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class MonotonicAttention(Attention):
    """Monotonic attention, which moves from left to right only (arXiv 1704.00784, section 2).

    Each step scans the source from the position of the last step and stops at a position with
    probability `p_ij`. Training computes the expectation (Eq. 9, 13-15):

        p_ij = sigmoid(e_ij + r + noise)
        q_ij = (1 - p_i,j-1) q_i,j-1 + a_i-1,j
        a_ij = p_ij q_ij                              a_0j = 1 at the first position, else 0

    The recurrence over `j` takes about log2(Tx) parallel steps and no division. At inference the
    "hard" mode stops at the first position with `p_ij > 0.5` (Algorithm 1). If a step does not stop
    before the end of the source, its weights and context and those of all later steps are zero.
    Weights therefore sum to at most one.

    Args:
        attention: The `ScoredAttention` that computes memory and scores, `BahdanauAttention` or
            `LuongAttention`, with one head. Its normalizer is not used.
        sigmoid_noise: Standard deviation of Gaussian noise on the scores in training, which moves
            `p_ij` towards 0 and 1.
        score_bias: Initial value of the bias `r`. Negative values let a step move further.
        mode: Weights at inference: "hard", or "soft" for the expectation.
        seed: Int seed of the noise, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`. Queries are taken in order, so `use_causal_mask` and
        `attention_mask` are not supported.

    Raises:
        ValueError: If `attention` is not as above, `mode` is unknown, or `sigmoid_noise` is
            negative.

    Example:

    >>> import numpy as np
    >>> attention = MonotonicAttention(LuongAttention("dot"))
    >>> values = np.array([[[1.0, -1.0], [-1.0, 1.0]]])
    >>> queries = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    >>> context, weights = attention(queries, values, return_attention_scores=True)
    >>> [[float(w) for w in step] for step in weights[0]]
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        attention,
        sigmoid_noise: float = 0.0,
        score_bias: float = 0.0,
        mode: str = "hard",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        is_stateless = isinstance(attention, ScoredAttention) and not isinstance(
            attention, HistoryAttention
        )
        if not is_stateless or getattr(attention, "num_heads", 1) > 1:
            raise argument_error(
                "attention",
                "be a ScoredAttention with one head and no state, such as BahdanauAttention",
                attention,
            )
        check_range("sigmoid_noise", sigmoid_noise, float, 0)
        if mode not in ("hard", "soft"):
            raise argument_error("mode", 'be "hard" or "soft"', mode)
        self.attention = attention
        self.sigmoid_noise = sigmoid_noise
        self.score_bias = score_bias
        self.mode = mode
        self.seed = seed
        if sigmoid_noise:
            self._seeds = keras.random.SeedGenerator(seed)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if not self.attention.built:
            self.attention.build(query_shape, value_shape, key_shape)
        bias = keras.initializers.Constant(self.score_bias)
        self.bias = self.add_weight(shape=(), initializer=bias, name="score_bias")

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Return the memory of the inner mechanism, with noise for `steps` steps in training."""
        memory = self.attention.memory(values, key, mask, training, steps)
        if not (training and self.sigmoid_noise):
            return MonotonicMemory(*memory)
        batch, length = ops.shape(memory.values)[:2]
        noise = keras.random.normal(
            (batch, steps, length), stddev=self.sigmoid_noise, dtype="float32", seed=self._seeds
        )
        return MonotonicMemory(*memory, noise)

    def initial_state(self, memory):
        """Return weights of one at the first position, `(B, Tx)` float32."""
        batch, length = ops.shape(memory.values)[:2]
        first = ops.cast(ops.equal(ops.arange(length, dtype="int32"), 0), "float32")
        return ops.broadcast_to(ops.expand_dims(first, 0), (batch, length))

    def step(self, query, memory, state=(), training=None, t=None):
        """Attend once per query. The state is the weights of the step; see `Attention.step`."""
        queries = self.attention.group_queries(query, memory)
        scores = self.attention.scores(queries, memory) + ops.cast(self.bias, "float32")
        if memory.noise is not None:
            scores = scores + ops.expand_dims(_noise_of_step(memory.noise, t), 1)
        mask = None if memory.mask is None else ops.expand_dims(memory.mask, 1)
        previous = ops.reshape(state, ops.shape(scores))
        compute_weights = _hard_weights if self.mode == "hard" and not training else _soft_weights
        weights = compute_weights(scores, mask, previous)  # (B, G, Tx)
        context = self.attention.average(weights, memory)
        # The inner mechanism may have another dtype policy.
        context = ops.cast(ops.reshape(context, (-1, context.shape[-1])), self.compute_dtype)
        weights = ops.reshape(weights, ops.shape(state))
        return context, weights, weights

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, "attention"),
            "sigmoid_noise": self.sigmoid_noise,
            "score_bias": self.score_bias,
            "mode": self.mode,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "attention"))


def _noise_of_step(noise, t):
    """Return the noise `(B, Tx)` of step `t`."""
    if t is None:
        raise argument_error(
            "t",
            "be the number of the step if the memory has noise",
            received="None",
            of="MonotonicAttention.step",
        )
    return ops.take(noise, t, axis=1)


def _hard_weights(scores, mask, previous):
    """Return one at the first position with a positive score, from the last position on.

    Args:
        scores: `(B, G, Tx)` float32.
        mask: Bool, broadcastable to `scores`, or `None`.
        previous: `(B, G, Tx)` float32 weights of the last step.
    """
    chosen = ops.logical_and(scores > 0.0, ops.cumsum(previous, axis=-1) > 0.0)
    chosen = ops.cast(chosen if mask is None else ops.logical_and(chosen, mask), "float32")
    return ops.where(ops.cumsum(chosen, axis=-1) < 1.5, chosen, 0.0)


def _soft_weights(scores, mask, previous):
    """Return the probability of each position to be chosen; see `_hard_weights`."""
    stop, skip = ops.sigmoid(scores), ops.sigmoid(-scores)
    if mask is not None:
        stop, skip = ops.where(mask, stop, 0.0), ops.where(mask, skip, 1.0)
    shape, zeros = ops.shape(scores), ops.zeros_like(skip)
    count = shape[-1]

    def shift_right(values, shift):  # `shift` may exceed the length
        shifted = ops.concatenate([zeros[..., :shift], values], axis=-1)[..., :count]
        return ops.reshape(shifted, shape)  # keeps the static shape in exported graphs

    # q_j = skip_{j-1} q_{j-1} + previous_j, by doubling. After the round with `shift`, `reach_j` is
    # the part of q_j that comes from the last 2 * shift positions, and `skipped_j` is the
    # probability to skip all of them.
    skipped, reach = shift_right(skip, 1), previous
    doublings = (count - 1).bit_length() if isinstance(count, int) else _DOUBLINGS
    for shift in (2**i for i in range(doublings)):
        reach = reach + skipped * shift_right(reach, shift)
        skipped = skipped * shift_right(skipped, shift)
    return stop * reach
