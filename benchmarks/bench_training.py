"""Training speed of RNNsearch on every backend, against the same model by hand in plain PyTorch.

Every case trains in a process of its own, as `fit` does it, with as many threads as there are
cores; the rounds are interleaved, so that a slow minute of the machine hits all of them.
"""

import os
import statistics
import time

from processes import result, rounds_in_turns

PLAIN = ("torch", "plain_pytorch")
CASES = (PLAIN, *((backend, "keras_bahdanau") for backend in ("tensorflow", "jax", "torch")))
UNITS, VOCABULARY, BATCH, LENGTH = 256, 8000, 64, 16
ROUNDS, EPOCHS, STEPS = 5, 5, 5


def plain(ids):
    """Seconds of each epoch over `ids` of the plain model."""
    import torch
    from plain_pytorch import PlainRNNSearch, train

    torch.manual_seed(0)
    model = PlainRNNSearch(VOCABULARY, UNITS)
    optimizer = torch.optim.Adam(model.parameters())
    batches = [(part, part) for part in torch.from_numpy(ids).long().split(BATCH)]
    seconds = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        train(model, optimizer, batches)
        seconds.append(time.perf_counter() - began)
    return seconds


def ours(ids):
    """Seconds of each epoch over `ids` of the model of this package, within one `fit`."""
    import keras

    from keras_bahdanau import RNNSearch, TokenCrossentropy

    seconds = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.began)

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
        loss=TokenCrossentropy(chunk_size=512),  # as `keras-bahdanau train` has it
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    model.fit(
        {"source": ids, "target": ids},
        ids,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[Clock()],
    )
    return seconds


def measure(name):
    """Seconds of a training step in epochs of several, once all is compiled: median and best."""
    import numpy as np

    ids = np.random.default_rng(0).integers(4, VOCABULARY, (STEPS * BATCH, LENGTH)).astype("int32")
    seconds = plain(ids) if name == "plain_pytorch" else ours(ids)
    return {"median": statistics.median(seconds[1:]) / STEPS, "best": min(seconds[1:]) / STEPS}


def main():
    """Runs every case in turn, round after round, and prints the table."""
    found = rounds_in_turns(__file__, CASES, ROUNDS)
    print(f"{os.cpu_count()} cores, batch {BATCH} x {LENGTH} tokens, {UNITS} units, V={VOCABULARY}")
    medians = {case: [run["median"] for run in runs] for case, runs in found.items()}
    middle = {case: statistics.median(seconds) for case, seconds in medians.items()}
    best = {case: min(run["best"] for run in runs) for case, runs in found.items()}
    for case in CASES:
        backend, name = case
        print(
            f"{name:15} {backend:11} {middle[case] * 1e3:4.0f} ms/step "
            f"({min(medians[case]) * 1e3:.0f} to {max(medians[case]) * 1e3:.0f}, best "
            f"{best[case] * 1e3:.0f})  {BATCH * LENGTH / middle[case]:6,.0f} tokens/s  "
            f"{middle[PLAIN] / middle[case]:.2f}x plain PyTorch by the median, "
            f"{best[PLAIN] / best[case]:.2f}x by the best"
        )


if __name__ == "__main__":
    result(measure) or main()
