"""The attentive decoder: one step of the paper's equations, and a loop over it."""

import contextlib
import inspect
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.distribution import first_replica_loss
from keras_bahdanau.layers.attention import Attention, MultiSourceAttention
from keras_bahdanau.layers.attention.base import mask_scores
from keras_bahdanau.layers.cells import check_cell
from keras_bahdanau.layers.closed_loop import ClosedLoop
from keras_bahdanau.layers.sequences import (
    SequenceLayer,
    accepts_symbolic_tensors,
    check_widths,
    checked_mask,
    flatten,
    pack,
    register_named_tuple,
    repeat_last_kept,
    run_over_time,
    select_rows,
    zero_masked,
)
from keras_bahdanau.layers.sublayers import (
    build_sublayer,
    call_rows,
    call_steps,
    deserialized,
    output_width,
    serialized,
)


@register_named_tuple
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


def first_states(cell, batch, dtype):
    """The states that a cell begins with, a flat list: its own, or zeros where it says none."""
    if hasattr(cell, "get_initial_state"):
        return flatten(cell.get_initial_state(batch_size=batch))
    return [ops.zeros((batch, size), dtype) for size in flatten(cell.state_size)]


def step_cell(cell, inputs, state, training):
    """One step of a Keras cell, or of a stack, from a flat tuple of states to a flat tuple.

    Args:
        cell: The cell.
        inputs: `(B, M)` tensor.
        state: Tuple of `(B, size)` tensors, in the cell's own order.
        training: Whether the call is part of training.

    Returns:
        `(output, state)`: `(B, N)`, and the tuple of the next states.

    Raises:
        ValueError: If the cell returns states of other widths than its `state_size` tells.
    """
    sizes = cell.state_size
    nested = isinstance(sizes, (tuple, list))
    output, after = cell(inputs, pack(sizes if nested else [sizes], state), training=training)
    after = tuple(flatten(after))
    if [part.shape[-1] for part in after] != [part.shape[-1] for part in state]:
        raise ValueError(
            f"Argument `cell` must return states of its `state_size`, {sizes}. "
            f"Received: states of shapes {[tuple(part.shape) for part in after]}"
        )
    # What a loop carries must keep its dtype, even by a cell of another policy.
    after = tuple(ops.cast(new, old.dtype) for new, old in zip(after, state, strict=True))
    return ops.cast(output, after[0].dtype), after


@contextlib.contextmanager
def dropout_masks(cells, inputs, training):
    """Draws the dropout masks of Keras cells before a training loop, as `keras.layers.RNN` does.

    A cell draws its masks at its first step and keeps them; inside a traced loop they would
    belong to the trace.
    """
    parts = [
        part
        for cell in cells
        for part in inner_cells(cell)
        if training and hasattr(part, "get_dropout_mask")
    ]
    batch = ops.shape(inputs)[0]
    _forget(parts)
    for part in parts:
        units = flatten(part.state_size)[0]
        part.get_dropout_mask(ops.ones((batch, part.kernel.shape[0]), dtype=part.compute_dtype))
        part.get_recurrent_dropout_mask(ops.ones((batch, units), dtype=part.compute_dtype))
    try:
        yield
    finally:
        _forget(parts)


def _forget(parts):
    for part in parts:
        part.reset_dropout_mask()
        part.reset_recurrent_dropout_mask()


def inner_cells(cell):
    """The cells inside stacks, from the bottom to the top."""
    return [part for inner in getattr(cell, "cells", ()) for part in inner_cells(inner)] or [cell]


_PARTS = ("cell", "attention", "readout", "context_cell")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentiveDecoder(SequenceLayer):
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
        return len(self.state_sizes) - len(flatten(inner_cells(self.cell)[-1].state_size))

    def build(self, inputs_shape, annotations_shape):
        check_sequences(inputs_shape, annotations_shape, self.attention)
        self._widths = [shape[-1] for shape in [inputs_shape, *self._listed(annotations_shape)]]
        state, inputs, context = self._step_shapes(inputs_shape, annotations_shape)
        build_sublayer(self.attention, state, annotations_shape)
        if self.readout is not None:
            with naming_readout(self.readout):
                build_sublayer(self.readout, *(state, inputs, context)[: self._reads])
        self._output_width = self._read_width(state, inputs, context)
        width = inputs[-1]
        if self.query == "previous":
            width += context[-1]
        if self.input_feeding:
            width += self._output_width
        build_sublayer(self.cell, (inputs[0], width))
        if self.context_cell is not None:
            build_sublayer(self.context_cell, context)

    @accepts_symbolic_tensors
    def memory(self, annotations, mask=None, training=None, steps=1):
        """What `step` attends to; see `Attention.memory`."""
        return self.attention.memory(annotations, mask=mask, training=training, steps=steps)

    @accepts_symbolic_tensors
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

    @accepts_symbolic_tensors
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
        keep = return_attention_scores or return_attention_logits or self.attention.has_penalty
        attend = self._attend(memory, training, return_attention_logits)
        with dropout_masks(self._cells, inputs, training):
            if self.input_feeding or feedback is not None:
                found = self._read_inside(
                    inputs, inputs_mask, state, attend, feedback, keep, training
                )
            else:
                found = self._read_after(inputs, inputs_mask, state, attend, keep, training)
        found[0] = repeat_last_kept(found[0], inputs_mask)
        if return_attention_logits:
            if inputs_mask is not None:
                found[1] = mask_scores(found[1], ops.expand_dims(inputs_mask, -1))
            found.insert(1, self.attention.normalize_logits(found[1]))
        elif keep:
            found[1] = zero_masked(found[1], inputs_mask)
        if self.attention.has_penalty:
            self.add_loss(first_replica_loss(self.attention.penalty(found[1], inputs_mask)))
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
            after, cell = step_cell(self.cell, ops.concatenate([x, context], -1), cell, training)
        else:
            after, cell = step_cell(self.cell, x, cell, training)
            context, weights, attention = attend(after, state.attention, t)
            if self.context_cell is not None:
                after, cell = step_cell(self.context_cell, context, cell, training)
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
            return outputs, select_rows(ops.take(mask, t, axis=1), after, state)

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


