"""The contract of `Attention`, for every mechanism in the table."""

import keras
import numpy as np
import pytest
import reference
from keras import ops, tree
from layer_checks import (
    POLICIES,
    any_size,
    array,
    assert_close,
    assert_config_round_trip,
    assert_garbage_is_ignored,
    assert_survives_saving,
    dtype_policy,
    numpy,
    right_mask,
)
from mechanisms import (
    LENGTHS,
    MASK,
    MECHANISMS,
    TQ,
    TX,
    B,
    D,
    N,
    additive,
    expected_call,
    general,
    random_attention,
    random_inputs,
)

from keras_bahdanau import Attention, BahdanauAttention, Memory, ScoredAttention

mechanism = pytest.mark.parametrize("name", MECHANISMS)
# Of each class one, with what it can do besides the plain thing.
VARIED = [
    "bahdanau_heads",
    "bahdanau_sparsemax",
    "luong_concat",
    "location_heads",
    "coverage_fertility",
    "monotonic",
    "monotonic_hard",
    "fixed_narrow",
]
varied = pytest.mark.parametrize("name", VARIED)


# --- Numbers --------------------------------------------------------------------------------------


@mechanism
@pytest.mark.parametrize("masked", [True, False])
def test_many_queries_give_the_references_numbers(name, masked, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=3)
    mask = MASK if masked else np.ones_like(MASK)
    arguments = dict(value_mask=mask if masked else None)
    actual = attention(query, values, return_attention_scores=True, **arguments)
    assert_close(actual, expected_call(name, reference.named(attention), query, values, mask))
    assert_close(attention(query, values, **arguments), actual[0], 1e-6)


@mechanism
def test_one_query_gives_the_references_numbers(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=1)
    actual = attention(query[:, 0], values, value_mask=MASK, return_attention_scores=True)
    context, weights = expected_call(name, reference.named(attention), query, values, MASK)
    assert_close(actual, (context[:, 0], weights[..., 0, :]))


# --- Steps ----------------------------------------------------------------------------------------


def mean_of_heads(weights):
    weights = numpy(weights)
    return weights.mean(1) if weights.ndim == 4 else weights


@mechanism
def test_step_by_step_equals_the_call(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=4)
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    memory = attention.memory(values, mask=MASK, steps=4)
    state = attention.initial_state(memory)
    for i in range(4):
        *actual, state = attention.step(query[:, i], memory, state)
        assert_close(actual, (context[:, i], mean_of_heads(weights)[:, i]), 1e-6)


@mechanism
def test_hypotheses_share_a_row_of_the_memory(name, rng):
    attention, beam = random_attention(name, rng), 4
    query, values = array(rng, B * beam, TQ, N), array(rng, B, TX, D)
    memory = attention.memory(values, mask=MASK)
    copied, mask = np.repeat(values, beam, 0), np.repeat(MASK, beam, 0)
    context, weights = attention(query, copied, value_mask=mask, return_attention_scores=True)
    state = attention.initial_state(memory)
    state = tree.map_structure(lambda part: ops.repeat(part, beam, axis=0), state)
    for i in range(TQ):
        *actual, state = attention.step(query[:, i], memory, state)
        assert_close(actual, (context[:, i], mean_of_heads(weights)[:, i]), 1e-6)


@mechanism
def test_context_width_is_known_beforehand(name, rng):
    attention = random_attention(name, rng)
    assert attention.context_width(D) == MECHANISMS[name].width
    assert attention(*random_inputs(rng)).shape[-1] == MECHANISMS[name].width


def test_memory_is_a_value_without_masked_places(rng):
    attention, (_, values) = random_attention("bahdanau", rng), random_inputs(rng)
    values[~MASK] = np.nan
    memory = attention.memory(values, mask=MASK)
    assert isinstance(memory, Memory)
    assert np.isfinite(numpy(memory.keys)).all()
    assert_close(memory.values, np.where(MASK[..., None], values, 0), 0)
    assert_close(memory.mask, MASK, 0)


# --- Masks ----------------------------------------------------------------------------------------


