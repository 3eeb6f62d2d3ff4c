import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from layer_checks import array, assert_close, assert_config_round_trip, numpy, randomize
from mechanisms import MASK, TX, B, D, N, U, random_inputs
from python_process import run_python

from keras_bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention import bahdanau
from keras_bahdanau.layers.attention.bahdanau import additive_scores, chunked_scores

KEY = 5
# The hidden layer of all queries has 604 MB. The process may grow by a quarter of it.
PEAK_OF_MEMORY = """
import keras
import numpy as np
from gradients import differentiate
from keras_bahdanau import BahdanauAttention

def memory():
    # Not from getrusage, whose peak includes that of the parent process.
    with open("/proc/self/status") as file:
        rows = (line.split() for line in file)
        return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[0].startswith("Vm")}

layer = BahdanauAttention(256)
layer.build((4, 384, 256), (4, 384, 256))
arrays = np.random.default_rng(0).normal(size=(2, 4, 384, 256)).astype("float32")
# TensorFlow keeps the hidden layer of every chunk for gradients unless the step is compiled.
with_gradients = [] if keras.config.backend() == "tensorflow" else [differentiate(layer)]
for call in (layer, *with_gradients):
    call(*arrays[:, :, :2])  # loads what a first call needs
    before = memory()["VmRSS"]
    for _ in range(3):
        call(*arrays)
    growth = memory()["VmHWM"] - before  # the peak
    assert growth < 4 * 384 * 384 * 256 * 4 / 4, (call, growth)
"""


def built(rng, key=None, **options):
    attention = BahdanauAttention(U, **options)
    attention.build((B, None, N), (B, TX, D), None if key is None else (B, TX, key))
    return randomize(attention, rng)


def expected_call(attention, query, values, masks, keys=None, **options):
    """The reference's contexts and weights, one query at a time, with masks `(B, Tq, Tx)`."""
    weights = reference.weights_by_name(attention)
    contexts, alignments = [], []
    for b, rows in enumerate(query):
        key = None if keys is None else keys[b]
        results = [
            reference.bahdanau(weights, row[None], values[b], mask, key, **options)
            for row, mask in zip(rows, masks[b], strict=True)
        ]
        contexts.append([context[0] for context, _ in results])
        alignments.append(np.stack([alignment[..., 0, :] for _, alignment in results], -2))
    return np.array(contexts), np.array(alignments)


# --- Keys, bias, normalization, heads -------------------------------------------------------------


def test_keys_may_differ_from_values(rng):
    attention, (query, values), keys = built(rng, KEY), random_inputs(rng), array(rng, B, TX, KEY)
    actual = attention(query, values, keys, value_mask=MASK, return_attention_scores=True)
    masks = np.repeat(MASK[:, None], query.shape[1], 1)
    assert_close(actual, expected_call(attention, query, values, masks, keys))
    keys[~MASK] = np.nan
    assert_close(attention(query, values, keys, value_mask=MASK), actual[0], 1e-6)


def test_invalid_keys_are_refused(rng):
    attention, values = built(rng, KEY), np.ones((B, TX, D))
    for shape, message in [
        ((B, TX, D), r"`key` of [\w.]+ must be .*5\).* \(3, 5, 6\)"),
        ((1, TX, KEY), r"`key` .* \(3, 5, 5\)\. .*\(1, 5, 5\), whose axis `batch` is 1$"),
        ((B, TX - 1, KEY), r"`key` .* \(3, 5, 5\)\. .*\(3, 4, 5\), whose axis `time` is 4$"),
    ]:
        with pytest.raises(ValueError, match=message):
            attention.memory(values, np.ones(shape))


def test_bias_acts_inside_the_tanh(rng):
    # With U_a = W_a = 0 every score is v . tanh(b).
    attention = built(rng, use_bias=True)
    weights = reference.weights_by_name(attention)
    attention.query_kernel.assign(0 * weights["query_kernel"])
    attention.key_kernel.assign(0 * weights["key_kernel"])
    query, values = random_inputs(rng)
    scores = attention.scores(query, attention.memory(values))
    expected = np.tanh(weights["bias"]) @ weights["score_kernel"][:, 0]
    assert_close(scores, np.full((B, 2, TX), expected))


@pytest.mark.parametrize("heads", [1, 2])
def test_only_the_direction_of_a_normalized_score_kernel_counts(heads, rng):
    attention, (query, values) = built(rng, normalize=True, num_heads=heads), random_inputs(rng)
    before = attention(query, values)
    attention.score_kernel.assign(attention.score_kernel * 7.0)
    assert_close(attention(query, values), before)
    attention.gain.assign(attention.gain * 0.0)
    uniform = attention(query, values, return_attention_scores=True)[1]
    assert_close(uniform, np.full(uniform.shape, 1 / TX))


