"""Copying: a gate between the output layer and the source tokens that the decoder attends to."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.layers.sequences import SequenceLayer, register_named_tuple
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD, SPECIAL


@register_named_tuple
class Copies(NamedTuple):
    """Target ids that can be copied from a source, computed once for all steps.

    Attributes:
        ids: `(B, Tx)` int32 tensor, the target id of each position; `PAD` where nothing can be
            copied, and at all but the first position of an id.
        is_same: `(B, Tx, Tx)` float tensor, 1 at `[j, k]` if position `k` is the first of its id
            and position `j` has this id, else 0.
    """

    ids: Any
    is_same: Any

    def among(self, candidates):
        """Return the `Copies` with indices of candidate ids `(n,)`, ascending, in place of ids.

        An id that is not a candidate cannot be copied.
        """
        indices = ops.cast(ops.searchsorted(candidates, ops.reshape(self.ids, (-1,))), "int32")
        indices = ops.minimum(ops.reshape(indices, ops.shape(self.ids)), candidates.shape[0] - 1)
        is_candidate = ops.equal(ops.take(candidates, indices), self.ids)
        is_candidate = ops.logical_and(is_candidate, ops.not_equal(self.ids, PAD))
        is_same = ops.where(ops.expand_dims(is_candidate, 1), self.is_same, 0.0)
        return Copies(ops.where(is_candidate, indices, PAD), is_same)


@register_named_tuple
class Copied(NamedTuple):
    """Gate and attention of a sequence of decoder steps, for a loss that computes the logits.

    Attributes:
        gate: `(B, Ty, 1)` float tensor, the logit of the gate.
        mass: `(B, Ty, Tx)` float tensor, the attention weights of the ids.
        ids: `(B, Tx)` int32 tensor; see `Copies`.
    """

    gate: Any
    mass: Any
    ids: Any


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class PointerGenerator(SequenceLayer):
    """Mixture of the output layer's distribution and of the attended source tokens.

        p(v) = g softmax(l)_v + (1 - g) m_v,    m_v = sum of a_j over all j with s_j = v
        g = sigmoid(w^T o + b)

    (pointer-generator network, arXiv 1704.04368, Eqs. 8 and 9). `l` are the logits, `a` the
    attention weights, `s` the target ids of the source tokens, and `o` the output of the decoder,
    which a `DeepOutput` computes from state, context and input. If a part of the attention is at
    tokens that cannot be copied, `p` is normalized.

    The result has the form of logits, `l' = l` except for the ids of the source:

        l'_v = log(exp(l_v) + m_v Z exp(-w^T o - b)),    Z = sum_v exp(l_v)

    so `softmax(l') = p`, and every loss, metric and search that reads logits reads these.

    Args:
        target_ids: Target id of each source id, a list of `V_s` ints; `PAD` (0) for tokens that
            cannot be copied. `None` for a vocabulary that both sides share. Padding, unknown, begin
            and end are never copied.
        bias_initializer: Initializer of the bias `b`. A positive number prefers the output layer.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        logits: `(B, Ty, V)` float tensor `l`.
        features: `(B, Ty, R)` float tensor, the outputs `o` of the decoder.
        weights: `(B, Ty, Tx)` float tensor, the attention weights `a`, zero at padding.
        source: `(B, Tx)` int32 tensor of source ids, padded with 0.

    Output shape:
        Logits `(B, Ty, V)`, at least float32.

    Raises:
        ValueError: If `target_ids` is not a list of ids, or a shape is not as above.

    Example:

    >>> import numpy as np
    >>> layer = PointerGenerator()
    >>> features, weights = np.zeros((1, 1, 4)), np.array([[[0.25, 0.75, 0.0]]])
    >>> logits = layer(np.zeros((1, 1, 8)), features, weights, np.array([[6, 5, 3]]))
    >>> keras.ops.softmax(logits).numpy().round(4).tolist()          # g = 1/2
    [[[0.0625, 0.0625, 0.0625, 0.0625, 0.0625, 0.4375, 0.1875, 0.0625]]]
    """

    def __init__(self, target_ids=None, bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.target_ids = None if target_ids is None else _checked_ids(target_ids)
        self.gate_layer = keras.layers.Dense(
            1, bias_initializer=bias_initializer, dtype=self.dtype_policy, name="gate"
        )

    def check_sizes(self, source_vocabulary_size, target_vocabulary_size):
        """Raise a `ValueError` unless the target ids fit to vocabularies of these sizes."""
        if self.target_ids is None:
            if source_vocabulary_size != target_vocabulary_size:
                raise argument_error(
                    "copy",
                    "be a PointerGenerator with `target_ids` for vocabularies of different sizes",
                    received=f"{source_vocabulary_size} source ids, {target_vocabulary_size} "
                    "target ids and no `target_ids`",
                )
        elif len(self.target_ids) != source_vocabulary_size:
            raise argument_error(
                "target_ids",
                f"have an id for each of {source_vocabulary_size} source ids",
                received=f"{len(self.target_ids)} ids",
            )
        elif max(self.target_ids) >= target_vocabulary_size:
            raise argument_error(
                "target_ids",
                f"hold ids in [0, {target_vocabulary_size})",
                received=str(max(self.target_ids)),
            )

    def build(self, logits_shape, features_shape=None, weights_shape=None, source_shape=None):
        self.gate_layer.build((None, features_shape[-1]))

    @property
    def _dtype(self):
        """Dtype of probabilities: float32, also under mixed precision, or float64."""
        return keras.backend.result_type(self.compute_dtype, "float32")

    def copies(self, source):
        """Return the `Copies` of sources `(B, Tx)` int32."""
        ids = ops.cast(source, "int32")
        if self.target_ids is None:
            ids = ops.where(ids < len(SPECIAL), PAD, ids)
        else:
            ids = ops.take(ops.convert_to_tensor(self.target_ids, "int32"), ids, axis=0)
        is_same = ops.equal(ops.expand_dims(ids, 2), ops.expand_dims(ids, 1))
        # The number of earlier positions with the same id.
        positions = ops.arange(ops.shape(ids)[1], dtype="int32")
        is_earlier = ops.expand_dims(positions, 1) < positions  # (j, k): j < k
        is_repeated = ops.any(ops.logical_and(is_same, is_earlier), axis=1)
        ids = ops.where(is_repeated, PAD, ids)
        is_same = ops.logical_and(is_same, ops.expand_dims(ops.not_equal(ids, PAD), 1))
        return Copies(ids, ops.cast(is_same, self._dtype))

    def gate(self, features):
        """Return the logit `w^T o + b` of the gate: `(..., 1)` for features `(..., R)`."""
        return ops.cast(self.gate_layer(features), self._dtype)

    def copied_mass(self, weights, copies):
        """Return the attention weight of each id: `(B, Ty, Tx)` `m` at the positions of `ids`."""
        return ops.matmul(ops.cast(weights, self._dtype), copies.is_same)

    def call(self, logits, features, weights, source):
        _check_call(logits, features, weights, source)
        return self.mix(logits, features, weights, self.copies(source))

    def mix(self, logits, features, weights, copies):
        """Return the logits of the mixture, as a call does, for `Copies`."""
        logits = ops.cast(logits, self._dtype)
        mass = self.copied_mass(weights, copies)
        steps, positions = ops.shape(logits)[1], ops.shape(mass)[2]
        ids = ops.broadcast_to(
            ops.expand_dims(copies.ids, 1), (ops.shape(mass)[0], steps, positions)
        )
        increase = copied_increase(
            ops.take_along_axis(logits, ids, axis=-1),
            ops.logsumexp(logits, axis=-1, keepdims=True),
            self.gate(features),
            mass,
        )
        rows, size = ops.shape(logits)[0] * steps, logits.shape[-1]
        starts = ops.expand_dims(ops.arange(rows, dtype="int32") * size, 1)
        indices = ops.reshape(starts + ops.reshape(ids, (rows, -1)), (-1, 1))
        flat = ops.scatter_update(
            ops.reshape(logits, (-1,)), indices, ops.reshape(increase, (-1,)), reduction="add"
        )
        return ops.reshape(flat, ops.shape(logits))

    def get_config(self):
        return {
            **super().get_config(),
            "target_ids": self.target_ids,
            "bias_initializer": keras.initializers.serialize(self.gate_layer.bias_initializer),
        }


def copied_increase(logits, normalizer, gate, mass):
    """Return `l'_v - l_v`, by which copying raises the logits of the source's ids.

        l'_v - l_v = log(1 + m_v exp(log Z - l_v - z))

    Args:
        logits: `(..., n)` float tensor, the logits `l_v` of `n` ids.
        normalizer: `(..., 1)` float tensor `log Z`.
        gate: `(..., 1)` float tensor `z`, the logit of the gate.
        mass: `(..., n)` float tensor, the attention weights `m_v` of the ids.

    Returns:
        `(..., n)` float tensor, 0 where `m_v` is 0.
    """
    is_copied = mass > 0.0
    log_mass = ops.log(ops.where(is_copied, mass, 1.0))
    return ops.where(is_copied, ops.softplus(normalizer - logits - gate + log_mass), 0.0)


def total_increase(gate, mass):
    """Return `log Z' - log Z`, by which copying raises the normalizer of the logits.

    Args:
        gate: `(..., 1)` float tensor `z`, the logit of the gate.
        mass: `(..., n)` float tensor, the attention weights of the ids.

    Returns:
        `(..., 1)` float tensor.
    """
    total = ops.sum(mass, axis=-1, keepdims=True)
    return copied_increase(ops.zeros_like(gate), 0.0, gate, total)


def _checked_ids(target_ids):
    """Return `target_ids` as a list of Python ints, `PAD` in place of special ids."""
    ids = np.asarray(target_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not ids.size or (ids < 0).any():
        raise argument_error(
            "target_ids", "be a list of the target id of each source id, or None", target_ids
        )
    ids = np.where(ids < len(SPECIAL), PAD, ids)
    ids[: len(SPECIAL)] = PAD
    return ids.tolist()


def _check_call(logits, features, weights, source):
    """Raise a `ValueError` unless the shapes of a call of `PointerGenerator` are right."""
    check_shape("logits", logits, "batch steps ids", "floats")
    batch, steps, _ = logits.shape
    check_shape("features", features, "batch steps width", "floats", batch=batch, steps=steps)
    check_shape("source", source, "batch time", "ints", batch=batch)
    sizes = {"batch": batch, "steps": steps, "time": source.shape[1]}
    check_shape("weights", weights, "batch steps time", "floats", **sizes)
