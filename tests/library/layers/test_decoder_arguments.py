"""Arguments that a decoder refuses, and the forms of initial states that it accepts."""

import re

import keras
import numpy as np
import pytest
from decoders import (
    CELLS,
    GRU,
    MASK,
    TX,
    TY,
    UNITS,
    B,
    D,
    M,
    build,
    random_decoder,
    random_inputs,
    symbolic,
    unbuilt,
)
from keras import ops, tree
from layer_checks import array, assert_close, numpy

from keras_bahdanau import AttentiveDecoder, BahdanauAttention


@pytest.mark.parametrize(
    "readout",
    [keras.layers.Attention(), keras.layers.Concatenate(), keras.layers.Conv1D(3, 1)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_readout_that_does_not_accept_rows_is_refused(readout, rng):
    decoder = AttentiveDecoder(GRU(3), BahdanauAttention(4), readout)
    with pytest.raises(ValueError, match=r"`readout` must be a layer .* Received: <\w+ .*: "):
        decoder(array(rng, B, TY, M), array(rng, B, TX, D))


class MisfitCell:
    """A cell whose output, or whose returned state, may differ in width from `state_size`."""

    def __init__(self, output_size=UNITS, returned=UNITS):
        self.state_size, self.output_size, self.returned = UNITS, output_size, returned
        self.built = True

    def __call__(self, inputs, states, training=None):
        state = ops.zeros((ops.shape(inputs)[0], self.returned))
        return state, [state]


class TwoInputs(keras.layers.Layer):
    def call(self, state, context):
        return state + context


def model_of_three_inputs():
    inputs = [keras.Input((3,)) for _ in range(3)]
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(inputs)))


NOT_CELLS = [keras.layers.Dense(3), "gru", [], [GRU(3), keras.layers.Dense(3)]]


IS_A_LAYER = (
    "`cell` must be a cell, not a recurrent layer; write GRUCell instead of GRU. Received: "
)


NOT_ATTENTION = r"`attention` must be an Attention, such as .* Received: "


NOT_A_READOUT = (
    r'`readout` must be a layer with one input, .* write DeepOutput\(n, "linear"\) .* Rec'
)


WRONG_PARTS = [
    ({"query_state": "next"}, '`query_state` must be "previous" or "current".*: \'next\''),
    ({"readout_state": "next"}, '`readout_state` must be "previous" or "current".*: \'next\''),
    *[({"cell": cell}, "`cell` must be a Keras RNN cell .* Rec") for cell in [None, *NOT_CELLS]],
    *[
        (
            {"context_cell": cell, "query_state": "current"},
            "`context_cell` must be a Keras RNN cell .* R",
        )
        for cell in NOT_CELLS
    ],
    ({"cell": keras.layers.GRU(3)}, IS_A_LAYER),
    ({"cell": [GRU(3), keras.layers.GRU(3)]}, IS_A_LAYER),
    (
        {"cell": MisfitCell(output_size=5)},
        "`cell` must have an output as wide as its first state, 3. Received: .* width 5",
    ),
    ({"attention": None}, NOT_ATTENTION),
    ({"attention": keras.layers.Attention()}, NOT_ATTENTION),
    ({"attention": "bahdanau"}, NOT_ATTENTION),
    ({"readout": len}, NOT_A_READOUT),
    ({"readout": "linear"}, NOT_A_READOUT),
    ({"readout": TwoInputs()}, NOT_A_READOUT),
    ({"readout": keras.layers.GRU(3)}, NOT_A_READOUT),
    ({"readout": model_of_three_inputs()}, NOT_A_READOUT),
]


@pytest.mark.parametrize(("options", "message"), WRONG_PARTS)
def test_invalid_parts_and_orders_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AttentiveDecoder(**{"cell": GRU(3), "attention": BahdanauAttention(4), **options})


@pytest.mark.parametrize(
    ("feedback", "message"),
    [
        (keras.layers.Dense(M), r"function \(t, inputs, output\) .*Received: <Dense"),
        (5, r"function .*Received: 5"),
        (lambda t, x: x, "function .*Received: <function"),
        (lambda t, x, output: None, r"return \(batch, 7\).*Received: NoneType"),
        (lambda t, x, output: x[:1], r"return \(batch, 7\).*Received: shape \(1, 7\)"),
    ],
)
def test_feedback_is_a_function_that_returns_rows(feedback, message, rng):
    decoder = AttentiveDecoder(GRU(3), BahdanauAttention(4))
    inputs, annotations = array(rng, B, TY, M), array(rng, B, TX, D)
    with pytest.raises(ValueError, match=f"`feedback` of AttentiveDecoder must .*{message}"):
        decoder(inputs, annotations, feedback=feedback)


