"""Keras's own test of a layer, and an empty batch, for every public layer.

In each case the policy of the layer differs from the policy of its sublayers, float32. Training
steps are in test_layers.py: a second compilation of each would only cost time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import pytest
from keras import ops, tree
from keras.src import testing  # the test that Keras runs on its own layers has no public name
from layer_checks import array

import keras_bahdanau
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
    FixedContext,
    GreedySearch,
    LuongAttention,
    Seq2Seq,
)
from keras_bahdanau.layers import (
    Attention,
    AttentionPooling,
    ClosedLoop,
    CoverageAttention,
    HistoryAttention,
    LayerNormGRUCell,
    LayerNormLSTMCell,
    LocationSensitiveAttention,
    MonotonicAttention,
    MultiSourceAttention,
    PointerGenerator,
    ResidualCell,
    ScheduledSampling,
    ScoredAttention,
    StateBridge,
    WindowNormalization,
)
from keras_bahdanau.search import Decode

POLICIES = ["float32", "float64", "mixed_float16", "mixed_bfloat16"]
if keras.config.backend() == "jax":
    POLICIES.remove("float64")  # JAX computes it in float32 unless its own setting says otherwise
SEQUENCE = (2, 5, 6)
COMPUTE = "the compute dtype"


class Case(NamedTuple):
    """A factory of a layer from its policy, its inputs, and the dtypes of its outputs."""

    make: Callable
    shapes: Any = SEQUENCE
    dtypes: Any = COMPUTE
    arguments: dict | None = None
    input_dtype: str | None = None


def attention(make):
    shapes = {"query_shape": (2, 3, 4), "value_shape": SEQUENCE}
    return Case(make, shapes, (COMPUTE, "float32"), {"return_attention_scores": True})


def decoder_of(attention, **options):
    return AttentiveDecoder(keras.layers.GRUCell(4), attention, DeepOutput(3), **options)


def decoder(attention, **options):
    shapes = {"inputs_shape": (2, 3, 4), "annotations_shape": SEQUENCE}
    return Case(
        lambda **policy: decoder_of(attention(), **options, **policy),
        shapes,
        (COMPUTE, "float32"),
        {"return_attention_scores": True},
    )


def cell(make):
    return Case(lambda **policy: keras.layers.RNN(make(**policy), **policy))


def location(**options):
    return LocationSensitiveAttention(4, filters=2, kernel_size=3, **options)


def coverage(**options):
    return CoverageAttention(4, fertility=2.0, **options)


def bahdanau(**options):
    return BahdanauAttention(4, use_bias=True, **options)


def closed_loop(**policy):
    return ClosedLoop(decoder_of(coverage()), 2, keras.layers.Dense(4), **policy)


def decode(**policy):
    layers = keras.layers.Embedding(7, 4), keras.layers.Dense(7)
    return Decode(decoder_of(location()), *layers, GreedySearch(), max_length=3, **policy)


CASES = {
    "AttentionPooling": Case(lambda **a: AttentionPooling(4, **a)),
    "AttentiveDecoder": decoder(bahdanau),
    "AttentiveDecoder with LocationSensitiveAttention": decoder(location, query_state="current"),
    "AttentiveDecoder with CoverageAttention": decoder(coverage, input_feeding=True),
    "AttentiveDecoder with MonotonicAttention": decoder(lambda: MonotonicAttention(bahdanau())),
    "BahdanauAttention": attention(lambda **a: BahdanauAttention(4, normalize=True, **a)),
    "BahdanauAttention with sparsemax": attention(
        lambda **a: bahdanau(normalizer="sparsemax", **a)
    ),
    "BahdanauAttention of two heads": attention(lambda **a: bahdanau(num_heads=2, **a)),
    "BidirectionalEncoder": Case(lambda **a: BidirectionalEncoder(3, **a)),
    "Bridge": Case(lambda **a: Bridge([4], **a), dtypes=[COMPUTE]),
    "ClosedLoop": Case(
        closed_loop,
        {"first_shape": (2, 4), "annotations_shape": SEQUENCE},
        (COMPUTE, "float32"),
    ),
    "CoverageAttention": attention(coverage),
    "Decode": Case(decode, dtypes=("int32", "float32")),
    "DeepOutput": Case(
        lambda **a: DeepOutput(3, **a),
        {"state_shape": (2, 4), "inputs_shape": (2, 3), "context_shape": (2, 6)},
    ),
    "FixedContext": attention(FixedContext),
    "LayerNormGRUCell": cell(lambda **a: LayerNormGRUCell(4, **a)),
    "LayerNormLSTMCell": cell(lambda **a: LayerNormLSTMCell(4, **a)),
    "LocationSensitiveAttention": attention(location),
    "LuongAttention": attention(lambda **a: LuongAttention("concat", units=4, **a)),
    "MonotonicAttention": attention(lambda **a: MonotonicAttention(bahdanau(), **a)),
    "ResidualCell": cell(lambda **a: ResidualCell(keras.layers.GRUCell(6), **a)),
    "ScheduledSampling": Case(
        lambda **a: ScheduledSampling(**a), (2, 5), ("bool", "float32"), input_dtype="int32"
    ),
    "WindowNormalization": Case(
        lambda **a: WindowNormalization(**a),
        {"series_shape": (2, 3, 6), "window_shape": SEQUENCE},
    ),
}
# Keras's test does not accept a list as one input.
TWO_SOURCES = [(2, 3, 4), [SEQUENCE, (2, 4, 3)]]


def two_sources(**policy):
    return MultiSourceAttention([bahdanau(), location()], **policy)


def test_every_public_layer_has_a_case():
    layers = [
        name
        for name in keras_bahdanau.layers.__all__
        if isinstance(value := getattr(keras_bahdanau.layers, name), type)
        and issubclass(value, keras.layers.Layer)
        and not issubclass(value, keras.Model)
    ]
    bases = {Attention.__name__, HistoryAttention.__name__, ScoredAttention.__name__}
    with_lists = {MultiSourceAttention.__name__, StateBridge.__name__}  # tested below
    with_ids = {PointerGenerator.__name__}  # in test_layers and test_models
    assert {*CASES} | with_lists | with_ids | bases >= set(layers)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_a_layer_passes_the_test_of_keras(name, policy):
    case = CASES[name]
    compute = keras.DTypePolicy(policy).compute_dtype
    testing.TestCase().run_layer_test(
        case.make,
        {"dtype": policy},
        input_shape=case.shapes,
        input_dtype=case.input_dtype,
        call_kwargs=case.arguments,
        expected_output_dtype=tree.map_structure(
            lambda dtype: compute if dtype == COMPUTE else dtype, case.dtypes
        ),
        run_training_check=False,
        run_mixed_precision_check=False,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_sources_may_have_mechanisms_of_another_policy(policy, rng):
    layer, compute = two_sources(dtype=policy), keras.DTypePolicy(policy).compute_dtype
    query, values = array(rng, *TWO_SOURCES[0]), [array(rng, *shape) for shape in TWO_SOURCES[1]]
    for inputs in (
        (query, values),
        tree.map_structure(lambda x: keras.Input(x.shape[1:]), (query, values)),
    ):
        outputs = layer(*inputs, return_attention_scores=True)
        dtypes = [keras.backend.standardize_dtype(part.dtype) for part in outputs]
        assert dtypes == [compute, "float32"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_state_bridge_has_the_dtype_of_its_policy(policy, rng):
    layer, compute = StateBridge([4, 3], dtype=policy), keras.DTypePolicy(policy).compute_dtype
    layer = StateBridge.from_config(layer.get_config())
    states = [array(rng, 2, 5), array(rng, 2, 6)]
    for inputs in (states, tree.map_structure(lambda x: keras.Input(x.shape[1:]), states)):
        outputs = layer(inputs)
        assert [(keras.backend.standardize_dtype(x.dtype), x.shape[1]) for x in outputs] == [
            (compute, 4),
            (compute, 3),
        ]


# --- An empty batch -------------------------------------------------------------------------------


EMPTY = list(CASES)
if keras.config.backend() == "jax":
    EMPTY.remove("Decode")  # on JAX, `ops.take` from an empty table loses the last axis


def without_rows(shapes):
    """The shapes of an empty batch, in order."""
    shapes = list(shapes.values()) if isinstance(shapes, dict) else [shapes]
    return [(0, *shape[1:]) for shape in shapes]


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch_gives_outputs_without_rows(name, rng):
    case, layer = CASES[name], CASES[name].make()
    inputs = [array(rng, *shape) for shape in without_rows(case.shapes)]
    inputs = [ops.cast(part, case.input_dtype or "float32") for part in inputs]
    outputs = layer(*inputs, **(case.arguments or {}))
    expected = layer.compute_output_spec(*inputs, **(case.arguments or {}))
    shapes = [tuple(part.shape) for part in tree.flatten(outputs)]
    assert shapes == [tuple(part.shape) for part in tree.flatten(expected)]
    assert all(shape[0] == 0 for shape in shapes)


def test_an_empty_batch_of_two_sources_gives_outputs_without_rows(rng):
    inputs = array(rng, 0, 3, 4), [array(rng, 0, 5, 6), array(rng, 0, 4, 3)]
    context, weights = two_sources()(*inputs, return_attention_scores=True)
    assert tuple(context.shape) == (0, 3, 9) and tuple(weights.shape) == (0, 3, 9)


@pytest.mark.parametrize(("attention", "copy"), [(bahdanau, True), (FixedContext, False)])
def test_an_empty_batch_gives_a_model_without_rows(attention, copy):
    model = Seq2Seq(8, 8, 4, BidirectionalEncoder(3), decoder_of(attention()), copy=copy)
    logits = model({"source": ops.zeros((0, 5), "int32"), "target": ops.zeros((0, 3), "int32")})
    assert tuple(logits.shape) == (0, 3, 8)
