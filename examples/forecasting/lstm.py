"""An LSTM that forecasts the oil temperature of ETTh1 for 24 hours, with and without attention.

Each model reads 96 hours of five features and the calendar. "LSTM" predicts from its last state,
"pooling" from an `AttentionPooling` of all states instead, "query" from the last state and what it
attends to, and "decoder" hour by hour from its own outputs. Each is measured twice, the second time
with the last value of each window subtracted. The baselines need no training.

    python -m examples.forecasting.lstm ETTh1.csv
"""

import sys

import keras
import numpy as np
from keras import ops

from examples.common import parse_options
from examples.forecasting.series import (
    ETTH1,
    PENALTY,
    QUICK,
    Ridge,
    day_before,
    errors,
    read_series,
    windows,
)
from keras_bahdanau import AttentionPooling, AttentiveDecoder, BahdanauAttention
from keras_bahdanau.layers import WindowNormalization
from keras_bahdanau.plot import plot_weights

FEATURES = ("OT", "HUFL", "HULL", "MUFL", "MULL")  # the first one is predicted
MODELS = ("LSTM", "pooling", "query", "decoder")


def build(kind, shape, features, units, normalizes):
    """Return a model of the past `(B, history, F)` and the calendar of the future to a forecast.

    The outputs are `(B, horizon, 1)` and weights `(B, history)`, of a decoder `(B, horizon,
    history)`. The LSTM alone has no weights.
    """
    past = keras.Input((shape.history, features), name="past")
    calendar = keras.Input((shape.horizon, 31), name="future_calendar")
    normalize = WindowNormalization("last", scale=False)
    values = normalize(past, past) if normalizes else past
    lstm = keras.layers.LSTM(units, return_sequences=True, return_state=True)
    states, last, cell = lstm(values)
    weights = None
    if kind == "decoder":
        decoder = AttentiveDecoder(
            keras.layers.LSTMCell(units), BahdanauAttention(units), keras.layers.Dense(1)
        )
        future, weights = decoder.unroll(
            values[:, -1, :1],
            states,
            shape.horizon,
            initial_state=[last, cell],
            known_inputs=calendar,
        )
    else:
        if kind == "pooling":
            last, weights = AttentionPooling(units)(states, return_attention_scores=True)
        elif kind == "query":
            attend = BahdanauAttention(units)
            context, weights = attend(last, states, return_attention_scores=True)
            last = ops.concatenate([last, context], axis=-1)
        # The same knowledge of the calendar as that of the decoder.
        last = ops.concatenate([last, calendar[:, 0]], axis=-1)
        future = ops.expand_dims(keras.layers.Dense(shape.horizon)(last), -1)
    if normalizes:
        future = normalize(future, past[..., :1], inverse=True)
    return keras.Model([past, calendar], [future] if weights is None else [future, weights])


def train(model, training, validation, epochs):
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(training[1]) // 64)
    forecast = keras.Model(model.inputs, model.outputs[0])  # the weights have no loss
    forecast.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), "mse")
    stopping = keras.callbacks.EarlyStopping(patience=epochs, restore_best_weights=True)
    forecast.fit(
        *training,
        validation_data=validation,
        batch_size=64,
        epochs=epochs,
        callbacks=[stopping],
        verbose=0,
    )


def baselines(series, part, shape):
    """Return the errors of forecasts of the first variable without a network, and print them."""
    series = series._replace(values=series.values[:, :1])
    data = windows(series, part, shape)
    ridge = Ridge(windows(series, "training", shape), PENALTY, reads_hour=False)
    forecasts = {
        "ridge regression on its own past": ridge.predict(data),
        "last value": np.repeat(data.past[:, -1:], shape.horizon, axis=1),
        "day before": day_before(data.past, shape.horizon),
    }
    figures = {}
    for name, forecast in forecasts.items():
        figures[name] = errors(forecast, data.future, shape.horizon)[0]
        print(f"{name}: MSE {figures[name]:.4f}")
    return figures


def main(arguments=None):
    """Train the models, print their errors, draw the weights of a window and return the errors."""
    args = parse_options("forecasting_lstm", __doc__, arguments, False, "the file ETTh1.csv")
    shape, stride, epochs, units = (QUICK, 1, 1, 4) if args.quick else (ETTH1, 5, 10, 32)
    shape = shape._replace(horizon=shape.measured[0])
    series = read_series(args.data, shape)
    columns = [series.names.index(name) for name in FEATURES]
    series = series._replace(values=series.values[:, columns])

    def model_data(part, stride=1):
        data = windows(series, part, shape, stride)
        return [data.past, data.future_calendar], data.future[..., :1]

    inputs, expected = model_data("validation" if args.validation else "test")
    figures = baselines(series, "validation" if args.validation else "test", shape)
    for normalizes in (False, True):
        for kind in MODELS:
            keras.utils.set_random_seed(args.seed)
            model = build(kind, shape, len(FEATURES), units, normalizes)
            train(model, model_data("training", stride), model_data("validation", stride), epochs)
            outputs = model.predict(inputs, batch_size=256, verbose=0)
            future, *weights = keras.tree.flatten(outputs)
            name = f"{kind}, last value subtracted" if normalizes else kind
            figures[name] = errors(future, expected, shape.horizon)[0]
            print(f"{name}: MSE {figures[name]:.4f}", flush=True)
    plot_weights(
        weights[0][0],  # of the last model, a decoder
        args.output / "weights.png",
        source_positions=range(-shape.history, 0),
        target_positions=range(1, shape.horizon + 1),
        source_label="hours before the forecast",
        target_label="hours ahead",
    )
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
