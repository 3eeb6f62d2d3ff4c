"""Training speed of RNNsearch on every backend: `make bench`.

Each backend runs in a process of its own; the rounds are interleaved, so that a slow minute of the
machine hits all of them, and the medians are printed with the ratio to the fastest.
"""

import json
import os
import statistics
import subprocess
import sys
import time

BACKENDS = ("tensorflow", "jax", "torch")
UNITS, VOCABULARY, BATCH, LENGTH = 256, 8000, 64, 16
ROUNDS, STEPS = 3, 10


def measure():
    """Median seconds of one training step on the backend of this process."""
    import keras
    import numpy as np

    from keras_bahdanau import RNNSearch, TokenCrossentropy

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
    model.compile(
        optimizer="adam",
        loss=TokenCrossentropy(),
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (BATCH, LENGTH)).astype("int32")
    batch = {"source": ids, "target": ids}
    for _ in range(2):
        model.train_on_batch(batch, ids)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        float(model.train_on_batch(batch, ids))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main():
    """Runs every backend in turn, round after round, and prints the table."""
    rounds = {backend: [] for backend in BACKENDS}
    for _ in range(ROUNDS):
        for backend in BACKENDS:
            output = subprocess.run(
                [sys.executable, __file__, "measure"],
                env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            rounds[backend].append(json.loads(output.splitlines()[-1]))
    medians = {backend: statistics.median(values) for backend, values in rounds.items()}
    fastest = min(medians.values())
    print(f"{os.cpu_count()} cores, batch {BATCH} x {LENGTH} tokens, {UNITS} units, V={VOCABULARY}")
    for backend, seconds in medians.items():
        rate = BATCH * LENGTH / seconds
        print(f"{backend:12} {seconds * 1e3:6.0f} ms/step  {rate:8,.0f} tokens/s  "
              f"{fastest / seconds:.2f} of the fastest")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measure()))
    else:
        main()
