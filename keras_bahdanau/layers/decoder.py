"""Attentive decoder: one step of the paper's equations, and a loop over the steps."""

import contextlib
import inspect
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.distribution import first_replica_loss
from keras_bahdanau.layers.attention.base import Attention, mask_scores
from keras_bahdanau.layers.attention.multi_source import MultiSourceAttention
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
    without_none,
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
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.errors import argument_error


@register_named_tuple
class DecoderState(NamedTuple):
    """State of a decoder between two steps.

    Attributes:
        cell: Tuple of the cell's state tensors, `(B, size)` each, in the order of the cell.
        attention: State of the attention mechanism; `()` if it has none.
        output: Last output `(B, R)` if the next step reads it; else `()`.
    """

    cell: tuple
    attention: Any = ()
    output: Any = ()


_SUBLAYERS = ("cell", "attention", "readout", "context_cell")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentiveDecoder(SequenceLayer):
    """Recurrent decoder that attends to a memory at every step (arXiv 1409.0473, A.2.2).

    With `query_state="previous"` (Bahdanau) the previous state is the query, and the cell reads the
    context. With `query_state="current"` (Luong) the cell runs first, and its new state is the
    query. An optional `context_cell` then reads the context (conditional GRU of Nematus):

        previous: c_i = attention(s_{i-1});  s_i = cell([x_i ; c_i], s_{i-1})
        current:  s_i = cell(x_i, s_{i-1});  c_i = attention(s_i)
                  [s_i = context_cell(c_i, s_i)]
        output:   o_i = readout(s, x_i, c_i), with s either s_i or s_{i-1}

    With `input_feeding` (arXiv 1508.04025, section 3.3) the cell reads `[x_i ; o_{i-1}]` instead of
    `x_i`, with `o_0 = 0`. Inputs are any float vectors: embedded tokens, speech frames, a time
    series.

    Args:
        cell: Keras RNN cell whose first state is its output (GRU, LSTM, SimpleRNN), or a list of
            cells for a stack. With `ResidualCell` `s_i` is the sum of the cell's input and output,
            but `s_{i-1}` is the state without the input.
        attention: An `Attention`, such as `BahdanauAttention`.
        readout: Layer that is called as `readout(state, inputs, context)`, such as `DeepOutput`, or
            a layer with one input, such as `keras.layers.Dense`, for the state only. If `None`, the
            output is the state. On JAX it must have no state (such as the seeds of dropout) if
            steps read the last output.
        query_state: State that is the query of the attention: "previous", s_{i-1}, or "current",
            s_i. With "current" the context reaches the output only through a `context_cell` or a
            readout of three inputs.
        readout_state: State that the readout reads: "current", s_i (section 3.1), or "previous",
            s_{i-1} (appendix A.2.2).
        context_cell: Cell, or list of cells, with the state sizes of `cell`; requires
            `query_state="current"`.
        input_feeding: Whether each step also reads the last output.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(B, Ty, M)` float tensor, the embedded previous outputs.
        annotations: `(B, Tx, D)` float tensor, or a list of them for `MultiSourceAttention`.
        annotations_mask: `(B, Tx)` bool, True = keep, or `None`; a list for
            `MultiSourceAttention`.
        initial_state: List of the first states of the cell, `(B, size)` each, or `None` for the
            default of the cell. Nested lists as in `keras.layers.RNN` are accepted, such as
            `[[h1, c1], [h2, c2]]` for a stack, and so is a single tensor for a cell with one state.
        inputs_mask: `(B, Ty)` bool, True = keep, or `None`. Keras passes the mask of an
            `Embedding(mask_zero=True)` or `Masking`. As in `keras.layers.RNN`, a masked step leaves
            the state unchanged. It does not contribute to the attention's penalty.
        feedback: Function `(t, inputs (B, M), output (B, R)) -> (B, M)` that computes the input of
            each step from its number `t`, an int32 scalar, its row of `inputs`, and the last output
            (zeros in the first step); or `None`. Random numbers must be drawn before the call and
            read at `t`. To read nothing except outputs, use `unroll`.
        return_attention_scores: Whether to also return the weights. In a pointer network
            (arXiv 1506.03134) they are the output.
        return_attention_logits: Whether to also return the scores before the softmax, to train a
            pointer network with a loss that has `from_logits=True`.

    Output shape:
        `(B, Ty, R)` outputs in the compute dtype, where R is the width of the readout. With
        `return_attention_scores` also the weights `(B, Ty, Tx)`, float32. With
        `return_attention_logits` also the logits `(B, Ty, Tx)`, float32, -1e30 at masked positions.
        A masked step has the output of the last kept step, or zero if there is none, zero weights
        and logits of -1e30. The outputs have the Keras mask of `inputs`, which the loss reads.

    Raises:
        ValueError: If an option is unknown; `attention` is not an `Attention`; a cell is not a
            cell, or its output differs from its state in width; `readout` has other inputs; the
            states of `cell`, `context_cell` and `initial_state` have different sizes; logits are
            requested from an attention without logits; or a rank, a width, or the shape or dtype
            of a mask is not as above.

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
        query_state: str = "previous",
        readout_state: str = "current",
        context_cell=None,
        input_feeding: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_state_names(query_state=query_state, readout_state=readout_state)
        check_mechanism(attention)
        self.cell = checked_cell("cell", cell)
        self.attention = attention
        self.readout = readout
        self._widths = None  # of the inputs and all annotations; set by `build`
        self._readout_inputs = 0 if readout is None else count_readout_inputs(readout)
        self.query_state = query_state
        self.readout_state = readout_state
        self.context_cell = None
        if context_cell is not None:
            self.context_cell = checked_cell("context_cell", context_cell)
            check_context_cell(self.context_cell, query_state, self.state_sizes)
        self.input_feeding = input_feeding
        self.supports_masking = True

    @property
    def state_sizes(self):
        """Width of each state tensor of the cell, a flat list."""
        return flatten(self.cell.state_size)

    @property
    def _output_index(self):
        """Index of the state tensor that is the output: the first state of the topmost cell."""
        return len(self.state_sizes) - len(flatten(inner_cells(self.cell)[-1].state_size))

    def build(self, inputs_shape, annotations_shape):
        check_sequences(inputs_shape, annotations_shape, self.attention)
        self._widths = [shape[-1] for shape in [inputs_shape, *self._as_list(annotations_shape)]]
        state, inputs, context = self._step_shapes(inputs_shape, annotations_shape)
        build_sublayer(self.attention, state, annotations_shape)
        if self.readout is not None:
            with readout_errors(self.readout):
                build_sublayer(self.readout, *(state, inputs, context)[: self._readout_inputs])
        self._output_width = self._compute_output_width(state, inputs, context)
        width = inputs[-1]
        if self.query_state == "previous":
            width += context[-1]
        if self.input_feeding:
            width += self._output_width
        build_sublayer(self.cell, (inputs[0], width))
        if self.context_cell is not None:
            build_sublayer(self.context_cell, context)

    @accepts_symbolic_tensors
    def memory(self, annotations, mask=None, training=None, steps=1):
        """Return the memory that `step` attends to; see `Attention.memory`."""
        return self.attention.memory(annotations, mask=mask, training=training, steps=steps)

    @accepts_symbolic_tensors
    def initial_state(self, memory, cell_state=None):
        """Return the `DecoderState` before the first step.

        Args:
            memory: The memory of `B` rows.
            cell_state: First states of the cell, like `initial_state` of a call.
        """
        first = flatten(memory)[0]
        batch = ops.shape(first)[0]
        if cell_state is None:
            cell_state = initial_cell_state(self.cell, batch, self.compute_dtype)
        cell_state = checked_states(cell_state, self.state_sizes, first.shape[0])
        cell_state = tuple(ops.cast(state, self.compute_dtype) for state in cell_state)
        output = self._zero_output(batch) if self.input_feeding else ()
        return DecoderState(cell_state, self.attention.initial_state(memory), output)

    @accepts_symbolic_tensors
    def step(self, inputs, state, memory, training=None, t=None):
        """Run one step. In training every step draws new dropout masks for the cells.

        Args:
            inputs: `(B * G, M)` float tensor; `G` hypotheses can share a row of the memory.
            state: `DecoderState` of `B * G` rows.
            memory: The memory of `B` rows.
            training: Whether the call is part of training.
            t: Number of the step, for mechanisms that need it; see `Attention.step`.

        Returns:
            `(output, state, weights)`: `(B * G, R)`, the next `DecoderState`, and `(B * G, Tx)`.
        """
        inputs = ops.cast(inputs, self.compute_dtype)
        check_step_inputs(inputs.shape, self._widths)
        with dropout_masks(self._cells, inputs, training):
            attend = self._attention_step(memory, training)
            return self._step(t, inputs, state, attend, training)

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
        masks = [] if annotations_mask is None else self._as_list(annotations_mask)
        inputs_mask = checked_mask("inputs_mask", inputs_mask, inputs)
        check_annotations_masks(masks, self._as_list(annotations))
        inputs = zero_masked(inputs, inputs_mask)
        memory = self.memory(annotations, annotations_mask, training, steps=ops.shape(inputs)[1])
        state = self.initial_state(memory, initial_state)
        needs_weights = (
            return_attention_scores or return_attention_logits or self.attention.has_penalty
        )
        attend = self._attention_step(memory, training, return_attention_logits)
        with dropout_masks(self._cells, inputs, training):
            if self.input_feeding or feedback is not None:
                outputs, weights = self._run_with_readout(
                    inputs, inputs_mask, state, attend, feedback, needs_weights, training
                )
            else:
                outputs, weights = self._run_before_readout(
                    inputs, inputs_mask, state, attend, needs_weights, training
                )
        outputs, logits = repeat_last_kept(outputs, inputs_mask), None
        if return_attention_logits:  # `attend` returned logits instead of weights
            logits = weights
            if inputs_mask is not None:
                logits = mask_scores(logits, ops.expand_dims(inputs_mask, -1))
            weights = self.attention.normalize_logits(logits)
        elif needs_weights:
            weights = zero_masked(weights, inputs_mask)
        if self.attention.has_penalty:
            self.add_loss(first_replica_loss(self.attention.penalty(weights, inputs_mask)))
        return without_none(outputs, weights if return_attention_scores else None, logits)

    def unroll(self, first, annotations, steps: int, next_input=None, name=None, **arguments):
        """Run the decoder on its own outputs, as a layer of a functional model; see `ClosedLoop`.

        Args:
            first: `(B, M)` float tensor, the input of the first step.
            annotations: As in a call.
            steps: Number of steps.
            next_input: Keras layer from an output `(B, R)` to the next input `(B, M)`; if `None`,
                the output is the next input.
            name: Name of the layer.
            **arguments: `annotations_mask`, `initial_state` and `training`, as in a call;
                `known_inputs`, a `(B, steps, K)` tensor that steps read after the last output.

        Returns:
            `(outputs, weights)`: `(B, steps, R)`, and `(B, steps, Tx)` float32.
        """
        loop = ClosedLoop(self, steps, next_input, name=name, dtype=self.dtype_policy)
        return loop(first, annotations, **arguments)

    # --- The equations ----------------------------------------------------------------------------

    def _attention_step(self, memory, training, return_logits=False):
        """Return a function `(query, state, t) -> (context, weights or logits, state)`."""
        # Mechanisms without logits do not have the argument `return_logits`.
        options = {"training": training} | ({"return_logits": True} if return_logits else {})
        return lambda query, state, t: self.attention.step(query, memory, state, t=t, **options)

    def _attend_and_move(self, t, x, state, attend, training):
        """Run attention and cell.

        Returns:
            The state for the readout, the context, the weights, and the next `DecoderState`.
        """
        before, cell = state.cell[self._output_index], state.cell
        if self.input_feeding:
            x = ops.concatenate([x, state.output], -1)
        if self.query_state == "previous":
            context, weights, attention = attend(before, state.attention, t)
            after, cell = step_cell(self.cell, ops.concatenate([x, context], -1), cell, training)
        else:
            after, cell = step_cell(self.cell, x, cell, training)
            context, weights, attention = attend(after, state.attention, t)
            if self.context_cell is not None:
                after, cell = step_cell(self.context_cell, context, cell, training)
        read = before if self.readout_state == "previous" else after
        return read, context, weights, state._replace(cell=cell, attention=attention)

    def _apply_readout(self, *tensors, training):
        """Return the readout of state, inputs and context: rows, or sequences of them."""
        if self.readout is None:
            return tensors[0]
        call = call_rows if len(tensors[0].shape) == 2 else call_steps
        output = call(self.readout, *tensors[: self._readout_inputs], training=training)
        return ops.cast(output, self.compute_dtype)

    def _step(self, t, x, state, attend, training):
        """Run attention, cell and readout, and store the output if the state has a place for it."""
        read, context, weights, state = self._attend_and_move(t, x, state, attend, training)
        output = self._apply_readout(read, x, context, training=training)
        if not isinstance(state.output, tuple):
            state = state._replace(output=output)
        return output, state, weights

    def _run_before_readout(self, inputs, mask, state, attend, needs_weights, training):
        """Run all steps, and apply the readout to all of them at once.

        Returns:
            The outputs, and the weights or logits that `attend` returns, or `None`.
        """

        def step(t, x, state):
            read, context, weights, state = self._attend_and_move(t, x, state, attend, training)
            return [read, context, weights] if needs_weights else [read, context], state

        states, contexts, *weights = self._loop(step, inputs, mask, state, needs_weights)
        states, contexts = (ops.cast(part, self.compute_dtype) for part in (states, contexts))
        outputs = self._apply_readout(states, inputs, contexts, training=training)
        return outputs, weights[0] if needs_weights else None

    def _run_with_readout(self, inputs, mask, state, attend, feedback, needs_weights, training):
        """Run all steps with the readout inside, because steps read the last output.

        Returns:
            The outputs, and the weights or logits that `attend` returns, or `None`.
        """

        def step(t, x, state):
            if feedback is not None:
                x = checked_feedback(feedback(t, x, state.output), x)
            output, state, weights = self._step(t, x, state, attend, training)
            return [output, weights] if needs_weights else [output], state

        state = state._replace(output=self._zero_output(ops.shape(inputs)[0]))
        outputs, *weights = self._loop(step, inputs, mask, state, needs_weights)
        return ops.cast(outputs, self.compute_dtype), weights[0] if needs_weights else None

    def _loop(self, step, inputs, mask, state, needs_weights):
        """Return the outputs of all steps. Steps masked by `mask` `(B, Ty)` keep the state."""

        def masked_step(t, x, state):
            outputs, after = step(t, x, state)
            return outputs, select_rows(ops.take(mask, t, axis=1), after, state)

        # All outputs of a loop have one dtype. Weights stay float32 under mixed precision.
        dtype = "float32" if needs_weights else self.compute_dtype
        return run_over_time(step if mask is None else masked_step, inputs, state, dtype)

    # --- Shapes -----------------------------------------------------------------------------------

    def _step_shapes(self, inputs_shape, annotations_shape):
        """Return the shapes of one step's state, inputs and context."""
        batch = inputs_shape[0]
        widths = [shape[-1] for shape in self._as_list(annotations_shape)]
        context_width = self.attention.context_width(widths if self._is_multi_source else widths[0])
        return (
            (batch, self.state_sizes[self._output_index]),
            (batch, inputs_shape[-1]),
            (batch, context_width),
        )

    def _compute_output_width(self, *shapes):
        if self.readout is None:
            return shapes[0][-1]
        return readout_width(self.readout, shapes[: self._readout_inputs], self.compute_dtype)

    @property
    def _is_multi_source(self):
        """Whether annotations, their masks and shapes are lists."""
        return isinstance(self.attention, MultiSourceAttention)

    def _as_list(self, annotations):
        """Return the annotations, or their masks or shapes, as a list."""
        return annotations if self._is_multi_source else [annotations]

    def _zero_output(self, batch):
        return ops.zeros((batch, self._output_width), dtype=self.compute_dtype)

    @property
    def _cells(self):
        return [cell for cell in (self.cell, self.context_cell) if cell is not None]

    def compute_mask(self, inputs, previous_mask=None):
        """Return the mask of the inputs: the outputs have the same time axis."""
        return previous_mask

    def compute_output_shape(self, inputs_shape, annotations_shape):
        check_sequences(inputs_shape, annotations_shape, self.attention, self._widths)
        shapes = self._step_shapes(inputs_shape, annotations_shape)
        return (*inputs_shape[:-1], self._compute_output_width(*shapes))

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
        extra_outputs = return_attention_scores + return_attention_logits
        if not extra_outputs:
            return outputs
        lengths = [shape[1] for shape in self._as_list(shapes)]
        shape = (*inputs.shape[:-1], None if None in lengths else sum(lengths))
        return outputs, *[keras.KerasTensor(shape, dtype="float32") for _ in range(extra_outputs)]

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, *_SUBLAYERS),
            "query_state": self.query_state,
            "readout_state": self.readout_state,
            "input_feeding": self.input_feeding,
        }

    @classmethod
    def from_config(cls, config):
        arguments = deserialized(config, *_SUBLAYERS)
        if "query" in arguments:  # the former name of the argument
            arguments["query_state"] = arguments.pop("query")
        return cls(**arguments)


