"""The attentive decoder: one step of the paper's equations, and a loop over it."""

import copy
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.layers.attention import MultiSourceAttention
from keras_bahdanau.layers.decoder_checks import (
    check_attention,
    check_context_cell,
    check_masks,
    check_orders,
    check_row,
    check_sequences,
    check_states,
    checked_cell,
    shapes_of,
)
from keras_bahdanau.layers.recurrence import dropout_masks, flatten, move, parts_of, run_over_time


class DecoderState(NamedTuple):
    """What a decoder carries from one step to the next.

    Attributes:
        cell: Tuple of the cell's state tensors, `(B, size)` each, in the cell's own order.
        attention: The attention mechanism's state; `()` if it keeps none.
        output: The last output `(B, R)`, where the next step reads it; else `()`.
    """

    cell: tuple
    attention: Any = ()
    output: Any = ()


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentiveDecoder(keras.layers.Layer):
    """A recurrent decoder that attends to a memory at every step (arXiv 1409.0473, A.2.2).

    With `query="previous"` (Bahdanau) the state before the step asks, and the cell reads the
    answer; with `query="current"` (Luong) the cell moves first and its new state asks, and a
    `context_cell`, if there is one, reads the answer (the conditional GRU of Nematus):

        previous: c_i = attention(s_{i-1});  s_i = cell([x_i ; c_i], s_{i-1})
        current:  s_i = cell(x_i, s_{i-1});  c_i = attention(s_i)
                  [s_i = context_cell(c_i, s_i)]
        output:   o_i = readout(s, x_i, c_i), with s either s_i or s_{i-1}

    With `input_feeding` (arXiv 1508.04025, section 3.3) the cell reads `[x_i ; o_{i-1}]` in the
    place of `x_i`, `o_0 = 0`. Inputs are any float vectors: embedded tokens, speech frames, a
    time series.

    Args:
        cell: Any Keras RNN cell whose first state is its output (GRU, LSTM, SimpleRNN), or a list
            of them, stacked; wrapped in `ResidualCell`, a cell adds its input to its output, and
            `s_i` is that sum, but `s_{i-1}` the state without it.
        attention: An `Attention`, such as `BahdanauAttention`.
        readout: A layer called as `readout(state, inputs, context)`, whose `build` and
            `compute_output_shape` take the three shapes, such as `DeepOutput`; without one the
            output is the state.
        query: "previous" or "current".
        readout_state: Which state the readout reads: "current", s_i (section 3.1), or "previous",
            s_{i-1} (appendix A.2.2).
        context_cell: A cell, or a list, with the states of `cell`; needs `query="current"`.
        input_feeding: Whether each step reads the last output beside its input.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(B, Ty, M)` float tensor, the embedded previous outputs.
        annotations: `(B, Tx, D)` float tensor; a list of them for `MultiSourceAttention`.
        annotations_mask: `(B, Tx)` bool, True = keep, or `None`; likewise a list.
        initial_state: List of the cell's first state tensors, `(B, size)` each; zeros if `None`.
        inputs_mask: `(B, Ty)` bool: which steps count for the attention's penalty; or `None`.
        feedback: `(t, inputs (B, M), output (B, R)) -> (B, M)`, what each step reads in the place
            of its row of `inputs`, given its number `t`, an int32 scalar, and the last output
            (zeros at first); or `None`. What was drawn beforehand it takes at `t`.
        return_attention_scores: Whether to return the weights too.

    Returns:
        `(B, Ty, R)` outputs, R the readout's width; with `return_attention_scores` also the
        weights `(B, Ty, Tx)`, float32.

    Raises:
        ValueError: If `query` or `readout_state` is unknown, `attention` is no `Attention`, a cell
            has no `state_size` or another output than its state, the states of `cell`,
            `context_cell` and `initial_state` do not fit together, or a rank, a width, or the
            shape or dtype of a mask is not as above.

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
        context_cell=None,
        input_feeding: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_orders(query=query, readout_state=readout_state)
        check_attention(attention)
        self.cell = checked_cell("cell", cell)
        self.attention = attention
        self.readout = readout
        self.query = query
        self.readout_state = readout_state
        self.context_cell = None
        if context_cell is not None:
            self.context_cell = checked_cell("context_cell", context_cell)
            check_context_cell(self.context_cell, query, self.state_sizes)
        self.input_feeding = input_feeding
        self.supports_masking = True

    @property
    def state_sizes(self):
        """Width of each of the cell's state tensors, as a flat list."""
        return flatten(self.cell.state_size)

    @property
    def _output_index(self):
        """Which state tensor is the output: the first one of the topmost cell."""
        return len(self.state_sizes) - len(flatten(parts_of(self.cell)[-1].state_size))

    def build(self, inputs_shape, annotations_shape):
        check_sequences(inputs_shape, annotations_shape, self.attention)
        self._widths = [shape[-1] for shape in [inputs_shape, *self._listed(annotations_shape)]]
        state, inputs, context = self._step_shapes(inputs_shape, annotations_shape)
        _build(self.attention, state, annotations_shape)
        if self.readout is not None:
            _build(self.readout, state, inputs, context)
        self._output_width = self._output_shape(state, inputs, context)[-1]
        width = inputs[-1]
        if self.query == "previous":
            width += context[-1]
        if self.input_feeding:
            width += self._output_width
        _build(self.cell, (inputs[0], width))
        if self.context_cell is not None:
            _build(self.context_cell, context)

    def memory(self, annotations, mask=None, training=None, steps=1):
        """What `step` attends to; see `Attention.memory`."""
        return self.attention.memory(annotations, mask=mask, training=training, steps=steps)

    def initial_state(self, memory, cell_state=None):
        """The state before the first step.

        Args:
            memory: The memory of `B` rows.
            cell_state: List of `(B, size)` tensors, or `None` for zeros.
        """
        batch = ops.shape(flatten(memory)[0])[0]
        if cell_state is None:
            cell_state = [
                ops.zeros((batch, size), dtype=self.compute_dtype) for size in self.state_sizes
            ]
        check_states(cell_state, self.state_sizes)
        cell_state = tuple(ops.cast(state, self.compute_dtype) for state in cell_state)
        output = self._zero_output(batch) if self.input_feeding else ()
        return DecoderState(cell_state, self.attention.initial_state(memory), output)

    def step(self, inputs, state, memory, training=None, t=None):
        """One step of the decoder. In training it draws dropout masks of its own for each step.

        Args:
            inputs: `(B * G, M)` float tensor; `G` hypotheses may share a row of the memory.
            state: `DecoderState` of `B * G` rows.
            memory: The memory of `B` rows.
            training: Whether the call is part of training.
            t: Number of the step, for an attention that needs it; see `Attention.step`.

        Returns:
            `(output, state, weights)`: `(B * G, R)`, the next `DecoderState`, and `(B * G, Tx)`.
        """
        inputs = ops.cast(inputs, self.compute_dtype)
        check_row(inputs.shape, self._widths[0])
        with dropout_masks(self._cells, inputs, training):
            return self._step(t, inputs, state, memory, training)

    def call(
        self,
        inputs,
        annotations,
        annotations_mask=None,
        initial_state=None,
        inputs_mask=None,
        feedback=None,
        return_attention_scores=False,
        training=None,
    ):
        self._check_shapes(inputs.shape, shapes_of(annotations))
        inputs = ops.cast(inputs, self.compute_dtype)
        masks = [] if annotations_mask is None else self._listed(annotations_mask)
        check_masks(inputs_mask, inputs, masks, self._listed(annotations))
        memory = self.memory(annotations, annotations_mask, training, steps=ops.shape(inputs)[1])
        state = self.initial_state(memory, initial_state)
        want_weights = return_attention_scores or self.attention.penalized
        with dropout_masks(self._cells, inputs, training):
            if self.input_feeding or feedback is not None:
                outputs, weights = self._read_inside(
                    inputs, state, memory, feedback, want_weights, training
                )
            else:
                outputs, weights = self._read_after(inputs, state, memory, want_weights, training)
        if self.attention.penalized:
            self.add_loss(self.attention.penalty(weights, inputs_mask))
        return (outputs, weights) if return_attention_scores else outputs

    # --- The equations ----------------------------------------------------------------------------

    def _move(self, t, x, state, memory, training):
        """Attention and cell; returns the state to read, the context, the weights, the state."""
        before, cell = state.cell[self._output_index], state.cell

        def attend(query):
            return self.attention.step(query, memory, state.attention, training=training, t=t)

        if self.input_feeding:
            x = ops.concatenate([x, state.output], -1)
        if self.query == "previous":
            context, weights, attention = attend(before)
            after, cell = move(self.cell, ops.concatenate([x, context], -1), cell, training)
        else:
            after, cell = move(self.cell, x, cell, training)
            context, weights, attention = attend(after)
            if self.context_cell is not None:
                after, cell = move(self.context_cell, context, cell, training)
        read = before if self.readout_state == "previous" else after
        return read, context, weights, state._replace(cell=cell, attention=attention)

    def _read(self, state, x, context):
        return state if self.readout is None else self.readout(state, x, context)

    def _step(self, t, x, state, memory, training):
        """A whole step; its output goes into the state if that has a place for it."""
        read, context, weights, state = self._move(t, x, state, memory, training)
        output = self._read(read, x, context)
        if not isinstance(state.output, tuple):
            state = state._replace(output=output)
        return output, state, weights

    def _read_after(self, inputs, state, memory, want_weights, training):
        """All steps without the readout, which has no recurrence and then runs once over them."""

        def step(t, x, state):
            read, context, weights, state = self._move(t, x, state, memory, training)
            return [read, context, weights] if want_weights else [read, context], state

        states, contexts, *weights = self._loop(step, inputs, state, want_weights)
        states, contexts = (ops.cast(part, self.compute_dtype) for part in (states, contexts))
        return self._read(states, inputs, contexts), weights[0] if want_weights else None

    def _read_inside(self, inputs, state, memory, feedback, want_weights, training):
        """All steps with the readout, where a step depends on the output before it."""

        def step(t, x, state):
            x = x if feedback is None else feedback(t, x, state.output)
            output, state, weights = self._step(t, x, state, memory, training)
            return [output, weights] if want_weights else [output], state

        state = state._replace(output=self._zero_output(ops.shape(inputs)[0]))
        outputs, *weights = self._loop(step, inputs, state, want_weights)
        return ops.cast(outputs, self.compute_dtype), weights[0] if want_weights else None

    def _loop(self, step, inputs, state, want_weights):
        # What leaves the loop leaves it together; the weights stay float32 under mixed precision.
        return run_over_time(step, inputs, state, "float32" if want_weights else self.compute_dtype)

    # --- Shapes -----------------------------------------------------------------------------------

    def _step_shapes(self, inputs_shape, annotations_shape):
        """Shapes of one step's state, inputs and context."""
        batch = inputs_shape[0]
        widths = [shape[-1] for shape in self._listed(annotations_shape)]
        return (
            (batch, self.state_sizes[self._output_index]),
            (batch, inputs_shape[-1]),
            (batch, self.attention.context_width(widths if self._several else widths[0])),
        )

    def _output_shape(self, *shapes):
        return shapes[0] if self.readout is None else self.readout.compute_output_shape(*shapes)

    def _check_shapes(self, inputs, annotations):
        widths = self._widths if self.built else None
        check_sequences(inputs, annotations, self.attention, widths)

    @property
    def _several(self):
        """Whether annotations, their masks and shapes come in lists."""
        return isinstance(self.attention, MultiSourceAttention)

    def _listed(self, annotations):
        """The annotations, or their masks or shapes, as a list."""
        return annotations if self._several else [annotations]

    def _zero_output(self, batch):
        return ops.zeros((batch, self._output_width), dtype=self.compute_dtype)

    @property
    def _cells(self):
        return [cell for cell in (self.cell, self.context_cell) if cell is not None]

    def compute_mask(self, inputs, annotations, *args, **kwargs):
        """Outputs keep the time axis of the inputs; what is padding there is the loss's matter."""
        return None

    def compute_output_shape(self, inputs_shape, annotations_shape):
        output = self._output_shape(*self._step_shapes(inputs_shape, annotations_shape))
        return (*inputs_shape[:-1], output[-1])

    def compute_output_spec(
        self,
        inputs,
        annotations,
        annotations_mask=None,
        initial_state=None,
        inputs_mask=None,
        feedback=None,
        return_attention_scores=False,
        training=None,
    ):
        shapes = shapes_of(annotations)
        self._check_shapes(inputs.shape, shapes)
        if initial_state is not None:
            check_states(initial_state, self.state_sizes)
        shape = self.compute_output_shape(inputs.shape, shapes)
        outputs = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        lengths = [shape[1] for shape in self._listed(shapes)]
        steps = None if None in lengths else sum(lengths)
        return outputs, keras.KerasTensor((*inputs.shape[:-1], steps), dtype="float32")

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "cell": serialize(self.cell),
            "attention": serialize(self.attention),
            "readout": serialize(self.readout),
            "query": self.query,
            "readout_state": self.readout_state,
            "context_cell": serialize(self.context_cell),
            "input_feeding": self.input_feeding,
        }

    @classmethod
    def from_config(cls, config):
        # Stacked cells take their parts out of the config they are made from.
        config = copy.deepcopy(config)
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("cell", "attention", "readout", "context_cell")
        }
        return cls(**{**config, **parts})


def _build(layer, *shapes):
    # A part that comes from a saved config may be built already.
    if not layer.built:
        layer.build(*shapes)
