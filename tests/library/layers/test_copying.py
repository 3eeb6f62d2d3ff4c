import keras
import numpy as np
import pytest
import reference
from layer_checks import (
    WIDE_POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    dtype_policy,
    numpy,
    randomize,
)

from keras_bahdanau import FixedContext, LuongAttention, RNNSearch
from keras_bahdanau.layers import (
    CoverageAttention,
    MonotonicAttention,
    MultiSourceAttention,
    PointerGenerator,
    ScheduledSampling,
)
from keras_bahdanau.layers.copying import copies_token

SOURCE = np.array([[5, 7, 5, 6, 3]], "int32")
IDS = [0, 0, 0, 0, 6, 5, 4, 5]
NO_STATE = "`attention` must have no state and a weight for each token"
ATOL = {"mixed_float16": 1e-2, "mixed_bfloat16": 1e-1}


def random_call(rng, **options):
    layer = PointerGenerator(IDS, **options)
    logits, features = array(rng, 1, 3, 7), array(rng, 1, 3, 4)
    weights = rng.dirichlet(np.ones(5), (1, 3))
    layer.build(logits.shape, features.shape)
    return randomize(layer, rng), (logits, features, weights, SOURCE)


@pytest.mark.parametrize("policy", ["float32", *WIDE_POLICIES])
def test_the_mixture_is_that_of_the_reference_in_at_least_float32(policy, rng):
    with dtype_policy(policy):
        layer, arguments = random_call(rng)
        logits = layer(*arguments)
    wide = "float64" if policy == "float64" else "float32"
    assert keras.backend.standardize_dtype(logits.dtype) == wide
    rows = [np.asarray(part[0], "float64") for part in arguments[:3]]
    gate = reference.float64(layer.get_weights())
    expected = reference.pointer_generator(*rows, np.array(IDS)[SOURCE[0]], *gate)
    log_probs = keras.ops.log_softmax(keras.ops.cast(logits, wide))
    assert_close(log_probs[0], expected, ATOL.get(policy, 1e-6))


def test_attention_to_padding_and_special_tokens_is_not_copied(rng):
    layer, (logits, features, weights, _) = random_call(rng)
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    mixed = layer(logits, features, weights, np.array([[0, 1, 2, 3, 0]], "int32"))
    assert_close(keras.ops.log_softmax(mixed), log_probs, 1e-6)


def test_the_copied_part_is_that_of_each_position_of_a_normalized_distribution():
    layer = PointerGenerator(IDS, bias_initializer=keras.initializers.Constant(np.log(3.0)))
    layer.build((1, 1, 7), (1, 1, 4))
    copies, features = layer.copies(SOURCE), np.zeros((1, 1, 4))
    weights = np.array([[[0.1, 0.2, 0.3, 0.15, 0.25]]])
    # The gate is 0.75. The last token has no target id, so 0.75 + 0.25 * 0.75 is left.
    expected = 0.25 * weights / (0.75 + 0.25 * 0.75)
    assert_close(layer.copied_part(features, weights, copies), expected, 1e-6)
    # The target ids of 5, 7, 5 and 6 are 5, 5, 5 and 4.
    is_copied = numpy(copies_token(copies, keras.ops.array([[5, 4, 0]])))
    expected = [[True, True, True, False, False], [False, False, False, True, False], [False] * 5]
    assert is_copied.tolist() == [expected]


def test_words_without_an_id_are_not_copied():
    layer = PointerGenerator([0] * 4 + [1] * 5, copied_words=2)
    layer.build((None, None, 8), (None, None, 4))
    copies = layer.copies(np.array([[6, 4, 6, 8, 5, 3]], "int32"))
    # The words 6 and 4 have the two ids; 8 and 5 are too many.
    assert numpy(copies.ids).tolist() == [[6, 7, 0, 0, 0, 0]]
    assert numpy(copies.is_same)[0].nonzero()[0].tolist() == [0, 1, 2]


def test_a_config_has_the_ids_the_attention_and_the_frozen_gate():
    layer = PointerGenerator(IDS, copied_words=1, attention=LuongAttention("dot"))
    layer.gate_layer.trainable = False
    assert_config_round_trip(layer)
    loaded = PointerGenerator.from_config(layer.get_config())
    assert loaded.target_ids == IDS and loaded.attention.score == "dot"
    assert not loaded.gate_layer.trainable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_ids": [[1]]}, "`target_ids` must be a list of the target id"),
        ({"target_ids": [0.5]}, "`target_ids` must be a list of the target id"),
        ({"target_ids": [-1]}, "`target_ids` must be a list of the target id"),
        ({"copied_words": -1}, "`copied_words` must be an int of at least 0"),
        ({"attention": "dot"}, "`attention` must be an Attention or None"),
        ({"attention": CoverageAttention(4)}, NO_STATE),
        ({"attention": MonotonicAttention(LuongAttention())}, NO_STATE),
        ({"attention": MultiSourceAttention([LuongAttention()])}, NO_STATE),
        ({"attention": FixedContext()}, NO_STATE),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PointerGenerator(**arguments)


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (1, (1, 2, 4), r"`features` must be floats of shape \(1, 3, width\)"),
        (2, (1, 3, 4), r"`weights` must be floats of shape \(1, 3, 5\)"),
        (3, (2, 5), r"`source` must be ints of shape \(1, time\)"),
    ],
)
def test_arrays_of_a_wrong_shape_are_refused(index, shape, message, rng):
    layer, arguments = random_call(rng)
    arguments = [*arguments]
    arguments[index] = np.zeros(shape, "int32" if index == 3 else "float32")
    with pytest.raises(ValueError, match=message):
        layer(*arguments)


SMALL = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}


@pytest.mark.parametrize(
    ("sizes", "arguments", "message"),
    [
        ((8, 9), {"copy": True}, "`copy` must be a PointerGenerator with `target_ids`"),
        ((9, 9), {"copy": "yes"}, "`copy` must be a bool or a PointerGenerator"),
        ((9, 9), {"copy": IDS}, "`target_ids` must have an id for each of 9 source ids"),
        ((8, 6), {"copy": IDS}, r"`target_ids` must hold ids in \[0, 6\).* Received: 6"),
        ((9, 9), {"copy": 5}, "`copied_words` must be below 5"),
        (
            (9, 9),
            {"copy": True, "scheduled_sampling": ScheduledSampling()},
            "`scheduled_sampling` must be None with `copy`",
        ),
    ],
)
def test_a_model_that_cannot_copy_is_refused(sizes, arguments, message):
    match arguments["copy"]:
        case list(ids):
            arguments = arguments | {"copy": PointerGenerator(ids)}
        case int(words) if not isinstance(words, bool):
            arguments = arguments | {"copy": PointerGenerator(copied_words=words)}
    with pytest.raises(ValueError, match=message):
        RNNSearch(*sizes, **SMALL, **arguments)
