"""Forecasts of ETTh1, the loads and the oil temperature of a transformer station, for 96 hours.

A ridge regression forecasts each variable from its own past and the hour of the day. An attentive
decoder reads this forecast, the calendar and the past, and learns a correction and quantiles. The
baselines are the ridge regression without the hour, and the day before.

The data are ETT-small/ETTh1.csv of https://github.com/zhouhaoyi/ETDataset (CC BY-ND 4.0).

    python -m examples.forecasting.forecast ETTh1.csv
"""

import sys

import keras
import numpy as np
from keras import ops

from examples.common import export_and_compare, parse_options, require_margin
from examples.forecasting.series import (
    ETTH1,
    PENALTY,
    QUICK,
    Ridge,
    coverage,
    day_before,
    errors,
    read_series,
    windows,
)
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
)
from keras_bahdanau.layers import WindowNormalization
from keras_bahdanau.losses import QuantileLoss
from keras_bahdanau_runtime.pictures.style import GRAY, saved_figure

QUANTILES = [0.1, 0.5, 0.9]
PENALTY_WITH_HOUR = 30.0  # chosen on the validation months, where 10 to 100 differ little
BLOCK = 6  # hours that one step of the encoder or the decoder reads
STRIDE = 7  # hours between two training windows, because neighbors differ little


def block_rows(values, calendar, units):
    """Return `(B * V, T / BLOCK, units)`: each variable becomes a row of its own.

    Args:
        values: `(B, T, V)`.
        calendar: `(B, T, C)`. A step reads that of the first hour of its block.
        units: Width of the projection, which has different weights for each variable.
    """
    _, time, variables = values.shape
    steps = time // BLOCK
    blocks = ops.reshape(ops.transpose(values, (0, 2, 1)), (-1, variables, steps, BLOCK))
    flags = ops.repeat(ops.expand_dims(calendar[:, ::BLOCK], 1), variables, axis=1)
    project = keras.layers.EinsumDense("bvsf,vfu->bvsu", (variables, steps, units), bias_axes="vu")
    return ops.reshape(project(ops.concatenate([blocks, flags], -1)), (-1, steps, units))


