import keras
import numpy as np
import pytest
from layer_checks import array, assert_close
from mechanisms import MASK, TX, B, D, N

from keras_bahdanau import FixedContext


def test_the_memory_has_one_annotation_per_source(rng):
    memory = FixedContext(width=2).memory(array(rng, B, TX, D), mask=MASK)
    assert tuple(memory.values.shape) == (B, 1, 2)


def test_queries_may_have_any_width(rng):
    attention, values = FixedContext(), array(rng, B, TX, D)
    first = attention(array(rng, B, 2, N), values, value_mask=MASK)
    assert_close(attention(array(rng, B, 2, N + 3), values, value_mask=MASK), first, 0)
    context, _, state = attention.step(np.ones((B, 1)), attention.memory(values, mask=MASK))
    assert_close(context, first[:, 0], 0)
    assert state == () and attention.weights == []


def test_padding_may_be_on_the_left(rng):
    values, mask = array(rng, 2, 4, D), np.array([[0, 0, 1, 1], [0, 1, 1, 0]], bool)
    context, weights = FixedContext()(
        array(rng, 2, N), values, value_mask=mask, return_attention_scores=True
    )
    assert_close(context, np.stack([values[0, 3], values[1, 2]]), 0)
    assert_close(weights, [[0, 0, 0, 1], [0, 0, 1, 0]], 0)


@pytest.mark.parametrize("width", [0, -1, 1.5, True])
def test_width_must_be_a_positive_integer(width):
    with pytest.raises(ValueError, match=r"`width` must be a positive integer. Received"):
        FixedContext(width)


def test_width_must_fit_the_annotations():
    with pytest.raises(ValueError, match=f"`width` must be at most .* {D}. Received: {D + 1}"):
        FixedContext(D + 1)(np.ones((1, N)), np.ones((1, TX, D)))


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="others split no batches")
def test_a_device_may_have_an_empty_batch():
    import tensorflow as tf

    attention = FixedContext()

    @tf.function(input_signature=[tf.TensorSpec((None, N)), tf.TensorSpec((None, TX, D))])
    def step(query, values):
        return attention.step(query, attention.memory(values))[:2]

    context, weights = step(tf.zeros((0, N)), tf.zeros((0, TX, D)))
    assert (context.shape, weights.shape) == ((0, D), (0, TX))