# --- Cells ----------------------------------------------------------------------------------------


def initial_cell_state(cell, batch, dtype):
    """Return the initial states of a cell as a flat list, zeros if the cell defines none."""
    if hasattr(cell, "get_initial_state"):
        return flatten(cell.get_initial_state(batch_size=batch))
    return [ops.zeros((batch, size), dtype) for size in flatten(cell.state_size)]


def step_cell(cell, inputs, state, training):
    """Run one step of a Keras cell or a stack of cells.

    Args:
        cell: The cell.
        inputs: `(B, M)` tensor.
        state: Flat tuple of `(B, size)` tensors, in the order of the cell.
        training: Whether the call is part of training.

    Returns:
        `(output, state)`: `(B, N)`, and the flat tuple of the next states.

    Raises:
        ValueError: If the widths of the returned states differ from the cell's `state_size`.
    """
    sizes = cell.state_size
    is_nested = isinstance(sizes, (tuple, list))
    template = sizes if is_nested else [sizes]
    output, after = cell(inputs, pack(template, state), training=training)
    after = tuple(flatten(after))
    if [part.shape[-1] for part in after] != [part.shape[-1] for part in state]:
        raise argument_error(
            "cell",
            f"return states of its `state_size`, {sizes}",
            received=f"states of shapes {[tuple(part.shape) for part in after]}",
        )
    # The state of a loop must keep its dtype, even if the cell has another dtype policy.
    after = tuple(ops.cast(new, old.dtype) for new, old in zip(after, state, strict=True))
    return ops.cast(output, after[0].dtype), after


