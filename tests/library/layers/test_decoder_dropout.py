"""Dropout in the cells and in the readout of a decoder."""

import keras
import numpy as np
import pytest
from decoders import (
    CELLS,
    LSTM,
    MASK,
    TX,
    TY,
    B,
    D,
    M,
    R,
    build,
    random_decoder,
    random_inputs,
    unbuilt,
)
from layer_checks import array, assert_close, numpy

from keras_bahdanau import AttentiveDecoder, BahdanauAttention
from keras_bahdanau.layers import ResidualCell


def trained_once(decoder, rng):
    """Train the decoder for one step in a functional model, and return its inputs."""
    inputs, annotations = keras.Input((None, M)), keras.Input((None, D))
    mask = keras.Input((None,), dtype="bool")
    model = keras.Model([inputs, annotations, mask], decoder(inputs, annotations, mask))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.optimizer.build(model.trainable_variables)  # so that TensorFlow traces the step once
    x = [array(rng, B, TY, M), array(rng, B, TX, D), MASK]
    y = array(rng, B, TY, R)
    before = decoder.get_weights()
    history = model.fit(x, y, epochs=1, batch_size=B, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for old, new in zip(before, decoder.get_weights(), strict=True):
        assert np.abs(new - old).max() > 0
    return x


DROPPING = {
    "gru_reset_before": dict(cell="gru_reset_before"),
    "gru_on_lstm": dict(cell="gru_on_lstm"),
    "residual": dict(cell="residual_on_gru", input_feeding=True),
    "residual_stack": dict(cell="residual_stack_on_lstm"),
    "layer_norm_conditional": dict(
        cell="layer_norm_lstm", context_cell="lstm", query_state="current", attention="location"
    ),
}


DROPOUT = {"dropout": 0.5, "recurrent_dropout": 0.5}


@pytest.mark.parametrize("form", DROPPING)
def test_dropout_in_the_cells_acts_in_training_only(form, rng):
    decoder = unbuilt(**DROPPING[form], cell_arguments=DROPOUT)
    x = trained_once(decoder, rng)
    # In inference it equals a decoder without dropout that has the same weights.
    plain = build(unbuilt(**DROPPING[form]))
    plain.set_weights(decoder.get_weights())
    assert_close(decoder(*x), plain(*x), 1e-6)
    first, second = numpy(decoder(*x, training=True)), numpy(decoder(*x, training=True))
    assert np.abs(first - numpy(plain(*x))).max() > 1e-4
    assert np.abs(first - second).max() > 1e-4
    assert_close(decoder(*x, training=False), plain(*x), 1e-6)


def innermost(cell):
    """Return the cells that have weights, inside stacks and wrappers."""
    return [part for inner in getattr(cell, "cells", []) for part in innermost(inner)] or [cell]


def forget(cell):
    """Set weights with which a cell's output depends on its input alone."""
    n = cell.units
    for weight in cell.trainable_variables:
        value, name = numpy(weight).copy(), weight.path.split("/")[-1]
        if name == "recurrent_kernel":
            value[:] = 0.0
        if name == "bias":  # the gate that keeps the old state: f of an LSTM, z of a GRU
            row = value[0] if value.ndim == 2 else value
            row[slice(n, 2 * n) if isinstance(cell, LSTM) else slice(n)] = -1e3
        weight.assign(value)


@pytest.mark.parametrize(
    ("cell", "context_cell"),
    [*[(cell, None) for cell in CELLS if cell != "simple"], ("lstm", "layer_norm_lstm")],
)
def test_dropout_masks_hold_for_a_whole_sequence(cell, context_cell, rng):
    # With equal inputs, one fixed context and no state, every step gives the same output unless
    # the dropout mask changes between steps.
    decoder = random_decoder(
        rng,
        cell,
        "fixed",
        "state",
        {"dropout": 0.5},
        query_state="current",
        context_cell=context_cell,
    )
    for part in (decoder.cell, decoder.context_cell):
        for inner in innermost(part) if part is not None else []:
            forget(inner)
    inputs = np.repeat(array(rng, B, 1, M), TY, axis=1)
    annotations = array(rng, B, TX, D)
    outputs = numpy(decoder(inputs, annotations, training=True))
    assert_close(outputs, np.repeat(outputs[:, :1], TY, axis=1), 1e-6)
    assert np.abs(outputs - numpy(decoder(inputs, annotations))).max() > 1e-4


def test_recurrent_dropout_masks_hold_for_a_whole_sequence(rng):
    # h' = tanh(9 m h): a unit stays near one until it is dropped, and is zero from then on.
    cells = [keras.layers.SimpleRNNCell(16, recurrent_dropout=0.5) for _ in range(2)]
    decoder = build(AttentiveDecoder([cells[0], ResidualCell(cells[1])], BahdanauAttention(4)))
    for cell in cells:
        kernel, _, bias = cell.get_weights()
        cell.set_weights([0 * kernel, 9 * np.eye(16), 0 * bias])
    inputs, annotations, states = random_inputs(rng, decoder)
    states = [np.ones_like(state) for state in states]
    outputs = numpy(decoder(inputs, annotations, initial_state=states, training=True))
    # A unit's output is the sum of the units of both cells, each zero or one.
    one_alive, both_alive = outputs > 0.5, outputs > 1.5
    for alive in (one_alive, both_alive):
        np.testing.assert_array_equal(alive, np.repeat(alive[:, :1], TY, axis=1))
        assert 0 < alive.sum() < alive.size


def test_dropout_in_the_readout_acts_in_single_steps_of_training(rng):
    readout = keras.Sequential([keras.layers.Dense(40), keras.layers.Dropout(0.5)])
    decoder = build(AttentiveDecoder(keras.layers.GRUCell(4), BahdanauAttention(3), readout))
    inputs, annotations, states = random_inputs(rng, decoder)
    memory = decoder.memory(annotations)
    state = decoder.initial_state(memory, states)
    for training in (False, True):
        output = numpy(decoder.step(inputs[:, 0], state, memory, training=training)[0])
        assert (output == 0).any() == training
