"""Masks of the inputs and of the annotations of a decoder."""

from functools import partial

import keras
import numpy as np
import pytest
from decoders import (
    INPUTS_MASK,
    SOURCE,
    TARGET,
    UNITS,
    M,
    R,
    random_decoder,
    random_inputs,
    several,
    translator,
    unbuilt,
)
from keras import ops
from layer_checks import array, assert_close, numpy


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
    decoder = random_decoder(rng, cell, readout="state", query_state="current")
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


def test_feedback_reads_the_output_of_the_last_unmasked_step(rng):
    decoder = random_decoder(rng, readout="state")
    inputs, annotations, _ = random_inputs(rng, decoder)
    mixing = array(rng, UNITS, M)

    def feedback(t, x, output):
        return x + ops.matmul(output, mixing)

    actual = decoder(inputs, annotations, inputs_mask=INPUTS_MASK, feedback=feedback)
    for row, keep in enumerate(INPUTS_MASK):
        one_row = slice(row, row + 1)
        alone = decoder(inputs[one_row][:, keep], annotations[one_row], feedback=feedback)
        assert_close(numpy(actual)[one_row][:, keep], alone, 1e-6)


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