@contextlib.contextmanager
def dropout_masks(cells, inputs, training):
    """Draw the dropout masks of Keras cells before a training loop, as `keras.layers.RNN` does.

    A cell draws its masks in its first step and stores them. Inside of a traced loop the stored
    masks would be tensors of the trace.
    """
    drawing = [
        inner
        for cell in cells
        for inner in inner_cells(cell)
        if training and hasattr(inner, "get_dropout_mask")
    ]
    batch = ops.shape(inputs)[0]
    _reset_dropout_masks(drawing)
    for cell in drawing:
        units = flatten(cell.state_size)[0]
        cell.get_dropout_mask(ops.ones((batch, cell.kernel.shape[0]), dtype=cell.compute_dtype))
        cell.get_recurrent_dropout_mask(ops.ones((batch, units), dtype=cell.compute_dtype))
    try:
        yield
    finally:
        _reset_dropout_masks(drawing)


def _reset_dropout_masks(cells):
    for cell in cells:
        cell.reset_dropout_mask()
        cell.reset_recurrent_dropout_mask()


def inner_cells(cell):
    """Return the cells of (nested) stacks, from the bottom to the top."""
    stacked = getattr(cell, "cells", ())
    return [inner for member in stacked for inner in inner_cells(member)] or [cell]


# --- Checks of arguments --------------------------------------------------------------------------


