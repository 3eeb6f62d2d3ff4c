"""Additive attention that sees where it has looked before."""

from keras import ops

from keras_bahdanau.layers.attention.bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention.base import Attention
from keras_bahdanau.layers.masking import masked_scores


class HistoryAttention(BahdanauAttention):
    """Base of mechanisms with `e_ij = v_a . tanh(W_a s_i + U_a h_j + f_ij + b)`.

    The features `f_ij` come from the weights of the steps before, so queries are taken in order.
    Subclasses give `initial_state`, `features` and `next_state`. With several heads the state,
    and the weights that a call returns, are the mean over the heads.

    Args:
        units: Width `U` of the alignment model.
        use_bias: Whether the alignment model adds a bias inside the tanh, as both papers do.
        **kwargs: Passed to `BahdanauAttention`.
    """

    def __init__(self, units: int, use_bias: bool = True, **kwargs):
        super().__init__(units, use_bias=use_bias, **kwargs)

    @property
    def masks_by_query(self):
        """False: queries are taken in order."""
        return False

    def features(self, state):
        """`f_ij` for a state of `B * G` rows: `(B * G, Tx, U)`."""
        raise NotImplementedError

    def next_state(self, state, weights, memory):
        """The state after a step with `weights` `(B * G, Tx)`."""
        raise NotImplementedError

    def step(self, query, memory, state=(), training=None, t=None, return_logits=False):
        """Attends once and remembers where; see `Attention.step`."""
        queries = self._grouped(query, memory)  # (B, G, N)
        features = ops.cast(self.features(state), self.compute_dtype)
        shape = (*ops.shape(queries)[:2], ops.shape(features)[1], self.units)
        features = ops.reshape(features, shape)
        scores = self.scores(queries, memory.keys, features=features)
        mask = self._mask(scores, memory)
        context, weights = self._ungrouped(*self._weigh(scores, mask, memory), memory)
        state = self.next_state(state, weights, memory)
        if return_logits:
            weights = ops.reshape(masked_scores(scores, mask), ops.shape(weights))
        return context, weights, state

    _attend = Attention._attend  # one by one, not at once

    def _no_weights(self, memory):
        """Zeros `(B, Tx)`, the weights before the first step."""
        batch, steps = ops.shape(memory.keys)[:2]
        return ops.zeros((batch, steps), dtype="float32")
