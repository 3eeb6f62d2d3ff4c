"""A decoder as a Keras layer: dynamic shapes, custom parts, saving and dtype policies."""

import keras
import numpy as np
import pytest
from decoders import (
    FORMS,
    GRU,
    SOURCE,
    TARGET,
    TX,
    TY,
    UNITS,
    B,
    D,
    M,
    R,
    masks,
    random_inputs,
    reference_decoder,
    several,
    step_by_step,
    translator,
    unbuilt,
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
)

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, DeepOutput

ALL = {
    "simple": dict(cell="simple", readout="state"),
    "orders": dict(query_state="current", readout_state="previous"),
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
def test_a_model_of_unknown_batch_and_lengths_equals_the_reference(form, rng):
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
def test_mixed_precision_gives_the_compute_dtype_and_float32_weights(form, policy, rng):
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
