"""The attentive decoder: one step of the paper's equations, and a loop over it."""

import copy
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
from keras import ops, tree


class DecoderState(NamedTuple):
    """What a decoder carries from one step to the next.

    Attributes:
        cell: Tuple of the cell's state tensors, `(B, size)` each, in the cell's own order.
        attention: The attention mechanism's state; `()` if it keeps none.
    """

    cell: tuple
    attention: Any = ()


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentiveDecoder(keras.layers.Layer):
    """A recurrent decoder that attends to a memory at every step (arXiv 1409.0473, A.2.2).

    With `query="previous"` (Bahdanau) the state before the step asks, and the cell reads the
    answer; with `query="current"` (Luong) the cell moves first and its new state asks:

        previous: c_i = attention(s_{i-1});  s_i = cell([x_i ; c_i], s_{i-1})
        current:  s_i = cell(x_i, s_{i-1});  c_i = attention(s_i)
        output:   readout(s, x_i, c_i), with s either s_i or s_{i-1}

    Args:
        cell: Any Keras RNN cell whose first state is its output (GRU, LSTM, SimpleRNN), or a list
            of them, stacked.
        attention: An `Attention`, such as `BahdanauAttention`.
        readout: A layer called as `readout(state, inputs, context)`, whose `build` and
            `compute_output_shape` take the three shapes, such as `DeepOutput`; without one the
            output is the state.
        query: "previous" or "current".
        readout_state: Which state the readout reads: "current", s_i (section 3.1), or "previous",
            s_{i-1} (appendix A.2.2).
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(B, Ty, M)` float tensor, the embedded previous outputs.
        annotations: `(B, Tx, D)` float tensor.
        annotations_mask: `(B, Tx)` bool, True = keep, or `None`.
        initial_state: List of the cell's first state tensors, `(B, size)` each; zeros if `None`.
        return_attention_scores: Whether to return the weights too.

    Returns:
        `(B, Ty, R)` outputs, R the readout's width; with `return_attention_scores` also the
        weights `(B, Ty, Tx)`, float32.

    Raises:
        ValueError: If `query` or `readout_state` is unknown, or the cell has no `state_size`.

    Example:

    >>> import keras, numpy as np
    >>> decoder = AttentiveDecoder(keras.layers.GRUCell(4), BahdanauAttention(3))
    >>> tuple(decoder(np.ones((2, 5, 6)), np.ones((2, 7, 8))).shape)
    (2, 5, 4)
    """

    def __init__(
        self,
        cell,
        attention,
        readout=None,
        query: str = "previous",
        readout_state: str = "current",
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (("query", query), ("readout_state", readout_state)):
            if value not in ("previous", "current"):
                raise ValueError(
                    f'Argument `{name}` must be "previous" or "current". Received: {value!r}'
                )
        if isinstance(cell, (list, tuple)):
            cell = keras.layers.StackedRNNCells(list(cell))
        if not hasattr(cell, "state_size"):
            raise ValueError(
                "Argument `cell` must be a Keras RNN cell (with `state_size`) or a list of them. "
                f"Received: {cell!r}"
            )
        self.cell = cell
        self.attention = attention
        self.readout = readout
        self.query = query
        self.readout_state = readout_state
        self.supports_masking = True

    @property
    def state_sizes(self):
        """Width of each of the cell's state tensors, as a flat list."""
        return tree.flatten(self.cell.state_size)

    @property
    def _output_index(self):
        """Which state tensor is the output: the first one of the topmost cell."""
        top = self.cell.cells[-1] if hasattr(self.cell, "cells") else self.cell
        return len(self.state_sizes) - len(tree.flatten(top.state_size))

    def build(self, inputs_shape, annotations_shape):
        state, inputs, context = self._step_shapes(inputs_shape, annotations_shape)
        _build(self.attention, state, tuple(annotations_shape))
        width = inputs[-1] + (context[-1] if self.query == "previous" else 0)
        _build(self.cell, (inputs[0], width))
        if self.readout is not None:
            _build(self.readout, state, inputs, context)

    def _step_shapes(self, inputs_shape, annotations_shape):
        """Shapes of one step's state, inputs and context."""
        batch = inputs_shape[0]
        context = self.attention.context_width(annotations_shape[-1])
        return (
            (batch, self.state_sizes[self._output_index]),
            (batch, inputs_shape[-1]),
            (batch, context),
        )

    def memory(self, annotations, mask=None):
        """What `step` attends to; see `Attention.memory`."""
        return self.attention.memory(annotations, mask=mask)

    def initial_state(self, memory, cell_state=None):
        """The state before the first step.

        Args:
            memory: The `Memory` of `B` rows.
            cell_state: List of `(B, size)` tensors, or `None` for zeros.
        """
        if cell_state is None:
            batch = ops.shape(memory.values)[0]
            cell_state = [
                ops.zeros((batch, size), dtype=self.compute_dtype) for size in self.state_sizes
            ]
        if len(cell_state) != len(self.state_sizes):
            raise ValueError(
                f"Argument `initial_state` must hold {len(self.state_sizes)} tensors, one for each "
                f"state of the cell. Received: {len(cell_state)}"
            )
        return DecoderState(tuple(cell_state), self.attention.initial_state(memory))

    def step(self, inputs, state, memory, training=None):
        """One step of the decoder.

        Args:
            inputs: `(B * G, M)` float tensor; `G` hypotheses may share a row of the memory.
            state: `DecoderState` of `B * G` rows.
            memory: The `Memory` of `B` rows.
            training: Whether the call is part of training.

        Returns:
            `(output, state, weights)`: `(B * G, R)`, the next `DecoderState`, and `(B * G, Tx)`.
        """
        with _dropout_masks(self.cell, inputs, training):
            read, context, weights, state = self._transition(inputs, state, memory, training)
        return self._read(read, inputs, context), state, weights

    def call(
        self,
        inputs,
        annotations,
        annotations_mask=None,
        initial_state=None,
        return_attention_scores=False,
        training=None,
    ):
        memory = self.memory(annotations, annotations_mask)
        inputs = ops.cast(inputs, self.compute_dtype)
        state = self.initial_state(memory, initial_state)
        # The readout has no recurrence: it runs once over all steps, after the loop.
        transition = _Transition(self, state, memory, return_attention_scores, training)
        loop = keras.layers.RNN(transition, return_sequences=True, dtype=transition.emitted_dtype)
        with _dropout_masks(self.cell, inputs, training):
            emitted = loop.call(inputs, initial_state=tree.flatten(state))
        states, contexts, weights = transition.split(emitted)
        outputs = self._read(states, inputs, contexts)
        return (outputs, weights) if return_attention_scores else outputs

    def _transition(self, inputs, state, memory, training):
        """Attention and cell; returns the state to read, the context, the weights, the state."""
        before = state.cell[self._output_index]
        if self.query == "previous":
            context, weights, attention = self.attention.step(
                before, memory, state.attention, training=training
            )
            after, cell = self._move(ops.concatenate([inputs, context], -1), state, training)
        else:
            after, cell = self._move(inputs, state, training)
            context, weights, attention = self.attention.step(
                after, memory, state.attention, training=training
            )
        read = before if self.readout_state == "previous" else after
        return read, context, weights, DecoderState(cell, attention)

    def _move(self, inputs, state, training):
        sizes = self.cell.state_size
        packed = tree.pack_sequence_as(
            sizes if tree.is_nested(sizes) else [sizes], list(state.cell)
        )
        output, packed = self.cell(inputs, packed, training=training)
        return output, tuple(tree.flatten(packed))

    def _read(self, state, inputs, context):
        return state if self.readout is None else self.readout(state, inputs, context)

    def compute_mask(self, inputs, annotations, *args, **kwargs):
        """Outputs keep the time axis of the inputs; what is padding there is the loss's matter."""
        return None

    def compute_output_shape(self, inputs_shape, annotations_shape):
        shapes = self._step_shapes(inputs_shape, annotations_shape)
        output = shapes[0] if self.readout is None else self.readout.compute_output_shape(*shapes)
        return (*inputs_shape[:-1], output[-1])

    def compute_output_spec(
        self, inputs, annotations, *args, return_attention_scores=False, **kwargs
    ):
        shape = self.compute_output_shape(inputs.shape, annotations.shape)
        outputs = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        shape = (*inputs.shape[:-1], annotations.shape[1])
        return outputs, keras.KerasTensor(shape, dtype="float32")

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "cell": serialize(self.cell),
            "attention": serialize(self.attention),
            "readout": serialize(self.readout),
            "query": self.query,
            "readout_state": self.readout_state,
        }

    @classmethod
    def from_config(cls, config):
        # Stacked cells take their parts out of the config they are made from.
        config = copy.deepcopy(config)
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("cell", "attention", "readout")
        }
        return cls(**{**config, **parts})


