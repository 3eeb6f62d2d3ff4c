"""Converted weights against the formulas of TensorFlow Addons in NumPy float64."""

from functools import partial

import keras
import numpy as np
import pytest
import reference
from layer_checks import array, assert_close, assert_survives_saving, randomize, right_mask

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, DeepOutput
from keras_bahdanau.toolkits import bahdanau_from_tfa, luong_from_tfa, monotonic_from_tfa

B, TY, TX, M, N, D, U = 3, 4, 5, 2, 3, 6, 7
LENGTHS = [5, 3, 1]
MASK = right_mask(LENGTHS, TX)
G = -1.7  # differs from every initial gain


def bahdanau_weights(rng, normalize=False):
    weights = {
        "query_kernel": array(rng, N, U),
        "memory_kernel": array(rng, D, U),
        "attention_v": array(rng, U),
    }
    if normalize:
        weights |= {"attention_g": np.float32(G), "attention_b": array(rng, U)}
    return weights


def luong_weights(rng, scale=False):
    weights = {"memory_kernel": array(rng, D, N)}
    return weights | {"attention_g": np.float32(G)} if scale else weights


def bahdanau_score(query, memory, query_kernel, memory_kernel, attention_v, **more):
    """Return the scores `(Tx,)` of one query: TFA's additive score, optionally normalized."""
    hidden = memory @ memory_kernel + query @ query_kernel
    if more:
        hidden = hidden + more["attention_b"]
        attention_v = more["attention_g"] * attention_v / np.sqrt(np.sum(attention_v**2))
    return np.tanh(hidden) @ attention_v


def luong_score(query, memory, memory_kernel, attention_g=1.0):
    """Return the scores `(Tx,)` of one query: TFA's multiplicative score, optionally scaled."""
    return attention_g * ((memory @ memory_kernel) @ query)


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def recursive(scores, before):
    """Return the next alignment in TFA's mode "recursive", given the one before."""
    choose, reached, alignment = reference.sigmoid(scores), 0.0, []
    for j in range(len(scores)):
        reached = before[j] + (reached * (1 - choose[j - 1]) if j else 0.0)
        alignment.append(choose[j] * reached)
    return np.array(alignment)


def hard(scores, before):
    """Return TFA's "hard" alignment: the first positive score from the last choice on."""
    chosen = (scores > 0) * np.cumsum(before)
    return chosen * np.cumprod(np.append(1.0, 1 - chosen[:-1]))


def float64(weights):
    return {name: np.asarray(weight, "float64") for name, weight in weights.items()}


CASES = {
    "bahdanau": (bahdanau_from_tfa, bahdanau_score, bahdanau_weights),
    "normalized": (bahdanau_from_tfa, bahdanau_score, partial(bahdanau_weights, normalize=True)),
    "luong": (luong_from_tfa, luong_score, luong_weights),
    "scaled": (luong_from_tfa, luong_score, partial(luong_weights, scale=True)),
}
by_case = pytest.mark.parametrize("case", CASES)


@by_case
def test_alignments_and_contexts_equal_those_of_tfa(case, rng):
    convert, score, make = CASES[case]
    weights = make(rng)
    query, memory = array(rng, B, TY, N), array(rng, B, TX, D)
    attention = convert(**weights)
    context, alignment = attention(query, memory, value_mask=MASK, return_attention_scores=True)
    for b, length in enumerate(LENGTHS):
        row = memory[b, :length].astype("float64")
        for i in range(TY):
            expected = softmax(score(query[b, i].astype("float64"), row, **float64(weights)))
            assert_close(alignment[b, i], np.append(expected, np.zeros(TX - length)))
            assert_close(context[b, i], expected @ row)


@pytest.mark.parametrize("mode", ["soft", "hard"])
@by_case
def test_monotonic_alignments_equal_those_of_tfa(case, mode, rng):
    convert, score, make = CASES[case]
    weights, bias = make(rng), -0.3
    query, memory = array(rng, B, TY, N), array(rng, B, TX, D)
    attention = monotonic_from_tfa(convert(**weights), bias, mode=mode)
    _, alignment = attention(query, memory, return_attention_scores=True)
    move = recursive if mode == "soft" else hard
    for b in range(B):
        before = np.eye(1, TX)[0]
        for i in range(TY):
            arrays = query[b, i].astype("float64"), memory[b].astype("float64")
            before = move(score(*arrays, **float64(weights)) + bias, before)
            assert_close(alignment[b, i], before)


