"""Monotonic attention of Raffel et al. (2017)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.layers.attention.bahdanau import HistoryAttention
from keras_bahdanau.layers.attention.base import Attention, ScoredAttention
from keras_bahdanau.layers.sequences import register_named_tuple
from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau_runtime.checks import check_range

# Doublings when the length of the source is unknown while tracing: enough for 2**20 places.
_DOUBLINGS = 20


@register_named_tuple
class MonotonicMemory(NamedTuple):
    """The `Memory` of the inner mechanism, and the noise on its scores.

    Attributes:
        keys: As in `Memory`, and so the next three.
        values: `(B, Tx, D)`.
        mask: `(B, Tx)` or `None`.
        dropout: `(B, Tx)` or `None`.
        noise: `(B, steps, Tx)` float32, a row for each step, or `None` where none is drawn.
    """

    keys: Any
    values: Any
    mask: Any = None
    dropout: Any = None
    noise: Any = None


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class MonotonicAttention(Attention):
    """Attention that reads the source from left to right (arXiv 1704.00784, section 2).

    From the place of the last step on, the decoder takes the first place that it chooses, each
    with probability `p_ij`. Training has the expectation of that (Eq. 9, 13-15):

        p_ij = sigmoid(e_ij + r + noise)
        q_ij = (1 - p_i,j-1) q_i,j-1 + a_i-1,j
        a_ij = p_ij q_ij                              a_0j = 1 at the first place, else 0

    computed as it stands, in about log2(Tx) parallel steps and with no division. Outside training
    "hard" takes the first place with `p_ij > 0.5` (Algorithm 1). A decoder that runs off the end
    of the source attends to nothing from then on: its weights, and its context, are zero, so
    weights need not sum to one.

    Args:
        attention: The `ScoredAttention` whose memory and scores are used, `BahdanauAttention` or
            `LuongAttention`, with one head; its normaliser is not used.
        sigmoid_noise: Standard deviation of the Gaussian noise on the scores in training, which
            drives `p_ij` towards 0 and 1.
        score_bias: First value of the bias `r`; below zero it lets the decoder look further.
        mode: What to do outside training: "hard", or "soft" for the expectation.
        seed: Int, the randomness of the noise, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`; queries are taken in order, so there is no
        `use_causal_mask` and no `attention_mask`.

    Raises:
        ValueError: If `attention` is not as above, `mode` is unknown, or `sigmoid_noise` no
            number of at least 0.

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
        scored = isinstance(attention, ScoredAttention) and not isinstance(
            attention, HistoryAttention
        )
        if not scored or getattr(attention, "num_heads", 1) > 1:
            raise ValueError(
                "Argument `attention` must be a ScoredAttention with one head and no state, as "
                f"BahdanauAttention is. Received: {attention!r}"
            )
        check_range("sigmoid_noise", sigmoid_noise, float, 0)
        if mode not in ("hard", "soft"):
            raise ValueError(f'Argument `mode` must be "hard" or "soft". Received: {mode!r}')
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
        """The memory of the inner mechanism, with noise for `steps` steps in training."""
        memory = self.attention.memory(values, key, mask, training, steps)
        if not (training and self.sigmoid_noise):
            return MonotonicMemory(*memory)
        batch, places = ops.shape(memory.values)[:2]
        noise = keras.random.normal(
            (batch, steps, places), stddev=self.sigmoid_noise, dtype="float32", seed=self._seeds
        )
        return MonotonicMemory(*memory, noise)

    def initial_state(self, memory):
        """All weight on the first place: `(B, Tx)` float32."""
        batch, places = ops.shape(memory.values)[:2]
        first = ops.cast(ops.equal(ops.arange(places, dtype="int32"), 0), "float32")
        return ops.broadcast_to(ops.expand_dims(first, 0), (batch, places))

    def step(self, query, memory, state=(), training=None, t=None):
        """Moves on and attends; the state is the weights of the last step; see `Attention.step`."""
        queries = self.attention._grouped(query, memory)
        scores = self.attention.scores(queries, memory.keys) + ops.cast(self.bias, "float32")
        if memory.noise is not None:
            scores = scores + ops.expand_dims(_row(memory.noise, t), 1)
        mask = None if memory.mask is None else ops.expand_dims(memory.mask, 1)
        before = ops.reshape(state, ops.shape(scores))
        choose = _first_choice if self.mode == "hard" and not training else _expected_choice
        weights = choose(scores, mask, before)  # (B, G, Tx)
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


def _row(noise, t):
    """The noise `(B, Tx)` of step `t`."""
    if t is None:
        raise ValueError(
            "Argument `t` of MonotonicAttention.step must be the number of the step where the "
            "memory holds noise. Received: None"
        )
    return ops.take(noise, t, axis=1)


def _first_choice(scores, mask, before):
    """One at the first kept place from that of `before` on whose score is above zero."""
    chosen = ops.logical_and(scores > 0.0, ops.cumsum(before, axis=-1) > 0.0)
    chosen = ops.cast(chosen if mask is None else ops.logical_and(chosen, mask), "float32")
    return ops.where(ops.cumsum(chosen, axis=-1) < 1.5, chosen, 0.0)


def _expected_choice(scores, mask, before):
    """Probability of each place to be the first choice, from places distributed as `before`."""
    choose, skip = ops.sigmoid(scores), ops.sigmoid(-scores)
    if mask is not None:
        choose, skip = ops.where(mask, choose, 0.0), ops.where(mask, skip, 1.0)
    shape, zeros = ops.shape(scores), ops.zeros_like(skip)
    count = shape[-1]

    def shifted(part, shift):  # by so many places, of which there may be fewer
        moved = ops.concatenate([zeros[..., :shift], part], axis=-1)[..., :count]
        return ops.reshape(moved, shape)  # which tells an exported graph that it is the same

    # q_j = lead_j q_{j-1} + before_j. After the doubling with `shift`, `reach_j` holds what comes
    # to q_j from the last 2 * shift places, and `lead_j` is the chance to walk as far.
    lead, reach = shifted(skip, 1), before
    doublings = (count - 1).bit_length() if isinstance(count, int) else _DOUBLINGS
    for shift in (2**i for i in range(doublings)):
        reach = reach + lead * shifted(reach, shift)
        lead = lead * shifted(lead, shift)
    return choose * reach
