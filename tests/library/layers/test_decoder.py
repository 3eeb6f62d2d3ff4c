import re
from functools import partial

import keras
import numpy as np
import pytest
from decoders import (
    CELLS,
    FORMS,
    GRU,
    INPUTS_MASK,
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
    reference_of_kept_steps,
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

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, BidirectionalEncoder, DeepOutput
from keras_bahdanau.layers import CoverageAttention, DecoderState, ResidualCell
from keras_bahdanau.losses import coverage_loss

# --- Numbers --------------------------------------------------------------------------------------


def check_numbers(decoder, rng):
    """Check that a call equals the reference, and that single steps equal the call."""
    inputs, annotations, states = random_inputs(rng, decoder)
    mask = masks(decoder)
    actual = decoder(inputs, annotations, mask, states, return_attention_scores=True)
    assert_close(actual, reference_decoder(decoder, inputs, annotations, mask, states))
    memory = decoder.memory(annotations, mask)
    assert_close(actual, step_by_step(decoder, inputs, memory, states), 1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("query", ["previous", "current"])
def test_every_cell_gives_the_references_numbers(cell, query, rng):
    check_numbers(random_decoder(rng, cell, query=query), rng)


@pytest.mark.parametrize(("query", "readout_state"), ORDERS)
@pytest.mark.parametrize("readout", READOUTS)
def test_every_order_and_readout_gives_the_references_numbers(query, readout_state, readout, rng):
    decoder = random_decoder(rng, readout=readout, query=query, readout_state=readout_state)
    check_numbers(decoder, rng)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_every_attention_gives_the_references_numbers(attention, rng):
    check_numbers(random_decoder(rng, attention=attention), rng)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_references_numbers(form, rng):
    check_numbers(random_decoder(rng, **FORMS[form]), rng)


def test_a_residual_cell_without_a_stack_gives_the_references_numbers(rng):
    decoder = AttentiveDecoder(
        ResidualCell(LSTM(M)), with_equations("location"), query="current", readout_state="previous"
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
def test_a_closed_loop_gives_the_references_numbers(form, rng):
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
    # The target is the position of the largest value. With scores 40 nats apart, the softmax alone
    # would have no gradient.
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


def test_the_coverage_loss_is_the_same_with_logits_returned(rng):
    decoder = AttentiveDecoder(GRU(UNITS), CoverageAttention(4, coverage_loss_weight=0.5))
    randomize(build(decoder), rng)
    inputs, annotations, _ = random_inputs(rng, decoder)
    decoder(inputs, annotations, MASK)
    expected = numpy(decoder.losses)
    decoder(inputs, annotations, MASK, return_attention_logits=True)
    assert_close(decoder.losses, expected, 1e-6)


def symbolic(arrays):
    """Symbolic tensors with the shapes of a nested structure of arrays."""
    return tree.map_structure(lambda part: keras.KerasTensor(part.shape), arrays)


@pytest.mark.parametrize(
    "attention", ["fixed", "monotonic", "two_sources", "bahdanau_heads", "location_heads"]
)
def test_logits_need_one_score_for_each_position(attention, rng):
    decoder = unbuilt(attention=attention)
    inputs, annotations, _ = random_inputs(rng, decoder)
    message = "`return_attention_logits` must be False with this attention.*Received: True with"
    for arguments in ((inputs, annotations), symbolic((inputs, annotations))):
        with pytest.raises(ValueError, match=message):
            decoder(*arguments, return_attention_logits=True)


# --- Penalties ------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("input_feeding", [False, True])
def test_coverage_loss_is_the_mean_overlap_per_real_input(masked, input_feeding, rng):
    decoder = AttentiveDecoder(
        GRU(UNITS), CoverageAttention(4, coverage_loss_weight=0.5), input_feeding=input_feeding
    )
    randomize(build(decoder), rng)
    inputs, annotations, states = random_inputs(rng, decoder)
    inputs_mask = right_mask([4, 2, 1], TY) if masked else np.ones((B, TY), bool)
    arguments = {"inputs_mask": inputs_mask} if masked else {}
    decoder(inputs, annotations, MASK, states, **arguments)
    (loss,) = decoder.losses
    _, weights = decoder(
        inputs, annotations, MASK, states, return_attention_scores=True, **arguments
    )
    assert len(decoder.losses) == 1  # the second call replaces the first call's loss
    weights, expected = numpy(weights).astype("float64"), 0.0
    for b, i in np.argwhere(inputs_mask):
        expected += np.minimum(weights[b, i], weights[b, :i].sum(axis=0)).sum()
    assert_close(loss, 0.5 * expected / inputs_mask.sum(), 1e-6)
    assert expected > 0.1


def test_coverage_loss_reads_the_implicit_mask_of_the_inputs(rng):
    decoder = AttentiveDecoder(GRU(UNITS), CoverageAttention(4, coverage_loss_weight=1.0))
    embedding = keras.layers.Embedding(9, M, mask_zero=True)
    annotations = array(rng, 2, TX, D)
    decoder(embedding(TARGET), annotations)
    (loss,) = decoder.losses
    _, weights = decoder(embedding(TARGET), annotations, return_attention_scores=True)
    overlap = numpy(coverage_loss(weights, TARGET != 0))
    assert_close(loss, overlap.sum() / (TARGET != 0).sum(), 1e-6)


def test_no_penalty_without_a_coverage_loss(rng):
    decoder = random_decoder(rng, attention="coverage")
    decoder(*random_inputs(rng, decoder)[:2])
    assert decoder.losses == []


# --- Masks ----------------------------------------------------------------------------------------

SOURCE = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
TARGET = np.array([[2, 7, 8], [2, 5, 0]])


def translator(decoder, scores=True):
    """A model of source and target ids, whose embeddings pass implicit masks on."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    words = keras.layers.Embedding(9, 4, mask_zero=True)(source)
    annotations = BidirectionalEncoder(D // 2)(words)
    if several(decoder):
        annotations = [annotations, BidirectionalEncoder(1)(words)]
    embedded = keras.layers.Embedding(9, M, mask_zero=True)(target)
    outputs = decoder(embedded, annotations, return_attention_scores=scores)
    return keras.Model([source, target], outputs)


@pytest.mark.parametrize("attention", ["bahdanau", "fixed", "location", "two_sources"])
def test_implicit_masks_of_the_sources_are_applied(attention):
    decoder = unbuilt(attention=attention)
    model = translator(decoder)
    outputs, weights = numpy(model([SOURCE, TARGET]))
    sources = 2 if several(decoder) else 1
    assert outputs.shape == (2, 3, R) and weights.shape == (2, 3, 4 * sources)
    mask = np.tile(np.repeat((SOURCE != 0)[:, None], 3, axis=1), sources)
    assert not weights[~mask].any()
    assert_close(weights.sum(-1), sources * (TARGET != 0), 1e-6)
    longer = np.pad(SOURCE, ((0, 0), (0, 3)))
    assert_close(model([longer, TARGET])[0], outputs, 1e-6)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("cell", ["gru", "lstm_on_lstm"])
def test_masked_steps_leave_the_state_as_keras_layers_leave_it(cell, explicit, rng):
    # The cell reads the inputs alone, and without a readout its state is the output.
    decoder = random_decoder(rng, cell, readout="state", query="current")
    inputs, annotations, _ = random_inputs(rng, decoder)
    layer = keras.layers.RNN(decoder.cell, return_sequences=True)
    expected = numpy(layer(inputs, mask=INPUTS_MASK))
    call = partial(decoder, annotations=annotations, return_attention_scores=True)
    if explicit:
        outputs, weights = call(inputs, inputs_mask=INPUTS_MASK)
    else:
        inputs[~INPUTS_MASK] = 0.0
        outputs, weights = call(keras.layers.Masking()(inputs))
    assert_close(outputs, expected)
    assert_close(numpy(weights).sum(axis=-1), INPUTS_MASK, 1e-6)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_logits_of_masked_steps_are_those_of_masked_positions(input_feeding, rng):
    decoder = random_decoder(rng, attention="coverage", input_feeding=input_feeding)
    inputs, annotations, _ = random_inputs(rng, decoder)
    both = dict(return_attention_scores=True, return_attention_logits=True)
    outputs, weights, logits = numpy(decoder(inputs, annotations, inputs_mask=INPUTS_MASK, **both))
    assert (logits[~INPUTS_MASK] == -1e30).all() and not weights[~INPUTS_MASK].any()
    states = [np.zeros((B, UNITS))]
    expected = reference_of_kept_steps(
        decoder, inputs, INPUTS_MASK, annotations, np.ones_like(MASK), states
    )
    assert_close((outputs, weights), expected)


def test_feedback_reads_the_output_of_the_last_kept_step(rng):
    decoder = random_decoder(rng, readout="state")
    inputs, annotations, _ = random_inputs(rng, decoder)
    mixing = array(rng, UNITS, M)

    def feedback(t, x, output):
        return x + ops.matmul(output, mixing)

    actual = decoder(inputs, annotations, inputs_mask=INPUTS_MASK, feedback=feedback)
    for row, kept in enumerate(INPUTS_MASK):
        one = slice(row, row + 1)
        alone = decoder(inputs[one][:, kept], annotations[one], feedback=feedback)
        assert_close(numpy(actual)[one][:, kept], alone, 1e-6)


@pytest.mark.parametrize("scores", [False, True])
def test_a_mask_of_the_inputs_reaches_keras_losses(scores):
    features = translator(unbuilt(attention="bahdanau"), scores)
    decoded, *weights = features.outputs
    assert decoded._keras_mask is not None
    assert all(getattr(part, "_keras_mask", None) is None for part in weights)
    model = keras.Model(features.inputs, keras.layers.Dense(5)(decoded))
    labels = np.array([[4, 1, 2], [3, 1, 0]])
    logits = numpy(model([SOURCE, TARGET])).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_probs, labels[..., None], -1)[TARGET != 0].mean()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert_close(model.evaluate([SOURCE, TARGET], labels, verbose=0), expected, 1e-5)


# --- Training -------------------------------------------------------------------------------------


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
        cell="layer_norm_lstm", context_cell="lstm", query="current", attention="location"
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


@pytest.mark.parametrize(
    "form", ["simple", "monotonic", "input_feeding_location", "conditional_coverage", "two_sources"]
)
def test_a_model_of_unknown_batch_and_lengths_gives_the_references_numbers(form, rng):
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


def test_the_readout_may_be_a_custom_layer_of_three_inputs(rng):
    class Concatenated(keras.layers.Layer):
        def build(self, state_shape, inputs_shape, context_shape):
            self.offset = self.add_weight(shape=(inputs_shape[-1],), initializer="ones")

        def compute_output_shape(self, state_shape, inputs_shape, context_shape):
            widths = state_shape[-1] + inputs_shape[-1] + context_shape[-1]
            return (*state_shape[:-1], widths)

        def call(self, state, inputs, context):
            return keras.ops.concatenate([state, inputs + self.offset, context], axis=-1)

    decoder = AttentiveDecoder(GRU(UNITS), BahdanauAttention(4), Concatenated(), input_feeding=True)
    outputs = decoder(keras.Input((None, M)), keras.Input((None, D)))
    assert tuple(outputs.shape) == (None, None, UNITS + M + D)
    inputs, annotations = array(rng, B, TY, M), array(rng, B, TX, D)
    assert_close(decoder(inputs, annotations)[..., UNITS : UNITS + M], inputs + 1.0)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_a_readout_of_one_input_takes_the_state(input_feeding, rng):
    dense = keras.layers.Dense(R)
    decoder = AttentiveDecoder(GRU(UNITS), BahdanauAttention(4), dense, input_feeding=input_feeding)
    decoder.build((B, TY, M), (B, TX, D))
    inputs, annotations = array(rng, B, TY, M), array(rng, B, TX, D)
    # A DeepOutput with the Dense's kernel for the state and zeros elsewhere is the same layer.
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


class FromOnes(keras.layers.Layer):
    """A cell whose state is always its initial state, ones."""

    state_size = output_size = 3

    def build(self, inputs_shape):
        pass

    def call(self, inputs, states, training=False):
        return states[0], [states[0]]

    def get_initial_state(self, batch_size=None):
        return [ops.ones((batch_size, 3))]


@pytest.mark.parametrize("cells", [FromOnes, lambda: [FromOnes(), FromOnes()]])
def test_a_cell_starts_with_its_own_initial_state(cells, rng):
    decoder = AttentiveDecoder(cells(), BahdanauAttention(4))
    assert_close(decoder(array(rng, B, TY, M), array(rng, B, TX, D)), np.ones((B, TY, 3)))


@pytest.mark.parametrize(
    "readout",
    [keras.layers.Attention(), keras.layers.Concatenate(), keras.layers.Conv1D(3, 1)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_readout_that_does_not_accept_rows_is_refused(readout, rng):
    decoder = AttentiveDecoder(GRU(3), BahdanauAttention(4), readout)
    with pytest.raises(ValueError, match=r"`readout` must be a layer .* Received: <\w+ .*: "):
        decoder(array(rng, B, TY, M), array(rng, B, TX, D))


@pytest.mark.parametrize("form", ALL)
def test_config_round_trip_and_saving(form, tmp_path):
    decoder = unbuilt(**ALL[form])
    assert_config_round_trip(decoder)
    assert_survives_saving(translator(decoder), [SOURCE, TARGET], tmp_path)


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
IS_A_LAYER = "`cell` must be a cell, not a layer .* write GRUCell in the place of GRU. Received: "
NOT_ATTENTION = r"`attention` must be an Attention, such as .* Received: "
NOT_A_READOUT = r'`readout` must be a layer of one input, .* write DeepOutput\(n, "linear"\) .* Rec'
WRONG_PARTS = [
    ({"query": "next"}, '`query` must be "previous" or "current".*: \'next\''),
    ({"readout_state": "next"}, '`readout_state` must be "previous" or "current".*: \'next\''),
    *[({"cell": cell}, "`cell` must be a Keras RNN cell .* Rec") for cell in [None, *NOT_CELLS]],
    *[
        ({"context_cell": cell, "query": "current"}, "`context_cell` must be a Keras RNN cell .* R")
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
def test_parts_and_orders_are_checked(options, message):
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
    message = r"`feedback` .* return \(batch, 7\).* keras.layers.Dense\(7\) first. Received: sh"
    with pytest.raises(ValueError, match=message):
        decoder(inputs, annotations, feedback=lambda t, x, o: o if width else ops.ones((B, 1, M)))


def test_a_cell_must_return_states_of_its_state_size(rng):
    decoder = build(AttentiveDecoder(MisfitCell(returned=4), BahdanauAttention(4)))
    message = r"`cell` must return states of its `state_size`, 3.\s+Received: .* \[\(3, 4\)\]"
    with pytest.raises(ValueError, match=message):
        decoder(*random_inputs(rng, decoder)[:2])


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
    message = "`initial_state` must hold a tensor for each state of the cell, .* Received: "
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
    for given in (states, tuple(states), *(states if cell == "gru" else [])):
        assert_close(decoder(inputs, annotations, initial_state=given), expected, 1e-6)
        assert_close(decoder.initial_state(memory, given).cell, tuple(flat), 1e-6)
        again = decoder.unroll(inputs[:, 0], annotations, 2, dense, initial_state=given)
        assert_close(again, loop, 1e-6)
        _, *symbols = encoder(values)
        symbols = tree.pack_sequence_as(given, tree.flatten(symbols))
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
def test_sequences_must_fit(case, is_built):
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
