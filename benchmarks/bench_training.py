"""Training speed of RNNsearch on every backend, against the same model by hand in plain PyTorch.

Every case trains in a process of its own, as `fit` does it, with as many threads as there are
cores; the rounds are interleaved, so that a slow minute of the machine hits all of them.
"""

import os
import statistics
import time

from processes import in_turns, result

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
        loss=TokenCrossentropy(chunk=512),  # as `keras-bahdanau train` has it
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
    """Median seconds of a training step, over epochs of several, once everything is compiled."""
    import numpy as np

    ids = np.random.default_rng(0).integers(4, VOCABULARY, (STEPS * BATCH, LENGTH)).astype("int32")
    seconds = plain(ids) if name == "plain_pytorch" else ours(ids)
    return {"seconds": statistics.median(seconds[1:]) / STEPS}


def main():
    """Runs every case in turn, round after round, and prints the table."""
    found = in_turns(__file__, CASES, ROUNDS)
    print(f"{os.cpu_count()} cores, batch {BATCH} x {LENGTH} tokens, {UNITS} units, V={VOCABULARY}")
    for backend, name in CASES:
        seconds = found[backend, name]["seconds"]
        print(
            f"{name:15} {backend:11} {seconds * 1e3:6.0f} ms/step  "
            f"{BATCH * LENGTH / seconds:8,.0f} tokens/s  "
            f"{found[PLAIN]['seconds'] / seconds:.2f}x plain PyTorch"
        )


if __name__ == "__main__":
    result(measure) or main()
