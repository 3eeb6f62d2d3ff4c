"""Layers inside other layers, and inputs that no layer can read."""

from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import array, assert_close, numpy

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
    Ensemble,
    GreedySearch,
    LuongAttention,
    Seq2Seq,
)
from keras_bahdanau.layers import (
    Attention,
    AttentionPooling,
    ClosedLoop,
    MonotonicAttention,
    MultiSourceAttention,
)
from keras_bahdanau.search import Decode

GRU, Dense, Embedding = keras.layers.GRUCell, keras.layers.Dense, keras.layers.Embedding
IDS = np.array([[2, 5, 6], [2, 4, 0]], "int32")


def two_searches():
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    sublayers, annotations = (decoder, Embedding(9, 5), Dense(9)), keras.Input((4, 3))
    greedy, beam = (Decode(*sublayers, search, max_length=4) for search in (GreedySearch(), None))
    return keras.Model([annotations], [*greedy(annotations), *beam(annotations)]), [(2, 4, 3)]


def two_decoders():
    attention = BahdanauAttention(3)
    x, values = keras.Input((4, 3)), keras.Input((5, 6))
    decoders = [AttentiveDecoder(GRU(4), attention) for _ in range(2)]
    model = keras.Model([x, values], [decoder(x, values) for decoder in decoders])
    return model, [(2, 4, 3), (2, 5, 6)]


def two_sources():
    attention = LuongAttention()
    x, first, second = keras.Input((4, 3)), keras.Input((5, 6)), keras.Input((3, 6))
    both = MultiSourceAttention([attention, attention])(x, [first, second])
    moving = MonotonicAttention(attention)(x, first)
    return keras.Model([x, first, second], [both, moving]), [(2, 4, 3), (2, 5, 6), (2, 3, 6)]


@pytest.mark.parametrize("make", [two_searches, two_decoders, two_sources])
def test_layers_that_share_a_sublayer_share_it_after_loading(make, tmp_path, rng):
    model, shapes = make()
    inputs = [array(rng, *shape) for shape in shapes]
    expected = numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    assert_close(loaded(inputs), expected, 1e-6)


def test_models_of_an_ensemble_that_share_an_encoder_share_it_after_loading(tmp_path):
    encoder = BidirectionalEncoder(3)
    decoders = [AttentiveDecoder(GRU(4), BahdanauAttention(3)) for _ in range(2)]
    models = [Seq2Seq(9, 9, 4, encoder, decoder) for decoder in decoders]
    ensemble, inputs = Ensemble(models), {"source": IDS, "target": IDS}
    expected = numpy(ensemble(inputs))
    ensemble.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.models[0].encoder is loaded.models[1].encoder
    assert_close(loaded(inputs), expected, 1e-6)


class Places(NamedTuple):
    """A memory whose class no config knows."""

    values: keras.KerasTensor


class FirstPlace(Attention):
    def memory(self, values, key=None, mask=None, training=None, steps=1):
        return Places(values)

    def step(self, query, memory, state=(), training=None, t=None):
        return memory.values[:, 0], ops.ones_like(memory.values[..., 0]), state


def test_a_symbolic_memory_must_be_a_named_tuple_that_configs_can_hold():
    with pytest.raises(ValueError, match=r"Places must be a registered named tuple.*decorate"):
        FirstPlace().memory(keras.Input((None, 6)))


@pytest.mark.parametrize("input_feeding", [False, True])
def test_a_readout_may_be_sequential(input_feeding, rng):
    dense = Dense(5)
    decoders = [
        AttentiveDecoder(GRU(4), LuongAttention("dot"), readout, input_feeding=input_feeding)
        for readout in (keras.Sequential([dense, keras.layers.ReLU()]), dense)
    ]
    x, values = array(rng, 2, 3, 6), array(rng, 2, 5, 4)
    for decoder in decoders:
        decoder.build(x.shape, values.shape)
    decoders[1].cell.set_weights(decoders[0].cell.get_weights())
    outputs, without_relu = (numpy(decoder(x, values)) for decoder in decoders)
    assert outputs.shape == (2, 3, 5)
    if not input_feeding:
        assert_close(outputs, np.maximum(without_relu, 0.0), 1e-6)


@pytest.mark.parametrize("called_on_sequences", [False, True])
def test_a_search_takes_sequential_layers(called_on_sequences, rng):
    """Training calls the layers on sequences before the search calls them on single steps."""
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    plain = Embedding(9, 5), Dense(9)
    embedding, head = (keras.Sequential([layer]) for layer in plain)
    annotations = array(rng, 2, 4, 3)
    if called_on_sequences:
        head(decoder(embedding(IDS), annotations))
    result = Decode(decoder, embedding, head, GreedySearch(), max_length=4)(annotations)
    expected = Decode(decoder, *plain, GreedySearch(), max_length=4)(annotations)
    assert_close(list(result), numpy(list(expected)), 1e-6)


