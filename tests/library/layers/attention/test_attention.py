"""The interface of `Attention`, for every mechanism of the table in tests/support."""

import keras
import numpy as np
import pytest
import reference
from keras import ops, tree
from layer_checks import (
    WIDE_POLICIES,
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
    MASK_BY_QUERY,
    MECHANISMS,
    TQ,
    TX,
    B,
    D,
    N,
    additive,
    expected_by_query,
    expected_call,
    general,
    random_attention,
    random_inputs,
)

from keras_bahdanau import BahdanauAttention
from keras_bahdanau.layers import Attention, HistoryAttention, Memory, ScoredAttention

mechanism = pytest.mark.parametrize("name", MECHANISMS)


# --- Numbers --------------------------------------------------------------------------------------


@mechanism
@pytest.mark.parametrize("masked", [True, False])
def test_several_queries_match_the_reference(name, masked, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=3)
    mask = MASK if masked else np.ones_like(MASK)
    arguments = dict(value_mask=mask if masked else None)
    actual = attention(query, values, return_attention_scores=True, **arguments)
    assert_close(
        actual, expected_call(name, reference.weights_by_name(attention), query, values, mask)
    )
    assert_close(attention(query, values, **arguments), actual[0], 1e-6)


@mechanism
def test_one_query_matches_the_reference(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=1)
    actual = attention(query[:, 0], values, value_mask=MASK, return_attention_scores=True)
    context, weights = expected_call(
        name, reference.weights_by_name(attention), query, values, MASK
    )
    assert_close(actual, (context[:, 0], weights[..., 0, :]))


# --- Steps ----------------------------------------------------------------------------------------


def mean_of_heads(weights):
    weights = numpy(weights)
    return weights.mean(1) if weights.ndim == 4 else weights


@mechanism
def test_steps_match_the_call(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=4)
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    memory = attention.memory(values, mask=MASK, steps=4)
    state = attention.initial_state(memory)
    for i in range(4):
        *actual, state = attention.step(query[:, i], memory, state)
        assert_close(actual, (context[:, i], mean_of_heads(weights)[:, i]), 1e-6)


@mechanism
def test_queries_of_one_beam_share_a_row_of_the_memory(name, rng):
    attention, beam = random_attention(name, rng), 4
    query, values = array(rng, B * beam, TQ, N), array(rng, B, TX, D)
    memory = attention.memory(values, mask=MASK)
    repeated, mask = np.repeat(values, beam, 0), np.repeat(MASK, beam, 0)
    context, weights = attention(query, repeated, value_mask=mask, return_attention_scores=True)
    state = attention.initial_state(memory)
    state = tree.map_structure(lambda part: ops.repeat(part, beam, axis=0), state)
    for i in range(TQ):
        *actual, state = attention.step(query[:, i], memory, state)
        assert_close(actual, (context[:, i], mean_of_heads(weights)[:, i]), 1e-6)


@mechanism
def test_a_step_is_a_functional_model_that_is_saved(name, rng, tmp_path):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=1)
    inputs = keras.Input((N,)), keras.Input((None, D)), keras.Input((None,), dtype="bool")
    memory = attention.memory(inputs[1], mask=inputs[2])
    context, weights, state = attention.step(inputs[0], memory, attention.initial_state(memory))
    model = keras.Model(list(inputs), [context, weights, *tree.flatten(state)])
    assert len(model.weights) == len(attention.weights)
    arrays = [query[:, 0], values, MASK]
    expected = expected_call(name, reference.weights_by_name(attention), query, values, MASK)
    actual = model(arrays)
    assert_close(actual[:2], (expected[0][:, 0], mean_of_heads(expected[1])[:, 0]))
    memory = attention.memory(values, mask=MASK)
    *_, state = attention.step(query[:, 0], memory, attention.initial_state(memory))
    assert_close(actual[2:], tree.flatten(state), 1e-6)
    assert_survives_saving(model, arrays, tmp_path)


def test_a_step_takes_a_memory_and_a_state_of_inputs(rng):
    attention, (query, values) = random_attention("location", rng), random_inputs(rng)
    memory = attention.memory(values, mask=MASK)
    state = attention.initial_state(memory)
    inputs = keras.Input((N,)), Memory(
        keras.Input(memory.keys.shape[1:]),
        keras.Input(values.shape[1:]),
        keras.Input((TX,), dtype="bool"),
    ), tuple(keras.Input((TX,)) for _ in state)  # fmt: skip
    context, weights, after = attention.step(*inputs)
    flat = [part for part in tree.flatten(inputs) if part is not None]
    model = keras.Model(flat, [context, weights, *after])
    for i in range(TQ):
        arrays = [ops.convert_to_tensor(query[:, i]), *memory[:3], *state]
        context, weights, state = attention.step(query[:, i], memory, state)
        assert_close(model(arrays), [context, weights, *state], 1e-6)