def check_state_names(**names):
    """Raise a `ValueError` unless each value is "previous" or "current"."""
    for name, value in names.items():
        if value not in ("previous", "current"):
            raise argument_error(name, 'be "previous" or "current"', value)


def check_mechanism(attention):
    """Raise a `ValueError` unless `attention` is an `Attention`."""
    if not isinstance(attention, Attention):
        raise argument_error(
            "attention", "be an Attention, such as BahdanauAttention(64)", attention
        )


def check_logits(return_attention_logits, attention):
    """Raise a `ValueError` if logits are requested from an attention without logits."""
    if return_attention_logits and not attention.has_logits:
        raise argument_error(
            "return_attention_logits",
            "be False with this attention, which does not have one score per position; use "
            "BahdanauAttention with one head for logits",
            received=f"True with {attention!r}",
        )


def checked_cell(name, cell):
    """Return a cell or a list of cells as one cell.

    Raises:
        ValueError: If an item is not a cell, or the output is not as wide as the first state.
    """
    is_list = isinstance(cell, (list, tuple))
    cells = list(cell) if is_list else [cell]
    if not cells:
        raise argument_error(name, "be a Keras RNN cell or a list of them", cell)
    for inner in cells:
        check_cell(name, inner)
    cell = keras.layers.StackedRNNCells(cells) if is_list else cell
    state = flatten(inner_cells(cell)[-1].state_size)[0]
    if getattr(cell, "output_size", state) != state:
        raise argument_error(
            name,
            f"have an output as wide as its first state, {state}",
            received=f"an output of width {cell.output_size}",
        )
    return cell