def _build(layer, *shapes):
    # A part that comes from a saved config may be built already.
    if not layer.built:
        layer.build(*shapes)


class _Transition:
    """The decoder's transition in the form of an RNN cell, for the length of one call.

    `keras.layers.RNN` has the fast, differentiable loop of every backend, but no place for a
    memory. This object closes over it, so nothing is kept on a layer between calls.
    """

    def __init__(self, decoder, state, memory, emit_weights, training):
        self.decoder, self.template, self.memory = decoder, state, memory
        self.emit_weights, self.training = emit_weights, training
        self.compute_dtype = decoder.compute_dtype
        self.emitted_dtype = "float32" if emit_weights else decoder.compute_dtype
        self.state_size = [tensor.shape[-1] for tensor in tree.flatten(state)]
        self.widths = []

    def call(self, inputs, states):
        state = tree.pack_sequence_as(self.template, list(states))
        read, context, weights, state = self.decoder._transition(
            inputs, state, self.memory, self.training
        )
        self.widths = [read.shape[-1], context.shape[-1]]
        emitted = [read, context, weights] if self.emit_weights else [read, context]
        emitted = [ops.cast(part, self.emitted_dtype) for part in emitted]
        return ops.concatenate(emitted, axis=-1), tree.flatten(state)

    __call__ = call

    def split(self, emitted):
        """Takes apart what the loop emitted: states, contexts and weights (or None)."""
        a, b = self.widths[0], sum(self.widths)
        states, contexts = emitted[..., :a], emitted[..., a:b]
        weights = emitted[..., b:] if self.emit_weights else None
        return (
            ops.cast(states, self.compute_dtype),
            ops.cast(contexts, self.compute_dtype),
            weights,
        )


@contextmanager
def _dropout_masks(cell, inputs, training):
    """Draws the dropout masks of Keras cells before a training loop, as `keras.layers.RNN` does.

    A cell draws its masks at its first step and keeps them; inside a traced loop they would
    belong to the trace.
    """
    cells = [
        part
        for part in getattr(cell, "cells", [cell])
        if training and (getattr(part, "dropout", 0) or getattr(part, "recurrent_dropout", 0))
    ]
    batch = ops.shape(inputs)[0]
    _forget_dropout_masks(cells)
    for part in cells:
        units = tree.flatten(part.state_size)[0]
        part.get_dropout_mask(ops.ones((batch, part.kernel.shape[0]), dtype=part.compute_dtype))
        part.get_recurrent_dropout_mask(ops.ones((batch, units), dtype=part.compute_dtype))
    try:
        yield
    finally:
        _forget_dropout_masks(cells)


def _forget_dropout_masks(cells):
    for part in cells:
        part.reset_dropout_mask()
        part.reset_recurrent_dropout_mask()
