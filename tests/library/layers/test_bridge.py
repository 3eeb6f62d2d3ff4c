import keras
import numpy as np
import pytest
import reference
from layer_checks import (
    WIDE_POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    assert_garbage_is_ignored,
    assert_survives_saving,
    dtype_policy,
    numpy,
    randomize,
    right_mask,
)

from keras_bahdanau import Bridge
from keras_bahdanau.layers import StateBridge

B, TX, D = 4, 5, 6
SIZES = [3, 2]
LENGTHS = [5, 3, 1, 0]
MASK = right_mask(LENGTHS, TX)
SUMMARIES = ["backward_first", "last", "ends", "mean"]
sources = pytest.mark.parametrize("source", [*SUMMARIES, "zero"])
summaries = pytest.mark.parametrize("source", SUMMARIES)


def built(source, rng):
    bridge = Bridge(SIZES, source)
    bridge.build((B, TX, D))
    return randomize(bridge, rng)


def reference_bridge(bridge, annotations, lengths):
    """The states of the reference, concatenated."""
    kernel, bias = reference.float64(bridge.get_weights())
    rows = zip(annotations, lengths, strict=True)
    return np.array([reference.bridge(row, n, bridge.source, kernel, bias) for row, n in rows])


def concatenated(states):
    return np.concatenate([np.asarray(numpy(state), "float32") for state in states], axis=-1)


def test_another_activation_replaces_the_tanh(rng):
    bridge, annotations = Bridge([3], "mean", activation="relu"), array(rng, B, TX, D)
    [state] = bridge(annotations)
    kernel, bias = reference.float64(bridge.get_weights())
    expected = np.maximum(annotations.mean(axis=1, dtype="float64") @ kernel + bias, 0)
    assert_close(state, expected)
    assert (expected == 0).any() and (expected > 0).any()
    assert_config_round_trip(bridge)


@pytest.mark.parametrize("sizes", [SIZES, None])
def test_a_state_bridge_reads_all_states_or_passes_them_on(sizes, rng, tmp_path):
    states = [array(rng, B, 4), array(rng, B, 5)]
    bridge = StateBridge(sizes, activation="relu")
    bridge.build([state.shape for state in states])
    randomize(bridge, rng)
    expected = states
    if sizes is not None:
        kernel, bias = reference.float64(bridge.get_weights())
        product = np.maximum(np.concatenate(states, -1) @ kernel + bias, 0)
        expected = [product[:, :3], product[:, 3:]]
    for actual, part in zip(bridge(states), expected, strict=True):
        assert_close(actual, part)
    shapes = bridge.compute_output_shape([state.shape for state in states])
    assert shapes == [part.shape for part in expected]
    assert_config_round_trip(bridge)


@summaries
@pytest.mark.parametrize("masked", [True, False])
def test_states_match_the_reference(source, masked, rng):
    bridge, annotations = built(source, rng), array(rng, B, TX, D)
    states = bridge(annotations, mask=MASK if masked else None)
    assert [tuple(state.shape) for state in states] == [(B, size) for size in SIZES]
    lengths = LENGTHS if masked else [TX] * B
    assert_close(concatenated(states), reference_bridge(bridge, annotations, lengths))