def count_readout_inputs(readout):
    """Return how many of state, inputs and context a readout reads: 3, or 1 for the state only.

    Raises:
        ValueError: If `readout` is not a layer or has another number of inputs.
    """
    # A recurrent layer needs sequences, but the readout of a step gets rows.
    if isinstance(readout, keras.layers.Layer) and not isinstance(readout, keras.layers.RNN):
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
        is_functional = isinstance(readout, keras.Model) and hasattr(readout, "operations")
        if count in (1, 3) and not (is_functional and len(readout.inputs) != 1):
            return count
    raise _readout_error(readout)


def _readout_error(readout, reason=""):
    return argument_error(
        "readout",
        "be a layer with one input, the state (batch, width), or with the three inputs of "
        '`DeepOutput`; write DeepOutput(n, "linear") for a linear layer of width n over '
        "state, inputs and context",
        received=f"{readout!r}{reason}",
    )


@contextlib.contextmanager
def readout_errors(readout):
    """Re-raise errors of a readout in the block as a `ValueError` that names the readout."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise _readout_error(readout, f": {error}") from error


def readout_width(readout, shapes, dtype):
    """Return the width of a readout's output for rows of `shapes`."""
    with readout_errors(readout):
        return output_width(readout, *(keras.KerasTensor(shape, dtype) for shape in shapes))


