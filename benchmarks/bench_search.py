"""Speed of the beam search inside a model, on every backend.

A beam of 5 over 30 steps with a vocabulary of 8,000; the end is made too unlikely to come earlier,
so that every run does the same work. Rounds are interleaved and medians printed.
"""

import os
import statistics
import time

from processes import in_turns, result

BACKENDS = ("tensorflow", "jax", "torch")
BATCHES = (1, 32)
UNITS, VOCABULARY, BEAM, STEPS, LENGTH = 256, 8000, 5, 30, 16
ROUNDS, CALLS = 3, 9


def measure():
    """Median seconds of `generate` for each batch size."""
    import keras
    import numpy as np

    from keras_bahdanau import BeamSearch, RNNSearch
    from keras_bahdanau_runtime.ids import EOS

    keras.utils.set_random_seed(0)
    model = RNNSearch(
        VOCABULARY,
        VOCABULARY,
        units=UNITS,
        embedding_dim=UNITS,
        attention_units=UNITS,
        maxout_units=UNITS,
        reset_after=True,
        initializer=None,
    )
    model.build()
    model.output_layer.bias.assign(np.where(np.arange(VOCABULARY) == EOS, -1e4, 0.0))
    search = BeamSearch(BEAM)
    found = {}
    for batch in BATCHES:
        source = np.random.default_rng(0).integers(4, VOCABULARY, (batch, LENGTH))
        seconds = []
        for _ in range(CALLS + 1):
            began = time.perf_counter()
            model.generate(source, search, max_length=STEPS)
            seconds.append(time.perf_counter() - began)
        found[f"batch {batch}"] = statistics.median(seconds[1:])
    return found


def main():
    """Runs every backend in turn, round after round, and prints the table."""
    found = in_turns(__file__, [(backend,) for backend in BACKENDS], ROUNDS)
    print(
        f"{os.cpu_count()} cores, {UNITS} units, V={VOCABULARY}, beam {BEAM}, {STEPS} steps: "
        "ms for generate"
    )
    for (backend,), seconds in found.items():
        figures = "   ".join(f"{name}: {value * 1e3:6.1f}" for name, value in seconds.items())
        print(f"{backend:12} {figures}")


if __name__ == "__main__":
    result(measure) or main()
