"""Many steps ahead: an attentive decoder with numbers in and numbers out, fed with its own outputs.

Every series repeats a shape of its own, at a frequency that drifts, under noise. To go on with it
one looks back by a period, which is what the attention learns to do.

    python -m examples.forecasting.forecast
"""

import sys

import keras
import numpy as np

from examples.common import export_and_compare, options, require_margin
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
)

HISTORY, AHEAD = 48, 16


def draw(count, seed):
    """Series `(B, HISTORY + AHEAD, 1)`: three harmonics, a drifting frequency, noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(HISTORY + AHEAD)
    period = rng.uniform(12, 20, (count, 1))
    drift = rng.uniform(-0.004, 0.004, (count, 1))
    phase = 2 * np.pi * (time / period * (1 + drift * time / 2) + rng.uniform(0, 1, (count, 1)))
    series = np.zeros((count, len(time)))
    for harmonic in range(1, 4):
        size = rng.normal(0, 0.6, (count, 1))
        series += size * np.sin(harmonic * phase + rng.uniform(0, 2 * np.pi, (count, 1)))
    series += rng.normal(0, 0.1, series.shape)
    return series[..., None].astype("float32")


def attentive(units):
    """History `(B, HISTORY, 1)` to the future `(B, AHEAD, 1)` and weights `(B, AHEAD, HISTORY)`."""
    history = keras.Input((HISTORY, 1), name="history")
    annotations = BidirectionalEncoder(units)(history)
    decoder = AttentiveDecoder(
        keras.layers.GRUCell(units), BahdanauAttention(units), DeepOutput(1, "linear")
    )
    first_state = Bridge([units], "last")(annotations)
    first = history[:, -1]
    future, weights = decoder.unroll(first, annotations, AHEAD, initial_state=first_state)
    return keras.Model(history, [future, weights])


def plain(units):
    """The baseline: a GRU reads the history, its last state says all of the future at once."""
    history = keras.Input((HISTORY, 1), name="history")
    future = keras.layers.Dense(AHEAD)(keras.layers.GRU(units)(history))
    return keras.Model(history, keras.layers.Reshape((AHEAD, 1), name="future")(future))


def train(model, series, epochs):
    rate = keras.optimizers.schedules.CosineDecay(4e-3, epochs * len(series) // 64)
    forecast = keras.Model(model.inputs, model.outputs[0])  # the weights have no loss
    forecast.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), "mse")
    forecast.fit(series[:, :HISTORY], series[:, HISTORY:], batch_size=64, epochs=epochs, verbose=2)
    return model


def rmse(forecast, series):
    return float(np.sqrt(np.mean((forecast - series[:, HISTORY:]) ** 2)))


def draw_picture(series, forecast, by_gru, weights, path):
    """One series with both forecasts, and below it where each step looked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), dpi=80, layout="constrained")
    top, bottom = figure.subplots(2, 1)
    ahead = np.arange(HISTORY, HISTORY + AHEAD)
    top.plot(series[:, 0], color="0.7", label="the series")
    top.plot(ahead, by_gru[:, 0], "C1", label="GRU")
    top.plot(ahead, forecast[:, 0], "C0", label="attentive decoder")
    top.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    bottom.imshow(weights, cmap="Greys", aspect="auto", extent=(0, HISTORY, AHEAD, 0))
    bottom.set(xlim=top.get_xlim(), xlabel="time", ylabel="step ahead", title="attention")
    bottom.set_yticks(range(0, AHEAD + 1, 4))
    figure.savefig(path)


def main(arguments=None):
    """Trains both, compares them on unseen series, draws one; returns the errors."""
    args = options("forecasting", __doc__, arguments)
    count, epochs, units = (128, 1, 8) if args.quick else (6000, 10, 48)
    series, unseen = draw(count, args.training), draw(max(count // 6, 16), args.unseen)
    history = unseen[:, :HISTORY]
    attends, gru = train(attentive(units), series, epochs), train(plain(2 * units), series, epochs)
    forecast, weights = attends.predict(history, verbose=0)
    by_gru = gru.predict(history, verbose=0)
    errors = {
        "attentive": rmse(forecast, unseen),
        "GRU": rmse(by_gru, unseen),
        "last value": rmse(history[:, -1:], unseen),
    }
    print(errors)
    draw_picture(unseen[0], forecast[0], by_gru[0], weights[0], args.output / "forecast.png")
    attends.save(args.output / "model.keras")
    if args.export:
        export_and_compare(attends, [history], args.output / "artifact", ["future", "weights"])
    for name, margin in (("GRU", -0.05), ("last value", -0.5)):
        require_margin(
            f"RMSE against {name}", errors["attentive"], errors[name], margin, args.quick
        )
    return errors


if __name__ == "__main__":
    main(sys.argv[1:])
