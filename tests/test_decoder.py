from functools import partial

import keras
import numpy as np
import pytest
import reference
from layer_checks import (
    POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    assert_garbage_is_ignored,
    assert_survives_saving,
    dtype_policy,
    numpy,
    randomize,
    right_mask,
)

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DecoderState,
    DeepOutput,
    FixedContext,
)

# Widths all differ, so that no axis can stand for another.
B, TY, TX, M, D, UNITS, R = 3, 4, 5, 6, 7, 3, 2
LENGTHS = [5, 2, 0]
MASK = right_mask(LENGTHS, TX)

CELLS = {
    "gru": lambda **a: keras.layers.GRUCell(UNITS, **a),
    "gru_reset_before": lambda **a: keras.layers.GRUCell(UNITS, reset_after=False, **a),
    "lstm": lambda **a: keras.layers.LSTMCell(UNITS, **a),
    "gru_on_gru": lambda **a: [
        keras.layers.GRUCell(4, **a),
        keras.layers.GRUCell(UNITS, reset_after=False, **a),
    ],
    "lstm_on_lstm": lambda **a: [keras.layers.LSTMCell(4, **a), keras.layers.LSTMCell(UNITS, **a)],
    "gru_on_lstm": lambda **a: [keras.layers.LSTMCell(4, **a), keras.layers.GRUCell(UNITS, **a)],
}
cells = pytest.mark.parametrize("cell", CELLS)
ATTENTIONS = {
    "bahdanau": lambda: BahdanauAttention(4, use_bias=True),
    "fixed": lambda: FixedContext(),
    "fixed_narrow": lambda: FixedContext(width=2),
}
READOUTS = {
    "state": lambda: None,
    "maxout": lambda: DeepOutput(R),
    "tanh": lambda: DeepOutput(R, activation="tanh"),
}
ORDERS = [(q, r) for q in ("previous", "current") for r in ("previous", "current")]
orders = pytest.mark.parametrize(("query", "readout_state"), ORDERS)


def unbuilt(cell="gru", attention="bahdanau", readout="maxout", cell_arguments=(), **arguments):
    return AttentiveDecoder(
        CELLS[cell](**dict(cell_arguments)),
        ATTENTIONS[attention](),
        READOUTS[readout](),
        **arguments,
    )


def made(rng, *args, **arguments):
    decoder = unbuilt(*args, **arguments)
    decoder.build((B, TY, M), (B, TX, D))
    return randomize(decoder, rng)


def data(rng, decoder):
    """Embedded inputs, annotations and the cell's first states."""
    states = [array(rng, B, size) for size in decoder.state_sizes]
    return array(rng, B, TY, M), array(rng, B, TX, D), states


def reference_decoder(decoder, inputs, annotations, mask, states):
    """Outputs `(B, Ty, R)` and weights `(B, Ty, Tx)` by the paper's equations."""

    def step(cell):
        weights = reference.float64(cell.get_weights())
        if isinstance(cell, keras.layers.LSTMCell):
            return partial(reference.lstm_step, weights=weights), 2
        return partial(reference.gru_step, weights=weights, reset_after=cell.reset_after), 1

    steps = [step(cell) for cell in getattr(decoder.cell, "cells", [decoder.cell])]

    def attend(query, row):
        if isinstance(decoder.attention, FixedContext):
            return reference.fixed_context(annotations[row], mask[row], decoder.attention.width)
        weights = reference.float64(decoder.attention.get_weights())
        return reference.additive_attention(query, annotations[row], mask[row], weights)

    readout = None
    if decoder.readout is not None:
        readout = partial(
            reference.deep_output,
            weights=reference.float64(decoder.readout.get_weights()),
            activation=None if decoder.readout.maxout else np.tanh,
        )
    rows = [
        reference.decode(
            inputs[row],
            [state[row] for state in states],
            partial(attend, row=row),
            partial(reference.stacked_step, steps=steps),
            readout,
            decoder.query,
            decoder.readout_state,
            top=sum(count for _, count in steps[:-1]),
        )
        for row in range(len(inputs))
    ]
    return tuple(np.array([row[i] for row in rows]) for i in range(2))


def step_by_step(decoder, inputs, memory, states):
    state, outputs, weights = decoder.initial_state(memory, states), [], []
    for i in range(inputs.shape[1]):
        output, state, alignment = decoder.step(inputs[:, i], state, memory)
        outputs.append(numpy(output))
        weights.append(numpy(alignment))
    return np.stack(outputs, 1), np.stack(weights, 1)


# --- Numbers --------------------------------------------------------------------------------------


