"""The loop over time. Its gradients and unknown lengths are tested in tests/conformance."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import POLICIES, array, assert_close, numpy

from keras_bahdanau.layers.sequences import flatten, pack, run_over_time


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
