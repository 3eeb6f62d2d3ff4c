"""Copying: a gate between the output layer and the source tokens that the decoder attends to."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.layers.attention.base import Attention
from keras_bahdanau.layers.attention.fixed import FixedContext
from keras_bahdanau.layers.sequences import SequenceLayer, register_named_tuple
from keras_bahdanau.layers.sublayers import (
    apply_settings,
    build_sublayer,
    deserialized,
    pop_settings,
    record_settings,
    serialized,
)
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD, SPECIAL, UNK

# The output layer's logit of a word that is only copied: its probability is below 1e-13 as long as
# no source token has its id.
WORD_LOGIT = -30.0


@register_named_tuple
class Copies(NamedTuple):
    """Target ids that can be copied from a source, computed once for all steps.

    Attributes:
        ids: `(B, Tx)` int32 tensor, the target id of each position; `PAD` where nothing can be
            copied, and at all but the first position of an id.
        is_same: `(B, Tx, Tx)` float tensor, 1 at `[j, k]` if position `k` is the first of its id
            and position `j` has this id, else 0.
        memory: Memory of the layer's own attention; `()` if it has none.
    """

    ids: Any
    is_same: Any
    memory: Any = ()

    def among(self, candidates, vocabulary_size):
        """Return the `Copies` with indices of candidate ids `(n,)` in place of ids.

        An id that is not a candidate cannot be copied.
        """
        size = candidates.shape[0]
        # Not `searchsorted`, which ONNX does not have.
        table = ops.scatter(
            ops.expand_dims(candidates, 1), ops.arange(size, dtype="float32"), (vocabulary_size,)
        )
        indices = ops.minimum(ops.cast(ops.take(table, self.ids), "int32"), size - 1)
        is_candidate = ops.equal(ops.take(candidates, indices), self.ids)
        is_candidate = ops.logical_and(is_candidate, ops.not_equal(self.ids, PAD))
        is_same = ops.where(ops.expand_dims(is_candidate, 1), self.is_same, 0.0)
        return self._replace(ids=ops.where(is_candidate, indices, PAD), is_same=is_same)


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

    The result has the form of logits, and differs from `log softmax(l)` only for the source's ids:

        l'_v = log(softmax(l)_v + m_v exp(-w^T o - b))

    so `softmax(l') = p`, and every loss, metric and search that reads logits reads these.

    With `copied_words`, the last `N` ids of both vocabularies represent words of the source that
    are not in the target vocabulary: the id `V - N + k` is the `k`-th of the different words of
    this kind. They have no embedding or weight of their own. The decoder reads them as unknown.

    Args:
        target_ids: Target id of each source id, a list of ints: `PAD` (0) for tokens that cannot be
            copied, and `UNK` (1) for words that are not in the target vocabulary. `None` for a
            vocabulary that both sides share. Padding, unknown, begin and end are never copied.
        copied_words: Number `N` of ids for words that are not in the target vocabulary.
        attention: An `Attention` without a state, but no `FixedContext`, whose weights are copied,
            with the outputs of the decoder as its queries; `None` for the weights of the decoder.
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
        ValueError: If `target_ids` is not a list of ids, `attention` is not as above, or a shape is
            not as above.

    Example:

    >>> import numpy as np
    >>> layer = PointerGenerator()
    >>> features, weights = np.zeros((1, 1, 4)), np.array([[[0.25, 0.75, 0.0]]])
    >>> logits = layer(np.zeros((1, 1, 8)), features, weights, np.array([[6, 5, 3]]))
    >>> logits = keras.ops.convert_to_numpy(logits)[0, 0]            # g = 1/2
    >>> (np.exp(logits) / np.exp(logits).sum()).round(4).tolist()
    [0.0625, 0.0625, 0.0625, 0.0625, 0.0625, 0.4375, 0.1875, 0.0625]
    """

    def __init__(
        self,
        target_ids=None,
        copied_words: int = 0,
        attention=None,
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_range("copied_words", copied_words, int, 0)
        if not (attention is None or isinstance(attention, Attention)):
            raise argument_error("attention", "be an Attention or None", attention)
        if not (attention is None or _can_be_copied(attention)):
            raise argument_error(
                "attention",
                "have no state and a weight for each token, such as BahdanauAttention; with None "
                "the weights of the decoder are copied, whose attention may have a state",
                attention,
            )
        self.copied_words = copied_words
        self.target_ids = None
        if target_ids is not None:
            self.target_ids = _checked_ids(target_ids, PAD if copied_words == 0 else UNK)
        self.attention = attention
        self._first_word = None  # set by `build`
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
        limit = target_vocabulary_size - self.copied_words
        if self.target_ids is not None and max(self.target_ids) >= limit:
            raise argument_error(
                "target_ids", f"hold ids in [0, {limit})", received=str(max(self.target_ids))
            )
        for size in (source_vocabulary_size, target_vocabulary_size):
            if size <= self.copied_words + len(SPECIAL):
                raise argument_error(
                    "copied_words",
                    f"be below {size - len(SPECIAL)}, because its ids are part of the vocabularies",
                    self.copied_words,
                )

    def build(self, logits_shape, features_shape, weights_shape=None, source_shape=None):
        self._first_word = logits_shape[-1] - self.copied_words
        build_sublayer(self.gate_layer, (None, features_shape[-1]))

    @property
    def _dtype(self):
        """Dtype of probabilities: float32, also under mixed precision, or float64."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    def copies(self, source, annotations=None, mask=None):
        """Return the `Copies` of a batch.

        Args:
            source: `(B, Tx)` int32 tensor.
            annotations: `(B, Tx, D)` float tensor for an attention of the layer's own.
            mask: `(B, Tx)` bool tensor for this attention, True = keep.
        """
        ids, is_same = self._ids(source)
        memory = () if self.attention is None else self.attention.memory(annotations, mask=mask)
        return Copies(ids, ops.cast(is_same, self._dtype), memory)

    def ids_of(self, source):
        """Return the `ids` of the `Copies` of sources `(B, Tx)` int32."""
        return self._ids(source)[0]

    def _ids(self, source):
        """Return `ids` and `is_same`, bool, of the `Copies` of a batch."""
        source = ops.cast(source, "int32")
        if self.target_ids is None:
            ids = ops.where(source < len(SPECIAL), PAD, source)
            is_word = ids >= self._first_word
        else:
            ids = ops.take(ops.convert_to_tensor(self.target_ids, "int32"), source, axis=0)
            is_word = ops.equal(ids, UNK)
        # Different words have different source ids, which differ from all target ids.
        ids = ops.where(is_word, self._first_word + source, ids)
        is_same = ops.equal(ops.expand_dims(ids, 2), ops.expand_dims(ids, 1))
        # Whether an earlier position has the same id.
        positions = ops.arange(ops.shape(ids)[1], dtype="int32")
        is_earlier = ops.expand_dims(positions, 1) < positions  # (j, k): j < k
        is_repeated = ops.any(ops.logical_and(is_same, is_earlier), axis=1)
        ids = ops.where(is_repeated, PAD, ids)
        if self.copied_words:
            is_word = ops.logical_and(is_word, ops.logical_not(is_repeated))
            number = ops.cumsum(ops.cast(is_word, "int32"), axis=1) - 1
            has_id = number < self.copied_words
            ids = ops.where(is_word, ops.where(has_id, self._first_word + number, PAD), ids)
        return ids, ops.logical_and(is_same, ops.expand_dims(ops.not_equal(ids, PAD), 1))

    def attend(self, features, copies):
        """Return the weights `(B, Ty, Tx)` of the layer's own attention.

        Args:
            features: `(B, Ty, R)` float tensor.
            copies: The `Copies` of the batch.
        """
        rows = ops.reshape(features, (-1, features.shape[-1]))
        _, weights, _ = self.attention.step(rows, copies.memory)
        return ops.reshape(weights, (*ops.shape(features)[:2], ops.shape(weights)[-1]))

    def gate(self, features):
        """Return the logit `w^T o + b` of the gate: `(..., 1)` for features `(..., R)`."""
        return ops.cast(self.gate_layer(features), self._dtype)

    def copied_mass(self, weights, copies):
        """Return the attention weight of each id: `(B, Ty, Tx)` `m` at the positions of `ids`."""
        return ops.matmul(ops.cast(weights, self._dtype), copies.is_same)

    def copied_part(self, features, weights, copies):
        """Return the probability that is copied from each source token, `(B, Ty, Tx)`.

            (1 - g) a_j / (g + (1 - g) sum_v m_v)

        That of a source token that cannot be copied has no meaning.
        """
        gate = self.gate(features)
        total = ops.sum(self.copied_mass(weights, copies), axis=-1, keepdims=True)
        part = ops.sigmoid(-gate)
        return part * ops.cast(weights, self._dtype) / (ops.sigmoid(gate) + part * total)

    def call(self, logits, features, weights, source):
        _check_call(logits, features, weights, source)
        if self.attention is not None:
            raise ValueError(
                "A call of a PointerGenerator has the attention weights as an argument. Use "
                "`copies`, `attend` and `mix` with an `attention` of the layer's own. Received: "
                f"{self.attention!r}"
            )
        return self.mix(logits, features, weights, self.copies(source))

    def mix(self, logits, features, weights, copies):
        """Return the logits of the mixture, as a call does, for `Copies`."""
        log_probs = ops.log_softmax(ops.cast(logits, self._dtype), axis=-1)
        mass = self.copied_mass(weights, copies)
        ids = ops.broadcast_to(ops.expand_dims(copies.ids, 1), ops.shape(mass))
        copied = ops.take_along_axis(log_probs, ids, axis=-1)
        increase = copied_increase(copied, 0.0, self.gate(features), mass)
        rows, size = ops.shape(logits)[0] * ops.shape(logits)[1], logits.shape[-1]
        starts = ops.arange(rows, dtype="int32") * size
        starts = ops.reshape(starts, (*ops.shape(logits)[:2], 1))
        indices = ops.reshape(starts + ids, (-1, 1))
        flat = ops.scatter_update(
            ops.reshape(log_probs, (-1,)), indices, ops.reshape(increase, (-1,)), reduction="add"
        )
        return ops.reshape(flat, ops.shape(logits))

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, "attention"),
            "target_ids": self.target_ids,
            "copied_words": self.copied_words,
            "bias_initializer": keras.initializers.serialize(self.gate_layer.bias_initializer),
            "layer_settings": record_settings([self.gate_layer]),
        }

    @classmethod
    def from_config(cls, config):
        arguments = deserialized(config, "attention")
        settings = pop_settings(arguments)
        layer = cls(**arguments)
        apply_settings([layer.gate_layer], settings)
        return layer


def copies_token(copies, tokens):
    """Return whether each source token is the copied token, `(B, Ty, Tx)` bool.

    Args:
        copies: The `Copies` of the batch.
        tokens: `(B, Ty)` int32 tensor of target ids.
    """
    ids = ops.expand_dims(copies.ids, 1)
    is_first = ops.cast(ops.equal(ids, ops.expand_dims(tokens, -1)), copies.is_same.dtype)
    return ops.matmul(is_first, ops.transpose(copies.is_same, (0, 2, 1))) > 0.0


def copied_increase(logits, normalizer, gate, mass):
    """Return `l'_v - l_v`, the increase of the logits of the source's ids by copying.

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
    """Return `log Z' - log Z`, the increase of the normalizer of the logits by copying.

    Args:
        gate: `(..., 1)` float tensor `z`, the logit of the gate.
        mass: `(..., n)` float tensor, the attention weights of the ids.

    Returns:
        `(..., 1)` float tensor.
    """
    total = ops.sum(mass, axis=-1, keepdims=True)
    return copied_increase(ops.zeros_like(gate), 0.0, gate, total)


def _can_be_copied(attention):
    """Return whether weights of an `Attention` can be computed for all steps at once."""
    has_state = type(attention).initial_state is not Attention.initial_state
    return not has_state and not isinstance(attention, FixedContext)


def _checked_ids(target_ids, word):
    """Return `target_ids` as a list of Python ints.

    Args:
        target_ids: List of ints.
        word: The id of a token that has none.
    """
    ids = np.asarray(target_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not ids.size or (ids < 0).any():
        raise argument_error(
            "target_ids", "be a list of the target id of each source id, or None", target_ids
        )
    ids = np.where(ids == UNK, word, np.where(ids < len(SPECIAL), PAD, ids))
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
