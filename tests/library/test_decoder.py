import re
from functools import partial

import keras
import numpy as np
import pytest
from decoders import (
    CELLS,
    FORMS,
    GRU,
    LENGTHS,
    LSTM,
    MASK,
    ORDERS,
    READOUTS,
    TX,
    TY,
    UNITS,
    B,
    D,
    M,
    R,
    build,
    masks,
    random_decoder,
    random_inputs,
    reference_closed_loop,
    reference_decoder,
    several,
    step_by_step,
    unbuilt,
    with_equations,
)
from keras import ops, tree
from layer_checks import (
    POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    assert_survives_saving,
    dtype_policy,
    numpy,
    randomize,
    right_mask,
)
from mechanisms import MECHANISMS

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    CoverageAttention,
    DecoderState,
    DeepOutput,
    ResidualCell,
    coverage_penalty,
)

cells = pytest.mark.parametrize("cell", CELLS)
orders = pytest.mark.parametrize(("query", "readout_state"), ORDERS)
forms = pytest.mark.parametrize("form", FORMS)


# --- Numbers --------------------------------------------------------------------------------------


def check_numbers(decoder, rng):
    """The call gives the reference's numbers, and steps give the call's."""
    inputs, annotations, states = random_inputs(rng, decoder)
    mask = masks(decoder)
    actual = decoder(inputs, annotations, mask, states, return_attention_scores=True)
    assert_close(actual, reference_decoder(decoder, inputs, annotations, mask, states))
    memory = decoder.memory(annotations, mask)
    assert_close(actual, step_by_step(decoder, inputs, memory, states), 1e-6)


@cells
@pytest.mark.parametrize("query", ["previous", "current"])
def test_cells(cell, query, rng):
    check_numbers(random_decoder(rng, cell, query=query), rng)


@orders
@pytest.mark.parametrize("readout", READOUTS)
def test_orders_and_readouts(query, readout_state, readout, rng):
    decoder = random_decoder(rng, readout=readout, query=query, readout_state=readout_state)
    check_numbers(decoder, rng)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_attentions(attention, rng):
    check_numbers(random_decoder(rng, attention=attention), rng)


@orders
def test_fixed_context_in_every_order(query, readout_state, rng):
    check_numbers(
        random_decoder(rng, "lstm", "fixed_narrow", query=query, readout_state=readout_state), rng
    )


@forms
def test_forms(form, rng):
    check_numbers(random_decoder(rng, **FORMS[form]), rng)


def test_a_residual_cell_may_stand_alone(rng):
    decoder = AttentiveDecoder(
        ResidualCell(LSTM(M)), with_equations("location"), query="current", readout_state="previous"
    )
    check_numbers(randomize(build(decoder), rng), rng)


def test_without_mask_and_first_state(rng):
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


def test_state_holds_the_last_output_to_feed_it(rng):
    decoder = random_decoder(rng, **FORMS["input_feeding"])
    inputs, annotations, states = random_inputs(rng, decoder)
    memory = decoder.memory(annotations)
    state = decoder.initial_state(memory, states)
    assert_close(state.output, np.zeros((B, R)), 0)
    output, state, _ = decoder.step(inputs[:, 0], state, memory)
    assert_close(state.output, output, 0)


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
    copies, mask = (
        tree.map_structure(lambda part: np.repeat(part, groups, 0), parts)
        for parts in (annotations, masks(decoder))
    )
    of_copies = decoder.memory(copies, mask)
    shared = alone = decoder.initial_state(of_copies, states)
    for i in range(TY):
        *actual, shared = output_weights_state(decoder, inputs[:, i], shared, memory)
        *expected, alone = output_weights_state(decoder, inputs[:, i], alone, of_copies)
        assert_close(actual, expected, 1e-6)


def output_weights_state(decoder, *args):
    output, state, weights = decoder.step(*args)
    return output, weights, state


# --- What a step reads ----------------------------------------------------------------------------


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("readout", ["state", "maxout"])
def test_feedback_reads_the_last_output(readout, input_feeding, rng):
    decoder = random_decoder(rng, readout=readout, input_feeding=input_feeding)
    inputs, annotations, states = random_inputs(rng, decoder)
    hints = array(rng, B, TY, 2)  # taken by the number of the step
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


@pytest.mark.parametrize("form", ["input_feeding", "conditional_coverage", "two_sources"])
def test_feedback_of_the_inputs_changes_nothing(form, rng):
    decoder = random_decoder(rng, **FORMS[form])
    inputs, annotations, states = random_inputs(rng, decoder)
    arguments = dict(
        annotations_mask=masks(decoder), initial_state=states, return_attention_scores=True
    )
    plain = decoder(inputs, annotations, **arguments)
    fed = decoder(inputs, annotations, feedback=lambda t, x, output: x, **arguments)
    assert_close(fed, plain, 1e-6)