def test_unroll_takes_a_model_that_was_called_on_sequences(rng):
    dense = Dense(2)
    model = keras.Sequential([dense])
    model(array(rng, 2, 3, 4))
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    first, values = array(rng, 2, 2), array(rng, 2, 5, 6)
    outputs, _ = decoder.unroll(first, values, steps=3, next_input=model)
    expected, _ = decoder.unroll(first, values, steps=3, next_input=dense)
    assert_close(outputs, numpy(expected), 1e-6)


X = keras.Input((4,))
SOFTMAX_HEADS = {
    "sequential": keras.Sequential([Dense(9), keras.layers.Softmax()]),
    "functional": keras.Model(X, Dense(9, activation="softmax")(X)),
    "nested": keras.Sequential([keras.Sequential([Dense(9, activation="softmax")])]),
    "layer": keras.layers.Activation("softmax"),
}


@pytest.mark.parametrize("head", SOFTMAX_HEADS.values(), ids=SOFTMAX_HEADS)
def test_a_head_that_ends_in_a_softmax_is_refused(head):
    decoder = AttentiveDecoder(GRU(4), BahdanauAttention(3))
    with pytest.raises(ValueError, match=r"`head` must return logits.*Received: "):
        Decode(decoder, Embedding(9, 5), head)


def test_a_step_of_multi_head_attention_returns_the_compute_dtype(rng):
    attention = BahdanauAttention(4, num_heads=2, dtype="mixed_bfloat16")
    query, values = array(rng, 2, 3), array(rng, 2, 5, 6)
    expected = attention(query, values)
    memory = attention.memory(values)
    context, _, _ = attention.step(query, memory, attention.initial_state(memory))
    assert keras.backend.standardize_dtype(context.dtype) == "bfloat16"
    assert_close(ops.cast(context, "float32"), ops.cast(expected, "float32"), 0.05)


# --- Inputs that no layer can read ----------------------------------------------------------------


def decoder():
    return AttentiveDecoder(GRU(4), BahdanauAttention(3))


# A layer, its inputs by name, and the masks that it takes.
CALLS = {
    "attention": (lambda: BahdanauAttention(3), "query value", "query_mask or value_mask"),
    "several sources": (
        lambda: MultiSourceAttention([BahdanauAttention(3)]),
        "query value",
        "query_mask or value_mask",
    ),
    "pooling": (lambda: AttentionPooling(3), "values", "mask or attention_mask"),
    "encoder": (lambda: BidirectionalEncoder(3), "inputs", "mask"),
    "bridge": (lambda: Bridge([3]), "annotations", "mask"),
    "readout": (lambda: DeepOutput(3), "state inputs context", "no argument"),
    "decoder": (decoder, "inputs annotations", "annotations_mask or inputs_mask"),
    "closed loop": (lambda: ClosedLoop(decoder(), 3), "first annotations", "annotations_mask"),
}
CALLED = [(name, which) for name, (_, inputs, _) in CALLS.items() for which in inputs.split()]
VALUES = np.ones((2, 3, 4), "float32")


def called_with(name, which, tensor):
    """Call a layer with `tensor` as one of its inputs."""
    make, inputs, _ = CALLS[name]
    return make()(**(dict.fromkeys(inputs.split(), VALUES) | {which: tensor}))


@pytest.mark.parametrize(("name", "which"), CALLED)
def test_an_input_that_is_none_is_named(name, which):
    with pytest.raises(ValueError, match=rf"`{which}` of \w+ must be a tensor; .* Received: None"):
        called_with(name, which, None)


def sparse_values():
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.sparse.from_dense(VALUES)
    if keras.config.backend() == "jax":
        from jax.experimental import sparse

        return sparse.BCOO.fromdense(VALUES)
    import torch

    return torch.tensor(VALUES).to_sparse()


def ragged_values():
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.RaggedTensor.from_tensor(VALUES, lengths=[3, 1])
    import torch

    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(1, 4)], layout=torch.jagged)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize(("name", "which"), CALLED)
def test_a_sparse_or_ragged_input_is_named(name, which, kind):
    if kind == "ragged" and keras.config.backend() == "jax":
        pytest.skip("JAX has no ragged tensors")
    tensor = sparse_values() if kind == "sparse" else ragged_values()
    message = rf"`{which}` of \w+ must be a dense tensor; .* Received: a {kind} "
    with pytest.raises(ValueError, match=message):
        called_with(name, which, tensor)


@pytest.mark.parametrize("name", CALLS)
def test_a_mask_by_an_unknown_name_gets_the_names_of_the_masks(name):
    make, inputs, masks = CALLS[name]
    tensors = dict.fromkeys(inputs.split(), VALUES)
    message = rf"has no argument `key_mask`; .*{masks}.* Received: `key_mask`"
    with pytest.raises(ValueError, match=message):
        make()(**tensors, key_mask=np.ones((2, 3), bool))