def build(ridge, shape, units, dropout):
    """Return a model of the past and the calendar to the mean, quantiles and attention weights.

    The inputs are `past`, `past_calendar` and `future_calendar` of `Windows`. The outputs are
    `(B, horizon, V)`, `(B, horizon, V, Q)` and `(B, V, horizon / BLOCK, history / BLOCK)`.
    """
    variables, horizon = len(ridge.kernel), shape.horizon
    past = keras.Input((shape.history, variables), name="past")
    past_calendar = keras.Input((shape.history, 31), name="past_calendar")
    future_calendar = keras.Input((horizon, 31), name="future_calendar")
    normalize = WindowNormalization("last", scale=False)
    changes = normalize(past, past)

    hour = ops.repeat(ops.expand_dims(future_calendar[:, 0, :24], -1), variables, axis=-1)
    regression = keras.layers.EinsumDense(
        "bfv,vfh->bhv", (horizon, variables), bias_axes="hv", trainable=False, name="ridge"
    )
    linear = regression(ops.concatenate([changes, hour], axis=1))
    regression.set_weights([ridge.kernel, ridge.bias])

    drop = keras.layers.Dropout(dropout)
    annotations = BidirectionalEncoder(units)(drop(block_rows(changes, past_calendar, units)))
    annotations = drop(annotations)
    decoder = AttentiveDecoder(
        keras.layers.GRUCell(2 * units),
        BahdanauAttention(units),
        DeepOutput(2 * units, "tanh"),
        query_state="current",  # it has read the hour and the weekday of its block
    )
    features, weights = decoder(
        drop(block_rows(linear, future_calendar, units)),
        annotations,
        initial_state=Bridge([2 * units], "last")(annotations),
        return_attention_scores=True,
    )
    steps, count = horizon // BLOCK, 1 + len(QUANTILES)
    corrections = keras.layers.EinsumDense(
        "bvsu,vuc->bvsc",
        (variables, steps, BLOCK * count),
        bias_axes="vc",
        kernel_initializer="zeros",  # training starts at the regression
        name="corrections",
    )(ops.reshape(drop(features), (-1, variables, steps, 2 * units)))
    corrections = ops.reshape(corrections, (-1, variables, horizon, count))
    changes = ops.expand_dims(linear, -1) + ops.transpose(corrections, (0, 2, 1, 3))
    values = normalize(changes, past, inverse=True)
    weights = ops.reshape(weights, (-1, variables, steps, shape.history // BLOCK))
    outputs = {"mean": values[..., 0], "quantiles": values[..., 1:], "weights": weights}
    return keras.Model([past, past_calendar, future_calendar], outputs)


def train(model, training, validation, epochs):
    """Train the mean and the quantiles, and keep the epoch with the best validation error."""
    outputs = {name: model.output[name] for name in ("mean", "quantiles")}  # weights have no loss
    forecast = keras.Model(model.inputs, outputs)
    rate = keras.optimizers.schedules.CosineDecay(6e-3, epochs * len(training.past) // 32)
    losses = {"mean": "mse", "quantiles": QuantileLoss(QUANTILES)}
    forecast.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), losses)
    stopping = keras.callbacks.EarlyStopping(
        "val_mean_loss", patience=epochs, mode="min", restore_best_weights=True
    )
    forecast.fit(
        list(training[:3]),
        dict.fromkeys(outputs, training.future),
        validation_data=(list(validation[:3]), dict.fromkeys(outputs, validation.future)),
        batch_size=32,
        epochs=epochs,
        callbacks=[stopping],
        verbose=2,
    )


def draw_picture(names, data, outputs, ridge, path):
    """Draw the forecast of one window of the first variable, and what each block of hours reads."""
    history, horizon = data.past.shape[1], data.future.shape[1]
    ahead = np.arange(horizon)
    with saved_figure(path, 7, 5.5) as figure:
        top, bottom = figure.subplots(2, 1)
        top.plot(np.arange(-history, 0), data.past[0, :, 0], color=GRAY)
        top.plot(ahead, data.future[0, :, 0], color=GRAY, label=names[0])
        top.plot(ahead, ridge[0, :, 0], "C1--", label="ridge regression")
        top.plot(ahead, outputs["mean"][0, :, 0], "C0", label="attentive decoder")
        low, *_, high = outputs["quantiles"][0, :, 0].T
        top.fill_between(ahead, low, high, color="C0", alpha=0.2, label="its 80 % interval")
        top.axvline(0, color=GRAY, linewidth=1)
        top.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
        top.set(xlim=(-history, horizon), xlabel="hours from the start of the forecast")
        bottom.imshow(
            outputs["weights"][0, 0], aspect="auto", extent=(-history, 0, horizon, 0), vmin=0
        )
        bottom.set(xlabel="hours before the forecast", ylabel="hours ahead")
        bottom.set_title("attention weights, the largest black", loc="left")
        for axes in (top, bottom):
            axes.set_xticks(range(-history, (horizon if axes is top else 0) + 1, 24))
        bottom.set_yticks(range(0, horizon + 1, 24))
        bottom.grid(False)


def main(arguments=None):
    """Train the model, compare it with the baselines, draw a window and return the errors."""
    args = parse_options("forecasting", __doc__, arguments, data="the file ETTh1.csv")
    shape, epochs, units = (QUICK, 1, 4) if args.quick else (ETTH1, 4, 16)
    series = read_series(args.data, shape)
    training = windows(series, "training", shape)
    ridge = Ridge(training, PENALTY, reads_hour=False)
    ridge_with_hour = Ridge(training, PENALTY_WITH_HOUR, reads_hour=True)

    model = build(ridge_with_hour, shape, units, dropout=0.1)
    train(
        model,
        windows(series, "training", shape, STRIDE),
        windows(series, "validation", shape, STRIDE),
        epochs,
    )
    unseen = windows(series, "validation" if args.validation else "test", shape)
    outputs = model.predict(list(unseen[:3]), batch_size=256, verbose=0)
    low, *_, high = np.moveaxis(outputs["quantiles"], -1, 0)
    forecasts = {
        "attentive decoder": outputs["mean"],
        "ridge regression": ridge.predict(unseen),
        "ridge regression with the hour": ridge_with_hour.predict(unseen),
        "day before": day_before(unseen.past, shape.horizon),
    }
    figures = {}
    for hours in shape.measured:
        for name, forecast in forecasts.items():
            mse, mae = errors(forecast, unseen.future, hours)
            figures[f"{name}, {hours} h"] = mse
            print(f"{hours} hours, {name}: MSE {mse:.4f}, MAE {mae:.4f}")
        share = coverage(low, high, unseen.future, hours)
        print(f"{hours} hours: {share:.1%} of the values are in the interval of 80 %")
    draw_picture(
        series.names, unseen, outputs, forecasts["ridge regression"], args.output / "forecast.png"
    )
    model.save(args.output / "model.keras")
    if args.export:
        inputs = [part[:2] for part in unseen[:3]]
        export_and_compare(model, inputs, args.output / "artifact", list(outputs))
    for hours in shape.measured:
        values = [
            figures[f"{name}, {hours} h"] for name in ("attentive decoder", "ridge regression")
        ]
        require_margin(f"MSE of {hours} hours", *values, -0.0001, args.quick)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
