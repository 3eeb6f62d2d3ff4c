import keras
import numpy as np
import pytest
from keras import ops

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    BidirectionalEncoder,
    GreedySearch,
    Sampling,
    Seq2Seq,
)
from keras_bahdanau.layers import MultiSourceAttention
from keras_bahdanau.search import Decode

LENGTH = 6


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(2)
    decoder = AttentiveDecoder(keras.layers.GRUCell(6, dropout=0.5), BahdanauAttention(4))
    model = Seq2Seq(20, 15, embedding_dim=5, encoder=BidirectionalEncoder(3), decoder=decoder)
    model.build()
    return model


def decode(model, search=None, **options):
    parts = model.decoder, model.target_embedding, model.output_layer
    return Decode(*parts, search=search, max_length=LENGTH, **options)


SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0], [3, 0, 0, 0]], "int32")


@pytest.mark.parametrize(
    "search",
    [GreedySearch(), BeamSearch(3, coverage_penalty=0.2), BeamSearch(3, n_best=1)],
    ids=["greedy", "beam", "best"],
)
def test_decode_returns_the_outputs_of_generate(model, search):
    annotations, mask, state = model.encode(ops.convert_to_tensor(SOURCE))
    layer = decode(model, search, return_scores=True)
    outputs = list(map(ops.convert_to_numpy, layer(annotations, mask, state)))
    spec = layer.compute_output_spec(annotations, mask, state)
    assert [(part.shape, part.dtype) for part in outputs] == [
        (part.shape, part.dtype) for part in spec
    ]
    if isinstance(search, GreedySearch) or search.n_best == 1:
        outputs = [np.expand_dims(part, 1) for part in outputs]
    tokens, weights, scores, lengths = outputs
    expected = model.generate(SOURCE, search, max_length=LENGTH)
    longest = expected.tokens.shape[2]
    np.testing.assert_array_equal(tokens[:, :, :longest], expected.tokens)
    assert tokens.shape[2] == LENGTH and not tokens[:, :, longest:].any()
    np.testing.assert_allclose(weights[:, :, :longest], expected.alignments, atol=1e-5)
    np.testing.assert_allclose(scores, expected.scores, atol=1e-5)
    np.testing.assert_array_equal(lengths, expected.lengths)


def test_a_functional_model_predicts_saves_and_loads(tmp_path):
    keras.utils.set_random_seed(3)
    decoder = AttentiveDecoder(keras.layers.LSTMCell(5), BahdanauAttention(4))
    embedding = keras.layers.Embedding(12, 3, mask_zero=True)
    head = keras.layers.Dense(12)
    images = keras.Input((8, 8, 3))
    features = keras.layers.Conv2D(4, 4, strides=4)(images)
    annotations = keras.layers.Reshape((-1, 4))(features)
    captions = keras.Input((None,), dtype="int32")
    training = keras.Model([images, captions], head(decoder(embedding(captions), annotations)))
    layer = Decode(decoder, embedding, head, max_length=LENGTH)
    captioning = keras.Model(images, list(layer(annotations)))
    assert {id(v) for v in captioning.weights} == {id(v) for v in training.weights}
    assert captioning.output_shape == [(None, LENGTH), (None, LENGTH, 4)]
    pixels = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    tokens, weights = captioning.predict(pixels, verbose=0)
    assert tokens.dtype == np.int32
    mask = np.arange(LENGTH) < (tokens != 0).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights.sum(axis=-1), mask, atol=1e-5)
    captioning.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for a, b in zip(again.predict(pixels, verbose=0), (tokens, weights), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_implicit_masks_are_applied_and_dropout_is_off(model):
    values = np.random.default_rng(1).normal(size=(2, 5, 6)).astype("float32")
    values[0, 3:] = 0
    layer = decode(model)
    tokens, weights = layer(keras.layers.Masking()(values))
    weights = ops.convert_to_numpy(weights)
    assert weights[0, 0, :3].all() and not weights[0, :, 3:].any() and weights[1, 0].all()
    # With a second tensor argument, Keras passes implicit masks under another name.
    weights_from_state = layer(keras.layers.Masking()(values), initial_state=[ops.ones((2, 6))])[1]
    assert not ops.convert_to_numpy(weights_from_state)[0, :, 3:].any()
    x = keras.Input((5, 6))
    functional = keras.Model(x, list(layer(keras.layers.Masking()(x))))
    for a, b in zip(functional(values, training=True), (tokens, weights), strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(a), ops.convert_to_numpy(b), atol=1e-6)


def test_weights_of_several_sources_are_concatenated():
    attention = MultiSourceAttention([BahdanauAttention(4), BahdanauAttention(4)])
    decoder = AttentiveDecoder(keras.layers.GRUCell(4), attention)
    search = BeamSearch(2, coverage_penalty=0.1)
    embedding, head = keras.layers.Embedding(9, 3), keras.layers.Dense(9)
    layer = Decode(decoder, embedding, head, search, max_length=4)
    sources = [ops.ones((2, 3, 5)), ops.ones((2, 4, 2))]
    mask = ops.convert_to_tensor([[True, True, False]] * 2)
    weights = ops.convert_to_numpy(layer(sources, mask=[mask, None])[1])
    assert weights.shape == (2, 2, 4, 7) == layer.compute_output_spec(sources)[1].shape
    assert not weights[..., 2].any() and weights[:, 0, 0, 3:].all()


def test_invalid_arguments_are_refused(model):
    decoder, embedding, head = model.decoder, model.target_embedding, model.output_layer
    softmax = keras.layers.Dense(15, activation="softmax")
    for arguments, message in [
        ((keras.layers.GRU(3), embedding, head), "`decoder` must be an AttentiveDecoder"),
        ((decoder, "table", head), "`embedding` must be a Keras layer"),
        ((decoder, embedding, softmax), "`head` must return logits.*from_logits=True"),
        ((decoder, embedding, head, Sampling()), "`search` must be a GreedySearch"),
        ((decoder, embedding, head, "beam"), "`search` must be a GreedySearch"),
        ((decoder, embedding, head, None, 0), "`max_length` must be an int of at least 1"),
    ]:
        with pytest.raises(ValueError, match=f"Argument {message}.*Received: "):
            Decode(*arguments)
    forbidding = Decode(decoder, embedding, head, GreedySearch(forbidden=(50,)))
    with pytest.raises(ValueError, match=r"`search` must forbid ids in \[0, 15\). Received: 50"):
        forbidding.build((None, 4, 6))
    with pytest.raises(ValueError, match=r"return 15 logits.*returns 14"):
        Decode(decoder, embedding, keras.layers.Dense(14)).build((None, 4, 6))