def test_the_gain_starts_at_one_over_the_root_of_the_units():
    attention = BahdanauAttention(U, normalize=True, num_heads=2)
    attention.build((1, N), (1, TX, D))
    assert_close(attention.gain, [0.5, 0.5])  # two heads of four units
    assert not numpy(attention.bias.value).any()


def test_a_head_uses_its_own_units_and_values(rng):
    attention, (query, values) = built(rng, num_heads=2), random_inputs(rng)
    context, weights = numpy(attention(query, values, return_attention_scores=True))
    kernel = numpy(attention.value_kernel.value)
    for h, half in enumerate((slice(0, D // 2), slice(D // 2, D))):
        assert_close(context[..., half], weights[:, h] @ (values @ kernel[:, half]), 1e-5)
    attention.score_kernel.assign(
        np.where(np.arange(U)[:, None] < U // 2, 0.0, numpy(attention.score_kernel.value))
    )
    changed = attention(query, values, return_attention_scores=True)[1]
    assert_close(changed[:, 0], np.full((B, 2, TX), 1 / TX), 1e-6)
    assert_close(changed[:, 1], weights[:, 1], 1e-6)


# --- Causal masks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"num_heads": 2}], ids=str)
def test_a_causal_mask_hides_later_positions(options, rng):
    attention = built(rng, **options)
    query, values = array(rng, B, TX, N), array(rng, B, TX, D)
    heads = options.get("num_heads", 1)
    for value_mask, positions in ((MASK, MASK), (None, np.ones_like(MASK))):
        arguments = dict(use_causal_mask=True, return_attention_scores=True)
        actual = attention(query, values, value_mask=value_mask, **arguments)
        masks = np.tril(np.repeat(positions[:, None], TX, axis=1))
        assert_close(actual, expected_call(attention, query, values, masks, heads=heads))
        window = np.tri(TX, k=1, dtype=bool)[None] & ~np.tri(TX, k=-2, dtype=bool)[None]
        actual = attention(query, values, value_mask=value_mask, attention_mask=window, **arguments)
        assert_close(actual, expected_call(attention, query, values, masks & window, heads=heads))


# --- Chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_heads": 2, "normalize": True}], ids=str)
def test_chunks_change_no_output_and_no_gradient(options, rng):
    query, values, results = array(rng, B, 5, N), array(rng, B, TX, D), []
    weights = built(rng, **options).get_weights()
    for chunk_size in range(1, 7):
        attention = built(rng, chunk_size=chunk_size, **options)
        attention.set_weights(weights)
        run = differentiate(attention, value_mask=MASK, return_attention_scores=True)
        results.append(run(query, values))
    for outputs, gradients in results[:-1]:
        assert_close(outputs, results[-1][0], 1e-6)
        assert_close(gradients, results[-1][1], 1e-5)


@given(data=st.data())
@settings(max_examples=15)
def test_chunked_scores_are_the_scores_for_every_size(data):
    batch, queries, steps, units, heads, chunk = (
        data.draw(st.integers(1, limit)) for limit in (3, 9, 4, 4, 2, 10)
    )
    rng = np.random.default_rng(0)
    query, keys = array(rng, batch, queries, units), array(rng, batch, steps, units)
    vectors = array(rng, units, heads)
    actual = chunked_scores(query, keys, vectors, chunk)
    assert_close(actual, additive_scores(query, keys, vectors), 1e-5)
    assert tuple(actual.shape) == (batch, queries, steps, heads)


def test_the_default_chunk_size_limits_the_hidden_layer(rng, monkeypatch):
    rows, tanh = [], ops.tanh
    monkeypatch.setattr(bahdanau.ops, "tanh", lambda x: rows.append(x.shape[0]) or tanh(x))
    steps = 11  # No other test uses this length: traced functions would skip the patched `tanh`.
    monkeypatch.setattr(bahdanau, "_CHUNK_FLOATS", 2 * steps * U * B)  # room for two queries
    assert built(rng)(array(rng, B, 7, N), array(rng, B, steps, D)).shape[1] == 7
    assert max(rows) == 2 * steps * B


def test_the_hidden_layer_of_many_queries_is_never_in_memory_as_a_whole(tmp_path):
    script = tmp_path / "peak.py"
    script.write_text(PEAK_OF_MEMORY, encoding="utf-8")
    run_python(script)


# --- Dropout --------------------------------------------------------------------------------------


def test_dropout_is_the_same_for_all_queries_of_a_source(rng):
    # The values are unit vectors, so the context is the weights after dropout.
    attention = BahdanauAttention(U, dropout=0.4, seed=1)
    query, values = array(rng, 4, 3, N), np.repeat(np.eye(50)[None], 4, 0)
    context, weights = numpy(attention(query, values, training=True, return_attention_scores=True))
    factors = context / weights
    assert_close(factors, np.repeat(factors[:, :1], 3, 1), 1e-5)
    retained = factors > 0.5
    assert_close(factors, retained / 0.6, 1e-4)  # so dropout keeps the mean
    assert 0.5 < retained[:, 0].mean() < 0.7  # 200 positions: three standard deviations are 0.1
    assert_close(weights.sum(-1), np.ones((4, 3)), 1e-5)
    assert not np.allclose(numpy(attention(query, values, training=True)), context)
    for training in (False, None):
        assert_close(attention(query, values, training=training), weights, 1e-6)


def test_steps_share_the_dropout_of_their_memory(rng):
    attention = built(rng, dropout=0.5, seed=3)
    query, values = random_inputs(rng)
    memory = attention.memory(values, mask=MASK, training=True)
    first, again = (attention.step(query[:, 0], memory, training=True)[0] for _ in range(2))
    assert_close(first, again, 0)


# --- Configuration --------------------------------------------------------------------------------


def test_config_round_trip_keeps_every_option():
    attention = BahdanauAttention(
        U,
        num_heads=2,
        chunk_size=3,
        normalizer="sparsemax",
        dropout=0.1,
        seed=5,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.001),
        score_initializer="ones",
        kernel_regularizer="l2",
        score_regularizer="l1",
        bias_regularizer="l2",
        kernel_constraint="non_neg",
        score_constraint="unit_norm",
        bias_constraint="non_neg",
    )
    assert_config_round_trip(attention)
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    weights = reference.weights_by_name(attention)
    assert weights["query_kernel"].std() < 0.01 and weights["key_kernel"].std() < 0.01
    assert (weights["score_kernel"] == 1).all()


def test_regularizers_add_to_the_loss():
    attention = BahdanauAttention(
        U,
        use_bias=True,
        score_initializer="ones",
        bias_initializer="ones",
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L1(1.0),
        score_regularizer=keras.regularizers.L1(10.0),
        bias_regularizer=keras.regularizers.L1(100.0),
    )
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    losses = sorted(float(ops.convert_to_numpy(loss)) for loss in attention.losses)
    assert losses == [N * U, D * U, 10 * U, 100 * U]


def test_one_initializer_makes_different_kernels():
    # A Keras initializer with a seed returns the same numbers for every call.
    attention = BahdanauAttention(U, kernel_initializer=keras.initializers.RandomNormal())
    attention(np.ones((1, D)), np.ones((1, TX, D)))
    weights = reference.weights_by_name(attention)
    assert not np.allclose(weights["query_kernel"], weights["key_kernel"])


@pytest.mark.parametrize("name", ["units", "num_heads", "chunk_size"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "4", True])
def test_sizes_must_be_positive_integers(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received"):
        BahdanauAttention(**{"units": U, name: value})


DROPOUT = "`dropout` must be a number of at least 0 and below 1. Received: "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "`num_heads` must divide `units`, 8. Received: 3"),
        ({"normalizer": "hardmax"}, r"`normalizer` must be one of .*'hardmax'"),
        ({"normalizer": ["softmax"]}, r"`normalizer` must be one of .*\['softmax'\]"),
        ({"dropout": 1.0}, DROPOUT + "1.0"),
        ({"dropout": -0.1}, DROPOUT + "-0.1"),
        ({"dropout": "0.1"}, DROPOUT + "'0.1'"),
        ({"normalize": True, "score_initializer": "zeros"}, "`score_initializer` must not be zer"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BahdanauAttention(U, **options)


def test_heads_must_divide_the_values():
    with pytest.raises(ValueError, match="`num_heads` must divide the width of the values, 6"):
        BahdanauAttention(U, num_heads=4)(np.ones((1, N)), np.ones((1, TX, D)))


@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax"])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_weights_sum_to_one_in_any_precision(normalizer, policy, rng):
    attention = BahdanauAttention(U, normalizer=normalizer, dtype=policy)
    query, values = random_inputs(rng)
    _, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert_close(numpy(weights).sum(-1), np.repeat([[1.0], [1.0], [0.0]], 2, 1), 1e-6)
    assert_close(numpy(weights)[1, :, 2:], np.zeros((2, TX - 2)), 0)
