"""The attentive decoder: one step of the paper's equations, and a loop over it."""

import keras
from keras import ops

from keras_bahdanau.layers.attention import MultiSourceAttention
from keras_bahdanau.layers.closed_loop import ClosedLoop
from keras_bahdanau.layers.decoder_checks import (
    check_annotations_masks,
    check_attention,
    check_context_cell,
    check_feedback,
    check_logits,
    check_orders,
    check_row,
    check_sequences,
    checked_cell,
    checked_feedback,
    checked_states,
    naming_readout,
    readout_reads,
    readout_width,
    shapes_of,
)
from keras_bahdanau.layers.decoder_state import DecoderState, first_states
from keras_bahdanau.layers.masking import checked_mask, masked_scores, repeat_kept, zero_masked
from keras_bahdanau.layers.method_layer import symbolic
from keras_bahdanau.layers.parts import (
    CheckedCall,
    build_part,
    call_rows,
    call_steps,
    deserialized,
    serialized,
)
from keras_bahdanau.layers.recurrence import (
    dropout_masks,
    flatten,
    held,
    move,
    parts_of,
    run_over_time,
)
from keras_bahdanau.replicas import added_once

_PARTS = ("cell", "attention", "readout", "context_cell")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentiveDecoder(CheckedCall, keras.layers.Layer):
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
        readout: A layer called as `readout(state, inputs, context)`, such as `DeepOutput`, whose
            `build` takes the three shapes; or any layer of one input, such as
            `keras.layers.Dense`, which reads the state alone; without one the output is the state.
            On JAX it must keep no state, as dropout does, where a step reads the output before it.
        query: "previous" or "current", with which the context reaches the output through a
            `context_cell` or a readout of three inputs alone.
        readout_state: Which state the readout reads: "current", s_i (section 3.1), or "previous",
            s_{i-1} (appendix A.2.2).
        context_cell: A cell, or a list, with the states of `cell`; needs `query="current"`.
        input_feeding: Whether each step reads the last output beside its input.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(B, Ty, M)` float tensor, the embedded previous outputs.
        annotations: `(B, Tx, D)` float tensor; a list of them for `MultiSourceAttention`.
        annotations_mask: `(B, Tx)` bool, True = keep, or `None`; likewise a list.
        initial_state: List of the cell's first states, `(B, size)` each; the cell's own if `None`.
            Also as `keras.layers.RNN` returns and takes them: nested for a stack, such as
            `[[h1, c1], [h2, c2]]`, and one tensor for a cell with one state.
        inputs_mask: `(B, Ty)` bool, True = keep, or `None`. Keras passes on that of an
            `Embedding(mask_zero=True)` or `Masking`. A masked step leaves the state as it was, as
            in `keras.layers.RNN`, and does not count for the attention's penalty.
        feedback: `(t, inputs (B, M), output (B, R)) -> (B, M)`, what each step reads in the place
            of its row of `inputs`, given its number `t`, an int32 scalar, and the last output
            (zeros at first); or `None`. What was drawn beforehand it takes at `t`. To read nothing
            but the outputs, see `unroll`.
        return_attention_scores: Whether to return the weights too. Those of a pointer network
            (arXiv 1506.03134) are the pointer: it needs no output.
        return_attention_logits: Whether to return the scores before the softmax too: a pointer
            network trains on them, with a loss that has `from_logits=True`.

    Returns:
        `(B, Ty, R)` outputs in the compute dtype, R the readout's width; with
        `return_attention_scores` also the weights `(B, Ty, Tx)`, float32; with
        `return_attention_logits` then the logits, likewise, -1e30 at masked places. At a masked
        step the output is that of the last kept step before it, or zero if there is none; its
        weights are zero and its logits -1e30. A mask that Keras attached to `inputs` goes on with
        the outputs, to the loss.

    Raises:
        ValueError: If `query` or `readout_state` is unknown, `attention` is no `Attention`, a cell
            is none or has another output than its state, `readout` takes other inputs, the states
            of `cell`, `context_cell` and `initial_state` do not fit together, the attention has no
            logits to return, or a rank, a width, or the shape or dtype of a mask is not as above.

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
        self._widths = None  # before it is built
        self._reads = 0 if readout is None else readout_reads(readout)
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
        build_part(self.attention, state, annotations_shape)
        if self.readout is not None:
            with naming_readout(self.readout):
                build_part(self.readout, *(state, inputs, context)[: self._reads])
        self._output_width = self._read_width(state, inputs, context)
        width = inputs[-1]
        if self.query == "previous":
            width += context[-1]
        if self.input_feeding:
            width += self._output_width
        build_part(self.cell, (inputs[0], width))
        if self.context_cell is not None:
            build_part(self.context_cell, context)

    @symbolic
    def memory(self, annotations, mask=None, training=None, steps=1):
        """What `step` attends to; see `Attention.memory`."""
        return self.attention.memory(annotations, mask=mask, training=training, steps=steps)

    @symbolic
    def initial_state(self, memory, cell_state=None):
        """The state before the first step.

        Args:
            memory: The memory of `B` rows.
            cell_state: As `initial_state` of a call.
        """
        first = flatten(memory)[0]
        batch = ops.shape(first)[0]
        if cell_state is None:
            cell_state = first_states(self.cell, batch, self.compute_dtype)
        cell_state = checked_states(cell_state, self.state_sizes, first.shape[0])
        cell_state = tuple(ops.cast(state, self.compute_dtype) for state in cell_state)
        output = self._zero_output(batch) if self.input_feeding else ()
        return DecoderState(cell_state, self.attention.initial_state(memory), output)

    @symbolic
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
        check_row(inputs.shape, self._widths)
        with dropout_masks(self._cells, inputs, training):
            return self._step(t, inputs, state, self._attend(memory, training), training)

    def call(
        self,
        inputs,
        annotations,
        annotations_mask=None,
        initial_state=None,
        inputs_mask=None,
        feedback=None,
        return_attention_scores=False,
        return_attention_logits=False,
        training=None,
    ):
        check_sequences(inputs.shape, shapes_of(annotations), self.attention, self._widths)
        check_logits(return_attention_logits, self.attention)
        check_feedback(feedback)
        inputs = ops.cast(inputs, self.compute_dtype)
        masks = [] if annotations_mask is None else self._listed(annotations_mask)
        inputs_mask = checked_mask("inputs_mask", inputs_mask, inputs)
        check_annotations_masks(masks, self._listed(annotations))
        inputs = zero_masked(inputs, inputs_mask)
        memory = self.memory(annotations, annotations_mask, training, steps=ops.shape(inputs)[1])
        state = self.initial_state(memory, initial_state)
        keep = return_attention_scores or return_attention_logits or self.attention.penalized
        attend = self._attend(memory, training, return_attention_logits)
        with dropout_masks(self._cells, inputs, training):
            if self.input_feeding or feedback is not None:
                found = self._read_inside(
                    inputs, inputs_mask, state, attend, feedback, keep, training
                )
            else:
                found = self._read_after(inputs, inputs_mask, state, attend, keep, training)
        found[0] = repeat_kept(found[0], inputs_mask)
        if return_attention_logits:
            if inputs_mask is not None:
                found[1] = masked_scores(found[1], ops.expand_dims(inputs_mask, -1))
            found.insert(1, self.attention.normalize_logits(found[1]))
        elif keep:
            found[1] = zero_masked(found[1], inputs_mask)
        if self.attention.penalized:
            self.add_loss(added_once(self.attention.penalty(found[1], inputs_mask)))
        if keep and not return_attention_scores:
            del found[1]
        return tuple(found) if len(found) > 1 else found[0]

    def unroll(self, first, annotations, steps: int, next_input=None, name=None, **arguments):
        """Decodes in a closed loop, as one layer of a functional model; see `ClosedLoop`.

        Args:
            first: `(B, M)` float tensor, the input of the first step.
            annotations: As in a call.
            steps: Number of steps.
            next_input: A Keras layer from an output `(B, R)` to the next input `(B, M)`; without
                one the output itself is the next input.
            name: Name of the layer.
            **arguments: `annotations_mask`, `initial_state` and `training`, as in a call.

        Returns:
            `(outputs, weights)`: `(B, steps, R)`, and `(B, steps, Tx)` float32.
        """
        loop = ClosedLoop(self, steps, next_input, name=name, dtype=self.dtype_policy)
        return loop(first, annotations, **arguments)

    # --- The equations ----------------------------------------------------------------------------

    def _attend(self, memory, training, logits=False):
        """The attention's step, `(query, state, t) -> (context, weights or logits, state)`."""
        # Only an attention that has logits knows of them.
        wanted = {"training": training} | ({"return_logits": True} if logits else {})
        return lambda query, state, t: self.attention.step(query, memory, state, t=t, **wanted)

    def _move(self, t, x, state, attend, training):
        """Attention and cell; returns the state to read, the context, the weights, the state."""
        before, cell = state.cell[self._output_index], state.cell
        if self.input_feeding:
            x = ops.concatenate([x, state.output], -1)
        if self.query == "previous":
            context, weights, attention = attend(before, state.attention, t)
            after, cell = move(self.cell, ops.concatenate([x, context], -1), cell, training)
        else:
            after, cell = move(self.cell, x, cell, training)
            context, weights, attention = attend(after, state.attention, t)
            if self.context_cell is not None:
                after, cell = move(self.context_cell, context, cell, training)
        read = before if self.readout_state == "previous" else after
        return read, context, weights, state._replace(cell=cell, attention=attention)

    def _read(self, *parts, training):
        if self.readout is None:
            return parts[0]
        call = call_rows if len(parts[0].shape) == 2 else call_steps
        output = call(self.readout, *parts[: self._reads], training=training)
        return ops.cast(output, self.compute_dtype)

    def _step(self, t, x, state, attend, training):
        """A whole step; its output goes into the state if that has a place for it."""
        read, context, weights, state = self._move(t, x, state, attend, training)
        output = self._read(read, x, context, training=training)
        if not isinstance(state.output, tuple):
            state = state._replace(output=output)
        return output, state, weights

    def _read_after(self, inputs, mask, state, attend, keep, training):
        """The outputs of all steps, read out at once at the end; and the weights to `keep`."""

        def step(t, x, state):
            read, context, weights, state = self._move(t, x, state, attend, training)
            return [read, context, weights] if keep else [read, context], state

        states, contexts, *weights = self._loop(step, inputs, mask, state, keep)
        states, contexts = (ops.cast(part, self.compute_dtype) for part in (states, contexts))
        return [self._read(states, inputs, contexts, training=training), *weights]

    def _read_inside(self, inputs, mask, state, attend, feedback, keep, training):
        """As `_read_after`, but each step reads out, as it depends on the output before it."""

        def step(t, x, state):
            if feedback is not None:
                x = checked_feedback(feedback(t, x, state.output), x)
            output, state, weights = self._step(t, x, state, attend, training)
            return [output, weights] if keep else [output], state

        state = state._replace(output=self._zero_output(ops.shape(inputs)[0]))
        outputs, *weights = self._loop(step, inputs, mask, state, keep)
        return [ops.cast(outputs, self.compute_dtype), *weights]

    def _loop(self, step, inputs, mask, state, keep):
        """The outputs of all steps; steps that `mask` `(B, Ty)` drops do not change the state."""

        def masked_step(t, x, state):
            outputs, after = step(t, x, state)
            return outputs, held(ops.take(mask, t, axis=1), after, state)

        # What leaves the loop leaves it together; the weights stay float32 under mixed precision.
        dtype = "float32" if keep else self.compute_dtype
        return run_over_time(step if mask is None else masked_step, inputs, state, dtype)

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

    def _read_width(self, *shapes):
        if self.readout is None:
            return shapes[0][-1]
        return readout_width(self.readout, shapes[: self._reads], self.compute_dtype)

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

    def compute_mask(self, inputs, previous_mask=None):
        """Outputs keep the time axis of the inputs, and so their mask; weights have none."""
        return previous_mask

    def compute_output_shape(self, inputs_shape, annotations_shape):
        check_sequences(inputs_shape, annotations_shape, self.attention, self._widths)
        shapes = self._step_shapes(inputs_shape, annotations_shape)
        return (*inputs_shape[:-1], self._read_width(*shapes))

    def compute_output_spec(
        self,
        inputs,
        annotations,
        annotations_mask=None,
        initial_state=None,
        inputs_mask=None,
        feedback=None,
        return_attention_scores=False,
        return_attention_logits=False,
        training=None,
    ):
        shapes = shapes_of(annotations)
        outputs = self.compute_output_shape(inputs.shape, shapes)
        if initial_state is not None:
            checked_states(initial_state, self.state_sizes, outputs[0])
        check_logits(return_attention_logits, self.attention)
        outputs = keras.KerasTensor(outputs, dtype=self.compute_dtype)
        extras = return_attention_scores + return_attention_logits
        if not extras:
            return outputs
        lengths = [shape[1] for shape in self._listed(shapes)]
        shape = (*inputs.shape[:-1], None if None in lengths else sum(lengths))
        return outputs, *[keras.KerasTensor(shape, dtype="float32") for _ in range(extras)]

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, *_PARTS),
            "query": self.query,
            "readout_state": self.readout_state,
            "input_feeding": self.input_feeding,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, *_PARTS))