def test_memory_has_zeros_at_masked_positions(rng):
    attention, (_, values) = random_attention("bahdanau", rng), random_inputs(rng)
    values[~MASK] = np.nan
    memory = attention.memory(values, mask=MASK)
    assert isinstance(memory, Memory)
    assert np.isfinite(numpy(memory.keys)).all()
    assert_close(memory.values, np.where(MASK[..., None], values, 0), 0)
    assert_close(memory.mask, MASK, 0)


def test_lengths_and_positions_leave_padding_out(rng):
    attention, (_, values) = random_attention("bahdanau", rng), random_inputs(rng)
    mask = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], "bool")
    memory = attention.memory(values, mask=mask)
    assert_close(attention.source_lengths(memory), [5.0, 2.0, 0.0], 0)
    positions = [[0.0, 1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 0.0, 1.0, 1.0], [-1.0] * 5]
    assert_close(attention.source_positions(memory), positions, 0)
    whole = attention.memory(values)
    assert_close(attention.source_lengths(whole), [5.0] * 3, 0)
    assert_close(attention.source_positions(whole), [positions[0]] * 3, 0)
    heads = BahdanauAttention(4, num_heads=2)
    heads.build((B, N), (B, TX, D))
    assert_close(heads.source_lengths(heads.memory(values)), [5.0] * 3, 0)


# --- Masks ----------------------------------------------------------------------------------------


