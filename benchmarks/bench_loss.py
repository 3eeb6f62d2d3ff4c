"""A training step with a large vocabulary: the loss by all logits, in chunks, and sampled.

Every case trains in a process of its own with one thread, and the rounds are interleaved. Memory
is the most that the process holds in a step beyond what it held before, once a step has compiled
and made all state. Time is that of the processor, which other work disturbs less than what a clock
shows; the median of single steps. "no loss" is a step whose loss is a sum of what the output layer
reads and of its weights: what all the rest of a step takes.
"""

import ctypes
import gc
import os
import resource
import statistics
import sys
import time
from pathlib import Path

from processes import in_turns, result

CASES = {
    "all logits": {},
    "chunk": {"chunk_size": 500},
    "sampled": {"sampled": 1000, "chunk_size": 500},
    "no loss": {"chunk_size": 500},
}
BACKENDS = ("torch", "jax", "tensorflow")
BATCH, LENGTH, VOCABULARY, UNITS = 80, 50, 30_000, 256
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
ROUNDS, STEPS = 3, 2


def used():
    """Seconds of processor time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def megabytes(field):
    """Memory of this process as Linux counts it: "VmRSS" now, "VmHWM" the most so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def forget_peak():
    """Gives back what is free, and begins to count anew the most that is held."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def batch():
    """Ids that occur as words do: the n-th most frequent as 1 / n."""
    import numpy as np

    shares = 1.0 / np.arange(1, VOCABULARY - 3)
    rng = np.random.default_rng(0)
    source, target = rng.choice(
        np.arange(4, VOCABULARY), (2, BATCH, LENGTH), p=shares / shares.sum()
    ).astype("int32")
    return {"source": source, "target": target}, np.roll(target, -1, axis=1)


def measure(name):
    """Seconds and bytes of a step."""
    import keras

    from keras_bahdanau import RNNSearch, TokenCrossentropy

    class NoLoss(TokenCrossentropy):
        def total(self, y_true, y_pred, weight):
            return keras.ops.sum(y_pred.features) + keras.ops.sum(y_pred.kernel)

    loss = NoLoss if name == "no loss" else TokenCrossentropy
    keras.utils.set_random_seed(0)
    model = RNNSearch(
        VOCABULARY, VOCABULARY, units=UNITS, embedding_dim=UNITS, attention_units=UNITS,
        maxout_units=UNITS, reset_after=True, readout_state="current", initializer=None,
    )  # fmt: skip
    model.build()
    model.compile(
        keras.optimizers.Adam(global_clipnorm=1.0),
        loss(label_smoothing=0.1, **CASES[name]),
        jit_compile=keras.config.backend() == "jax",
    )
    model.optimizer.build(model.trainable_variables)
    inputs, labels = batch()
    memory, processor, clock = [], [], []
    for _ in range(STEPS + 1):
        forget_peak()
        before = megabytes("VmRSS")
        began, used_before = time.perf_counter(), used()
        float(model.train_on_batch(inputs, labels))
        processor.append(used() - used_before)
        clock.append(time.perf_counter() - began)
        memory.append(megabytes("VmHWM") - before)
    return {
        "megabytes": max(memory[1:]),  # the first one compiles
        "processor": statistics.median(processor[1:]),
        "clock": min(clock[1:]),
    }


def main(backends):
    """Runs every case in turn, round after round, and prints the table."""
    os.environ.update(ONE_THREAD)
    cases = [(backend, name) for backend in backends for name in CASES]
    found = in_turns(__file__, cases, ROUNDS)
    print(f"{os.cpu_count()} cores, batch {BATCH} x {LENGTH}, V={VOCABULARY}, {UNITS} units")
    for backend, name in cases:
        whole, case = found[backend, "all logits"], found[backend, name]
        print(
            f"{backend:11} {name:11} {case['megabytes']:6.0f} MB "
            f"({case['megabytes'] / whole['megabytes']:.2f})  {case['processor']:6.2f} s of "
            f"processors ({case['processor'] / whole['processor']:.2f})  "
            f"{case['clock']:6.2f} s at best ({case['clock'] / whole['clock']:.2f})"
        )


if __name__ == "__main__":
    result(measure) or main(sys.argv[1:] or BACKENDS)
