"""Learning rates by update, computed by hand."""

import math

import keras
import pytest

from keras_bahdanau.optimizers import WarmupSchedule


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
