"""Training speed of RNNsearch on every backend, against the same model in plain PyTorch.

Every case trains in its own process with `fit`, with as many threads as there are cores; rounds are
interleaved.
"""

import os
import statistics

from benchmark_model import LENGTH, UNITS, VOCABULARY, make_model
from timing import (
    benchmark_parser,
    measure_in_processes,
    median_and_best,
    process_clock,
    run_as_case,
)

BASELINE = ("torch", "plain_pytorch")
CASES = (BASELINE, *((backend, "keras_bahdanau") for backend in ("tensorflow", "jax", "torch")))
BATCH = 64
ROUNDS, EPOCHS, STEPS = 5, 5, 5


def pytorch_epoch_seconds(ids):
    """Seconds of each epoch over `ids` with the plain PyTorch model."""
    import torch
    from pytorch_baseline import PlainRNNSearch, train

    torch.manual_seed(0)
    model = PlainRNNSearch(VOCABULARY, UNITS)
    optimizer = torch.optim.Adam(model.parameters())
    batches = [(part, part) for part in torch.from_numpy(ids).long().split(BATCH)]
    seconds, clock = [], process_clock()
    for _ in range(EPOCHS):
        began = clock()
        train(model, optimizer, batches)
        seconds.append(clock() - began)
    return seconds


def keras_epoch_seconds(ids):
    """Seconds of each epoch over `ids` with the Keras model, within one `fit`."""
    import keras

    from keras_bahdanau import TokenCrossentropy
    from keras_bahdanau.optimizers import Adam

    seconds, clock = [], process_clock()

    class EpochTimer(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = clock()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(clock() - self.began)

    model = make_model()
    model.compile(
        optimizer=Adam(),  # as in `keras-bahdanau train`
        loss=TokenCrossentropy(chunk_size=512),  # the same
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    model.fit(
        {"source": ids, "target": ids},
        ids,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[EpochTimer()],
    )
    return seconds


def measure(name):
    """Median and best seconds of a training step, without the first epoch, which compiles."""
    import numpy as np

    ids = np.random.default_rng(0).integers(4, VOCABULARY, (STEPS * BATCH, LENGTH)).astype("int32")
    epoch_seconds = pytorch_epoch_seconds if name == "plain_pytorch" else keras_epoch_seconds
    median, best = median_and_best(epoch_seconds(ids)[1:])
    return {"median": median / STEPS, "best": best / STEPS}


def main():
    arguments = benchmark_parser(__doc__, ROUNDS).parse_args()
    figures = measure_in_processes(__file__, CASES, arguments.rounds)
    print(f"{os.cpu_count()} cores, batch {BATCH} x {LENGTH} tokens, {UNITS} units, V={VOCABULARY}")
    round_medians = {case: [run["median"] for run in runs] for case, runs in figures.items()}
    median = {case: statistics.median(seconds) for case, seconds in round_medians.items()}
    best = {case: min(run["best"] for run in runs) for case, runs in figures.items()}
    for case in CASES:
        backend, name = case
        print(
            f"{name:15} {backend:11} {median[case] * 1e3:4.0f} ms/step "
            f"({min(round_medians[case]) * 1e3:.0f} to {max(round_medians[case]) * 1e3:.0f}, best "
            f"{best[case] * 1e3:.0f})  {BATCH * LENGTH / median[case]:6,.0f} tokens/s  "
            f"{median[BASELINE] / median[case]:.2f}x plain PyTorch by the median, "
            f"{best[BASELINE] / best[case]:.2f}x by the best"
        )


if __name__ == "__main__":
    run_as_case(measure) or main()
