"""Decoders by name, random data for them, and their results by the NumPy reference."""

from functools import partial

import keras
import numpy as np
import reference
from keras import tree
from layer_checks import array, numpy, randomize, right_mask
from mechanisms import MECHANISMS

from keras_bahdanau import AttentiveDecoder, BidirectionalEncoder, DeepOutput
from keras_bahdanau.layers import (
    LayerNormGRUCell,
    LayerNormLSTMCell,
    MultiSourceAttention,
    ResidualCell,
)

# All widths differ, so a test fails if two axes are swapped.
B, TY, TX, M, D, UNITS, R = 3, 4, 5, 7, 6, 3, 2
LENGTHS = [5, 2, 0]
MASK = right_mask(LENGTHS, TX)
# Masked steps at the left, between others, and at the right.
INPUTS_MASK = np.array([[0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]], bool)
SECOND = right_mask([1, 3, 2], 3)  # of a second source
# Source and target ids for `translator`.
SOURCE = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
TARGET = np.array([[2, 7, 8], [2, 5, 0]])

GRU, LSTM = keras.layers.GRUCell, keras.layers.LSTMCell
CELLS = {
    "simple": lambda **a: keras.layers.SimpleRNNCell(UNITS, **a),
    "gru": lambda **a: GRU(UNITS, **a),
    "gru_reset_before": lambda **a: GRU(UNITS, reset_after=False, **a),
    "lstm": lambda **a: LSTM(UNITS, **a),
    "gru_on_gru": lambda **a: [GRU(4, **a), GRU(UNITS, reset_after=False, **a)],
    "lstm_on_lstm": lambda **a: [LSTM(4, **a), LSTM(UNITS, **a)],
    "gru_on_lstm": lambda **a: [LSTM(4, **a), GRU(UNITS, **a)],
    "layer_norm_gru": lambda **a: LayerNormGRUCell(UNITS, **a),
    "layer_norm_lstm": lambda **a: LayerNormLSTMCell(UNITS, **a),
    "residual_on_gru": lambda **a: [GRU(UNITS, **a), ResidualCell(GRU(UNITS, **a))],
    "residual_lstm_on_lstm": lambda **a: [LSTM(UNITS, **a), ResidualCell(LSTM(UNITS, **a))],
    "residual_stack_on_lstm": lambda **a: [
        LSTM(UNITS, **a),
        ResidualCell(keras.layers.StackedRNNCells([GRU(4, **a), LSTM(UNITS, **a)])),
    ],
    "gru_on_layer_norm_lstm": lambda **a: [LayerNormLSTMCell(4, **a), GRU(UNITS, **a)],
}


def with_equations(name):
    """A mechanism of the table with its reference in `equations`."""
    attention = MECHANISMS[name].make()
    attention.equations = MECHANISMS[name].attend
    return attention


ATTENTIONS = {name: partial(with_equations, name) for name in MECHANISMS} | {
    "two_sources": lambda: MultiSourceAttention(
        [with_equations("bahdanau"), with_equations("luong_general")]
    ),
}
READOUTS = {
    "state": lambda: None,
    "maxout": lambda: DeepOutput(R),
    "tanh": lambda: DeepOutput(R, activation="tanh"),
    "attentional": lambda: DeepOutput(R, activation="tanh", reads_inputs=False),
}
ORDERS = [(q, r) for q in ("previous", "current") for r in ("previous", "current")]

# Decoders other than a GRU with additive attention and a maxout readout.
LUONG = dict(attention="luong_general", readout="attentional", query_state="current")
FORMS = {
    "input_feeding": dict(LUONG, cell="lstm_on_lstm", input_feeding=True),
    "input_feeding_previous": dict(input_feeding=True, readout_state="previous"),
    "input_feeding_of_the_state": dict(readout="state", input_feeding=True),
    "input_feeding_location": dict(attention="location", input_feeding=True),
    "conditional_gru": dict(context_cell="gru_reset_before", query_state="current"),
    "conditional_lstm": dict(
        cell="lstm_on_lstm",
        context_cell="lstm_on_lstm",
        query_state="current",
        readout_state="previous",
    ),
    "conditional_coverage": dict(
        attention="coverage_fertility", context_cell="layer_norm_gru", query_state="current"
    ),
    "conditional_input_feeding": dict(
        context_cell="gru", query_state="current", input_feeding=True
    ),
    "residual_input_feeding": dict(
        cell="residual_on_gru", query_state="current", input_feeding=True
    ),
    "two_sources": dict(attention="two_sources"),
    "two_sources_conditional": dict(
        attention="two_sources", cell="lstm", context_cell="layer_norm_lstm", query_state="current"
    ),
}