@summaries
def test_states_depend_on_the_unmasked_annotations_alone(source, rng):
    bridge, annotations = built(source, rng), array(rng, B, TX, D)
    mask = np.array([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    moved = np.zeros_like(annotations)
    for row, keep in enumerate(mask):
        moved[row, : keep.sum()] = annotations[row, keep]
    expected = reference_bridge(bridge, moved, mask.sum(axis=1))
    assert_close(concatenated(bridge(annotations, mask=mask)), expected)


@sources
def test_output_shapes_are_computed_without_numbers(source):
    bridge = Bridge(SIZES, source)
    assert bridge.compute_output_shape((B, TX, D)) == [(B, size) for size in SIZES]
    masked = bridge(keras.Input((TX, D)), mask=keras.Input((TX,), dtype="bool"))
    for states in (masked, bridge(keras.Input((None, D)))):
        assert [tuple(state.shape) for state in states] == [(None, size) for size in SIZES]


def test_zero_states_need_no_weights(rng):
    bridge = Bridge(SIZES, "zero")
    states = bridge(array(rng, B, TX, D))
    assert bridge.weights == []
    assert_close(states, [np.zeros((B, size)) for size in SIZES], 0)


@summaries
def test_longer_padding_changes_no_state(source, rng):
    bridge, annotations = built(source, rng), array(rng, B, TX, D)
    longer = np.concatenate([annotations, array(rng, B, 2, D)], axis=1)
    actual = bridge(longer, mask=right_mask(LENGTHS, TX + 2))
    assert_close(actual, bridge(annotations, mask=MASK), 1e-6)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@summaries
def test_integer_annotations_are_converted_to_floats(source, dtype, rng):
    bridge, annotations = built(source, rng), rng.integers(0, 9, (B, TX, D)).astype(dtype)
    expected = bridge(annotations.astype("float32"), mask=MASK)
    assert_close(bridge(annotations, mask=MASK), expected)


@summaries
def test_garbage_at_masked_positions_is_ignored(source, rng):
    assert_garbage_is_ignored(built(source, rng), [array(rng, B, TX, D)], 0, MASK, mask=MASK)


def masked_model(bridge):
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, bridge(keras.layers.Embedding(9, D, mask_zero=True)(ids)))


IDS = np.array([[3, 4, 5, 6], [7, 8, 0, 0], [1, 0, 0, 0]])


@summaries
def test_implicit_masks_are_used(source):
    bridge = Bridge(SIZES, source)
    model = masked_model(bridge)
    annotations = numpy(model.layers[1](IDS))
    expected = reference_bridge(bridge, annotations, [4, 2, 1])
    assert_close(concatenated(model(IDS)), expected)
    assert_close(np.concatenate(model.predict(IDS, verbose=0), -1), expected)


@sources
def test_config_round_trip(source):
    assert_config_round_trip(Bridge(SIZES, source, kernel_initializer="he_normal"))


@sources
def test_a_model_survives_saving(source, tmp_path):
    assert_survives_saving(masked_model(Bridge(SIZES, source)), IDS, tmp_path)


@sources
@pytest.mark.parametrize("policy", WIDE_POLICIES)
def test_mixed_precision_stays_close_to_the_reference(source, policy, rng):
    annotations = array(rng, B, TX, D)
    with dtype_policy(policy):
        bridge = Bridge(SIZES, source)
        states = bridge(annotations, mask=MASK)
    for state in states:
        assert keras.backend.standardize_dtype(state.dtype) == bridge.compute_dtype
    if source != "zero":
        expected = reference_bridge(bridge, annotations, LENGTHS)
        assert_close(keras.ops.cast(keras.ops.concatenate(states, -1), "float32"), expected, 0.03)


def test_source_must_be_known():
    with pytest.raises(ValueError, match=r"`source` must be one of \(.*\). Received: 'first'"):
        Bridge(SIZES, "first")


def test_invalid_annotations_and_masks_are_refused(rng):
    with pytest.raises(ValueError, match=r"`annotations` must have a known width.*\(None, 5, None"):
        Bridge(SIZES)(keras.Input((5, None)))
    for source in ("last", "zero"):
        with pytest.raises(ValueError, match=r"`annotations` must be \(batch, time, width\)"):
            Bridge(SIZES, source)(array(rng, 2, 4))
    with pytest.raises(ValueError, match=r"`mask` must be bool of shape \(1, 4\).*\(1, 3\)"):
        Bridge(SIZES)(array(rng, 1, 4, 2), mask=np.ones((1, 3), bool))


@pytest.mark.parametrize("sizes, name", [(8, "sizes"), ([4, 0], r"sizes\[1\]"), (["8"], "sizes")])
def test_sizes_must_be_a_list_of_positive_ints(sizes, name):
    with pytest.raises(ValueError, match=f"`{name}"):
        Bridge(sizes)
