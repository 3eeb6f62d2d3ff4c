import keras
import numpy as np
import pytest
from gradients import differentiate
from keras import ops, tree
from layer_checks import (
    WIDE_POLICIES,
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

from keras_bahdanau import BahdanauAttention, FixedContext, LuongAttention
from keras_bahdanau.layers import LocationSensitiveAttention, MultiSourceAttention

TX2, D2 = 3, 2
MASK2 = right_mask([1, 3, 2], TX2)


def mechanisms():
    return [
        LocationSensitiveAttention(U, filters=2, kernel_size=3),
        BahdanauAttention(U, num_heads=2),
    ]


def built(rng):
    attention = MultiSourceAttention(mechanisms())
    attention.build((B, None, N), [(B, TX, D), (B, TX2, D2)])
    return randomize(attention, rng)


def random_inputs(rng, queries=3):
    return array(rng, B, queries, N), [array(rng, B, TX, D), array(rng, B, TX2, D2)]


def test_contexts_and_weights_are_concatenated(rng):
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


def test_keys_are_a_list_with_an_entry_per_source(rng):
    attention, (query, sources) = MultiSourceAttention(mechanisms()), random_inputs(rng)
    keys = [array(rng, B, TX, 9), None]
    context = attention(query, sources, keys)
    alone = attention.attentions[0](query, sources[0], keys[0])
    assert_close(context[..., :D], alone, 1e-6)


def test_gradients_equal_those_of_the_inner_mechanisms(rng):
    attention, (query, sources) = built(rng), random_inputs(rng)

    class Flat(keras.layers.Layer):
        def __init__(self, attention):
            super().__init__()
            self.attention, self.built = attention, True

        def call(self, query, first, second):
            return self.attention(query, [first, second], value_mask=[MASK, MASK2])

    query_gradient, *source_gradients = differentiate(Flat(attention))(query, *sources)[1][:3]
    single = [
        differentiate(part, value_mask=mask)(query, values)[1][:2]
        for part, values, mask in zip(attention.attentions, sources, [MASK, MASK2], strict=True)
    ]
    assert_close(query_gradient, single[0][0] + single[1][0], 1e-5)
    assert_close(source_gradients, [gradients[1] for gradients in single], 1e-5)


def test_implicit_masks_unknown_sizes_and_saving(tmp_path):
    ids = [keras.Input((None,), dtype="int32") for _ in range(3)]
    query, *sources = (
        keras.layers.Embedding(9, width, mask_zero=True)(part)
        for width, part in zip((N, D, D2), ids, strict=True)
    )
    outputs = MultiSourceAttention(mechanisms())(query, sources, return_attention_scores=True)
    assert tuple(outputs[0].shape) == (None, None, D + D2)
    model = keras.Model(ids, list(outputs))
    data = [np.array([[1, 2, 0]]), np.array([[3, 4, 0, 0]]), np.array([[5, 0]])]
    weights = numpy(model.predict(data, verbose=0)[1])
    assert_close(weights.sum(-1), [[2.0, 2.0, 0.0]], 1e-6)  # one for each source
    assert not weights[..., [2, 3, 5]].any()
    assert_survives_saving(model, data, tmp_path)


def test_compute_output_shape_adds_the_widths_of_the_sources():
    attention = MultiSourceAttention([BahdanauAttention(4), BahdanauAttention(4)])
    assert attention.compute_output_shape((1, 5, 2), [(3, 7, 6), (3, 4, 2)]) == (3, 5, 8)


@pytest.mark.parametrize("policy", WIDE_POLICIES)
def test_mixed_precision_gives_the_compute_dtype_and_float32_weights(policy, rng):
    query, sources = random_inputs(rng)
    with dtype_policy(policy):
        attention = MultiSourceAttention(mechanisms())
        context, weights = attention(query, sources, return_attention_scores=True)
    assert keras.backend.standardize_dtype(context.dtype) == attention.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(numpy(weights).sum(-1), np.full((B, 3), 2.0), 1e-5)


def test_config_keeps_the_mechanisms():
    assert_config_round_trip(MultiSourceAttention([*mechanisms(), FixedContext(2)]))


@pytest.mark.parametrize("attentions", [[], None, BahdanauAttention(U), ["bahdanau"]], ids=str)
def test_attentions_must_be_a_list_of_attentions(attentions):
    with pytest.raises(ValueError, match="`attentions` must be a list of Attention layers"):
        MultiSourceAttention(attentions)


def test_arguments_are_checked_for_each_source(rng):
    attention, (query, sources) = built(rng), random_inputs(rng)
    call, memory, unbuilt = attention, attention.memory, MultiSourceAttention(mechanisms())
    for message, function, arguments, options in (
        ("`values` of .* each of 2 sources. Received: list of 1", memory, [sources[:1]], {}),
        ("`values` of .* each of 2 sources. Received: ndarray", memory, sources[:1], {}),
        ("`mask` of .* an entry for each of 2 sources", memory, [sources], {"mask": [MASK]}),
        ("`value` of .* an entry for each of 2 sources", unbuilt, [query, sources[:1]], {}),
        (
            "`values` .* same number of rows",
            memory,
            [[sources[0], sources[1][:1]]],
            {},
        ),
        (r"`value_mask` .* \(3, 5\)", call, [query, sources], {"value_mask": [MASK2, MASK]}),
        (r"`values` of [\w.]+ must be .*6\)", call, [query, sources[::-1]], {}),
        (r"`query` of .* must be \(batch, queries, 4\)", call, [query[..., 1:], sources], {}),
        ("`use_causal_mask` must be False", call, [query, sources], {"use_causal_mask": True}),
    ):
        with pytest.raises(ValueError, match=message):
            function(*arguments, **options)


def test_mechanisms_of_different_kinds_may_be_combined(rng):
    attention = MultiSourceAttention([LuongAttention(), FixedContext()])
    query, sources = random_inputs(rng)
    context = attention(query[:, 0], sources)
    assert_close(context[:, D:], sources[1][:, -1], 0)