def unbuilt(
    cell="gru",
    attention="bahdanau_bias",
    readout="maxout",
    cell_arguments=(),
    context_cell=None,
    **arguments,
):
    if context_cell is not None:
        arguments["context_cell"] = CELLS[context_cell](**dict(cell_arguments))
    return AttentiveDecoder(
        CELLS[cell](**dict(cell_arguments)),
        ATTENTIONS[attention](),
        READOUTS[readout](),
        **arguments,
    )


def several(decoder):
    return isinstance(decoder.attention, MultiSourceAttention)


def build(decoder):
    annotations = (B, TX, D)
    decoder.build((B, TY, M), [annotations, (B, 3, 2)] if several(decoder) else annotations)
    return decoder


def random_decoder(rng, *args, **arguments):
    """A built decoder with random weights; the arguments are those of `unbuilt`."""
    return randomize(build(unbuilt(*args, **arguments)), rng)


def masks(decoder):
    return [MASK, SECOND] if several(decoder) else MASK


def random_inputs(rng, decoder, groups=1):
    """Embedded inputs, annotations and the cell's first states, `groups` rows for each source."""
    states = [array(rng, B * groups, size) for size in decoder.state_sizes]
    annotations = array(rng, B, TX, D)
    if several(decoder):
        annotations = [annotations, array(rng, B, 3, 2)]
    return array(rng, B * groups, TY, M), annotations, states


def reference_move(cell, weights_of):
    """A cell as a move of the reference, and the number of its states."""
    if hasattr(cell, "cells"):
        moves = [reference_move(inner, weights_of) for inner in cell.cells]
        move = partial(reference.stacked_move, moves=moves)
        if isinstance(cell, ResidualCell):
            move = partial(reference.residual_move, move=move)
        return move, sum(count for _, count in moves)
    by_name = weights_of(cell)
    weights, count = list(by_name.values()), 1
    if isinstance(cell, LayerNormGRUCell):
        step = partial(
            reference.layer_norm_gru_step,
            weights=by_name,
            reset_after=cell.reset_after,
            epsilon=cell.epsilon,
        )
    elif isinstance(cell, LayerNormLSTMCell):
        step = partial(reference.layer_norm_lstm_step, weights=by_name, epsilon=cell.epsilon)
        count = 2
    elif isinstance(cell, LSTM):
        step, count = partial(reference.lstm_step, weights=weights), 2
    elif isinstance(cell, GRU):
        step = partial(reference.gru_step, weights=weights, reset_after=cell.reset_after)
    else:
        step = partial(reference.simple_step, weights=weights)
    return partial(reference.cell_move, step=step), count


def reference_attend(attention, values, mask, weights_of):
    """A function from a query `(N,)` to its context and weights, to be called in step order."""
    if isinstance(attention, MultiSourceAttention):
        parts = [
            reference_attend(*args, weights_of)
            for args in zip(attention.attentions, values, mask, strict=True)
        ]
        return lambda query: [
            np.concatenate(pair) for pair in zip(*[part(query) for part in parts], strict=True)
        ]
    queries = []  # a mechanism with a history needs the earlier queries

    def attend(query):
        queries.append(query)
        contexts, alignments = attention.equations(
            weights_of(attention), np.array(queries), values, mask
        )
        if alignments.ndim == 3:
            alignments = alignments.mean(axis=0)
        return contexts[-1], alignments[-1]

    return attend


