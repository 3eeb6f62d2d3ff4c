"""Updates and learning rates, computed by hand and with Keras."""

import math

import keras
import numpy as np
import pytest

from keras_bahdanau.optimizers import Adam, WarmupSchedule


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("constant", [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0]),
        ("inverse-sqrt", [0.5, 1.0, 1.5, 2.0, 2.0, 2.0 * math.sqrt(4 / 6), 2.0 * math.sqrt(4 / 8)]),
        # Steps 6 and 8 are half and all of the four updates after the warmup.
        ("cosine", [0.5, 1.0, 1.5, 2.0, 2.0, 1.0, 0.0]),
    ],
)
def test_the_rate_rises_in_the_warmup_and_then_falls(shape, expected):
    schedule = WarmupSchedule(2.0, shape, updates=8, warmup=4)
    assert rates(schedule, 0, 1, 2, 3, 4, 6, 8) == pytest.approx(expected)


def test_without_warmup_the_rate_starts_at_its_peak():
    for shape in ("constant", "inverse-sqrt", "cosine"):
        assert rates(WarmupSchedule(3.0, shape, updates=4), 0) == [3.0]


def test_the_schedule_counts_updates_instead_of_batches():
    """Keras calls a schedule with the number of batches, and several may make one update."""
    schedule = WarmupSchedule(1.0, "cosine", updates=4, warmup=2, batches=3)
    by_update = WarmupSchedule(1.0, "cosine", updates=4, warmup=2)
    assert rates(schedule, *range(12)) == rates(by_update, *[step // 3 for step in range(12)])
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=3)
    weight = keras.Variable([0.0])
    for batch in range(6):
        optimizer.apply([keras.ops.ones(1)], [weight])
        [value] = keras.ops.convert_to_numpy(weight)
        assert value == pytest.approx([0, 0, -0.5, -0.5, -0.5, -1.5][batch])


def test_serialization_keeps_the_config():
    config = {"peak": 0.5, "shape": "inverse-sqrt", "updates": 9, "warmup": 3, "batches": 2}
    serialized = keras.saving.serialize_keras_object(WarmupSchedule(**config))
    assert keras.saving.deserialize_keras_object(serialized).get_config() == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak": 0.0}, "`peak` must be a number above 0"),
        ({"shape": "square"}, "`shape` must be one of .*'square'"),
        ({"updates": 0}, "`updates` must be an int of at least 1"),
        ({"updates": 5, "warmup": 5}, "`warmup` must be an int of at least 0 and at most 4"),
        ({"batches": 0}, "`batches` must be an int of at least 1"),
    ],
)
def test_arguments_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        WarmupSchedule(**{"peak": 1.0, **change})


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adam_makes_the_updates_of_its_equations(amsgrad, dtype):
    rate, beta_1, beta_2, epsilon = (
        0.5,
        0.75,
        0.875,
        0.25,
    )  # a large epsilon shows where it is added
    gradients = np.array([[1.0, -2.0], [4.0, 0.5], [0.25, 0.0]])
    weights = np.array([1.0, -1.0])
    variable = keras.Variable(weights, dtype=dtype)
    optimizer = Adam(rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, amsgrad=amsgrad)
    optimizer = Adam.from_config(optimizer.get_config())
    m = v = largest = np.zeros(2)
    for t, gradient in enumerate(gradients, 1):
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")], [variable])
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * gradient**2
        largest = np.maximum(largest, v)
        step = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t) * m
        weights = weights - step / (np.sqrt(largest if amsgrad else v) + epsilon)
        tolerance = 1e-6 if dtype == "float32" else 0.05
        actual = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
        np.testing.assert_allclose(actual, weights, rtol=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.5},
        {"global_clipnorm": 0.5},
        {"use_ema": True, "ema_overwrite_frequency": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_adam_keeps_the_settings_of_all_keras_optimizers(settings):
    variables = [keras.Variable([1.0, -3.0]) for _ in range(2)]
    for variable, kind in zip(variables, (Adam, keras.optimizers.Adam), strict=True):
        optimizer = kind(0.5, beta_2=0.875, **settings)  # 1 - 0.999 is inexact in float32
        for gradient in ([3.0, 4.0], [-1.0, 2.0]):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    actual, expected = (keras.ops.convert_to_numpy(variable) for variable in variables)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
