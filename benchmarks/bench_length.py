"""Cost of a decoder's step against the length of the source, measured and drawn.

`python benchmarks/bench_length.py length.png` runs a decoder of 32 steps over sources of 16 to 2048
places on every backend, the projection of the keys included, and divides by the steps.
"""

import os
import statistics
import sys
import time

from processes import in_turns, result

BACKENDS = ("tensorflow", "jax", "torch")
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCH, STEPS, UNITS = 4, 32, 256
ROUNDS, CALLS = 3, 7


def measure():
    """Median seconds of a step for each length of the source."""
    import keras
    import numpy as np

    from keras_bahdanau import AttentiveDecoder, BahdanauAttention

    decoder = AttentiveDecoder(keras.layers.GRUCell(UNITS), BahdanauAttention(UNITS))
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(BATCH, STEPS, UNITS)).astype("float32")
    found = {}
    for length in LENGTHS:
        annotations = rng.normal(size=(BATCH, length, 2 * UNITS)).astype("float32")
        arguments = keras.Input(inputs.shape[1:]), keras.Input(annotations.shape[1:])
        model = keras.Model(arguments, decoder(*arguments))
        model.compile(jit_compile=keras.config.backend() == "jax")
        seconds = []
        for _ in range(CALLS + 2):
            began = time.perf_counter()
            model.predict_on_batch([inputs, annotations])
            seconds.append(time.perf_counter() - began)
        found[str(length)] = statistics.median(seconds[2:]) / STEPS
    return found


def draw(found, path):
    """Draws the milliseconds of a step over the length of the source, with a line through them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for backend, seconds in found.items():
        milliseconds = np.array([seconds[str(length)] * 1e3 for length in LENGTHS])
        slope, start = np.polyfit(LENGTHS, milliseconds, 1)
        (points,) = axes.plot(LENGTHS, milliseconds, "o")
        label = f"{backend}: {start:.2f} ms + {slope * 1e3:.2f} µs for a place"
        axes.plot(LENGTHS, start + slope * np.array(LENGTHS), color=points.get_color(), label=label)
    axes.set_xlabel("source length Tx")
    axes.set_ylabel("ms for a decoder step")
    axes.set_title(f"B={BATCH}, units={UNITS}, {os.cpu_count()} cores")
    axes.legend()
    figure.savefig(path, dpi=120)


def main():
    """Measures every backend in turn, prints the table and draws the plot."""
    found = in_turns(__file__, [(backend,) for backend in BACKENDS], ROUNDS)
    found = {backend: seconds for (backend,), seconds in found.items()}
    print(f"{os.cpu_count()} cores, B={BATCH}, {STEPS} steps, {UNITS} units: ms for a step")
    print("Tx          " + "".join(f"{length:>8}" for length in LENGTHS))
    for backend, seconds in found.items():
        print(f"{backend:12}" + "".join(f"{seconds[str(n)] * 1e3:8.2f}" for n in LENGTHS))
    if len(sys.argv) > 1:
        draw(found, sys.argv[1])


if __name__ == "__main__":
    result(measure) or main()