def reference_decoder(decoder, inputs, annotations, mask, states, weights=None):
    """Outputs `(B, Ty, R)` and weights `(B, Ty, Tx)` by the papers' equations, in float64.

    `weights` replace those of the decoder.
    """
    variables = decoder.trainable_variables
    values = reference.float64(variables if weights is None else weights)
    by_variable = {id(variable): value for variable, value in zip(variables, values, strict=True)}

    def weights_of(layer):
        return {v.path.split("/")[-1]: by_variable[id(v)] for v in layer.trainable_variables}

    readout = None
    if decoder.readout is not None:
        readout = partial(
            reference.deep_output,
            weights=list(weights_of(decoder.readout).values()),
            activation=None if decoder.readout.maxout else np.tanh,
            reads_inputs=decoder.readout.reads_inputs,
        )
    parts = decoder.cell
    while hasattr(parts, "cells"):
        parts = parts.cells[-1]
    move, count = reference_move(decoder.cell, weights_of)
    context_move = None
    if decoder.context_cell is not None:
        context_move, _ = reference_move(decoder.context_cell, weights_of)
    output_width = UNITS if readout is None else R
    rows = [
        reference.decode(
            np.asarray(inputs[row], "float64"),
            [np.asarray(state[row], "float64") for state in states],
            reference_attend(
                decoder.attention,
                tree.map_structure(lambda part: np.asarray(part[row], "float64"), annotations),  # noqa: B023
                tree.map_structure(lambda part: part[row], mask),  # noqa: B023
                weights_of,
            ),
            move,
            readout,
            decoder.query_state,
            decoder.readout_state,
            top=count - reference_move(parts, weights_of)[1],
            context_move=context_move,
            input_feeding=output_width if decoder.input_feeding else 0,
        )
        for row in range(len(inputs))
    ]
    return tuple(np.array([row[i] for row in rows]) for i in range(2))


def reference_of_kept_steps(decoder, inputs, inputs_mask, annotations, mask, states, weights=None):
    """Outputs and weights with masked steps, from the unmasked steps alone.

    As in `keras.layers.RNN`, a masked step repeats the output before it, or zeros at the start. Its
    weights are zero.
    """
    rows = []
    for row, keep in enumerate(inputs_mask):
        one_row = slice(row, row + 1)
        outputs, alignments = reference_decoder(
            decoder, inputs[one_row][:, keep], annotations[one_row], mask[one_row],
            [state[one_row] for state in states], weights,
        )  # fmt: skip
        before = np.cumsum(keep) - 1
        outputs = np.where((before >= 0)[:, None], outputs[0][np.maximum(before, 0)], 0.0)
        all_weights = np.zeros((len(keep), mask.shape[1]))
        all_weights[keep] = alignments[0]
        rows.append((outputs, all_weights))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def step_by_step(decoder, inputs, memory, states):
    state, outputs, weights = decoder.initial_state(memory, states), [], []
    for i in range(inputs.shape[1]):
        output, state, alignment = decoder.step(inputs[:, i], state, memory)
        outputs.append(numpy(output))
        weights.append(numpy(alignment))
    return np.stack(outputs, 1), np.stack(weights, 1)


def reference_closed_loop(
    decoder, first, annotations, mask, states, dense, weights=None, known=None
):
    """Outputs and weights where `dense` (kernel, bias) of an output and `known` are the input."""
    kernel, bias = dense
    fed_back = np.asarray(first, "float64")[:, None]
    for step in range(TY):
        inputs = fed_back
        if known is not None:
            inputs = np.concatenate([fed_back, known[:, : step + 1]], axis=-1)
        expected = reference_decoder(decoder, inputs, annotations, mask, states, weights)
        fed_back = np.concatenate([fed_back, expected[0][:, -1:] @ kernel + bias], axis=1)
    return expected


def symbolic(arrays):
    """Symbolic tensors with the shapes of a nested structure of arrays."""
    return tree.map_structure(lambda part: keras.KerasTensor(part.shape), arrays)


def translator(decoder, scores=True):
    """A model of source and target ids whose embeddings have implicit masks."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    words = keras.layers.Embedding(9, 4, mask_zero=True)(source)
    annotations = BidirectionalEncoder(D // 2)(words)
    if several(decoder):
        annotations = [annotations, BidirectionalEncoder(1)(words)]
    embedded = keras.layers.Embedding(9, M, mask_zero=True)(target)
    outputs = decoder(embedded, annotations, return_attention_scores=scores)
    return keras.Model([source, target], outputs)