def check_orders(**orders):
    """Raises a `ValueError` unless each is "previous" or "current"."""
    for name, value in orders.items():
        if value not in ("previous", "current"):
            raise ValueError(
                f'Argument `{name}` must be "previous" or "current". Received: {value!r}'
            )


def check_attention(attention):
    """Raises a `ValueError` unless this is an `Attention`."""
    if not isinstance(attention, Attention):
        raise ValueError(
            "Argument `attention` must be an Attention, such as BahdanauAttention(64). "
            f"Received: {attention!r}"
        )


def check_logits(wanted, attention):
    """Raises a `ValueError` if logits are `wanted` of an attention that has none to return."""
    if wanted and not attention.has_logits:
        raise ValueError(
            "Argument `return_attention_logits` must be False with this attention, whose weights "
            "do not come from one score for each place, as those of BahdanauAttention with one "
            f"head do. Received: True with {attention!r}"
        )


def checked_cell(name, cell):
    """One cell out of a cell or a list of them.

    Raises:
        ValueError: If this is none, or its output is not as wide as its first state.
    """
    listed = isinstance(cell, (list, tuple))
    cells = list(cell) if listed else [cell]
    if not cells:
        raise ValueError(
            f"Argument `{name}` must be a Keras RNN cell or a list of them. Received: {cell!r}"
        )
    for part in cells:
        check_cell(name, part)
    cell = keras.layers.StackedRNNCells(cells) if listed else cell
    state = flatten(inner_cells(cell)[-1].state_size)[0]
    if getattr(cell, "output_size", state) != state:
        raise ValueError(
            f"Argument `{name}` must have an output as wide as its first state, {state}. "
            f"Received: an output of width {cell.output_size}"
        )
    return cell


def readout_reads(readout):
    """How many of state, inputs and context a readout takes: 3, or 1, the state alone.

    Raises:
        ValueError: If this is no layer, or one that takes another number of inputs.
    """
    sequences = isinstance(readout, keras.layers.RNN)  # which it reads, and no rows
    if isinstance(readout, keras.layers.Layer) and not sequences:
        kinds = inspect.Parameter
        inputs = [
            parameter
            for name, parameter in inspect.signature(readout.call).parameters.items()
            if parameter.kind not in (kinds.KEYWORD_ONLY, kinds.VAR_KEYWORD)
            and name not in ("training", "mask")
        ]
        if any(parameter.kind == kinds.VAR_POSITIONAL for parameter in inputs):
            return 3
        count = sum(parameter.default is kinds.empty for parameter in inputs)
        model = isinstance(readout, keras.Model) and hasattr(readout, "operations")  # functional
        if count in (1, 3) and not (model and len(readout.inputs) != 1):
            return count
    raise _misfit(readout)


def _misfit(readout, why=""):
    return ValueError(
        "Argument `readout` must be a layer of one input, the state (batch, width), or of the "
        'three of `DeepOutput`; write DeepOutput(n, "linear") for a linear layer of width n over '
        f"state, inputs and context. Received: {readout!r}{why}"
    )