@mechanism
def test_longer_padding_changes_nothing(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    longer = np.concatenate([values, array(rng, B, 3, D)], axis=1)
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    mask = right_mask(LENGTHS, TX + 3)
    actual = attention(query, longer, value_mask=mask, return_attention_scores=True)
    assert_close(actual[0], context, 1e-6)
    assert_close(actual[1][..., :TX], weights, 1e-6)
    assert not numpy(actual[1])[..., TX:].any()


@mechanism
def test_a_fully_masked_row_gets_zeros(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    values[2] = np.nan
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert not numpy(context)[2].any() and not numpy(weights)[2].any()
    assert numpy(context)[:2].any() and numpy(weights)[:2].any()


@mechanism
def test_query_mask_zeroes_dropped_queries(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    kept = np.array([[True, False], [True, True], [False, False]])
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    arguments = dict(query_mask=kept, value_mask=MASK, return_attention_scores=True)
    actual = attention(query, values, **arguments)
    assert_close(actual[0], np.where(kept[..., None], numpy(context), 0), 1e-6)
    rows = kept[..., None] if weights.ndim == 3 else kept[:, None, :, None]
    assert_close(actual[1], np.where(rows, numpy(weights), 0), 1e-6)
    assert_garbage_is_ignored(attention, [query, values], 0, kept, **arguments)


@mechanism
def test_dropped_queries_leave_no_trace(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=4)
    kept = np.array([True, False, True, True])
    arguments = dict(value_mask=MASK, return_attention_scores=True)
    of_all = numpy(attention(query, values, query_mask=np.tile(kept, (B, 1)), **arguments))
    of_kept = numpy(attention(query[:, kept], values, **arguments))
    for some, expected in zip(of_all, of_kept, strict=True):
        assert_close(np.compress(kept, some, axis=-2), expected, 1e-6)


def embedding():
    return keras.layers.Embedding(9, D, mask_zero=True)


def masked_model(attention):
    """Ids of a source and of queries; both masks travel with the tensors."""
    source, targets = (
        keras.Input(any_size(ids.shape[1]), dtype="int32") for ids in (SOURCE_IDS, QUERY_IDS)
    )
    context, weights = attention(
        embedding()(targets), embedding()(source), return_attention_scores=True
    )
    return keras.Model([source, targets], [context, weights])


SOURCE_IDS = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
QUERY_IDS = np.array([[7, 8, 1], [2, 0, 0]])


@mechanism
def test_implicit_masks_and_saving(name, tmp_path):
    model = masked_model(MECHANISMS[name].make())
    context, weights = numpy(model([SOURCE_IDS, QUERY_IDS]))
    weights = mean_of_heads(weights)
    targets, source = QUERY_IDS != 0, SOURCE_IDS != 0
    kept = targets[:, :, None] & source[:, None, :]
    assert weights.shape == (2, 3, 4) and not weights[~kept].any()
    assert not context[~targets].any()
    assert_survives_saving(model, [SOURCE_IDS, QUERY_IDS], tmp_path)


def test_the_context_carries_the_mask_of_the_query(rng):
    context = BahdanauAttention(3)(embedding()(QUERY_IDS), array(rng, 2, TX, D))
    assert_close(context._keras_mask, QUERY_IDS != 0, 0)


# --- As a Keras layer -----------------------------------------------------------------------------


def functional(attention):
    query, values = keras.Input((None, N)), keras.Input((None, D))
    mask = keras.Input((None,), dtype="bool")
    outputs = attention(query, values, value_mask=mask, return_attention_scores=True)
    return keras.Model([query, values, mask], list(outputs))


@mechanism
def test_one_query_or_a_known_number_of_them_keeps_its_shape_in_a_functional_model(name):
    attention, values = MECHANISMS[name].make(), keras.Input((None, D))
    context, weights = attention(keras.Input((N,)), values, return_attention_scores=True)
    assert tuple(context.shape) == (None, MECHANISMS[name].width)
    assert tuple(weights.shape) == (None, None) or len(weights.shape) == 3  # of several heads
    context = attention(keras.Input((TQ, N)), values)
    assert tuple(context.shape) == (None, TQ, MECHANISMS[name].width)


@mechanism
def test_the_shape_of_the_context_is_known_beforehand(name):
    attention, width = MECHANISMS[name].make(), MECHANISMS[name].width
    assert attention.compute_output_shape((B, TQ, N), (B, TX, D)) == (B, TQ, width)
    assert attention.compute_output_shape((1, N), (None, TX, D)) == (None, width)


@mechanism
def test_config_round_trip(name):
    assert_config_round_trip(MECHANISMS[name].make())


@mechanism
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(name, policy, rng):
    query, values = random_inputs(rng)
    with dtype_policy(policy):
        attention = random_attention(name, rng)
        context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert keras.backend.standardize_dtype(context.dtype) == attention.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    expected = expected_call(name, reference.named(attention), query, values, MASK)
    assert_close((ops.cast(context, "float32"), weights), expected, 0.06)


# --- Bad input ------------------------------------------------------------------------------------

QUERY, VALUES = np.ones((B, TQ, N)), np.ones((B, TX, D))
CALLS = {
    r"`query` of \w+ must be .* shape \(3, 2, 4, 1\)": dict(query=QUERY[..., None]),
    r"`value` of \w+ must be .* shape \(3, 6\)": dict(value=VALUES[:, 0]),
    r"`value_mask` must be bool .*float\w+ of shape": dict(value_mask=MASK.astype("float32")),
    r"`value_mask` must be .* shape \(3, 5\).* shape \(3, 5, 1\)": dict(value_mask=MASK[..., None]),
    r"`value_mask` must be .* shape \(3, 5\).* shape \(3, 4\)": dict(value_mask=MASK[:, 1:]),
    r"`query_mask` must be .* shape \(3, 2\).* shape \(3, 1\)": dict(query_mask=MASK[:, :1]),
}


@mechanism
@pytest.mark.parametrize("message", CALLS)
def test_calls_are_checked(name, message, rng):
    arguments = dict(query=QUERY, value=VALUES) | CALLS[message]
    with pytest.raises(ValueError, match=message):
        random_attention(name, rng)(**arguments)


def test_a_key_must_have_the_rows_and_steps_of_the_values(rng):
    attention, key = random_attention("bahdanau", rng), np.ones((B, TX, D))
    for wrong, message in ((key[:1], "rows as `values`, 3"), (key[:, 1:], "steps as `values`, 5")):
        with pytest.raises(ValueError, match=f"`key` must have as many {message}. Received: sh"):
            attention(QUERY, VALUES, wrong)


LOOKING = [name for name in MECHANISMS if not name.startswith("fixed")]


@pytest.mark.parametrize("name", LOOKING)
def test_widths_are_those_of_the_build(name, rng):
    attention = random_attention(name, rng)
    with pytest.raises(ValueError, match=r"`query` of \w+ must be 4 wide.* \(3, 2, 5\)"):
        attention(np.ones((B, TQ, N + 1)), VALUES)
    with pytest.raises(ValueError, match=r"`values` of [\w.]+ must be .*6\).* \(3, 5, 7\)"):
        attention(QUERY, np.ones((B, TX, D + 1)))
    memory = attention.memory(VALUES)
    state = attention.initial_state(memory)
    with pytest.raises(ValueError, match=r"`query` of \w+ must be 4 wide.* \(3, 5\)"):
        attention.step(np.ones((B, N + 1)), memory, state)
    with pytest.raises(ValueError, match=r"`query` of [\w.]+ must be .* shape \(3, 2, 4\)"):
        attention.step(QUERY, memory, state)


@pytest.mark.parametrize("name", LOOKING)
def test_a_memory_needs_a_built_layer(name):
    with pytest.raises(ValueError, match="Attention is not built: call the layer once"):
        MECHANISMS[name].make().memory(VALUES)


@pytest.mark.parametrize("name", [n for n in MECHANISMS if not n.startswith(("bahdanau", "luong"))])
def test_only_mechanisms_without_order_look_back_causally(name, rng):
    with pytest.raises(ValueError, match=r"`use_causal_mask` must be False for \w+.* True"):
        random_attention(name, rng)(QUERY, VALUES, use_causal_mask=True)


@varied
def test_a_list_of_both_is_not_how_it_is_called(name, rng):
    attention, pair = random_attention(name, rng), list(random_inputs(rng))
    with pytest.raises(
        ValueError, match=r"`query` .* write attention\(query, value\), .* list of 2"
    ):
        attention(pair)


@varied
def test_rows_of_query_and_value_must_fit(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    with pytest.raises(
        ValueError, match=r"`query` .* as many rows as `value`, 3, or one .* \(2, 2"
    ):
        attention(query[:2], values)


@varied
def test_one_row_of_queries_asks_every_row(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    arguments = dict(value_mask=MASK, return_attention_scores=True)
    expected = attention(np.repeat(query[:1], B, axis=0), values, **arguments)
    assert_close(attention(query[:1], values, **arguments), expected, 1e-6)


@pytest.mark.parametrize("name", ["bahdanau", "location"])
def test_a_step_takes_whole_groups(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    memory = attention.memory(values)
    with pytest.raises(
        ValueError, match=r"`query` .*step must have a multiple .* 3 rows. Received"
    ):
        attention.step(query[:2, 0], memory, attention.initial_state(memory))


LOGITS = {
    "bahdanau": additive,
    "luong_general": general,
    "bahdanau_sparsemax": additive,
    "location": None,
    "coverage": None,
}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_the_masked_scores(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    arguments = dict(value_mask=MASK, return_attention_logits=True)
    context, weights, logits = numpy(
        attention(query, values, return_attention_scores=True, **arguments)
    )
    assert_close(
        (context, weights),
        attention(query, values, value_mask=MASK, return_attention_scores=True),
        1e-6,
    )
    alone = attention(query, values, **arguments)
    assert_close(alone, (context, logits), 1e-6)
    (one,) = numpy(attention(query[:, 0], values, **arguments))[1:]
    assert_close(one, logits[:, 0], 1e-5)
    kept = np.repeat(MASK[:, None], TQ, axis=1)
    assert logits.dtype == "float32" and (logits[~kept] == -1e30).all()
    if LOGITS[name] is not None:
        named = reference.named(attention)
        for row, q, v, m in zip(logits, query, values, MASK, strict=True):
            expected = [LOGITS[name](of, v.astype("float64"), m, named) for of in q]
            assert_close(row[:, m], np.array(expected)[:, m])
    else:  # the features of the weights before are in the scores: softmax tells
        powers = np.exp(logits[:2] - logits[:2].max(-1, keepdims=True))
        assert_close(powers / powers.sum(-1, keepdims=True), weights[:2], 1e-6)
    asking = np.arange(TQ) < np.array([[2], [1], [0]])
    dropped = numpy(attention(query, values, query_mask=asking, **arguments)[1])
    assert (dropped[~asking] == -1e30).all()
    assert_close(dropped[asking], logits[asking], 1e-5)


@pytest.mark.parametrize("name", ["bahdanau_heads", "location_heads", "monotonic", "fixed"])
def test_logits_need_one_score_for_each_place(name, rng):
    attention = random_attention(name, rng)
    with pytest.raises(ValueError, match=r"`return_attention_logits` must be False for .*: True"):
        attention(*random_inputs(rng), return_attention_logits=True)


def test_the_bases_leave_the_mechanism_to_their_subclasses():
    with pytest.raises(NotImplementedError):
        Attention().memory(VALUES)
    with pytest.raises(NotImplementedError):
        Attention().step(QUERY[:, 0], None)

    class Dot(ScoredAttention):
        def make_keys(self, key):
            return key

        def scores(self, query, keys, chunked=False):
            return ops.matmul(query, ops.transpose(keys, (0, 2, 1)))

    actual = Dot()(
        np.array([[1.0, 0.0]]), np.array([[[9.0, 0.0], [-9.0, 1.0]]]), return_attention_scores=True
    )
    assert_close(actual, ([[9.0, 0.0]], [[1.0, 0.0]]), 1e-4)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="counts what PyTorch keeps")
def test_the_hidden_layer_of_many_queries_is_not_kept_for_the_gradient(rng):
    import torch

    layer, kept = BahdanauAttention(16, chunk_size=4), []
    query, value = (
        ops.convert_to_tensor(rng.normal(size=(1, 64, 8)).astype("float32")) for _ in range(2)
    )
    layer(query, value)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: kept.append(one.numel()) or one, lambda one: one
    ):
        layer(query.requires_grad_(), value.requires_grad_())
    assert kept and max(kept) <= 64 * 64 and sum(kept) < 64 * 64 * 16
