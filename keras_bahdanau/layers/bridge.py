"""Bridges from the encoder to the first state of the decoder."""

import keras
from keras import ops

from keras_bahdanau.layers.sequences import (
    SequenceLayer,
    check_widths,
    checked_mask,
    first_kept_step,
    last_kept_step,
    sequence_lengths,
    zero_masked,
)
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error

SOURCES = ("backward_first", "last", "ends", "mean", "zero")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Bridge(SequenceLayer):
    """Layer from annotations to the first state of a decoder (arXiv 1409.0473, A.2.2).

        s_0 = activation(W_s summary + b)

    Args:
        sizes: List with the width of each state tensor.
        source: Summary of the annotations. "backward_first": the second half of the first
            annotation, which is the backward state of a bidirectional encoder at the first word
            (the paper). "last": the last annotation. "ends": the first half of the last annotation
            and the second half of the first, which are the final states of both directions. "mean":
            the mean of all. "zero": zero states without a summary. Masked annotations are ignored.
        kernel_initializer: Initializer of `W_s`.
        activation: Activation of the states.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        annotations: `(B, Tx, D)` float tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        right_padded: Whether only the right of each row is masked, so that the first annotation is
            at position 0.

    Output shape:
        A list of `(B, size)` tensors, one for each of `sizes`.

    Raises:
        ValueError: If `source` is unknown, `sizes` is not a list of positive ints, the width of the
            annotations is unknown, they have no time axis, or the mask has another shape or dtype.

    Example:

    >>> import numpy as np
    >>> [tuple(state.shape) for state in Bridge([4, 4], source="mean")(np.ones((2, 5, 6)))]
    [(2, 4), (2, 4)]
    """

    def __init__(
        self,
        sizes,
        source="backward_first",
        kernel_initializer="glorot_uniform",
        activation="tanh",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if source not in SOURCES:
            raise argument_error("source", f"be one of {SOURCES}", source)
        self.sizes = _checked_sizes(sizes)
        self.supports_masking = True
        self.source = source
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, annotations_shape):
        check_shape("annotations", tuple(annotations_shape), "batch time width")
        if self.source == "zero":
            return
        width = annotations_shape[-1]
        check_widths(annotations=annotations_shape)
        if self.source == "backward_first":
            width -= width // 2
        self.kernel = self.add_weight(
            shape=(width, sum(self.sizes)), initializer=self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(shape=(sum(self.sizes),), initializer="zeros", name="bias")

    def call(self, annotations, mask=None, right_padded=False):
        mask = checked_mask("mask", mask, annotations)
        annotations = zero_masked(ops.cast(annotations, self.compute_dtype), mask)
        if self.source == "zero":
            batch = ops.shape(annotations)[0]
            return [ops.zeros((batch, size), dtype=self.compute_dtype) for size in self.sizes]
        if self.source == "backward_first":
            summary = _backward_first(annotations, mask, right_padded)
        elif self.source == "last":
            summary = last_kept_step(annotations, mask)
        elif self.source == "ends":
            forward_last = last_kept_step(annotations, mask)[:, : annotations.shape[-1] // 2]
            backward_first = _backward_first(annotations, mask, right_padded)
            summary = ops.concatenate([forward_last, backward_first], axis=-1)
        elif mask is None:
            summary = ops.mean(annotations, axis=1)
        else:
            count = ops.expand_dims(ops.maximum(sequence_lengths(mask), 1), -1)
            summary = ops.sum(annotations, axis=1) / ops.cast(count, annotations.dtype)
        states = self.activation(ops.matmul(summary, self.kernel) + self.bias)
        return _split(states, self.sizes)

    def compute_output_shape(self, annotations_shape):
        return [(annotations_shape[0], size) for size in self.sizes]

    def compute_mask(self, annotations, mask=None):
        """Return `None`: states have no time axis."""
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "sizes": self.sizes,
            "source": self.source,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class StateBridge(SequenceLayer):
    """Layer from the final states of an encoder to the first state of a decoder.

        s_0 = activation(W_s [e_1 ; ... ; e_n] + b)             or s_0 = (e_1, ..., e_n)

    An encoder with `return_state=True` returns the final states `e` of all its layers.

    Args:
        sizes: List with the width of each state tensor of the decoder; `None` if the states of the
            encoder are those of the decoder.
        kernel_initializer: Initializer of `W_s`.
        activation: Activation of the states. It has no effect without `sizes`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        states: List of `(B, size)` float tensors.

    Output shape:
        A list of `(B, size)` tensors.

    Raises:
        ValueError: If `sizes` is neither `None` nor a list of positive ints.

    Example:

    >>> import numpy as np
    >>> [tuple(state.shape) for state in StateBridge([4, 4])([np.ones((2, 3)), np.ones((2, 5))])]
    [(2, 4), (2, 4)]
    """

    def __init__(
        self, sizes=None, kernel_initializer="glorot_uniform", activation="linear", **kwargs
    ):
        super().__init__(**kwargs)
        self.sizes = None if sizes is None else _checked_sizes(sizes)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, states_shape):
        if self.sizes is None:
            return
        width = sum(shape[-1] for shape in states_shape)
        self.kernel = self.add_weight(
            shape=(width, sum(self.sizes)), initializer=self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(shape=(sum(self.sizes),), initializer="zeros", name="bias")

    def call(self, states):
        states = [ops.cast(state, self.compute_dtype) for state in states]
        if self.sizes is None:
            return states
        product = ops.matmul(ops.concatenate(states, axis=-1), self.kernel)
        return _split(self.activation(product + self.bias), self.sizes)

    def compute_output_shape(self, states_shape):
        sizes = [shape[-1] for shape in states_shape] if self.sizes is None else self.sizes
        return [(states_shape[0][0], size) for size in sizes]

    def get_config(self):
        return {
            **super().get_config(),
            "sizes": self.sizes,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _checked_sizes(sizes):
    """Return `sizes` as a list, or raise a `ValueError` unless it is a list of positive ints."""
    if not isinstance(sizes, (list, tuple)):
        raise argument_error("sizes", "be a list with the width of each state tensor", sizes)
    check_positive(**{f"sizes[{number}]": size for number, size in enumerate(sizes)})
    return list(sizes)


def _backward_first(annotations, mask, right_padded):
    """Return the second half of the first kept annotation of each row."""
    half = annotations.shape[-1] // 2
    if mask is None or right_padded:
        return annotations[:, 0, half:]
    return first_kept_step(annotations, mask)[:, half:]


def _split(states, sizes):
    """Return the columns of `(B, sum(sizes))` states as a list of `(B, size)` tensors."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [states[:, start : start + size] for start, size in zip(starts, sizes, strict=True)]
