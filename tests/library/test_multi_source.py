import keras
import numpy as np
import pytest
from gradients import differentiate
from keras import ops, tree
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
from mechanisms import MASK, TX, B, D, N, U

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    FixedContext,
    LocationSensitiveAttention,
    LuongAttention,
    MultiSourceAttention,
)

TX2, D2 = 3, 2
MASK2 = right_mask([1, 3, 2], TX2)


def parts():
    return [
        LocationSensitiveAttention(U, filters=2, kernel_size=3),
        BahdanauAttention(U, num_heads=2),
    ]


def built(rng):
    attention = MultiSourceAttention(parts())
    attention.build((B, None, N), [(B, TX, D), (B, TX2, D2)])
    return randomize(attention, rng)


def random_inputs(rng, queries=3):
    return array(rng, B, queries, N), [array(rng, B, TX, D), array(rng, B, TX2, D2)]


def test_contexts_and_weights_stand_side_by_side(rng):
    attention, (query, sources) = built(rng), random_inputs(rng)
    context, weights = attention(
        query, sources, value_mask=[MASK, MASK2], return_attention_scores=True
    )
    first, second = (
        part(query, values, value_mask=mask, return_attention_scores=True)
        for part, values, mask in zip(attention.attentions, sources, [MASK, MASK2], strict=True)
    )
    assert_close(context, ops.concatenate([first[0], second[0]], -1), 1e-6)
    assert_close(weights, ops.concatenate([first[1], ops.mean(second[1], axis=1)], -1), 1e-6)
    assert attention.context_width([D, D2]) == D + D2 == context.shape[-1]
    assert weights.shape[-1] == TX + TX2


def test_step_by_step_equals_the_call(rng):
    attention, (query, sources) = built(rng), random_inputs(rng)
    masks = [MASK, None]
    expected = attention(query, sources, value_mask=masks, return_attention_scores=True)
    memory = attention.memory(sources, mask=masks)
    state = attention.initial_state(memory)
    shared = tree.map_structure(lambda part: ops.repeat(part, 2, axis=0), state)
    for i in range(3):
        *actual, state = attention.step(query[:, i], memory, state)
        assert_close(actual, [part[:, i] for part in expected], 1e-6)
        *grouped, shared = attention.step(np.repeat(query[:, i], 2, 0), memory, shared)
        assert_close(grouped, [np.repeat(numpy(part[:, i]), 2, 0) for part in expected], 1e-6)


def test_keys_come_in_a_list_too(rng):
    attention, (query, sources) = MultiSourceAttention(parts()), random_inputs(rng)
    keys = [array(rng, B, TX, 9), None]
    context = attention(query, sources, keys)
    alone = attention.attentions[0](query, sources[0], keys[0])
    assert_close(context[..., :D], alone, 1e-6)


def test_gradients_are_those_of_the_parts(rng):
    attention, (query, sources) = built(rng), random_inputs(rng)

    class Flat(keras.layers.Layer):
        def __init__(self, attention):
            super().__init__()
            self.attention, self.built = attention, True

        def call(self, query, first, second):
            return self.attention(query, [first, second], value_mask=[MASK, MASK2])

    of_query, *of_sources = differentiate(Flat(attention))(query, *sources)[1][:3]
    single = [
        differentiate(part, value_mask=mask)(query, values)[1][:2]
        for part, values, mask in zip(attention.attentions, sources, [MASK, MASK2], strict=True)
    ]
    assert_close(of_query, single[0][0] + single[1][0], 1e-5)
    assert_close(of_sources, [gradients[1] for gradients in single], 1e-5)


def embedding(width):
    return keras.layers.Embedding(9, width, mask_zero=True)


