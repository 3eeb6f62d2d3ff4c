"""Logits that a decoder returns with its attention weights."""

from functools import partial

import keras
import numpy as np
import pytest
from decoders import (
    GRU,
    INPUTS_MASK,
    MASK,
    TX,
    TY,
    UNITS,
    B,
    build,
    random_decoder,
    random_inputs,
    reference_of_kept_steps,
    symbolic,
    unbuilt,
)
from layer_checks import array, assert_close, numpy, randomize

from keras_bahdanau import AttentiveDecoder, BahdanauAttention
from keras_bahdanau.layers import CoverageAttention


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
    decoder = AttentiveDecoder(GRU(4), attention, query_state="current")
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
