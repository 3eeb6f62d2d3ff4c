import itertools

import keras
import numpy as np
import pytest
from encoders import (
    ANY_MASK,
    FORMS,
    LENGTHS,
    MASK,
    TX,
    UNITS,
    B,
    M,
    random_encoder,
    reference_encoder,
    reference_of_kept,
)
from keras import ops
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

from keras_bahdanau import BahdanauAttention, BidirectionalEncoder

# --- Numbers and masks ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("masked", [True, False])
def test_annotations_equal_the_reference(form, masked, rng):
    encoder, inputs = random_encoder(form, rng), array(rng, B, TX, M)
    lengths = LENGTHS if masked else [TX] * B
    actual = encoder(inputs, mask=MASK if masked else None)
    assert_close(actual, reference_encoder(encoder, inputs, lengths))


@pytest.mark.parametrize("form", FORMS)
def test_annotations_of_any_mask_are_those_of_the_kept_steps_alone(form, rng):
    encoder, inputs = random_encoder(form, rng), array(rng, B, TX, M)
    expected = reference_of_kept(encoder, inputs, ANY_MASK)
    assert_close(encoder(inputs, mask=ANY_MASK), expected)


def test_annotations_known_to_be_padded_at_the_right_are_the_same(rng):
    encoder, inputs = random_encoder("residual_lstm", rng), array(rng, B, TX, M)
    expected = numpy(encoder(inputs, mask=MASK))
    assert_close(encoder(inputs, mask=MASK, right_padded=True), expected, 1e-6)


@pytest.mark.parametrize("mask", [right_mask([5, 3, 1, 2], TX), ANY_MASK], ids=["right", "any"])
@pytest.mark.parametrize("form", ["gru", "residual_lstm"])
def test_annotations_equal_those_of_keras_layers_with_a_mask(form, mask, rng):
    # The slow equivalent: layers in both directions that get the mask.
    encoder, inputs = random_encoder(form, rng), array(rng, B, TX, M)
    outputs = ops.convert_to_tensor(inputs)
    for i, (ahead, back) in enumerate(
        zip(encoder.forward_layers, encoder.backward_layers, strict=True)
    ):
        backward = type(back)(UNITS, return_sequences=True, go_backwards=True)
        backward.build(outputs.shape)
        backward.set_weights(back.get_weights())
        reversed_outputs = ops.flip(backward(outputs, mask=mask), axis=1)
        layer = ops.concatenate([ahead(outputs, mask=mask), reversed_outputs], axis=-1)
        outputs = outputs + layer if encoder.residual and i else layer
    assert_close(encoder(inputs, mask=mask), np.where(mask[..., None], numpy(outputs), 0.0))


def masked_model(encoder):
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, encoder(keras.layers.Embedding(9, M, mask_zero=True)(ids)))


