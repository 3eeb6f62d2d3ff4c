# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Forecasting with an attentive decoder
#
# A decoder of real numbers predicts the next values of a series, one at a time, and reads its own
# outputs. Each series repeats its own shape with a slowly changing period, so the values of one
# period earlier help. The attention learns to find them.
#
# The series are generated, so that the notebook needs no data. The gallery forecasts the loads of a
# transformer station, with quantiles and known inputs.
#
# It needs the [extras](../get-started/install.md) `jax,plot`
# and takes less than a minute on two cores.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or tensorflow, or torch

from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
)
from keras_bahdanau_runtime.pictures.style import GRAY, STYLE

# %matplotlib inline

# %% tags=["parameters"]
SERIES = 2500
EPOCHS = 10
UNITS = 32
OUTPUT = Path("build/notebooks")

# %% [markdown]
# ## Series

# %%
HISTORY, HORIZON = 48, 16


def generate(count, seed):
    """Return noisy series of three harmonics with a drifting period, `(count, 64, 1)`."""
    rng = np.random.default_rng(seed)
    time = np.arange(HISTORY + HORIZON)
    period = rng.uniform(12, 20, (count, 1))
    drift = rng.uniform(-0.004, 0.004, (count, 1))
    phase = 2 * np.pi * (time / period * (1 + drift * time / 2) + rng.uniform(0, 1, (count, 1)))
    series = rng.normal(0, 0.1, (count, len(time)))
    for harmonic in range(1, 4):
        amplitude = rng.normal(0, 0.6, (count, 1))
        series += amplitude * np.sin(harmonic * phase + rng.uniform(0, 2 * np.pi, (count, 1)))
    return series[..., None].astype("float32")


series, unseen = generate(SERIES, seed=1), generate(500, seed=2)

# %% [markdown]
# ## The models
#
# `unroll` runs the decoder for 16 steps and feeds each output to the next step. The baseline is a
# GRU whose last state predicts all 16 values at once.

# %%
keras.utils.set_random_seed(1)
history = keras.Input((HISTORY, 1))
annotations = BidirectionalEncoder(UNITS)(history)
decoder = AttentiveDecoder(
    keras.layers.GRUCell(UNITS), BahdanauAttention(UNITS), DeepOutput(1, "linear")
)
future, weights = decoder.unroll(
    history[:, -1], annotations, HORIZON, initial_state=Bridge([UNITS], "last")(annotations)
)
attentive = keras.Model(history, [future, weights])
at_once = keras.layers.Dense(HORIZON)(keras.layers.GRU(2 * UNITS)(history))
gru = keras.Model(history, keras.layers.Reshape((HORIZON, 1))(at_once))


def train(model):
    forecast = keras.Model(model.inputs, model.outputs[0])
    rate = keras.optimizers.schedules.CosineDecay(5e-3, EPOCHS * SERIES // 50)
    forecast.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), "mse")
    forecast.fit(series[:, :HISTORY], series[:, HISTORY:], batch_size=50, epochs=EPOCHS, verbose=0)


train(attentive)
train(gru)

# %% [markdown]
# ## Errors on unseen series

# %%
past, expected = unseen[:, :HISTORY], unseen[:, HISTORY:]
forecast, weights = attentive.predict(past, verbose=0)
forecasts = {
    "attentive decoder": forecast,
    "GRU": gru.predict(past, verbose=0),
    "last value": np.repeat(past[:, -1:], HORIZON, axis=1),
}
for name, values in forecasts.items():
    print(f"{name}: root mean squared error {np.sqrt(np.mean((values - expected) ** 2)):.3f}")

# %% [markdown]
# ## One series, its forecasts and the attention weights
#
# Each row of the lower picture is one step ahead, and its dark cells are the past values that the
# step reads.

# %% mystnb={"image": {"alt": "A series, two forecasts, and the attention weights of each step"}}
OUTPUT.mkdir(parents=True, exist_ok=True)
with plt.rc_context(STYLE):
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5))
    ahead = np.arange(HISTORY, HISTORY + HORIZON)
    top.plot(unseen[0, :, 0], color=GRAY, label="the series")
    top.plot(ahead, forecasts["GRU"][0, :, 0], "C1--", label="GRU")
    top.plot(ahead, forecast[0, :, 0], "C0", label="attentive decoder")
    top.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    bottom.imshow(weights[0], aspect="auto", extent=(0, HISTORY, HORIZON, 0))
    bottom.set(xlim=top.get_xlim(), xlabel="time", ylabel="step ahead")
    bottom.grid(False)
    figure.savefig(OUTPUT / "forecasting.png")