@contextlib.contextmanager
def naming_readout(readout):
    """Names the readout in what it raises in the block, where it meets the rows of a decoder."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise _misfit(readout, f": {error}") from error


def readout_width(readout, shapes, dtype):
    """Width of what a readout makes of rows of these shapes."""
    with naming_readout(readout):
        return output_width(readout, *(keras.KerasTensor(shape, dtype) for shape in shapes))


def check_context_cell(cell, query, sizes):
    """Raises a `ValueError` unless this cell can move the states of `sizes` once more."""
    own = flatten(cell.state_size)
    if query != "current" or own != sizes:
        raise ValueError(
            'Argument `context_cell` must come with query="current" and have the state sizes of '
            f"`cell`, {sizes}. Received: query={query!r} and state sizes {own}"
        )


def check_row(shape, widths):
    """Raises a `ValueError` unless this is the shape of one step's inputs.

    Args:
        shape: The shape.
        widths: As in `check_sequences`.
    """
    if widths is None:
        raise ValueError(
            "AttentiveDecoder is not built: call the layer once, or its "
            "`build(inputs_shape, annotations_shape)`, before `step`."
        )
    if shape[1:] != (widths[0],):
        raise ValueError(
            f"Argument `inputs` of AttentiveDecoder.step must be (batch, {widths[0]}). "
            f"Received: shape {tuple(shape)}"
        )


def check_feedback(feedback):
    """Raises a `ValueError` unless this is a function of three arguments, or `None`."""
    try:
        if feedback is not None:
            is_layer = isinstance(feedback, keras.layers.Layer)
            inspect.signature(feedback.call if is_layer else feedback).bind(0, 0, 0)
    except TypeError as error:
        raise ValueError(
            "Argument `feedback` of AttentiveDecoder must be a function (t, inputs, output) of the "
            f"inputs of a step, or None. Received: {feedback!r}: {error}"
        ) from error


def checked_feedback(row, inputs):
    """What `feedback` returned; raises a `ValueError` unless it is shaped as `inputs` `(B, M)`."""
    shape, expected = getattr(row, "shape", None), tuple(inputs.shape)
    sizes = zip(shape or (), expected, strict=False)
    if (
        shape is None
        or len(shape) != 2
        or any(None not in pair and pair[0] != pair[1] for pair in sizes)
    ):
        raise ValueError(
            f"Argument `feedback` of AttentiveDecoder must return (batch, {expected[-1]}), rows as "
            f"those of `inputs`; put the output through keras.layers.Dense({expected[-1]}) first. "
            f"Received: {type(row).__name__ if shape is None else f'shape {tuple(shape)}'}"
        )
    return row


def check_sequences(inputs, annotations, attention, widths=None):
    """Raises a `ValueError` unless these are shapes of sequences that a decoder can read.

    Args:
        inputs: Shape of the inputs.
        annotations: Shape of the annotations, or a list of shapes.
        attention: The decoder's `Attention`, which says whether and how many there are in a list.
        widths: Widths of the inputs and of all annotations that the decoder was built for; `None`
            before it is.
    """
    several = isinstance(attention, MultiSourceAttention)
    count = len(attention.attentions) if several else None
    if (len(annotations) if isinstance(annotations[0], (list, tuple)) else None) != count:
        expected = (
            f"a list of {count} tensors"
            if several
            else ("one tensor; of an encoder with return_state=True take the first output")
        )
        raise ValueError(
            f"Argument `annotations` of AttentiveDecoder must be {expected}. "
            f"Received: shape {annotations}"
        )
    sources = annotations if several else [annotations]
    sequences = [("inputs", inputs), *[("annotations", of) for of in sources]]
    for (name, shape), width in zip(sequences, widths or [None] * len(sequences), strict=True):
        check_widths(**{name: shape})
        if len(shape) != 3 or width not in (None, shape[-1]):
            hint = "; write return_sequences=True for a recurrent encoder"
            raise ValueError(
                f"Argument `{name}` of AttentiveDecoder must be (batch, time, {width or 'width'})"
                f"{hint if name == 'annotations' and len(shape) == 2 else ''}. "
                f"Received: shape {tuple(shape)}"
            )
        if None not in (shape[0], inputs[0]) and shape[0] != inputs[0]:
            raise ValueError(
                f"Argument `{name}` of AttentiveDecoder must have as many rows as `inputs`, "
                f"{inputs[0]}. Received: shape {tuple(shape)}"
            )
    if inputs[1] == 0:
        raise ValueError(
            "Argument `inputs` of AttentiveDecoder must have a step at least. "
            f"Received: shape {tuple(inputs)}"
        )


def checked_states(states, sizes, rows):
    """The states of a cell as a flat list of `(rows, size)` tensors.

    Args:
        states: The tensors, in lists of any depth, or the only one.
        sizes: Width of each.
        rows: Their number of rows; `None` if it is unknown.

    Raises:
        ValueError: If there is not one `(rows, size)` tensor for each of `sizes`.
    """
    states = flatten(states)
    others = sorted({type(state).__name__ for state in states if not hasattr(state, "shape")})
    shapes = [] if others else shapes_of(states)
    if [shape[1:] for shape in shapes] != [(size,) for size in sizes]:
        raise ValueError(
            "Argument `initial_state` must hold a tensor for each state of the cell, "
            f"(batch, size) of sizes {sizes}. Received: "
            f"{f'values of type {others}' if others else f'shapes {shapes}'}"
        )
    if any(None not in (shape[0], rows) and shape[0] != rows for shape in shapes):
        raise ValueError(
            "Argument `initial_state` must have as many rows as the annotations, "
            f"{rows}. Received: shapes {shapes}"
        )
    return states


def check_annotations_masks(masks, annotations):
    """Raises a `ValueError` unless each mask, or `None`, fits its annotations; both are lists."""
    for mask, of in zip(masks, annotations, strict=False):
        checked_mask("annotations_mask", mask, of)  # their number is the attention's matter


def shapes_of(tensors):
    """The shape of a tensor, or a list of the shapes of several."""
    if isinstance(tensors, (list, tuple)):
        return [tuple(part.shape) for part in tensors]
    return tuple(tensors.shape)
