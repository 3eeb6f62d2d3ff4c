"""Multi-step forecasting: an attentive decoder of real values that reads its own outputs.

Every series repeats its own shape at a slowly changing frequency, with noise. A good forecast needs
the values one period earlier, which the attention learns to find.

    python -m examples.forecasting.forecast
"""

import sys

import keras
import numpy as np

from examples.common import export_and_compare, parse_options, require_margin
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
)
from keras_bahdanau_runtime.pictures.style import GRAY, saved_figure

HISTORY, HORIZON = 48, 16


def generate(count, seed):
    """Return noisy series of three drifting harmonics, `(B, HISTORY + HORIZON, 1)`."""
    rng = np.random.default_rng(seed)
    time = np.arange(HISTORY + HORIZON)
    period = rng.uniform(12, 20, (count, 1))
    drift = rng.uniform(-0.004, 0.004, (count, 1))
    phase = 2 * np.pi * (time / period * (1 + drift * time / 2) + rng.uniform(0, 1, (count, 1)))
    series = np.zeros((count, len(time)))
    for harmonic in range(1, 4):
        amplitude = rng.normal(0, 0.6, (count, 1))
        series += amplitude * np.sin(harmonic * phase + rng.uniform(0, 2 * np.pi, (count, 1)))
    series += rng.normal(0, 0.1, series.shape)
    return series[..., None].astype("float32")


def build_attentive(units):
    """Return a model of history `(B, HISTORY, 1)` to the future `(B, HORIZON, 1)` and weights.

    The weights have shape `(B, HORIZON, HISTORY)`.
    """
    history = keras.Input((HISTORY, 1), name="history")
    annotations = BidirectionalEncoder(units)(history)
    decoder = AttentiveDecoder(
        keras.layers.GRUCell(units), BahdanauAttention(units), DeepOutput(1, "linear")
    )
    first_state = Bridge([units], "last")(annotations)
    first = history[:, -1]
    future, weights = decoder.unroll(first, annotations, HORIZON, initial_state=first_state)
    return keras.Model(history, [future, weights])


def build_baseline(units):
    """Return the baseline: a GRU whose last state predicts the whole future at once."""
    history = keras.Input((HISTORY, 1), name="history")
    future = keras.layers.Dense(HORIZON)(keras.layers.GRU(units)(history))
    return keras.Model(history, keras.layers.Reshape((HORIZON, 1), name="future")(future))


def train(model, series, epochs):
    rate = keras.optimizers.schedules.CosineDecay(4e-3, epochs * len(series) // 64)
    forecast = keras.Model(model.inputs, model.outputs[0])  # the weights have no loss
    forecast.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), "mse")
    forecast.fit(series[:, :HISTORY], series[:, HISTORY:], batch_size=64, epochs=epochs, verbose=2)
    return model


def rmse(forecast, series):
    return float(np.sqrt(np.mean((forecast - series[:, HISTORY:]) ** 2)))


def draw_picture(series, forecast, gru_forecast, weights, path):
    """Draw one series with both forecasts, and below it the weights of each step."""
    ahead = np.arange(HISTORY, HISTORY + HORIZON)
    with saved_figure(path, 7, 5) as figure:
        top, bottom = figure.subplots(2, 1)
        top.plot(series[:, 0], color=GRAY, label="the series")
        top.plot(ahead, gru_forecast[:, 0], "C1--", label="GRU")
        top.plot(ahead, forecast[:, 0], "C0", label="attentive decoder")
        top.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
        bottom.imshow(weights, aspect="auto", extent=(0, HISTORY, HORIZON, 0))
        bottom.set(xlim=top.get_xlim(), xlabel="time", ylabel="step ahead")
        bottom.set_title("attention weights", loc="left")
        bottom.set_yticks(range(0, HORIZON + 1, 4))
        bottom.grid(False)


def main(arguments=None):
    """Train both models, compare them on unseen series, draw one and return the errors."""
    args = parse_options("forecasting", __doc__, arguments)
    count, epochs, units = (128, 1, 8) if args.quick else (6000, 10, 48)
    series, unseen = generate(count, args.training), generate(max(count // 6, 16), args.unseen)
    history = unseen[:, :HISTORY]
    attentive = train(build_attentive(units), series, epochs)
    gru = train(build_baseline(2 * units), series, epochs)
    forecast, weights = attentive.predict(history, verbose=0)
    gru_forecast = gru.predict(history, verbose=0)
    errors = {
        "attentive": rmse(forecast, unseen),
        "GRU": rmse(gru_forecast, unseen),
        "last value": rmse(history[:, -1:], unseen),
    }
    print(errors)
    draw_picture(unseen[0], forecast[0], gru_forecast[0], weights[0], args.output / "forecast.png")
    attentive.save(args.output / "model.keras")
    if args.export:
        export_and_compare(attentive, [history], args.output / "artifact", ["future", "weights"])
    for name, margin in (("GRU", -0.05), ("last value", -0.5)):
        require_margin(
            f"RMSE against {name}", errors["attentive"], errors[name], margin, args.quick
        )
    return errors


if __name__ == "__main__":
    main(sys.argv[1:])