@pytest.mark.parametrize("width", [UNITS, None], ids=["output", "sequence"])
def test_feedback_must_be_as_wide_as_the_inputs(width, rng):
    decoder = random_decoder(rng, readout="state")
    inputs, annotations, _ = random_inputs(rng, decoder)
    message = (
        r"`feedback` .* return \(batch, 7\).* keras.layers.Dense\(7\) to the output. Received: sh"
    )
    with pytest.raises(ValueError, match=message):
        decoder(inputs, annotations, feedback=lambda t, x, o: o if width else ops.ones((B, 1, M)))


def test_a_cell_must_return_states_of_its_state_size(rng):
    decoder = build(AttentiveDecoder(MisfitCell(returned=4), BahdanauAttention(4)))
    message = r"`cell` must return states of its `state_size`, 3.\s+Received: .* \[\(3, 4\)\]"
    with pytest.raises(ValueError, match=message):
        decoder(*random_inputs(rng, decoder)[:2])


@pytest.mark.parametrize(
    ("cell", "context_cell", "query_state"),
    [
        ("gru", "gru", "previous"),
        ("gru", "lstm", "current"),
        ("gru_on_lstm", "gru", "current"),
        ("lstm", "gru_on_lstm", "current"),
    ],
)
def test_a_context_cell_with_other_states_or_query_is_refused(cell, context_cell, query_state):
    message = '`context_cell` requires query_state="current" .* sizes of `cell`, .*. Received: '
    with pytest.raises(ValueError, match=message + f"query_state='{query_state}' and state sizes"):
        unbuilt(cell, context_cell=context_cell, query_state=query_state)


@pytest.mark.parametrize("cell", ["gru", "lstm", "gru_on_lstm"])
def test_first_state_must_have_every_tensor(cell, rng):
    decoder = random_decoder(rng, cell)
    inputs, annotations, states = random_inputs(rng, decoder)
    narrow = [states[0][:, :1], *states[1:]]
    flat = [*states[:-1], states[-1][0]]
    message = "`initial_state` must have one tensor for each state of the cell, .* Received: "
    with pytest.raises(ValueError, match=message + r"values of type \['NoneType'\]"):
        decoder(inputs, annotations, initial_state=[[None, *states[1:]]])
    for wrong in (states[:-1], [*states, states[0]], narrow, flat, states[-1][:, :1]):
        with pytest.raises(ValueError, match=message):
            decoder(inputs, annotations, initial_state=wrong)
        with pytest.raises(ValueError, match=message):
            decoder.initial_state(decoder.memory(annotations), wrong)
        symbols = symbolic((inputs, annotations, wrong))
        with pytest.raises(ValueError, match=message):
            decoder(*symbols[:2], initial_state=symbols[2])


@pytest.mark.parametrize("cell", ["gru", "lstm", "lstm_on_lstm", "gru_on_lstm"])
def test_first_states_may_be_as_keras_returns_them(cell, rng):
    decoder = random_decoder(rng, cell)
    inputs, annotations, _ = random_inputs(rng, decoder)
    encoder = keras.layers.RNN(CELLS[cell](), return_state=True)
    _, *states = encoder(annotations)
    flat = tree.flatten(states)
    expected = numpy(decoder(inputs, annotations, initial_state=flat))
    memory, dense = decoder.memory(annotations), keras.layers.Dense(M)
    loop = numpy(decoder.unroll(inputs[:, 0], annotations, 2, dense, initial_state=flat))
    x, values = keras.Input((TY, M)), keras.Input((TX, D))
    for initial in (states, tuple(states), *(states if cell == "gru" else [])):
        assert_close(decoder(inputs, annotations, initial_state=initial), expected, 1e-6)
        assert_close(decoder.initial_state(memory, initial).cell, tuple(flat), 1e-6)
        again = decoder.unroll(inputs[:, 0], annotations, 2, dense, initial_state=initial)
        assert_close(again, loop, 1e-6)
        _, *symbols = encoder(values)
        symbols = tree.pack_sequence_as(initial, tree.flatten(symbols))
        model = keras.Model([x, values], decoder(x, values, initial_state=symbols))
        assert_close(model([inputs, annotations]), expected, 1e-6)


def test_initial_state_must_have_a_row_for_each_source(rng):
    decoder = random_decoder(rng)
    inputs, annotations, (state,) = random_inputs(rng, decoder)
    message = "`initial_state` must have as many rows as the annotations, 3. Received: shapes"
    with pytest.raises(ValueError, match=message):
        decoder(inputs, annotations, initial_state=[state[:1]])
    symbols = symbolic((inputs, annotations))
    with pytest.raises(ValueError, match=message):
        decoder(*symbols, initial_state=[keras.KerasTensor((B + 1, UNITS))])


