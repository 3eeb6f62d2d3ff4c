"""Checks of shapes by patterns of named axes."""

import keras
import numpy as np
import pytest

from keras_bahdanau.shapes import check_shape

INTS = np.zeros((3, 4), "uint16")


@pytest.mark.parametrize(
    ("value", "pattern", "kind", "sizes"),
    [
        (INTS, "batch time", "ints", {}),
        (INTS, "batch time", "ints", {"batch": 3, "time": None}),
        (INTS[:1], "batch|1 4", None, {"batch": 3}),
        (INTS > 0, "batch time", "bool", {"time": 4}),
        (np.zeros((), "float16"), "", "floats", {}),
        (keras.KerasTensor((), "bfloat16"), "", "floats", {}),
        ((None, 4), "batch time", None, {"batch": 3, "time": 4}),
        (keras.KerasTensor((None, 4), "bool"), "batch time", "bool", {"batch": 3}),
    ],
)
def test_shapes_that_fit_are_accepted(value, pattern, kind, sizes):
    check_shape("x", value, pattern, kind, **sizes)


@pytest.mark.parametrize(
    ("value", "pattern", "kind", "sizes", "message"),
    [
        (
            INTS,
            "batch time",
            None,
            {"time": 5},
            "be (batch, 5). R.*(3, 4), whose axis `time` is 4",
        ),
        (
            INTS[:1],
            "batch n",
            None,
            {"batch": 3},
            "be (3, n). R.*: shape (1, 4), whose axis `batch` is 1",
        ),
        (
            INTS,
            "batch|1 n",
            "ints",
            {"batch": 2},
            "uint16 of shape (3, 4), whose axis `batch` is 3",
        ),
        (INTS, "source_ids 2", None, {}, "be (source ids, 2). R.*, whose axis 1 is 4"),
        (INTS, "batch", None, {}, "be (batch,). Received: shape (3, 4)"),
        (INTS, "", None, {}, "be a single number. Received: shape (3, 4)"),
        (INTS, "a b", "bool", {}, "be bool of shape (a, b). Received: uint16 of shape (3, 4)"),
        (np.array(["a"]), "a", "ints", {}, "be ints of shape (a,). Received: <U1 of shape (1,)"),
        ([1, 2], "a", "ints", {}, "be ints of shape (a,). Received: [1, 2]"),
    ],
)
def test_the_message_names_the_wrong_axis(value, pattern, kind, sizes, message):
    with pytest.raises(ValueError) as error:
        check_shape("x", value, pattern, kind, **sizes)
    first, _, last = message.partition(" R.*")
    assert str(error.value).startswith("Argument `x` must be ")
    assert first in str(error.value) and str(error.value).endswith(last)