def check_numbers(decoder, rng):
    """The call gives the reference's numbers, and steps give the call's."""
    inputs, annotations, states = data(rng, decoder)
    actual = decoder(inputs, annotations, MASK, states, return_attention_scores=True)
    assert_close(actual, reference_decoder(decoder, inputs, annotations, MASK, states))
    memory = decoder.memory(annotations, MASK)
    assert_close(actual, step_by_step(decoder, inputs, memory, states), 1e-6)


@cells
@pytest.mark.parametrize("query", ["previous", "current"])
def test_cells(cell, query, rng):
    check_numbers(made(rng, cell, query=query), rng)


@orders
@pytest.mark.parametrize("readout", READOUTS)
def test_orders_and_readouts(query, readout_state, readout, rng):
    decoder = made(rng, readout=readout, query=query, readout_state=readout_state)
    check_numbers(decoder, rng)


@orders
@pytest.mark.parametrize("attention", ["fixed", "fixed_narrow"])
def test_fixed_context(attention, query, readout_state, rng):
    check_numbers(made(rng, "lstm", attention, query=query, readout_state=readout_state), rng)


def test_without_mask_and_first_state(rng):
    decoder = made(rng, "gru_on_lstm")
    inputs, annotations, states = data(rng, decoder)
    expected = reference_decoder(
        decoder, inputs, annotations, np.ones_like(MASK), [np.zeros_like(s) for s in states]
    )
    assert_close(decoder(inputs, annotations, return_attention_scores=True), expected)
    assert_close(decoder(inputs, annotations), expected[0])


def test_state_is_a_flat_tuple_in_the_cells_order(rng):
    decoder = made(rng, "gru_on_lstm")
    assert decoder.state_sizes == [4, 4, UNITS]
    inputs, annotations, states = data(rng, decoder)
    memory = decoder.memory(annotations)
    _, state, _ = decoder.step(inputs[:, 0], decoder.initial_state(memory, states), memory)
    assert isinstance(state, DecoderState) and state.attention == ()
    assert [tuple(tensor.shape) for tensor in state.cell] == [(B, 4), (B, 4), (B, UNITS)]