def check_context_cell(context_cell, query_state, sizes):
    """Raise a `ValueError` unless a context cell has states of `sizes` and a current query."""
    context_sizes = flatten(context_cell.state_size)
    if query_state != "current" or context_sizes != sizes:
        raise ValueError(
            'Argument `context_cell` requires query_state="current" and the state sizes of `cell`, '
            f"{sizes}. Received: query_state={query_state!r} and state sizes {context_sizes}"
        )


def check_step_inputs(shape, widths):
    """Raise a `ValueError` unless `shape` is valid for the inputs of one step.

    Args:
        shape: Shape of the inputs.
        widths: See `check_sequences`.
    """
    if widths is None:
        raise ValueError(
            "AttentiveDecoder is not built: call the layer once, or its "
            "`build(inputs_shape, annotations_shape)`, before `step`."
        )
    check_shape("inputs", tuple(shape), "batch width", of="AttentiveDecoder.step", width=widths[0])


def check_feedback(feedback):
    """Raise a `ValueError` unless `feedback` is a function of three arguments, or `None`."""
    try:
        if feedback is not None:
            is_layer = isinstance(feedback, keras.layers.Layer)
            inspect.signature(feedback.call if is_layer else feedback).bind(0, 0, 0)
    except TypeError as error:
        raise argument_error(
            "feedback",
            "be None or a function (t, inputs, output) that returns the inputs of a step",
            received=f"{feedback!r}: {error}",
            of="AttentiveDecoder",
        ) from error


