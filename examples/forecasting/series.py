"""Hourly series of a CSV file: split, windows, calendar, and forecasts without a network."""

import csv
from datetime import datetime
from typing import NamedTuple

import numpy as np

MONTH = 30 * 24  # hours
PENALTY = 100.0  # of the ridge regression on the own past, chosen on the validation months
MONTHS = {"training": (0, 12), "validation": (12, 16), "test": (16, 20)}


class Shape(NamedTuple):
    """Sizes in hours: a month, the past that is read, the forecast, and the horizons to measure."""

    month: int
    history: int
    horizon: int
    measured: tuple


ETTH1 = Shape(MONTH, 96, 96, (24, 48, 96))
QUICK = Shape(48, 48, 12, (6, 12))


class Series(NamedTuple):
    """Standardized variables and their calendar.

    Attributes:
        names: Names of the V variables.
        values: `(T, V)` float32, with the mean and the deviation of the training months removed.
        calendar: `(T, 31)` float32 flags: 24 for the hour of the day, 7 for the day of the week.
    """

    names: list[str]
    values: np.ndarray
    calendar: np.ndarray


class Windows(NamedTuple):
    """Windows of a part of a series, one for each hour at which a forecast begins.

    Attributes:
        past: `(B, history, V)`.
        past_calendar: `(B, history, 31)`.
        future_calendar: `(B, horizon, 31)`.
        future: `(B, horizon, V)`, the values to forecast. NaN after the end of the part.
    """

    past: np.ndarray
    past_calendar: np.ndarray
    future_calendar: np.ndarray
    future: np.ndarray


def read_series(path, shape):
    """Read a CSV file with a header, a column of times and columns of numbers, one row an hour.

    Args:
        path: The file.
        shape: A `Shape`.

    Raises:
        SystemExit: If the file has too few rows for 20 months and one more forecast.
    """
    with open(path, newline="", encoding="utf-8") as file:
        (_, *names), *rows = csv.reader(file)
    count = MONTHS["test"][1] * shape.month + shape.horizon
    if len(rows) < count:
        raise SystemExit(f"{path} must have {count} hours. It has {len(rows)}.")
    values = np.array([row[1:] for row in rows[:count]], "float64")
    training = values[: MONTHS["training"][1] * shape.month]
    values = (values - training.mean(axis=0)) / training.std(axis=0)
    times = [datetime.fromisoformat(row[0]) for row in rows[:count]]
    hours, days = [time.hour for time in times], [time.weekday() for time in times]
    calendar = np.concatenate([np.eye(24)[hours], np.eye(7)[days]], axis=1)
    return Series(names, values.astype("float32"), calendar.astype("float32"))


def windows(series, part, shape, stride=1):
    """Return the windows of a part.

    Test windows have at least the shortest measured horizon, others the whole horizon. The past of
    the first windows of a later part lies in the part before, as in the literature.

    Args:
        series: A `Series`.
        part: "training", "validation" or "test".
        shape: A `Shape`.
        stride: Hours between two windows.
    """
    first, last = (number * shape.month for number in MONTHS[part])
    shortest = shape.measured[0] if part == "test" else shape.horizon
    begin = np.arange(max(first, shape.history), last - shortest + 1, stride)[:, None]
    past, future = begin + np.arange(-shape.history, 0), begin + np.arange(shape.horizon)
    values, calendar = series.values, series.calendar
    expected = np.where(future[..., None] < last, values[future], np.nan)
    return Windows(values[past], calendar[past], calendar[future], expected)


def errors(forecast, future, hours):
    """Return the mean squared and the mean absolute error of the first `hours` of all windows.

    Windows that end earlier do not count.
    """
    is_complete = np.isfinite(future[:, hours - 1, 0])
    difference = (forecast - future)[is_complete, :hours]
    return float(np.square(difference).mean()), float(np.abs(difference).mean())


def coverage(lower, upper, future, hours):
    """Return the share of the values between two forecasts, in the windows of `errors`."""
    is_complete = np.isfinite(future[:, hours - 1, 0])
    is_inside = (lower <= future) & (future <= upper)
    return float(is_inside[is_complete, :hours].mean())


def day_before(past, horizon):
    """Return the last day of the past, repeated to `horizon` hours."""
    return np.tile(past[:, -24:], (1, -(-horizon // 24), 1))[:, :horizon]


class Ridge:
    """Ridge regression of each variable on its own past, last value subtracted.

    Args:
        training: `Windows`.
        penalty: Weight of the squared coefficients.
        reads_hour: Whether the regression also reads the hour at which the forecast begins.

    Attributes:
        kernel: `(V, F, horizon)`, for the hours of the past and then for the 24 flags.
        bias: `(horizon, V)`.
    """

    def __init__(self, training, penalty, reads_hour):
        self.reads_hour = reads_hour
        inputs = self._inputs(training).astype("float64")
        targets = (training.future - training.past[:, -1:]).transpose(2, 0, 1).astype("float64")
        inputs_mean, targets_mean = (x.mean(axis=1, keepdims=True) for x in (inputs, targets))
        inputs, targets = inputs - inputs_mean, targets - targets_mean
        transposed = inputs.transpose(0, 2, 1)
        squares = transposed @ inputs + penalty * np.eye(inputs.shape[-1])
        kernel = np.linalg.solve(squares, transposed @ targets)
        bias = targets_mean - inputs_mean @ kernel
        self.kernel, self.bias = kernel.astype("float32"), bias[:, 0].T.astype("float32")

    def _inputs(self, data):
        """Return `(V, B, F)` features."""
        changes = (data.past - data.past[:, -1:]).transpose(2, 0, 1)
        if not self.reads_hour:
            return changes
        flags = data.future_calendar[:, 0, :24]
        return np.concatenate([changes, np.broadcast_to(flags, (len(changes), *flags.shape))], -1)

    def predict(self, data):
        """Return forecasts `(B, horizon, V)` of `Windows`."""
        changes = np.einsum("vbf,vfh->bhv", self._inputs(data), self.kernel, optimize=True)
        return changes + self.bias + data.past[:, -1:]