def test_a_step_needs_a_built_decoder():
    with pytest.raises(ValueError, match="AttentiveDecoder is not built: call the layer once"):
        unbuilt().step(np.ones((1, M)), None, None)


WRONG_SHAPES = {
    "inputs of rank 2": ((B, M), (B, TX, D), "inputs", "(batch, time, "),
    "no step": ((B, 0, M), (B, TX, D), "inputs", "at least one step"),
    "annotations of rank 2": ((B, TY, M), (B, D), "annotations", "return_sequences=True"),
    "annotations of rank 4": ((B, TY, M), (B, TX, D, 1), "annotations", ", time, "),
    "two annotations": (
        (B, TY, M),
        [(B, TX, D)] * 2,
        "annotations",
        "one tensor; use the first output",
    ),
    "other rows": ((B, TY, M), (B + 1, TX, D), "annotations", f"({B}, time, "),
}


WRONG_WIDTHS = {
    "inputs too wide": ((B, TY, M + 1), (B, TX, D), "inputs", f"(batch, time, {M})"),
    "annotations too narrow": ((B, TY, M), (B, TX, 1), "annotations", f", time, {D})"),
}


def for_each_shape(make, shape):
    """Return `make(shape)`, or a list of such results for a list of shapes."""
    return [make(part) for part in shape] if isinstance(shape, list) else make(shape)


# Any width is valid before the decoder is built.
@pytest.mark.parametrize(
    ("case", "is_built"),
    [
        *[(case, False) for case in WRONG_SHAPES],
        *[(case, True) for case in WRONG_SHAPES | WRONG_WIDTHS],
    ],
)
def test_sequences_of_other_shapes_are_refused(case, is_built):
    *shapes, name, expected = (WRONG_SHAPES | WRONG_WIDTHS)[case]
    decoder = build(unbuilt()) if is_built else unbuilt()
    message = rf"`{name}` of AttentiveDecoder must .*{re.escape(expected)}.* Received: sh"

    arrays = [for_each_shape(lambda part: np.zeros(part, "float32"), shape) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        decoder(*arrays)
    if case != "other rows":  # symbolic tensors have no known number of rows
        symbols = [
            for_each_shape(lambda part: keras.KerasTensor((None, *part[1:])), shape)
            for shape in shapes
        ]
        with pytest.raises(ValueError, match=message):
            decoder(*symbols)


def test_widths_must_be_known():
    with pytest.raises(ValueError, match=r"`inputs` must have a known width.* Received: shape"):
        unbuilt()(keras.Input((None, None)), keras.Input((None, D)))


@pytest.mark.parametrize("shape", [(B, TX, D), [(B, TX, D)], [(B, TX, D)] * 3])
def test_annotations_must_have_an_entry_for_each_source(shape):
    decoder = unbuilt(attention="two_sources")
    message = "`annotations` of AttentiveDecoder must be a list of 2 tensors. Received: "
    with pytest.raises(ValueError, match=message):
        decoder.build((B, TY, M), shape)


def test_inputs_of_a_step_must_be_rows_of_the_right_width(rng):
    decoder = random_decoder(rng)
    inputs, annotations, _ = random_inputs(rng, decoder)
    memory = decoder.memory(annotations)
    state = decoder.initial_state(memory)
    message = r"`inputs` of AttentiveDecoder.step must be \(batch, 7\). Received: shape"
    for wrong in (inputs, inputs[:, 0, :-1]):
        with pytest.raises(ValueError, match=message):
            decoder.step(wrong, state, memory)


WRONG_MASKS = {
    "annotations_mask": [MASK[:, :-1], MASK[:-1], MASK[0], MASK.astype("float32")],
    "inputs_mask": [MASK, MASK[0], np.ones((B, TY), "int32")],
}


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_masks_of_other_shapes_or_dtypes_are_refused(name, rng):
    decoder = random_decoder(rng)
    inputs, annotations, _ = random_inputs(rng, decoder)
    expected = (B, TX) if name == "annotations_mask" else (B, TY)
    for mask in WRONG_MASKS[name]:
        message = rf"`{name}` must be bool of shape {re.escape(str(expected))}, .* Rec"
        with pytest.raises(ValueError, match=message):
            decoder(inputs, annotations, **{name: mask})


def test_masks_that_do_not_fit_the_sources_are_refused(rng):
    decoder = random_decoder(rng, attention="two_sources")
    inputs, annotations, _ = random_inputs(rng, decoder)
    with pytest.raises(ValueError, match=r"`annotations_mask` must be .* shape \(3, 3\)"):
        decoder(inputs, annotations, [None, MASK])
    with pytest.raises(ValueError, match=r"`mask` of MultiSourceAttention .* each of 2 sources"):
        decoder(inputs, annotations, [MASK])