@pytest.mark.parametrize(
    "form", ["input_feeding", "input_feeding_of_the_state", "conditional_coverage", "two_sources"]
)
def test_a_closed_loop(form, rng):
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


# --- Logits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("input_feeding", [False, True])
def test_logits_are_the_scores_before_the_softmax(input_feeding, rng):
    decoder = random_decoder(rng, attention="location", input_feeding=input_feeding)
    call = partial(decoder, *random_inputs(rng, decoder)[:2], MASK)
    outputs, weights = numpy(call(return_attention_scores=True))
    actual, logits = numpy(call(return_attention_logits=True))
    both = numpy(call(return_attention_scores=True, return_attention_logits=True))
    assert_close(both, (outputs, weights, logits), 1e-6)
    assert_close(actual, outputs, 1e-6)
    assert logits.dtype == "float32" and (logits[~np.repeat(MASK[:, None], TY, 1)] == -1e30).all()
    powers = np.exp(logits[:2] - logits[:2].max(axis=-1, keepdims=True))
    assert_close(powers / powers.sum(axis=-1, keepdims=True), weights[:2], 1e-6)


def test_a_pointer_network_trains_on_logits(rng):
    # The place of the largest number: 40 nats away the softmax alone would have no gradient.
    inputs, values = keras.Input((1, 1)), keras.Input((None, 2))
    attention = BahdanauAttention(8, score_initializer=keras.initializers.Constant(40.0))
    decoder = AttentiveDecoder(GRU(4), attention, query="current")
    _, logits = decoder(inputs, values, return_attention_logits=True)
    model = keras.Model([inputs, values], logits)
    assert tuple(logits.shape) == (None, 1, None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.5), loss)
    x = [np.zeros((64, 1, 1), "float32"), array(rng, 64, TX, 2)]
    y = x[1][..., 0].argmax(axis=1)[:, None]
    losses = model.fit(x, y, epochs=8, batch_size=64, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.5 * losses[0]


def test_a_coverage_loss_is_that_of_the_weights_of_logits(rng):
    decoder = AttentiveDecoder(GRU(UNITS), CoverageAttention(4, coverage_loss=0.5))
    randomize(build(decoder), rng)
    inputs, annotations, _ = random_inputs(rng, decoder)
    decoder(inputs, annotations, MASK)
    expected = numpy(decoder.losses)
    decoder(inputs, annotations, MASK, return_attention_logits=True)
    assert_close(decoder.losses, expected, 1e-6)


@pytest.mark.parametrize(
    "attention", ["fixed", "monotonic", "two_sources", "bahdanau_heads", "location_heads"]
)
def test_logits_need_one_score_for_each_place(attention, rng):
    decoder = unbuilt(attention=attention, cell="gru")
    inputs, annotations, _ = random_inputs(rng, decoder)
    symbols = tree.map_structure(lambda x: keras.KerasTensor(x.shape), (inputs, annotations))
    message = "`return_attention_logits` must be False with this attention.*Received: True with"
    for arguments in ((inputs, annotations), symbols):
        with pytest.raises(ValueError, match=message):
            decoder(*arguments, return_attention_logits=True)


# --- Penalties ------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("input_feeding", [False, True])
def test_coverage_loss(masked, input_feeding, rng):
    decoder = AttentiveDecoder(
        GRU(UNITS), CoverageAttention(4, coverage_loss=0.5), input_feeding=input_feeding
    )
    randomize(build(decoder), rng)
    inputs, annotations, states = random_inputs(rng, decoder)
    kept = right_mask([4, 2, 1], TY) if masked else np.ones((B, TY), bool)
    arguments = {"inputs_mask": kept} if masked else {}
    decoder(inputs, annotations, MASK, states, **arguments)
    (loss,) = decoder.losses
    _, weights = decoder(
        inputs, annotations, MASK, states, return_attention_scores=True, **arguments
    )
    assert len(decoder.losses) == 1  # of one call, not of two
    weights, expected = numpy(weights).astype("float64"), 0.0
    for b, i in np.argwhere(kept):
        expected += np.minimum(weights[b, i], weights[b, :i].sum(axis=0)).sum()
    assert_close(loss, 0.5 * expected / kept.sum(), 1e-6)
    assert expected > 0.1


def test_coverage_loss_finds_the_mask_of_its_inputs(rng):
    decoder = AttentiveDecoder(GRU(UNITS), CoverageAttention(4, coverage_loss=1.0))
    embedding = keras.layers.Embedding(9, M, mask_zero=True)
    annotations = array(rng, 2, TX, D)
    decoder(embedding(TARGET), annotations)
    (loss,) = decoder.losses
    _, weights = decoder(embedding(TARGET), annotations, return_attention_scores=True)
    overlap = numpy(coverage_penalty(weights, TARGET != 0))
    assert_close(loss, overlap.sum() / (TARGET != 0).sum(), 1e-6)


def test_no_penalty_without_a_coverage_loss(rng):
    decoder = random_decoder(rng, attention="coverage")
    decoder(*random_inputs(rng, decoder)[:2])
    assert decoder.losses == []


# --- Masks ----------------------------------------------------------------------------------------

PADDED = {
    "gru": {},
    "lstm_on_lstm": dict(cell="lstm_on_lstm"),
    "fixed_narrow": dict(attention="fixed_narrow"),
    "monotonic": dict(attention="monotonic"),
    "input_feeding_location": FORMS["input_feeding_location"],
    "conditional_coverage": FORMS["conditional_coverage"],
}
padded = pytest.mark.parametrize("form", PADDED)


@padded
def test_longer_padding_changes_nothing(form, rng):
    decoder = random_decoder(rng, **PADDED[form])
    inputs, annotations, states = random_inputs(rng, decoder)
    outputs, weights = numpy(
        decoder(inputs, annotations, MASK, states, return_attention_scores=True)
    )
    longer = np.concatenate([annotations, array(rng, B, 2, D)], axis=1)
    mask = right_mask(LENGTHS, TX + 2)
    actual = decoder(inputs, longer, mask, states, return_attention_scores=True)
    assert_close(actual, (outputs, np.pad(weights, ((0, 0), (0, 0), (0, 2)))), 1e-6)


@padded
def test_a_fully_masked_source_gets_no_weight(form, rng):
    decoder = random_decoder(rng, **PADDED[form])
    inputs, annotations, states = random_inputs(rng, decoder)
    annotations[2] = np.nan
    outputs, weights = numpy(
        decoder(inputs, annotations, MASK, states, return_attention_scores=True)
    )
    assert np.isfinite(outputs).all() and not weights[2].any()
    assert (weights[:2].sum(-1) > 1e-3).all()


SOURCE = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
TARGET = np.array([[2, 7, 8], [2, 5, 0]])


def translator(decoder, scores=True):
    """Two rows of ids through embeddings, encoder and decoder; masks travel with the tensors."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    words = keras.layers.Embedding(9, 4, mask_zero=True)(source)
    annotations = BidirectionalEncoder(D // 2)(words)
    if several(decoder):
        annotations = [annotations, BidirectionalEncoder(1)(words)]
    embedded = keras.layers.Embedding(9, M, mask_zero=True)(target)
    outputs = decoder(embedded, annotations, return_attention_scores=scores)
    return keras.Model([source, target], outputs)


@pytest.mark.parametrize("attention", ["bahdanau", "fixed", "location", "two_sources"])
def test_implicit_mask(attention):
    decoder = unbuilt(attention=attention)
    model = translator(decoder)
    outputs, weights = numpy(model([SOURCE, TARGET]))
    sources = 2 if several(decoder) else 1
    assert outputs.shape == (2, 3, R) and weights.shape == (2, 3, 4 * sources)
    kept = np.tile(np.repeat((SOURCE != 0)[:, None], 3, axis=1), sources)
    assert not weights[~kept].any()
    assert_close(weights.sum(-1), np.full((2, 3), sources), 1e-6)
    longer = np.pad(SOURCE, ((0, 0), (0, 3)))
    assert_close(model([longer, TARGET])[0], outputs, 1e-6)


@pytest.mark.parametrize("scores", [False, True])
def test_a_mask_of_the_inputs_reaches_keras_losses(scores):
    outputs = translator(unbuilt(attention="bahdanau"), scores)
    found = outputs.outputs[0]
    assert found._keras_mask is not None
    assert all(getattr(of, "_keras_mask", None) is None for of in outputs.outputs[1:])
    model = keras.Model(outputs.inputs, keras.layers.Dense(5)(found))
    labels = np.array([[4, 1, 2], [3, 1, 0]])
    logits = numpy(model([SOURCE, TARGET])).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_probs, labels[..., None], -1)[TARGET != 0].mean()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert_close(model.evaluate([SOURCE, TARGET], labels, verbose=0), expected, 1e-5)


# --- Training -------------------------------------------------------------------------------------


def test_a_time_series_is_learned(rng):
    # Continuous inputs and outputs: the next value of a wave, from its last one and its past.
    inputs, past = keras.Input((None, 1)), keras.Input((None, 2))
    decoder = AttentiveDecoder(GRU(8), BahdanauAttention(6), DeepOutput(1, "linear"))
    model = keras.Model([inputs, past], decoder(inputs, past))
    model.compile(keras.optimizers.Adam(0.03), "mse")
    start = rng.uniform(0.0, 6.0, size=(32, 1, 1))
    wave = np.sin(start + 0.5 * np.arange(16)[None, :, None]).astype("float32")
    x = [wave[:, 9:15], np.concatenate([wave[:, :9], wave[:, 1:10]], axis=-1)]
    history = model.fit(x, wave[:, 10:], epochs=15, batch_size=32, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]


def trained_once(decoder, rng):
    """Updates the decoder once in a functional model, and returns the data."""
    inputs, annotations = keras.Input((None, M)), keras.Input((None, D))
    mask = keras.Input((None,), dtype="bool")
    model = keras.Model([inputs, annotations, mask], decoder(inputs, annotations, mask))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.optimizer.build(model.trainable_variables)  # or TensorFlow traces the step twice
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
    return x


DROPPING = {
    "gru_reset_before": dict(cell="gru_reset_before"),
    "gru_on_lstm": dict(cell="gru_on_lstm"),
    "residual": dict(cell="residual_on_gru", input_feeding=True),
    "residual_stack": dict(cell="residual_stack_on_lstm"),
    "layer_norm_conditional": dict(
        cell="layer_norm_lstm", context_cell="lstm", query="current", attention="location"
    ),
}
DROPOUT = {"dropout": 0.5, "recurrent_dropout": 0.5}


@pytest.mark.parametrize("form", DROPPING)
def test_dropout_in_the_cells(form, rng):
    decoder = unbuilt(**DROPPING[form], cell_arguments=DROPOUT)
    x = trained_once(decoder, rng)
    # Inference drops nothing: a decoder without dropout and with the same weights agrees.
    plain = build(unbuilt(**DROPPING[form]))
    plain.set_weights(decoder.get_weights())
    assert_close(decoder(*x), plain(*x), 1e-6)
    first, second = numpy(decoder(*x, training=True)), numpy(decoder(*x, training=True))
    assert np.abs(first - numpy(plain(*x))).max() > 1e-4
    assert np.abs(first - second).max() > 1e-4
    assert_close(decoder(*x, training=False), plain(*x), 1e-6)


def innermost(cell):
    """The cells with weights inside stacks and wrappers."""
    return [part for inner in getattr(cell, "cells", []) for part in innermost(inner)] or [cell]


def forget(cell):
    """Gives a cell weights with which its output depends on its input alone."""
    n = cell.units
    for weight in cell.trainable_variables:
        value, name = numpy(weight).copy(), weight.path.split("/")[-1]
        if name == "recurrent_kernel":
            value[:] = 0.0
        if name == "bias":  # of Keras's gates those that keep the old state: z, the first, or f
            row = value[0] if value.ndim == 2 else value
            row[slice(n, 2 * n) if isinstance(cell, LSTM) else slice(n)] = -1e3
        weight.assign(value)


@pytest.mark.parametrize(
    ("cell", "context_cell"),
    [*[(cell, None) for cell in CELLS if cell != "simple"], ("lstm", "layer_norm_lstm")],
)
def test_dropout_masks_hold_for_a_whole_sequence(cell, context_cell, rng):
    # Equal inputs and one fixed context: without a state every step then gives the same output,
    # unless the mask changes between them.
    decoder = random_decoder(
        rng, cell, "fixed", "state", {"dropout": 0.5}, query="current", context_cell=context_cell
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
    # h' = tanh(9 m h): a unit dies at once if it is dropped at all, and lives if it never is.
    cells = [keras.layers.SimpleRNNCell(16, recurrent_dropout=0.5) for _ in range(2)]
    decoder = build(AttentiveDecoder([cells[0], ResidualCell(cells[1])], BahdanauAttention(4)))
    for cell in cells:
        kernel, _, bias = cell.get_weights()
        cell.set_weights([0 * kernel, 9 * np.eye(16), 0 * bias])
    inputs, annotations, states = random_inputs(rng, decoder)
    states = [np.ones_like(state) for state in states]
    outputs = numpy(decoder(inputs, annotations, initial_state=states, training=True))
    lower, upper = outputs > 0.5, outputs > 1.5  # one of both units alive, both alive
    for alive in (lower, upper):
        np.testing.assert_array_equal(alive, np.repeat(alive[:, :1], TY, axis=1))
        assert 0 < alive.sum() < alive.size


def test_dropout_in_the_readout_of_a_single_step(rng):
    readout = keras.Sequential([keras.layers.Dense(40), keras.layers.Dropout(0.5)])
    decoder = build(AttentiveDecoder(keras.layers.GRUCell(4), BahdanauAttention(3), readout))
    inputs, annotations, states = random_inputs(rng, decoder)
    memory = decoder.memory(annotations)
    state = decoder.initial_state(memory, states)
    for training in (False, True):
        output = numpy(decoder.step(inputs[:, 0], state, memory, training=training)[0])
        assert (output == 0).any() == training


# --- As a Keras layer -----------------------------------------------------------------------------

ALL = {
    "simple": dict(cell="simple", readout="state"),
    "orders": dict(query="current", readout_state="previous"),
    "gru_on_layer_norm_lstm": dict(cell="gru_on_layer_norm_lstm"),
    "residual_stack": dict(cell="residual_stack_on_lstm", readout="tanh"),
    "bahdanau_heads": dict(attention="bahdanau_heads_normalized"),
    "monotonic": dict(attention="monotonic"),
    "fixed": dict(attention="fixed_narrow"),
    **FORMS,
}
all_forms = pytest.mark.parametrize("form", ALL)


@pytest.mark.parametrize(
    "form",
    [
        "simple",
        "monotonic",
        "input_feeding_location",
        "conditional_coverage",
        "two_sources",
    ],
)
def test_dynamic_shapes(form, rng):
    decoder = unbuilt(**ALL[form])
    inputs, annotations = keras.Input((None, M)), keras.Input((None, D))
    first = [keras.Input((size,)) for size in decoder.state_sizes]
    sources = [annotations, keras.Input((None, 2))] if several(decoder) else annotations
    outputs, weights = decoder(inputs, sources, initial_state=first, return_attention_scores=True)
    assert tuple(outputs.shape) == (None, None, UNITS if form == "simple" else R)
    assert tuple(weights.shape) == (None, None, None)
    model = keras.Model([inputs, sources, first], [outputs, weights])
    for batch, ty, tx in ((2, 1, 3), (1, 4, 6)):
        annotations, mask = array(rng, batch, tx, D), np.ones((batch, tx), bool)
        if several(decoder):
            annotations = [annotations, array(rng, batch, tx + 1, 2)]
            mask = [mask, np.ones((batch, tx + 1), bool)]
        states = [array(rng, batch, size) for size in decoder.state_sizes]
        x = [array(rng, batch, ty, M), annotations, states]
        expected = reference_decoder(decoder, x[0], annotations, mask, states)
        assert_close(model(x), expected)
    assert_close(model.predict(x, verbose=0), expected)


def test_known_lengths_give_known_shapes():
    decoder = unbuilt(attention="two_sources")
    sources = [keras.Input((5, D)), keras.Input((4, 2))]
    outputs, weights = decoder(keras.Input((3, M)), sources, return_attention_scores=True)
    assert tuple(outputs.shape) == (None, 3, R) and tuple(weights.shape) == (None, 3, 9)


def test_any_layer_may_read_out(rng):
    class Joined(keras.layers.Layer):
        def build(self, state_shape, inputs_shape, context_shape):
            self.offset = self.add_weight(shape=(inputs_shape[-1],), initializer="ones")

        def compute_output_shape(self, state_shape, inputs_shape, context_shape):
            widths = state_shape[-1] + inputs_shape[-1] + context_shape[-1]
            return (*state_shape[:-1], widths)

        def call(self, state, inputs, context):
            return keras.ops.concatenate([state, inputs + self.offset, context], axis=-1)

    decoder = AttentiveDecoder(GRU(UNITS), BahdanauAttention(4), Joined(), input_feeding=True)
    outputs = decoder(keras.Input((None, M)), keras.Input((None, D)))
    assert tuple(outputs.shape) == (None, None, UNITS + M + D)
    inputs, annotations = array(rng, B, TY, M), array(rng, B, TX, D)
    assert_close(decoder(inputs, annotations)[..., UNITS : UNITS + M], inputs + 1.0)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_a_layer_of_one_input_reads_out_the_state(input_feeding, rng):
    dense = keras.layers.Dense(R)
    decoder = AttentiveDecoder(GRU(UNITS), BahdanauAttention(4), dense, input_feeding=input_feeding)
    decoder.build((B, TY, M), (B, TX, D))
    inputs, annotations = array(rng, B, TY, M), array(rng, B, TX, D)
    # A DeepOutput with the Dense's kernel for the state, and zeros for all else, is the same layer.
    deep = AttentiveDecoder(
        GRU(UNITS), BahdanauAttention(4), DeepOutput(R, "linear"), input_feeding=input_feeding
    )
    deep.build((B, TY, M), (B, TX, D))
    deep.readout.kernel.assign(np.pad(dense.get_weights()[0], ((0, M + D), (0, 0))))
    deep.cell.set_weights(decoder.cell.get_weights())
    deep.attention.set_weights(decoder.attention.get_weights())
    assert_close(decoder(inputs, annotations), deep(inputs, annotations))
    again = AttentiveDecoder.from_config(decoder.get_config())
    assert again.compute_output_shape((B, TY, M), (B, TX, D)) == (B, TY, R)


class TwoInputs(keras.layers.Layer):
    def call(self, state, context):
        return state + context


@pytest.mark.parametrize("readout", [len, "linear", TwoInputs(), keras.layers.GRU(3)], ids=str)
def test_a_readout_must_take_the_state_or_all_three(readout):
    message = r'`readout` must be a layer .* write DeepOutput\(n, "linear"\) .* Received: '
    with pytest.raises(ValueError, match=message):
        AttentiveDecoder(GRU(3), BahdanauAttention(4), readout)


class FromOnes(keras.layers.Layer):
    """A cell that keeps its state, and begins with ones."""

    state_size = output_size = 3

    def build(self, inputs_shape):
        pass

    def call(self, inputs, states, training=False):
        return states[0], [states[0]]

    def get_initial_state(self, batch_size=None):
        return [ops.ones((batch_size, 3))]


@pytest.mark.parametrize("cells", [FromOnes, lambda: [FromOnes(), FromOnes()]])
def test_a_cell_begins_with_its_own_state(cells, rng):
    decoder = AttentiveDecoder(cells(), BahdanauAttention(4))
    assert_close(decoder(array(rng, B, TY, M), array(rng, B, TX, D)), np.ones((B, TY, 3)))


@pytest.mark.parametrize(
    "readout",
    [
        keras.layers.Attention(),
        keras.layers.Concatenate(),
        keras.layers.Conv1D(3, 1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_readout_that_does_not_take_rows_is_named(readout, rng):
    decoder = AttentiveDecoder(GRU(3), BahdanauAttention(4), readout)
    with pytest.raises(ValueError, match=r"`readout` must be a layer .* Received: <\w+ .*: "):
        decoder(array(rng, B, TY, M), array(rng, B, TX, D))


def test_a_readout_of_three_named_inputs_is_told_so():
    given = [keras.Input((3,)) for _ in range(3)]
    model = keras.Model(given, keras.layers.Dense(2)(keras.layers.Concatenate()(given)))
    with pytest.raises(ValueError, match="`readout` must be a layer of one input"):
        AttentiveDecoder(GRU(3), BahdanauAttention(4), model)


@all_forms
def test_config_round_trip(form):
    assert_config_round_trip(unbuilt(**ALL[form]))


@pytest.mark.parametrize(
    "form",
    ALL,
)
def test_saving(form, tmp_path):
    model = translator(unbuilt(**ALL[form]))
    assert_survives_saving(model, [SOURCE, TARGET], tmp_path)


@pytest.mark.parametrize(
    "form",
    [
        "orders",
        "gru_on_layer_norm_lstm",
        "residual_input_feeding",
        "monotonic",
        "input_feeding_location",
        "conditional_coverage",
        "two_sources",
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(form, policy, rng):
    with dtype_policy(policy):
        decoder = unbuilt(**ALL[form])
        inputs, annotations, states = random_inputs(rng, decoder)
        mask = masks(decoder)
        outputs, weights = decoder(inputs, annotations, mask, states, return_attention_scores=True)
        stepped = step_by_step(decoder, inputs, decoder.memory(annotations, mask), states)
    assert keras.backend.standardize_dtype(outputs.dtype) == decoder.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert all(v.dtype == "float32" for v in decoder.trainable_variables)
    if "monotonic" not in form:
        sources = 2 if several(decoder) else 1
        assert_close(numpy(weights)[:2].sum(-1), np.full((2, TY), sources), 1e-6)
    expected = reference_decoder(decoder, inputs, annotations, mask, states)
    assert_close((keras.ops.cast(outputs, "float32"), weights), expected, 0.05)
    assert_close(tuple(np.asarray(part, "float32") for part in stepped), expected, 0.05)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["query", "readout_state"])
def test_orders_must_be_known(name):
    with pytest.raises(ValueError, match=f'`{name}` must be "previous" or "current".*: \'next\''):
        unbuilt(**{name: "next"})


class Odd:
    """A cell with an output of its own width, or states that are not of its `state_size`."""

    def __init__(self, size=UNITS, output_size=UNITS, returned=UNITS):
        self.state_size, self.output_size, self.returned = size, output_size, returned
        self.built = True

    def __call__(self, inputs, states, training=None):
        state = ops.zeros((ops.shape(inputs)[0], self.returned))
        return state, [state]


@pytest.mark.parametrize(
    "cell", [keras.layers.Dense(3), None, "gru", [], [GRU(3), keras.layers.Dense(3)]], ids=str
)
@pytest.mark.parametrize("name", ["cell", "context_cell"])
def test_cell_must_be_a_cell(name, cell):
    if cell is None and name == "context_cell":
        pytest.skip("None is no context cell.")
    cells = {"cell": GRU(3), name: cell}
    with pytest.raises(ValueError, match=rf"`{name}` must be a Keras RNN cell .* Received: "):
        AttentiveDecoder(attention=BahdanauAttention(4), query="current", **cells)


@pytest.mark.parametrize("cell", [keras.layers.GRU(3), [GRU(3), keras.layers.GRU(3)]], ids=str)
def test_a_layer_is_no_cell(cell):
    message = "`cell` must be a cell, not a layer .* write GRUCell in the place of GRU. Received: "
    with pytest.raises(ValueError, match=message):
        AttentiveDecoder(cell, BahdanauAttention(4))


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
    message = r"`feedback` .* return \(batch, 7\).* keras.layers.Dense\(7\) first. Received: sh"
    with pytest.raises(ValueError, match=message):
        decoder(inputs, annotations, feedback=lambda t, x, o: o if width else ops.ones((B, 1, M)))


def test_output_must_be_as_wide_as_the_state():
    message = "`cell` must have an output as wide as its first state, 3. Received: .* width 5"
    with pytest.raises(ValueError, match=message):
        AttentiveDecoder(Odd(output_size=5), BahdanauAttention(4))


def test_states_must_be_of_the_state_size(rng):
    decoder = build(AttentiveDecoder(Odd(returned=4), BahdanauAttention(4)))
    message = r"`cell` must return states of its `state_size`, 3.\s+Received: .* \[\(3, 4\)\]"
    with pytest.raises(ValueError, match=message):
        decoder(*random_inputs(rng, decoder)[:2])


@pytest.mark.parametrize("attention", [None, keras.layers.Attention(), "bahdanau"], ids=str)
def test_attention_must_be_one(attention):
    with pytest.raises(
        ValueError, match=r"`attention` must be an Attention, such as .* Received: "
    ):
        AttentiveDecoder(GRU(3), attention)


@pytest.mark.parametrize(
    ("cell", "context_cell", "query"),
    [
        ("gru", "gru", "previous"),
        ("gru", "lstm", "current"),
        ("gru_on_lstm", "gru", "current"),
        ("lstm", "gru_on_lstm", "current"),
    ],
)
def test_context_cell_must_fit(cell, context_cell, query):
    message = '`context_cell` must come with query="current" .* sizes of `cell`, .*. Received: '
    with pytest.raises(ValueError, match=message + f"query='{query}' and state sizes"):
        unbuilt(cell, context_cell=context_cell, query=query)


@pytest.mark.parametrize("cell", ["gru", "lstm", "gru_on_lstm"])
def test_first_state_must_have_every_tensor(cell, rng):
    decoder = random_decoder(rng, cell)
    inputs, annotations, states = random_inputs(rng, decoder)
    narrow = [states[0][:, :1], *states[1:]]
    flat = [*states[:-1], states[-1][0]]
    for wrong in (states[:-1], [*states, states[0]], narrow, flat, states[0]):
        message = "`initial_state` must hold a tensor for each state of the cell, .* Received: "
        with pytest.raises(ValueError, match=message):
            decoder(inputs, annotations, initial_state=wrong)
        with pytest.raises(ValueError, match=message):
            decoder.initial_state(decoder.memory(annotations), wrong)
        symbols = tree.map_structure(lambda x: keras.KerasTensor(x.shape), wrong)
        with pytest.raises(ValueError, match=message):
            decoder(
                keras.KerasTensor(inputs.shape),
                keras.KerasTensor(annotations.shape),
                initial_state=symbols,
            )


@orders
def test_initial_state_must_have_a_row_for_each_source(query, readout_state, rng):
    decoder = random_decoder(rng, query=query, readout_state=readout_state)
    inputs, annotations, (state,) = random_inputs(rng, decoder)
    message = "`initial_state` must have as many rows as the annotations, 3. Received: shapes"
    with pytest.raises(ValueError, match=message):
        decoder(inputs, annotations, initial_state=[state[:1]])
    symbols = [keras.KerasTensor(of) for of in (inputs.shape, annotations.shape, (B + 1, UNITS))]
    with pytest.raises(ValueError, match=message):
        decoder(*symbols[:2], initial_state=symbols[2:])


def test_a_step_needs_a_built_decoder():
    with pytest.raises(ValueError, match="AttentiveDecoder is not built: call the layer once"):
        unbuilt().step(np.ones((1, M)), None, None)


WRONG_SHAPES = {
    "inputs of rank 2": ((B, M), (B, TX, D), "inputs", "(batch, time, "),
    "no step": ((B, 0, M), (B, TX, D), "inputs", "a step at least"),
    "annotations of rank 2": ((B, TY, M), (B, D), "annotations", "return_sequences=True"),
    "annotations of rank 4": ((B, TY, M), (B, TX, D, 1), "annotations", "(batch, time, "),
    "two annotations": ((B, TY, M), [(B, TX, D)] * 2, "annotations", "one tensor; of an encoder"),
    "other rows": ((B, TY, M), (B + 1, TX, D), "annotations", f"as many rows as `inputs`, {B}"),
}
WRONG_WIDTHS = {
    "inputs too wide": ((B, TY, M + 1), (B, TX, D), "inputs", f"(batch, time, {M})"),
    "annotations too narrow": ((B, TY, M), (B, TX, 1), "annotations", f"(batch, time, {D})"),
}


def each(make, shape):
    """What is made of a shape, or of each shape in a list."""
    return [make(of) for of in shape] if isinstance(shape, list) else make(shape)


@pytest.mark.parametrize("ready", [False, True], ids=["unbuilt", "built"])
@pytest.mark.parametrize("wrong", WRONG_SHAPES | WRONG_WIDTHS)
def test_sequences_must_fit(wrong, ready):
    if wrong in WRONG_WIDTHS and not ready:
        pytest.skip("Before it is built any width will do.")
    *shapes, name, expected = (WRONG_SHAPES | WRONG_WIDTHS)[wrong]
    decoder = build(unbuilt()) if ready else unbuilt()
    message = rf"`{name}` of AttentiveDecoder must .*{re.escape(expected)}.* Received: sh"

    arrays = [each(lambda of: np.zeros(of, "float32"), shape) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        decoder(*arrays)
    symbols = [each(lambda of: keras.KerasTensor((None, *of[1:])), shape) for shape in shapes]
    if wrong != "other rows":  # of symbols they are not known
        with pytest.raises(ValueError, match=message):
            decoder(*symbols)


def test_widths_must_be_known():
    with pytest.raises(ValueError, match=r"`inputs` must have a known width.* Received: shape"):
        unbuilt()(keras.Input((None, None)), keras.Input((None, D)))


@pytest.mark.parametrize("shape", [(B, TX, D), [(B, TX, D)], [(B, TX, D)] * 3])
def test_every_source_must_come(shape):
    decoder = unbuilt(attention="two_sources")
    message = "`annotations` of AttentiveDecoder must be a list of 2 tensors. Received: "
    with pytest.raises(ValueError, match=message):
        decoder.build((B, TY, M), shape)


def test_a_step_reads_one_row_of_the_right_width(rng):
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
def test_masks_must_fit(name, rng):
    decoder = random_decoder(rng)
    inputs, annotations, _ = random_inputs(rng, decoder)
    expected = (B, TX) if name == "annotations_mask" else (B, TY)
    for mask in WRONG_MASKS[name]:
        message = rf"`{name}` must be bool of shape {re.escape(str(expected))}, .* Rec"
        with pytest.raises(ValueError, match=message):
            decoder(inputs, annotations, **{name: mask})


def test_masks_of_every_source_must_fit(rng):
    decoder = random_decoder(rng, attention="two_sources")
    inputs, annotations, _ = random_inputs(rng, decoder)
    with pytest.raises(ValueError, match=r"`annotations_mask` must be .* shape \(3, 3\)"):
        decoder(inputs, annotations, [None, MASK])
    with pytest.raises(ValueError, match=r"`mask` of MultiSourceAttention .* each of 2 sources"):
        decoder(inputs, annotations, [MASK])
