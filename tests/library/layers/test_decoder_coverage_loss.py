"""The coverage loss that a decoder adds in training."""

import keras
import numpy as np
import pytest
from decoders import GRU, MASK, TARGET, TX, TY, UNITS, B, D, M, build, random_decoder, random_inputs
from layer_checks import array, assert_close, numpy, randomize, right_mask

from keras_bahdanau import AttentiveDecoder
from keras_bahdanau.layers import CoverageAttention
from keras_bahdanau.losses import coverage_loss


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