def test_implicit_masks_unknown_sizes_and_saving(tmp_path):
    ids = [keras.Input((None,), dtype="int32") for _ in range(3)]
    query, *sources = (embedding(w)(of) for w, of in zip((N, D, D2), ids, strict=True))
    outputs = MultiSourceAttention(parts())(query, sources, return_attention_scores=True)
    assert tuple(outputs[0].shape) == (None, None, D + D2)
    model = keras.Model(ids, list(outputs))
    data = [np.array([[1, 2, 0]]), np.array([[3, 4, 0, 0]]), np.array([[5, 0]])]
    weights = numpy(model.predict(data, verbose=0)[1])
    assert_close(weights.sum(-1), [[2.0, 2.0, 0.0]], 1e-6)  # one for each source
    assert not weights[..., [2, 3, 5]].any()
    assert_survives_saving(model, data, tmp_path)


def test_the_shape_of_the_context_is_known_beforehand():
    attention = MultiSourceAttention([BahdanauAttention(4), BahdanauAttention(4)])
    assert attention.compute_output_shape((1, 5, 2), [(3, 7, 6), (3, 4, 2)]) == (3, 5, 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(policy, rng):
    query, sources = random_inputs(rng)
    with dtype_policy(policy):
        attention = MultiSourceAttention(parts())
        context, weights = attention(query, sources, return_attention_scores=True)
    assert keras.backend.standardize_dtype(context.dtype) == attention.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(numpy(weights).sum(-1), np.full((B, 3), 2.0), 1e-5)


def test_a_decoder_attends_to_both(rng):
    decoder = AttentiveDecoder(keras.layers.GRUCell(4), MultiSourceAttention(parts()))
    inputs, sources = array(rng, B, 3, 7), random_inputs(rng)[1]
    outputs, weights = decoder(
        inputs, sources, annotations_mask=[MASK, MASK2], return_attention_scores=True
    )
    assert tuple(outputs.shape) == (B, 3, 4) and tuple(weights.shape) == (B, 3, TX + TX2)
    spoiled = [
        np.where(m[..., None], s, np.nan) for m, s in zip([MASK, MASK2], sources, strict=True)
    ]
    assert_close(decoder(inputs, spoiled, annotations_mask=[MASK, MASK2]), outputs, 1e-6)


def test_config_keeps_the_parts():
    assert_config_round_trip(MultiSourceAttention([*parts(), FixedContext(2)]))


@pytest.mark.parametrize("attentions", [[], None, BahdanauAttention(U), ["bahdanau"]], ids=str)
def test_attentions_must_be_a_list_of_attentions(attentions):
    with pytest.raises(ValueError, match="`attentions` must be a list of Attention layers"):
        MultiSourceAttention(attentions)


def test_there_is_an_entry_for_each_source(rng):
    attention, (query, sources) = built(rng), random_inputs(rng)
    for values, got in ((sources[:1], "list of 1"), (np.ones((B, TX, D)), "ndarray")):
        with pytest.raises(ValueError, match=rf"`values` of .* each of 2 sources. Received: {got}"):
            attention.memory(values)
    with pytest.raises(ValueError, match=r"`mask` of .* an entry for each of 2 sources"):
        attention.memory(sources, mask=[MASK])
    with pytest.raises(ValueError, match=r"`value` of .* an entry for each of 2 sources"):
        MultiSourceAttention(parts())(query, sources[:1])
    with pytest.raises(ValueError, match=r"`values` of .* as many rows for each source"):
        attention.memory([sources[0], sources[1][:1]])
    with pytest.raises(ValueError, match=r"`value_mask` must be bool .* \(3, 5\)"):
        attention(query, sources, value_mask=[MASK2, MASK])
    with pytest.raises(ValueError, match=r"`values` of [\w.]+ must be .*6\)"):
        attention(query, sources[::-1])
    with pytest.raises(ValueError, match=r"`query` of .* must be 4 wide"):
        attention(query[..., 1:], sources)
    with pytest.raises(
        ValueError, match="`use_causal_mask` must be False for MultiSourceAttention"
    ):
        attention(query, sources, use_causal_mask=True)


def test_mechanisms_of_all_kinds_stand_side_by_side(rng):
    attention = MultiSourceAttention([LuongAttention(), FixedContext()])
    query, sources = random_inputs(rng)
    context = attention(query[:, 0], sources)
    assert_close(context[:, D:], sources[1][:, -1], 0)
