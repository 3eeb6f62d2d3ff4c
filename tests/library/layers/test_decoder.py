"""The numbers of a decoder, against the NumPy reference."""

import keras
import numpy as np
import pytest
from decoders import (
    CELLS,
    FORMS,
    LSTM,
    MASK,
    ORDERS,
    READOUTS,
    TY,
    UNITS,
    B,
    M,
    R,
    build,
    masks,
    random_decoder,
    random_inputs,
    reference_closed_loop,
    reference_decoder,
    step_by_step,
    with_equations,
)
from keras import ops, tree
from layer_checks import array, assert_close, randomize
from mechanisms import MECHANISMS

from keras_bahdanau import AttentiveDecoder
from keras_bahdanau.layers import DecoderState, ResidualCell


def check_numbers(decoder, rng):
    """Check that a call equals the reference, and that single steps equal the call."""
    inputs, annotations, states = random_inputs(rng, decoder)
    mask = masks(decoder)
    actual = decoder(inputs, annotations, mask, states, return_attention_scores=True)
    assert_close(actual, reference_decoder(decoder, inputs, annotations, mask, states))
    memory = decoder.memory(annotations, mask)
    assert_close(actual, step_by_step(decoder, inputs, memory, states), 1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("query_state", ["previous", "current"])
def test_every_cell_equals_the_reference(cell, query_state, rng):
    check_numbers(random_decoder(rng, cell, query_state=query_state), rng)


@pytest.mark.parametrize(("query_state", "readout_state"), ORDERS)
@pytest.mark.parametrize("readout", READOUTS)
def test_every_order_and_readout_equals_the_reference(query_state, readout_state, readout, rng):
    decoder = random_decoder(
        rng, readout=readout, query_state=query_state, readout_state=readout_state
    )
    check_numbers(decoder, rng)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_every_attention_equals_the_reference(attention, rng):
    check_numbers(random_decoder(rng, attention=attention), rng)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_the_reference(form, rng):
    check_numbers(random_decoder(rng, **FORMS[form]), rng)


def test_a_residual_cell_without_a_stack_equals_the_reference(rng):
    decoder = AttentiveDecoder(
        ResidualCell(LSTM(M)),
        with_equations("location"),
        query_state="current",
        readout_state="previous",
    )
    check_numbers(randomize(build(decoder), rng), rng)


def test_mask_and_initial_state_are_optional(rng):
    decoder = random_decoder(rng, "gru_on_lstm")
    inputs, annotations, states = random_inputs(rng, decoder)
    expected = reference_decoder(
        decoder, inputs, annotations, np.ones_like(MASK), [np.zeros_like(s) for s in states]
    )
    assert_close(decoder(inputs, annotations, return_attention_scores=True), expected)
    assert_close(decoder(inputs, annotations), expected[0])


def test_state_is_a_flat_tuple_in_the_cells_order(rng):
    decoder = random_decoder(rng, "gru_on_lstm")
    assert decoder.state_sizes == [4, 4, UNITS]
    inputs, annotations, states = random_inputs(rng, decoder)
    memory = decoder.memory(annotations)
    _, state, _ = decoder.step(inputs[:, 0], decoder.initial_state(memory, states), memory)
    assert isinstance(state, DecoderState) and state.attention == () and state.output == ()
    assert [tuple(tensor.shape) for tensor in state.cell] == [(B, 4), (B, 4), (B, UNITS)]


SHARING = {
    "gru_on_lstm": dict(cell="gru_on_lstm"),
    "monotonic": dict(attention="monotonic"),
    "fixed": dict(attention="fixed"),
    "input_feeding_location": FORMS["input_feeding_location"],
    "conditional_coverage": FORMS["conditional_coverage"],
    "two_sources": FORMS["two_sources"],
}


@pytest.mark.parametrize("form", SHARING)
def test_hypotheses_share_a_row_of_the_memory(form, rng):
    decoder, groups = random_decoder(rng, **SHARING[form]), 4
    inputs, annotations, states = random_inputs(rng, decoder, groups)
    memory = decoder.memory(annotations, masks(decoder))
    copies, mask = tree.map_structure(
        lambda part: np.repeat(part, groups, 0), (annotations, masks(decoder))
    )
    memory_of_copies = decoder.memory(copies, mask)
    state = decoder.initial_state(memory_of_copies, states)
    for i in range(TY):
        shared, expected = (
            decoder.step(inputs[:, i], state, part) for part in (memory, memory_of_copies)
        )
        assert_close(shared, expected, 1e-6)
        _, state, _ = shared


# --- Feedback -------------------------------------------------------------------------------------


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("readout", ["state", "maxout"])
def test_feedback_reads_the_last_output(readout, input_feeding, rng):
    decoder = random_decoder(rng, readout=readout, input_feeding=input_feeding)
    inputs, annotations, states = random_inputs(rng, decoder)
    hints = array(rng, B, TY, 2)  # indexed by the number of the step
    width = UNITS if readout == "state" else R
    mixing = array(rng, 2 + width, M)

    def feedback(t, x, output):
        hint = ops.take(hints, t, axis=1)
        return x + ops.matmul(ops.concatenate([hint, output], axis=-1), mixing)

    actual = decoder(
        inputs, annotations, MASK, states, feedback=feedback, return_attention_scores=True
    )
    memory = decoder.memory(annotations, MASK)
    state, output = decoder.initial_state(memory, states), np.zeros((B, width), "float32")
    for i in range(TY):
        read = feedback(i, ops.convert_to_tensor(inputs[:, i]), ops.convert_to_tensor(output))
        output, state, weights = decoder.step(read, state, memory)
        assert_close((actual[0][:, i], actual[1][:, i]), (output, weights), 1e-6)


@pytest.mark.parametrize(
    "form", ["input_feeding", "input_feeding_of_the_state", "conditional_coverage", "two_sources"]
)
def test_a_closed_loop_equals_the_reference(form, rng):
    decoder, dense = random_decoder(rng, **FORMS[form]), keras.layers.Dense(M)
    inputs, annotations, states = random_inputs(rng, decoder)
    arguments = dict(annotations_mask=masks(decoder), initial_state=states)
    dense.build((B, UNITS if "state" in form else R))
    randomize(dense, rng)
    actual = decoder.unroll(inputs[:, 0], annotations, TY, dense, **arguments)
    expected = reference_closed_loop(
        decoder, inputs[:, 0], annotations, masks(decoder), states, dense.get_weights()
    )
    assert_close(actual, expected)
