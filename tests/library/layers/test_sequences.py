"""Masks, steps and the loop over time.

Gradients of the loop and unknown lengths are tested in tests/conformance.
"""

import re

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import POLICIES, array, assert_close, numpy, right_mask, with_garbage

from keras_bahdanau.layers.sequences import (
    checked_mask,
    first_kept_step,
    flatten,
    last_kept_index,
    last_kept_step,
    pack,
    reverse_by_length,
    run_over_time,
    sequence_lengths,
    zero_masked,
)

LENGTHS = [4, 1, 0, 3]
MASK = right_mask(LENGTHS, 4)


@pytest.mark.parametrize(
    "mask",
    [MASK.astype("float32"), MASK[:, 1:], MASK[0], MASK[..., None]],
    ids=["float", "short", "one row", "three axes"],
)
def test_masks_of_another_shape_or_dtype_are_refused(mask):
    got = rf"{mask.dtype} of shape {tuple(mask.shape)}"
    message = f"Argument `kept` must be bool of shape (4, 4), True = keep. Received: {got}"
    with pytest.raises(ValueError, match=re.escape(message)):
        checked_mask("kept", mask, np.ones((4, 4, 2)))


def test_a_valid_mask_is_converted_to_a_tensor():
    assert checked_mask("kept", None, np.ones((4, 4, 2))) is None
    mask = checked_mask("kept", MASK.tolist(), np.ones((4, 4, 2)))
    assert ops.is_tensor(mask)
    assert_close(mask, MASK, 0)


def test_zero_masked_replaces_masked_values_with_zeros(rng):
    values = array(rng, 4, 4, 2)
    assert zero_masked(values) is values
    for copy in with_garbage(values, MASK):
        assert_close(zero_masked(copy, MASK), np.where(MASK[..., None], values, 0), 0)


def test_sequence_lengths_count_the_valid_positions():
    lengths = sequence_lengths(MASK)
    assert keras.backend.standardize_dtype(lengths.dtype) == "int32"
    assert numpy(lengths).tolist() == LENGTHS


def test_reverse_by_length_does_not_move_the_padding():
    steps = np.tile(np.arange(4.0)[None, :, None], (4, 1, 1))
    once = reverse_by_length(steps, np.array(LENGTHS, "int32"))
    assert numpy(once)[..., 0].tolist() == [
        [3, 2, 1, 0],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [2, 1, 0, 3],
    ]
    assert_close(reverse_by_length(once, np.array(LENGTHS, "int32")), steps, 0)


def test_reverse_by_length_without_lengths_reverses_all_steps(rng):
    values = array(rng, 2, 3, 4)
    assert_close(reverse_by_length(values), values[:, ::-1], 0)


def test_the_first_and_last_steps_are_valid_ones_with_padding_on_either_side(rng):
    values = array(rng, 5, 4, 2)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    assert_close(last_kept_step(values), values[:, -1], 0)
    assert_close(last_kept_index(mask), [3, 1, 3, 1, -1], 0)
    assert_close(last_kept_step(values, mask), values[range(5), [3, 1, 3, 1, 0]], 0)
    assert_close(first_kept_step(values, mask), values[range(5), [0, 0, 2, 1, 0]], 0)


# --- The loop over time ---------------------------------------------------------------------------


def decay(t, x, state):
    """h_i = h_{i-1} / 2 + x_i, and the sum of all h: a nested state and outputs of two widths."""
    (h,), (total, ()) = state
    h = 0.5 * h + x
    total = total + ops.sum(h, axis=-1, keepdims=True)
    return [h, total], ([h], (total, ()))


def by_hand(inputs):
    h, total = np.zeros((len(inputs), inputs.shape[2])), np.zeros((len(inputs), 1))
    outputs = [], []
    for x in inputs.astype("float64").transpose(1, 0, 2):
        h = 0.5 * h + x
        total = total + h.sum(-1, keepdims=True)
        outputs[0].append(h)
        outputs[1].append(total)
    return tuple(np.stack(part, 1) for part in outputs)


def start(inputs):
    rows, _, width = ops.shape(inputs)
    return [ops.zeros((rows, width))], (ops.zeros((rows, 1)), ())


@pytest.mark.parametrize("steps", [1, 4])
def test_each_step_gets_the_state_of_the_step_before(steps, rng):
    inputs = array(rng, 2, steps, 3)
    assert_close(run_over_time(decay, inputs, start(inputs), "float32"), by_hand(inputs), 1e-6)


@pytest.mark.parametrize("dtype", [policy.removeprefix("mixed_") for policy in POLICIES])
def test_a_state_keeps_its_dtype_and_is_not_rounded(dtype):
    # Neither half-precision dtype can represent 1 + 2^-12.
    dtypes = []

    def step(t, x, state):
        dtypes.append([keras.backend.standardize_dtype(part.dtype) for part in state])
        return [state[0]], (state[0] + 2.0**-12, state[1])

    state = ops.ones((1, 1)), ops.ones((1, 1), dtype=dtype)
    inputs = ops.ones((1, 5, 1), dtype=dtype)
    (exact,) = run_over_time(step, inputs, state, "float32")
    assert_close(exact[0, :, 0], 1.0 + np.arange(5) * 2.0**-12, 1e-7)
    (rounded,) = run_over_time(step, inputs, state, dtype)
    assert keras.backend.standardize_dtype(rounded.dtype) == dtype
    assert_close(ops.cast(rounded, "float32"), np.ones((1, 5, 1)), 2.0**-9)
    assert all(step_dtypes == ["float32", dtype] for step_dtypes in dtypes)


def test_a_step_may_use_tensors_from_outside_the_loop(rng):
    inputs, memory = array(rng, 2, 3, 1), ops.convert_to_tensor(array(rng, 2, 1))
    (outputs,) = run_over_time(
        lambda t, x, state: ([x * memory], state), inputs, ops.zeros((2, 1)), "float32"
    )
    assert_close(outputs, inputs * numpy(memory)[:, None], 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_gets_its_number(dtype):
    # A step counter in bfloat16 would stop at 256.
    table = (37 * np.arange(300) % 101).astype("float32")[None, :, None]

    def step(t, x, state):
        assert keras.backend.standardize_dtype(t.dtype) == "int32" and tuple(t.shape) == ()
        return [ops.take(table, t, axis=1)], state

    inputs, state = ops.ones((1, 300, 1), dtype=dtype), ops.zeros((1, 1), dtype=dtype)
    (outputs,) = run_over_time(step, inputs, state, dtype)
    assert_close(ops.cast(outputs, "float32"), table, 0)


def test_a_nested_structure_is_flattened_and_packed_again():
    nest = (1, [2, ()], (3, (4,)))
    assert flatten(nest) == [1, 2, 3, 4]
    assert pack(nest, [5, 6, 7, 8]) == (5, [6, ()], (7, (8,)))
