"""Lines of the progress of training."""

import io

import keras
import pytest
from rich.console import Console

from keras_bahdanau.callbacks import ProgressDisplay, progress


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines_of_run(clock, seconds, validation, epochs, batches, initial_epoch=0):
    """The lines of a run whose batches take `seconds`, but the first five ten times as long."""
    output = io.StringIO()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    display = ProgressDisplay(100, Console(file=output, width=40))
    display.set_params({"epochs": epochs, "steps": batches})
    display.set_model(model)
    display.on_train_begin()
    done = 0
    for epoch in range(initial_epoch, epochs):
        display.on_epoch_begin(epoch)
        for batch in range(batches):
            clock.now += seconds * (10 if done < 5 else 1)
            done += 1
            display.on_train_batch_end(batch, {"loss": 2.0})
        clock.now += validation
        display.on_epoch_end(epoch, {"loss": 2.0})
    return output.getvalue().splitlines()


def test_lines_have_the_speed_and_the_remaining_time_of_the_run(clock):
    # A batch takes 2 s, but the first five 20 s: 50 batches are 190 s, and a validation is 7 s.
    assert lines_of_run(clock, 2.0, 7.0, epochs=3, batches=50) == [
        "in epoch 1/3: batch 1 of 50  loss 2.000",
        "in epoch 1/3: batch 4 of 50  loss 2.000",
        "in epoch 1/3: batch 25 of 50  loss 2.000  50 tokens/s  0:04:10 left without validations",
        "epoch 1/3  update 0  loss 2.000  197 s  0:03:34 left",
        "in epoch 2/3: batch 30 of 50  loss 2.000  50 tokens/s  0:02:34 left",
        "epoch 2/3  update 0  loss 2.000  107 s  0:01:47 left",
        "in epoch 3/3: batch 30 of 50  loss 2.000  50 tokens/s  0:00:47 left",
        "epoch 3/3  update 0  loss 2.000  107 s",
    ]


def test_a_resumed_run_estimates_what_is_left(clock):
    lines = lines_of_run(clock, 0.5, 1.0, epochs=4, batches=40, initial_epoch=2)
    assert lines[1].endswith("200 tokens/s  0:00:28 left without validations")
    assert lines[2].endswith("  0:00:21 left")
