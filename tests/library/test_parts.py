"""Layers that stand in a layer: shared ones are loaded as one, and models may stand there, too."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import array, assert_close, numpy

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Decode,
    Ensemble,
    GreedySearch,
    LuongAttention,
    MonotonicAttention,
    MultiSourceAttention,
    Seq2Seq,
)

GRU, Dense, Embedding = keras.layers.GRUCell, keras.layers.Dense, keras.layers.Embedding
IDS = np.array([[2, 5, 6], [2, 4, 0]], "int32")


def two_searches():
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    parts, annotations = (decoder, Embedding(9, 5), Dense(9)), keras.Input((4, 3))
    greedy, best = (Decode(*parts, search, max_length=4) for search in (GreedySearch(), None))
    return keras.Model([annotations], [*greedy(annotations), *best(annotations)]), [(2, 4, 3)]


def two_decoders():
    attention = BahdanauAttention(3)
    x, values = keras.Input((4, 3)), keras.Input((5, 6))
    decoders = [AttentiveDecoder(GRU(4), attention) for _ in range(2)]
    return keras.Model([x, values], [decoder(x, values) for decoder in decoders]), [
        (2, 4, 3), (2, 5, 6),
    ]  # fmt: skip


def two_sources():
    attention = LuongAttention()
    x, first, second = keras.Input((4, 3)), keras.Input((5, 6)), keras.Input((3, 6))
    both = MultiSourceAttention([attention, attention])(x, [first, second])
    moving = MonotonicAttention(attention)(x, first)
    return keras.Model([x, first, second], [both, moving]), [(2, 4, 3), (2, 5, 6), (2, 3, 6)]


@pytest.mark.parametrize("model", [two_searches, two_decoders, two_sources])
def test_what_layers_share_is_loaded_as_one(model, tmp_path, rng):
    model, shapes = model()
    inputs = [array(rng, *shape) for shape in shapes]
    expected = numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    assert_close(loaded(inputs), expected, 1e-6)


def test_an_encoder_of_two_models_is_loaded_as_one(tmp_path):
    encoder = BidirectionalEncoder(3)
    models = [
        Seq2Seq(9, 9, 4, encoder, AttentiveDecoder(GRU(4), BahdanauAttention(3)))
        for _ in range(2)
    ]  # fmt: skip
    ensemble, inputs = Ensemble(models), {"source": IDS, "target": IDS}
    expected = numpy(ensemble(inputs))
    ensemble.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.models[0].encoder is loaded.models[1].encoder
    assert_close(loaded(inputs), expected, 1e-6)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_a_readout_may_be_sequential(input_feeding, rng):
    dense = Dense(5)
    decoders = [
        AttentiveDecoder(
            GRU(4, kernel_initializer="ones"), LuongAttention("dot"), readout,
            input_feeding=input_feeding,
        )
        for readout in (keras.Sequential([dense, keras.layers.ReLU()]), dense)
    ]  # fmt: skip
    x, values = array(rng, 2, 3, 6), array(rng, 2, 5, 4)
    for decoder in decoders:
        decoder.build(x.shape, values.shape)
    decoders[1].cell.set_weights(decoders[0].cell.get_weights())
    found, plain = (numpy(decoder(x, values)) for decoder in decoders)
    assert found.shape == (2, 3, 5)
    if not input_feeding:
        assert_close(found, np.maximum(plain, 0.0), 1e-6)


@pytest.mark.parametrize("trained", [False, True])
def test_a_search_takes_sequential_layers(trained, rng):
    """Whether they were first called on sequences, as in training, or are made by the search."""
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    plain = Embedding(9, 5), Dense(9)
    embedding, head = (keras.Sequential([layer]) for layer in plain)
    annotations = array(rng, 2, 4, 3)
    if trained:
        head(decoder(embedding(IDS), annotations))
    found = Decode(decoder, embedding, head, GreedySearch(), max_length=4)(annotations)
    expected = Decode(decoder, *plain, GreedySearch(), max_length=4)(annotations)
    assert_close(list(found), numpy(list(expected)), 1e-6)


def test_a_loop_takes_a_model_that_was_called_on_sequences(rng):
    dense = Dense(2)
    model = keras.Sequential([dense])
    model(array(rng, 2, 3, 4))
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    first, values = array(rng, 2, 2), array(rng, 2, 5, 6)
    found, _ = decoder.unroll(first, values, steps=3, next_input=model)
    expected, _ = decoder.unroll(first, values, steps=3, next_input=dense)
    assert_close(found, numpy(expected), 1e-6)


def ends_in_a_softmax(kind):
    x = keras.Input((4,))
    return {
        "sequential": lambda: keras.Sequential([Dense(9), keras.layers.Softmax()]),
        "functional": lambda: keras.Model(x, Dense(9, activation="softmax")(x)),
        "inside": lambda: keras.Sequential([keras.Sequential([Dense(9, activation="softmax")])]),
        "layer": lambda: keras.layers.Activation("softmax"),
    }[kind]()


@pytest.mark.parametrize("kind", ["sequential", "functional", "inside", "layer"])
def test_a_head_that_ends_in_a_softmax_is_refused(kind):
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    with pytest.raises(ValueError, match=r"`head` must give logits.*Received: "):
        Decode(decoder, Embedding(9, 5), ends_in_a_softmax(kind))


def test_heads_answer_a_step_in_the_compute_dtype(rng):
    attention = BahdanauAttention(4, num_heads=2, dtype="mixed_bfloat16")
    query, values = array(rng, 2, 3), array(rng, 2, 5, 6)
    expected = attention(query, values)
    memory = attention.memory(values)
    context, _, _ = attention.step(query, memory, attention.initial_state(memory))
    assert keras.backend.standardize_dtype(context.dtype) == "bfloat16"
    assert_close(ops.cast(context, "float32"), ops.cast(expected, "float32"), 0.05)