@pytest.mark.parametrize("cell", ["gru", "gru_on_lstm"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_hypotheses_share_a_row_of_the_memory(cell, attention, rng):
    decoder, beam = made(rng, cell, attention), 4
    annotations = array(rng, B, TX, D)
    inputs = array(rng, B * beam, TY, M)
    states = [array(rng, B * beam, size) for size in decoder.state_sizes]
    shared = step_by_step(decoder, inputs, decoder.memory(annotations, MASK), states)
    copies, mask = np.repeat(annotations, beam, 0), np.repeat(MASK, beam, 0)
    assert_close(shared, step_by_step(decoder, inputs, decoder.memory(copies, mask), states), 1e-6)
    assert_close(shared, reference_decoder(decoder, inputs, copies, mask, states))


# --- Masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["previous", "current"])
def test_longer_padding_changes_nothing(query, rng):
    decoder = made(rng, query=query)
    inputs, annotations, states = data(rng, decoder)
    outputs, weights = numpy(
        decoder(inputs, annotations, MASK, states, return_attention_scores=True)
    )
    longer = np.concatenate([annotations, array(rng, B, 2, D)], axis=1)
    mask = right_mask(LENGTHS, TX + 2)
    actual = decoder(inputs, longer, mask, states, return_attention_scores=True)
    assert_close(actual, (outputs, np.pad(weights, ((0, 0), (0, 0), (0, 2)))), 1e-6)


@pytest.mark.parametrize(
    ("cell", "attention"),
    [("gru", "bahdanau"), ("lstm_on_lstm", "bahdanau"), ("gru", "fixed"), ("gru", "fixed_narrow")],
)
def test_garbage_at_masked_places_is_ignored(cell, attention, rng):
    decoder = made(rng, cell, attention)
    inputs, annotations, states = data(rng, decoder)
    assert_garbage_is_ignored(
        decoder,
        [inputs, annotations],
        1,
        MASK,
        annotations_mask=MASK,
        initial_state=states,
        return_attention_scores=True,
    )


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_fully_masked_source_gets_no_weight(attention, rng):
    decoder = made(rng, attention=attention)
    inputs, annotations, states = data(rng, decoder)
    annotations[2] = np.nan
    outputs, weights = numpy(
        decoder(inputs, annotations, MASK, states, return_attention_scores=True)
    )
    assert np.isfinite(outputs).all() and not weights[2].any()
    assert_close(weights[:2].sum(-1), np.ones((2, TY)), 1e-6)


SOURCE = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
TARGET = np.array([[2, 7, 8], [2, 5, 0]])


def translator(decoder, scores=True):
    """Two rows of ids through embeddings, encoder and decoder; masks travel with the tensors."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    annotations = BidirectionalEncoder(3)(keras.layers.Embedding(9, 4, mask_zero=True)(source))
    embedded = keras.layers.Embedding(9, M, mask_zero=True)(target)
    outputs = decoder(embedded, annotations, return_attention_scores=scores)
    return keras.Model([source, target], outputs)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_implicit_mask(attention):
    model = translator(unbuilt(attention=attention))
    outputs, weights = numpy(model([SOURCE, TARGET]))
    assert outputs.shape == (2, 3, R) and weights.shape == (2, 3, 4)
    kept = np.repeat((SOURCE != 0)[:, None], 3, axis=1)
    assert not weights[~kept].any()
    assert_close(weights.sum(-1), np.ones((2, 3)), 1e-6)
    longer = np.pad(SOURCE, ((0, 0), (0, 3)))
    assert_close(model([longer, TARGET])[0], outputs, 1e-6)


# --- Training -------------------------------------------------------------------------------------


def trained_once(decoder, rng):
    """The decoder after one update in a functional model, and that model."""
    inputs, annotations = keras.Input((None, M)), keras.Input((None, D))
    mask = keras.Input((None,), dtype="bool")
    model = keras.Model([inputs, annotations, mask], decoder(inputs, annotations, mask))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = [array(rng, B, TY, M), array(rng, B, TX, D), MASK]
    y = array(rng, B, TY, R)
    before = decoder.get_weights()
    history = model.fit(x, y, epochs=1, batch_size=B, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    changed = [
        np.abs(after - was).max() > 0
        for after, was in zip(decoder.get_weights(), before, strict=True)
    ]
    assert all(changed)
    return model, x


@pytest.mark.parametrize("cell", ["gru_reset_before", "gru_on_lstm"])
def test_dropout_in_the_cell(cell, rng):
    dropout = {"dropout": 0.5, "recurrent_dropout": 0.5}
    decoder = unbuilt(cell, cell_arguments=dropout)
    model, x = trained_once(decoder, rng)
    # Inference drops nothing: a decoder without dropout and with the same weights agrees.
    plain = unbuilt(cell)
    plain.build((B, TY, M), (B, TX, D))
    plain.set_weights(decoder.get_weights())
    assert_close(model.predict(x, verbose=0), numpy(plain(*x)), 1e-6)
    assert_close(decoder(*x), plain(*x), 1e-6)
    first, second = numpy(decoder(*x, training=True)), numpy(decoder(*x, training=True))
    assert np.abs(first - numpy(plain(*x))).max() > 1e-4
    assert np.abs(first - second).max() > 1e-4
    inside = numpy(decoder(*x, training=False))
    assert_close(inside, plain(*x), 1e-6)


def test_dropout_masks_hold_for_a_whole_sequence(rng):
    # Equal inputs, a state the recurrent kernel cannot see and one fixed context: every step
    # then gives the same output, unless the mask changes between them.
    decoder = unbuilt("gru", "fixed", "state", {"dropout": 0.5}, query="current")
    decoder.build((B, TY, M), (B, TX, D))
    kernel, recurrent, bias = decoder.get_weights()
    kernel[:, :UNITS] = 0.0
    bias[0, :UNITS] = -1e3  # z = 0: nothing of the old state stays
    decoder.set_weights([kernel, recurrent * 0, bias])
    inputs = np.repeat(array(rng, B, 1, M), TY, axis=1)
    outputs = numpy(decoder(inputs, array(rng, B, TX, D), training=True))
    assert_close(outputs, np.repeat(outputs[:, :1], TY, axis=1), 1e-6)


# --- As a Keras layer -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readout", "query", "readout_state"),
    [
        ("state", "previous", "current"),
        ("maxout", "previous", "previous"),
        ("maxout", "current", "current"),
    ],
)
def test_dynamic_shapes(readout, query, readout_state, rng):
    decoder = unbuilt(readout=readout, query=query, readout_state=readout_state)
    inputs, annotations = keras.Input((None, M)), keras.Input((None, D))
    first = keras.Input((UNITS,))
    outputs, weights = decoder(
        inputs, annotations, initial_state=[first], return_attention_scores=True
    )
    assert tuple(outputs.shape) == (None, None, UNITS if readout == "state" else R)
    assert tuple(weights.shape) == (None, None, None)
    model = keras.Model([inputs, annotations, first], [outputs, weights])
    for batch, ty, tx in ((2, 1, 3), (1, 4, 6)):
        x = array(rng, batch, ty, M), array(rng, batch, tx, D), array(rng, batch, UNITS)
        expected = reference_decoder(decoder, *x[:2], np.ones((batch, tx), bool), [x[2]])
        assert_close(model(list(x)), expected)
    assert_close(model.predict(list(x), verbose=0), expected)


def test_any_layer_may_read_out(rng):
    class Joined(keras.layers.Layer):
        def build(self, state_shape, inputs_shape, context_shape):
            self.offset = self.add_weight(shape=(inputs_shape[-1],), initializer="ones")

        def compute_output_shape(self, state_shape, inputs_shape, context_shape):
            widths = state_shape[-1] + inputs_shape[-1] + context_shape[-1]
            return (*state_shape[:-1], widths)

        def call(self, state, inputs, context):
            return keras.ops.concatenate([state, inputs + self.offset, context], axis=-1)

    decoder = AttentiveDecoder(keras.layers.GRUCell(UNITS), BahdanauAttention(4), Joined())
    outputs = decoder(keras.Input((None, M)), keras.Input((None, D)))
    assert tuple(outputs.shape) == (None, None, UNITS + M + D)
    inputs, annotations = array(rng, B, TY, M), array(rng, B, TX, D)
    assert_close(decoder(inputs, annotations)[..., UNITS : UNITS + M], inputs + 1.0)


@cells
@pytest.mark.parametrize("readout", READOUTS)
def test_config_round_trip(cell, readout):
    decoder = unbuilt(cell, readout=readout, query="current", readout_state="previous")
    assert_config_round_trip(decoder)


@pytest.mark.parametrize("cell", ["gru", "lstm", "gru_on_lstm"])
def test_saving(cell, tmp_path):
    model = translator(unbuilt(cell, query="current", readout_state="previous"))
    assert_survives_saving(model, [SOURCE, TARGET], tmp_path)


@pytest.mark.parametrize(
    ("attention", "readout"), [("bahdanau", "state"), ("fixed", "tanh"), ("fixed_narrow", "maxout")]
)
def test_saving_with_other_parts(attention, readout, tmp_path):
    model = translator(unbuilt("gru", attention, readout), scores=False)
    assert_survives_saving(model, [SOURCE, TARGET], tmp_path)


@pytest.mark.parametrize(("cell", "query"), [("gru", "previous"), ("lstm", "current")])
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(cell, query, policy, rng):
    with dtype_policy(policy):
        decoder = unbuilt(cell, query=query)
        inputs, annotations, states = data(rng, decoder)
        outputs, weights = decoder(inputs, annotations, MASK, states, return_attention_scores=True)
        stepped = step_by_step(decoder, inputs, decoder.memory(annotations, MASK), states)
    assert keras.backend.standardize_dtype(outputs.dtype) == decoder.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(numpy(weights)[:2].sum(-1), np.ones((2, TY)), 1e-6)
    expected = reference_decoder(decoder, inputs, annotations, MASK, states)
    assert_close((keras.ops.cast(outputs, "float32"), weights), expected, 0.05)
    assert_close(tuple(np.asarray(part, "float32") for part in stepped), expected, 0.05)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["query", "readout_state"])
def test_orders_must_be_known(name):
    with pytest.raises(ValueError, match=f'`{name}` must be "previous" or "current".*: \'next\''):
        unbuilt(**{name: "next"})


@pytest.mark.parametrize("cell", [keras.layers.Dense, None, "gru"])
def test_cell_must_be_a_cell(cell):
    cell = cell(3) if isinstance(cell, type) else cell
    with pytest.raises(ValueError, match=r"`cell` must be a Keras RNN cell"):
        AttentiveDecoder(cell, BahdanauAttention(4))


@pytest.mark.parametrize(("cell", "needed"), [("gru", 1), ("lstm", 2), ("gru_on_lstm", 3)])
def test_first_state_must_have_every_tensor(cell, needed, rng):
    decoder = made(rng, cell)
    inputs, annotations, states = data(rng, decoder)
    for wrong in (states[:-1], [*states, states[0]]):
        message = "`initial_state` must hold a tensor for each state of the cell, of widths"
        with pytest.raises(ValueError, match=message):
            decoder(inputs, annotations, initial_state=wrong)
        with pytest.raises(ValueError, match=message):
            decoder.initial_state(decoder.memory(annotations), wrong)
