"""What `AttentiveDecoder` asks of its arguments: parts, shapes, states and masks."""

import contextlib
import inspect

import keras

from keras_bahdanau.layers.attention import Attention, MultiSourceAttention
from keras_bahdanau.layers.cells import check_cell
from keras_bahdanau.layers.masking import checked_mask
from keras_bahdanau.layers.parts import check_widths, output_width
from keras_bahdanau.layers.recurrence import flatten, parts_of


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
    state = flatten(parts_of(cell)[-1].state_size)[0]
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