def checked_feedback(row, inputs):
    """Return the result of `feedback`, or raise a `ValueError` if its shape is not `(B, M)`."""
    shape, expected = getattr(row, "shape", None), tuple(inputs.shape)
    sizes = zip(shape or (), expected, strict=False)
    if (
        shape is None
        or len(shape) != 2
        or any(None not in pair and pair[0] != pair[1] for pair in sizes)
    ):
        raise argument_error(
            "feedback",
            f"return (batch, {expected[-1]}), like rows of `inputs`; apply "
            f"keras.layers.Dense({expected[-1]}) to the output",
            received=f"{type(row).__name__ if shape is None else f'shape {tuple(shape)}'}",
            of="AttentiveDecoder",
        )
    return row


def check_sequences(inputs, annotations, attention, widths=None):
    """Raise a `ValueError` unless these are valid shapes of a decoder's sequences.

    Args:
        inputs: Shape of the inputs.
        annotations: Shape of the annotations, or a list of shapes.
        attention: Attention of the decoder. A `MultiSourceAttention` requires a list.
        widths: Widths of the inputs and of all annotations that the decoder was built for, or
            `None` before it is built.
    """
    is_multi_source = isinstance(attention, MultiSourceAttention)
    count = len(attention.attentions) if is_multi_source else None
    if (len(annotations) if isinstance(annotations[0], (list, tuple)) else None) != count:
        expected = (
            f"a list of {count} tensors"
            if is_multi_source
            else "one tensor; use the first output of an encoder with return_state=True"
        )
        raise argument_error(
            "annotations", f"be {expected}", received=f"shape {annotations}", of="AttentiveDecoder"
        )
    sources = annotations if is_multi_source else [annotations]
    sequences = [("inputs", inputs), *[("annotations", source) for source in sources]]
    for (name, shape), width in zip(sequences, widths or [None] * len(sequences), strict=True):
        check_widths(**{name: shape})
        note = ""
        if name == "annotations" and len(shape) == 2:
            note = "; write return_sequences=True for a recurrent encoder"
        sizes = {"batch": inputs[0] if name == "annotations" else None, "width": width}
        pattern, owner = "batch time width", "AttentiveDecoder"
        check_shape(name, tuple(shape), pattern, note=note, of=owner, **sizes)
    if inputs[1] == 0:
        raise argument_error(
            "inputs",
            "have at least one step",
            received=f"shape {tuple(inputs)}",
            of="AttentiveDecoder",
        )


def checked_states(states, sizes, rows):
    """Return the states of a cell as a flat list of `(rows, size)` tensors.

    Args:
        states: Tensors in nested lists, or a single tensor.
        sizes: Expected width of each tensor.
        rows: Expected number of rows; `None` if it is unknown.

    Raises:
        ValueError: If there is not one `(rows, size)` tensor for each of `sizes`.
    """
    states = flatten(states)
    other_types = sorted({type(state).__name__ for state in states if not hasattr(state, "shape")})
    shapes = [] if other_types else shapes_of(states)
    if [shape[1:] for shape in shapes] != [(size,) for size in sizes]:
        raise argument_error(
            "initial_state",
            f"have one tensor for each state of the cell, (batch, size) with sizes {sizes}",
            received=f"{f'values of type {other_types}' if other_types else f'shapes {shapes}'}",
        )
    if any(None not in (shape[0], rows) and shape[0] != rows for shape in shapes):
        raise argument_error(
            "initial_state",
            f"have as many rows as the annotations, {rows}",
            received=f"shapes {shapes}",
        )
    return states


def check_annotations_masks(masks, annotations):
    """Raise a `ValueError` unless each mask, or `None`, fits its annotations."""
    for mask, source in zip(masks, annotations, strict=False):  # the attention checks the number
        checked_mask("annotations_mask", mask, source)


def shapes_of(tensors):
    """Return the shape of a tensor, or a list of the shapes of several."""
    if isinstance(tensors, (list, tuple)):
        return [tuple(tensor.shape) for tensor in tensors]
    return tuple(tensors.shape)