IDS = np.array([[3, 4, 5, 6], [7, 8, 0, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize("form", ["gru", "residual_lstm"])
def test_an_implicit_mask_is_applied_and_passed_on(form, rng):
    encoder = BidirectionalEncoder(UNITS, **FORMS[form])
    model = masked_model(encoder)
    embedding = model.layers[1]
    expected = reference_encoder(encoder, numpy(embedding(IDS)), [4, 2, 1])
    assert_close(model(IDS), expected)
    annotations = encoder(embedding(IDS))
    assert_close(annotations._keras_mask, IDS != 0, 0)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_final_states_are_those_of_each_sequence_alone(cell, rng):
    encoder = BidirectionalEncoder(UNITS, cell, num_layers=2, return_state=True)
    encoder.build((B, TX, M))
    randomize(encoder, rng)
    inputs = array(rng, B, TX, M)
    annotations, *states = encoder(inputs, mask=ANY_MASK)
    assert len(states) == (4 if cell == "lstm" else 2)
    for row, keep in enumerate(ANY_MASK[:3]):
        alone, *states_alone = encoder(inputs[row, keep][None])
        assert_close(numpy(annotations)[row, keep], numpy(alone)[0])
        for state, expected in zip(states, states_alone, strict=True):
            assert_close(numpy(state)[row], numpy(expected)[0])
        # The last h is in the annotations: forward at the last step, backward at the first.
        top = states[-2] if cell == "lstm" else states[-1]
        ends = [numpy(alone)[0, -1, :UNITS], numpy(alone)[0, 0, UNITS:]]
        assert_close(numpy(top)[row], np.concatenate(ends))
    shapes = encoder.compute_output_shape(inputs.shape)
    assert [tuple(part.shape) for part in (annotations, *states)] == list(shapes)


# --- Dropout --------------------------------------------------------------------------------------


def test_dropout_acts_between_layers_in_training_only(rng):
    inputs = array(rng, B, TX, M)
    encoder = random_encoder("stacked", rng, dropout=0.5)
    inference = numpy(encoder(inputs, mask=MASK))
    assert_close(inference, reference_encoder(encoder, inputs, LENGTHS))
    assert np.abs(numpy(encoder(inputs, mask=MASK, training=True)) - inference).max() > 1e-3
    single = random_encoder("gru", rng, dropout=0.5)
    assert_close(single(inputs, training=True), single(inputs), 1e-6)


def test_dropout_spares_the_residual_connections(rng):
    # A second layer with zero weights has zero outputs, so only its residual connection remains.
    encoder, inputs = random_encoder("residual_lstm", rng, dropout=0.5), array(rng, B, TX, M)
    for layer in (encoder.forward_layers[1], encoder.backward_layers[1]):
        layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])
    actual = encoder(inputs, mask=MASK, training=True)
    assert_close(actual, reference_encoder(encoder, inputs, LENGTHS))


# --- As a Keras layer -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gru", "residual_lstm"])
def test_a_model_of_unknown_batch_and_length_equals_the_reference(form, rng):
    encoder = BidirectionalEncoder(UNITS, **FORMS[form])
    inputs, mask = keras.Input((None, M)), keras.Input((None,), dtype="bool")
    outputs = encoder(inputs, mask=mask)
    assert tuple(outputs.shape) == (None, None, 2 * UNITS)
    assert tuple(encoder.compute_output_shape((None, None, M))) == (None, None, 2 * UNITS)
    model = keras.Model([inputs, mask], outputs)
    for lengths in ([4, 2], [6]):
        x = [array(rng, len(lengths), lengths[0], M), right_mask(lengths, lengths[0])]
        expected = reference_encoder(encoder, x[0], lengths)
        assert_close(model(x), expected)
    assert_close(model.predict(x, verbose=0), expected)


@pytest.mark.parametrize("form", FORMS)
def test_config_round_trip_and_saving(form, tmp_path):
    encoder = BidirectionalEncoder(UNITS, dropout=0.1, **FORMS[form])
    assert_config_round_trip(encoder)
    assert_survives_saving(masked_model(encoder), IDS, tmp_path)


def test_config_keeps_initializers():
    encoder = BidirectionalEncoder(
        UNITS, kernel_initializer=keras.initializers.RandomNormal(stddev=0.01)
    )
    assert_config_round_trip(encoder)
    encoder.build((None, None, M))
    ahead, back = (
        layers[0].get_weights()[0] for layers in (encoder.forward_layers, encoder.backward_layers)
    )
    assert 0 < ahead.std() < 0.05 and not np.allclose(ahead, back)


@pytest.mark.parametrize("form", ["gru", "lstm"])
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision_stays_close_to_the_reference(form, policy, rng):
    inputs = array(rng, B, TX, M)
    with dtype_policy(policy):
        encoder = BidirectionalEncoder(UNITS, **FORMS[form])
        annotations = encoder(inputs, mask=MASK)
    assert keras.backend.standardize_dtype(annotations.dtype) == encoder.compute_dtype
    assert {w.dtype for w in encoder.weights} == {"float32"}
    annotations = ops.cast(annotations, "float32")
    assert_close(annotations, reference_encoder(encoder, inputs, LENGTHS), 0.03)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[
            ({name: value}, f"`{name}` must be a positive integer. Received: {value!r}")
            for name in ("units", "num_layers")
            for value in (0, -2, 1.5, "2")
        ],
        ({"dropout": 1.0}, r"`dropout` must be .* of at least 0 and below 1"),
        ({"cell": "rnn"}, r"`cell` must be one of \['gru', 'lstm'\].* Received: 'rnn'"),
        ({"cell": ["gru"]}, r"`cell` must be one of \['gru', 'lstm'\].* Received: \['gru'\]"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BidirectionalEncoder(**{"units": UNITS, **options})


def test_a_dropout_without_effect_is_logged(caplog):
    BidirectionalEncoder(UNITS, dropout=0.5, num_layers=2)
    assert not caplog.messages
    BidirectionalEncoder(UNITS, dropout=0.5)
    assert caplog.messages == [
        "The dropout of 0.5 has no effect: it acts between the layers of the encoder, "
        "which has only one."
    ]


def test_a_mask_must_be_as_long_as_the_inputs(rng):
    with pytest.raises(ValueError, match=r"`mask` must be bool of shape \(1, 4\).*\(1, 3\)"):
        BidirectionalEncoder(UNITS)(array(rng, 1, 4, 2), mask=np.ones((1, 3), bool))


def test_inputs_must_have_a_known_width():
    with pytest.raises(ValueError, match="`inputs` must have a known width"):
        BidirectionalEncoder(UNITS)(keras.Input((None, None)))
    with pytest.raises(ValueError, match="`value` must have a known width"):
        BahdanauAttention(UNITS)(keras.Input((None, 3)), keras.Input((None, None)))


def test_a_frozen_encoder_is_saved_frozen(tmp_path):
    inputs = keras.Input((None, M))
    encoder = BidirectionalEncoder(4, num_layers=2)
    model = keras.Model(inputs, encoder(inputs))
    encoder.trainable = False
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.trainable_weights == []
    again.layers[-1].trainable = True
    assert len(again.trainable_weights) == len(model.weights)
    assert BidirectionalEncoder(4, trainable=False).forward_layers[0].trainable is False


def test_no_two_layers_start_with_the_same_weights():
    encoder = BidirectionalEncoder(4, num_layers=2)
    encoder.build((None, None, 8))
    for index in (0, 1):  # kernels and recurrent kernels
        kernels = [numpy(layer.cell.weights[index]) for layer in encoder.recurrent_layers()]
        for first, second in itertools.combinations(kernels, 2):
            assert not np.array_equal(first, second)