class ReadContext(keras.layers.Layer):
    """The output of TFA's wrapper without an attention layer."""

    def build(self, state_shape, inputs_shape, context_shape):
        pass

    def call(self, state, inputs, context):
        return context


@pytest.mark.parametrize("layer", [None, "linear", "tanh"])
def test_a_decoder_equals_the_attention_wrapper_of_tfa(layer, rng):
    """The cell's new state is the query. The attention, at first zero, is fed back as input."""
    weights = luong_weights(rng)
    readout = ReadContext() if layer is None else DeepOutput(4, layer, reads_inputs=False)
    options = dict(readout=readout, query_state="current", input_feeding=True)
    decoder = AttentiveDecoder(keras.layers.LSTMCell(N), luong_from_tfa(**weights), **options)
    inputs, memory, start = array(rng, B, TY, M), array(rng, B, TX, D), array(rng, 2, B, N)
    decoder.build(inputs.shape, memory.shape)
    randomize(decoder.cell, rng)
    attention_kernel = array(rng, N + D, 4)
    if layer is not None:
        readout.set_weights([attention_kernel, np.zeros(4)])
    outputs = decoder(inputs, memory, initial_state=list(start))
    cell = reference.float64(decoder.cell.get_weights())
    for b in range(B):
        state, row = list(start[:, b].astype("float64")), memory[b].astype("float64")
        attention = np.zeros(D if layer is None else 4)
        for i in range(TY):
            state = reference.lstm_step(np.append(inputs[b, i], attention), state, cell)
            attention = softmax(luong_score(state[0], row, **float64(weights))) @ row
            if layer is not None:
                attention = np.append(state[0], attention) @ attention_kernel.astype("float64")
            if layer == "tanh":
                attention = np.tanh(attention)
            assert_close(outputs[b, i], attention)


@by_case
def test_converted_layers_are_saved_with_their_weights(case, rng, tmp_path):
    convert, _, make = CASES[case]
    inputs = keras.Input((TY, N)), keras.Input((TX, D))
    attention = monotonic_from_tfa(convert(**make(rng)), -0.3)
    model = keras.Model(inputs, attention(*inputs))
    assert_survives_saving(model, (array(rng, B, TY, N), array(rng, B, TX, D)), tmp_path)


def test_other_arguments_reach_the_layer(rng):
    attention = bahdanau_from_tfa(**bahdanau_weights(rng), dropout=0.25, name="of_tfa")
    assert (attention.dropout, attention.name) == (0.25, "of_tfa")
    assert luong_from_tfa(np.ones((D, N)), normalizer="sparsemax").normalizer == "sparsemax"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_kernel": np.ones(U)}, r"`query_kernel` must be \(query width, 7\).*\(7,\)"),
        ({"query_kernel": np.ones((N, 2))}, r"`query_kernel` must be \(query width, 7\).*\(3, 2\)"),
        ({"memory_kernel": np.ones(())}, r"`memory_kernel` must be \(memory width, units\).*\(\)"),
        ({"attention_v": np.ones((U, 1))}, r"`attention_v` must be \(7,\).*\(7, 1\)"),
        ({"attention_g": np.ones(U)}, r"`attention_g` must be a single number.*\(7,\)"),
        ({"attention_b": np.ones(2)}, r"`attention_b` must be \(7,\).*\(2,\)"),
        ({"attention_b": None}, "`attention_g` and `attention_b` must be passed together"),
        ({"attention_g": None}, "`attention_g` and `attention_b` must be passed together"),
    ],
)
def test_bahdanau_weights_of_other_shapes_are_refused(change, message, rng):
    with pytest.raises(ValueError, match=message):
        bahdanau_from_tfa(**{**bahdanau_weights(rng, True), **change})


def test_luong_and_monotonic_weights_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"`memory_kernel` must be \(memory width, query width\)"):
        luong_from_tfa(np.ones(3))
    with pytest.raises(ValueError, match="`attention_g` must be a single number"):
        luong_from_tfa(np.ones((D, N)), attention_g=[1.0])
    with pytest.raises(ValueError, match="`attention_score_bias` must be a single number"):
        monotonic_from_tfa(luong_from_tfa(np.ones((D, N))), [0.0])
    with pytest.raises(ValueError, match="`attention` must be built"):
        monotonic_from_tfa(BahdanauAttention(4), 0.0)