@mechanism
def test_longer_padding_changes_no_output(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    longer = np.concatenate([values, array(rng, B, 3, D)], axis=1)
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    mask = right_mask(LENGTHS, TX + 3)
    actual = attention(query, longer, value_mask=mask, return_attention_scores=True)
    assert_close(actual[0], context, 1e-6)
    assert_close(actual[1][..., :TX], weights, 1e-6)
    assert not numpy(actual[1])[..., TX:].any()


@mechanism
def test_masked_queries_get_zero_contexts_and_weights(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    query_mask = np.array([[True, False], [True, True], [False, False]])
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    arguments = dict(query_mask=query_mask, value_mask=MASK, return_attention_scores=True)
    actual = attention(query, values, **arguments)
    assert_close(actual[0], np.where(query_mask[..., None], numpy(context), 0), 1e-6)
    rows = query_mask[..., None] if weights.ndim == 3 else query_mask[:, None, :, None]
    assert_close(actual[1], np.where(rows, numpy(weights), 0), 1e-6)
    assert_garbage_is_ignored(attention, [query, values], 0, query_mask, **arguments)


@mechanism
def test_masked_queries_do_not_change_the_results_of_later_queries(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng, queries=4)
    mask = np.array([True, False, True, True])
    arguments = dict(value_mask=MASK, return_attention_scores=True)
    masked = numpy(attention(query, values, query_mask=np.tile(mask, (B, 1)), **arguments))
    shortened = numpy(attention(query[:, mask], values, **arguments))
    for actual, expected in zip(masked, shortened, strict=True):
        assert_close(np.compress(mask, actual, axis=-2), expected, 1e-6)


def embedding():
    return keras.layers.Embedding(9, D, mask_zero=True)


def masked_model(attention):
    """A model of source ids and query ids, with implicit masks of both."""
    source, targets = (
        keras.Input(any_size(ids.shape[1]), dtype="int32") for ids in (SOURCE_IDS, QUERY_IDS)
    )
    context, weights = attention(
        embedding()(targets), embedding()(source), return_attention_scores=True
    )
    return keras.Model([source, targets], [context, weights])


# Mechanisms that score all queries at once.
AT_ONCE = [name for name in MECHANISMS if name.startswith(("bahdanau", "luong"))]
ONE_BY_ONE = [name for name in MECHANISMS if name not in AT_ONCE]


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("masked", [True, False])
def test_a_query_reads_only_the_positions_of_its_mask(name, masked, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    arguments = dict(value_mask=MASK if masked else None, return_attention_scores=True)
    positions = MASK[:, None] if masked else np.ones_like(MASK)[:, None]
    masks = MASK_BY_QUERY & positions
    actual = attention(query, values, attention_mask=MASK_BY_QUERY, **arguments)
    expected = expected_by_query(name, reference.weights_by_name(attention), query, values, masks)
    assert_close(actual, expected)
    unread = ~masks.any(axis=1)
    values[unread] = np.nan
    assert_close(attention(query, values, attention_mask=MASK_BY_QUERY, **arguments), actual, 1e-6)


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_mask_by_query_may_be_that_of_every_row_or_of_a_single_query(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    masks, weights = MASK_BY_QUERY[:1], reference.weights_by_name(attention)
    expected = expected_by_query(name, weights, query, values, np.repeat(masks, B, 0))
    actual = attention(query, values, attention_mask=masks, return_attention_scores=True)
    assert_close(actual, expected)
    assert_close(attention(query[:, 0], values, attention_mask=masks[:, :1]), expected[0][:, 0])


def test_a_mask_by_query_of_an_input_is_combined_with_implicit_masks_and_saved(tmp_path):
    source, targets = (keras.Input((None,), dtype="int32") for _ in range(2))
    masks = keras.Input((None, None), dtype="bool")
    outputs = BahdanauAttention(3)(
        embedding()(targets),
        embedding()(source),
        attention_mask=masks,
        return_attention_scores=True,
    )
    model = keras.Model([source, targets, masks], list(outputs))
    window = np.tril(np.ones((2, 3, 4), bool))
    _, weights = numpy(model([SOURCE_IDS, QUERY_IDS, window]))
    read = window & (QUERY_IDS != 0)[:, :, None] & (SOURCE_IDS != 0)[:, None, :]
    assert weights[read].all() and not weights[~read].any()
    assert_survives_saving(model, [SOURCE_IDS, QUERY_IDS, window], tmp_path)


@mechanism
def test_masks_of_query_and_value_may_come_in_a_list_as_keras_has_them(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    query_mask = np.array([[True, False], [True, True], [False, False]])
    arguments = dict(return_attention_scores=True)
    expected = attention(query, values, query_mask=query_mask, value_mask=MASK, **arguments)
    assert_close(attention(query, values, mask=[query_mask, MASK], **arguments), expected, 0)
    expected = attention(query, values, value_mask=MASK, **arguments)
    assert_close(attention(query, values, mask=[None, MASK], **arguments), expected, 0)


SOURCE_IDS = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
QUERY_IDS = np.array([[7, 8, 1], [2, 0, 0]])


@mechanism
def test_implicit_masks_are_used_and_the_model_survives_saving(name, tmp_path):
    model = masked_model(MECHANISMS[name].make())
    context, weights = numpy(model([SOURCE_IDS, QUERY_IDS]))
    weights = mean_of_heads(weights)
    targets, source = QUERY_IDS != 0, SOURCE_IDS != 0
    mask = targets[:, :, None] & source[:, None, :]
    assert weights.shape == (2, 3, 4) and not weights[~mask].any()
    assert not context[~targets].any()
    assert_survives_saving(model, [SOURCE_IDS, QUERY_IDS], tmp_path)


def test_the_context_carries_the_mask_of_the_query(rng):
    context = BahdanauAttention(3)(embedding()(QUERY_IDS), array(rng, 2, TX, D))
    assert_close(context._keras_mask, QUERY_IDS != 0, 0)


# --- As a Keras layer -----------------------------------------------------------------------------


@mechanism
def test_output_shapes_are_computed_without_numbers(name):
    attention, width = MECHANISMS[name].make(), MECHANISMS[name].width
    assert attention.context_width(D) == width
    assert attention.compute_output_shape((B, TQ, N), (B, TX, D)) == (B, TQ, width)
    assert attention.compute_output_shape((1, N), (None, TX, D)) == (None, width)
    values = keras.Input((None, D))
    context, weights = attention(keras.Input((N,)), values, return_attention_scores=True)
    assert tuple(context.shape) == (None, width)
    assert tuple(weights.shape) == (None, None) or len(weights.shape) == 3  # several heads
    assert tuple(attention(keras.Input((TQ, N)), values).shape) == (None, TQ, width)


@mechanism
def test_config_round_trip(name):
    assert_config_round_trip(MECHANISMS[name].make())


@mechanism
@pytest.mark.parametrize("policy", WIDE_POLICIES)
def test_mixed_precision_returns_float32_weights(name, policy, rng):
    query, values = random_inputs(rng)
    with dtype_policy(policy):
        attention = random_attention(name, rng)
        context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert keras.backend.standardize_dtype(context.dtype) == attention.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    expected = expected_call(name, reference.weights_by_name(attention), query, values, MASK)
    assert_close((ops.cast(context, "float32"), weights), expected, 0.06)


# --- Bad input ------------------------------------------------------------------------------------

QUERY, VALUES = np.ones((B, TQ, N)), np.ones((B, TX, D))
INVALID_CALLS = {
    r"`query` .* write attention\(query, value\) .* list of 2": dict(query=[QUERY, VALUES]),
    r"`query` of \w+ must be .* shape \(3, 2, 4, 1\)": dict(query=QUERY[..., None]),
    r"`value` of \w+ must be .* shape \(3, 6\)": dict(value=VALUES[:, 0]),
    r"`query` .* as many rows as `value`, 3, or one .* \(2, 2": dict(query=QUERY[:2]),
    r"`value_mask` must be bool .*float\w+ of shape": dict(value_mask=MASK.astype("float32")),
    r"`value_mask` must be .* shape \(3, 5\).* shape \(3, 5, 1\)": dict(value_mask=MASK[..., None]),
    r"`value_mask` must be .* shape \(3, 5\).* shape \(3, 4\)": dict(value_mask=MASK[:, 1:]),
    r"`query_mask` must be .* shape \(3, 2\).* shape \(3, 1\)": dict(query_mask=MASK[:, :1]),
    r"`mask` .* \[query_mask, value_mask\], .* `value_mask`.* Received: one": dict(mask=MASK),
    r"`mask` .* a list \[query_mask, value_mask\], .* a list of 1": dict(mask=[MASK]),
    r"`mask` of \w+ must be None with `value_mask`": dict(mask=[None, MASK], value_mask=MASK),
}


@mechanism
@pytest.mark.parametrize("message", INVALID_CALLS)
def test_invalid_calls_are_refused(name, message, rng):
    arguments = dict(query=QUERY, value=VALUES) | INVALID_CALLS[message]
    with pytest.raises(ValueError, match=message):
        random_attention(name, rng)(**arguments)


# FixedContext accepts queries and values of any width and needs no build.
SCORING = [name for name in MECHANISMS if not name.startswith("fixed")]


@pytest.mark.parametrize("name", SCORING)
def test_widths_must_be_those_of_the_build(name, rng):
    attention = random_attention(name, rng)
    with pytest.raises(
        ValueError, match=r"`query` of \w+ must be \(batch, queries, 4\).* \(3, 2, 5\)"
    ):
        attention(np.ones((B, TQ, N + 1)), VALUES)
    with pytest.raises(ValueError, match=r"`values` of [\w.]+ must be .*6\).* \(3, 5, 7\)"):
        attention(QUERY, np.ones((B, TX, D + 1)))


@pytest.mark.parametrize("name", SCORING)
def test_a_step_checks_the_shape_of_its_query(name, rng):
    attention = random_attention(name, rng)
    memory = attention.memory(VALUES)
    state = attention.initial_state(memory)
    for shape, message in [
        ((B, N + 1), r"`query` of [\w.]+ must be \(batch, 4\).* \(3, 5\), whose axis `width`"),
        ((B, TQ, N), r"`query` of [\w.]+ must be .* shape \(3, 2, 4\)"),
        ((2, N), r"`query` .*step must have a multiple .* 3 rows. Received"),
    ]:
        with pytest.raises(ValueError, match=message):
            attention.step(np.ones(shape), memory, state)


@pytest.mark.parametrize("name", SCORING)
def test_a_memory_needs_a_built_layer(name):
    with pytest.raises(ValueError, match="Attention is not built: call the layer once"):
        MECHANISMS[name].make().memory(VALUES)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_mask_by_query_needs_a_mechanism_that_scores_all_queries_at_once(name, rng):
    attention = random_attention(name, rng)
    with pytest.raises(ValueError, match=r"`use_causal_mask` must be False for \w+.* True"):
        attention(QUERY, VALUES, use_causal_mask=True)
    with pytest.raises(ValueError, match=r"`attention_mask` must be None for \w+.*`value_mask`"):
        attention(QUERY, VALUES, attention_mask=MASK_BY_QUERY)


@pytest.mark.parametrize(
    ("mask", "received"),
    [
        (MASK, r"bool of shape \(3, 5\)"),
        (MASK_BY_QUERY[:2], r"bool of shape \(2, 2, 5\)"),
        (MASK_BY_QUERY[:, :1], r"bool of shape \(3, 1, 5\)"),
        (MASK_BY_QUERY[..., :4], r"bool of shape \(3, 2, 4\)"),
        (MASK_BY_QUERY.astype("float32"), r"float32 of shape \(3, 2, 5\)"),
    ],
    ids=["two axes", "rows", "queries", "positions", "floats"],
)
def test_a_mask_by_query_is_checked(mask, received, rng):
    message = rf"`attention_mask` must be bool .* \(3, 2, 5\), True = keep. Received: {received}"
    with pytest.raises(ValueError, match=message):
        random_attention("bahdanau", rng)(QUERY, VALUES, attention_mask=mask)


@mechanism
def test_one_row_of_queries_is_used_for_every_row_of_values(name, rng):
    attention, (query, values) = random_attention(name, rng), random_inputs(rng)
    arguments = dict(value_mask=MASK, return_attention_scores=True)
    expected = attention(np.repeat(query[:1], B, axis=0), values, **arguments)
    assert_close(attention(query[:1], values, **arguments), expected, 1e-6)


# The reference scores, or None where the scores of a query depend on the queries before it.
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
    *outputs, logits = numpy(attention(query, values, return_attention_scores=True, **arguments))
    expected = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert_close(outputs, expected, 1e-6)
    assert_close(attention(query, values, **arguments), (outputs[0], logits), 1e-6)
    assert_close(attention(query[:, 0], values, **arguments)[1], logits[:, 0], 1e-5)
    mask = np.repeat(MASK[:, None], TQ, axis=1)
    assert logits.dtype == "float32" and (logits[~mask] == -1e30).all()
    if LOGITS[name] is not None:
        weights = reference.weights_by_name(attention)
        for row, q, v, m in zip(logits, query, values, MASK, strict=True):
            expected = [LOGITS[name](one_query, v.astype("float64"), m, weights) for one_query in q]
            assert_close(row[:, m], np.array(expected)[:, m])
    else:  # The scores depend on earlier weights, so compare their softmax.
        powers = np.exp(logits[:2] - logits[:2].max(-1, keepdims=True))
        assert_close(powers / powers.sum(-1, keepdims=True), outputs[1][:2], 1e-6)
    query_mask = right_mask([2, 1, 0], TQ)
    masked = numpy(attention(query, values, query_mask=query_mask, **arguments)[1])
    assert (masked[~query_mask] == -1e30).all()
    assert_close(masked[query_mask], logits[query_mask], 1e-5)


@pytest.mark.parametrize("name", ["bahdanau_heads", "location_heads", "monotonic", "fixed"])
def test_logits_need_one_score_for_each_position(name, rng):
    attention = random_attention(name, rng)
    with pytest.raises(ValueError, match=r"`return_attention_logits` must be False for .*: True"):
        attention(*random_inputs(rng), return_attention_logits=True)


def test_the_base_classes_name_a_missing_method():
    class Mine(Attention):
        pass

    class Scored(ScoredAttention):
        pass

    class History(HistoryAttention):
        def initial_state(self, memory):
            return self._zero_weights(memory)

    for layer, message in (
        (Mine(), r"Mine has no method `memory`. Define `memory\(values, key=None, mask=None, trai"),
        (Scored(), r"Scored has no method `scores`. Define `scores\(query, memory, chunked=False"),
        (History(4), r"History has no method `features`. Define `features\(state\)`, as descri"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            layer(QUERY, VALUES)
    with pytest.raises(NotImplementedError, match=r"Mine has no method `step`. Define `step\(quer"):
        Mine().step(QUERY[:, 0], None)


def test_a_mechanism_needs_only_scores():
    class Dot(ScoredAttention):
        def scores(self, query, memory, chunked=False):
            return ops.matmul(query, ops.transpose(memory.keys, (0, 2, 1)))

    actual = Dot()(
        np.array([[1.0, 0.0]]), np.array([[[9.0, 0.0], [-9.0, 1.0]]]), return_attention_scores=True
    )
    assert_close(actual, ([[9.0, 0.0]], [[1.0, 0.0]]), 1e-4)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="uses hooks of PyTorch")
def test_chunks_do_not_save_the_hidden_layer_for_the_gradient(rng):
    import torch

    layer, sizes = BahdanauAttention(16, chunk_size=4), []
    query, value = (
        ops.convert_to_tensor(rng.normal(size=(1, 64, 8)).astype("float32")) for _ in range(2)
    )
    layer(query, value)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        layer(query.requires_grad_(), value.requires_grad_())
    assert sizes and max(sizes) <= 64 * 64 and sum(sizes) < 64 * 64 * 16
