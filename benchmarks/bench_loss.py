"""A training step with a large vocabulary: the loss over all logits, in chunks, and sampled.

Every case trains in its own process with one thread; rounds are interleaved.

- Memory is the peak within a step minus what the process used before that step. A first step, which
  compiles and creates all state, is left out.
- Time is processor time, which other work on the machine disturbs less than wall time. It is the
  median of single steps.
- "no loss" is a step whose loss is the sum of the output layer's inputs and weights: the cost of
  the rest of the step.
"""

import ctypes
import gc
import os
import resource
import statistics
import time
from pathlib import Path

from benchmark_model import UNITS, make_model
from timing import benchmark_parser, measure_in_processes, medians, run_as_case

LOSS_OPTIONS = {
    "all logits": {},
    "chunk": {"chunk_size": 500},
    "sampled": {"sampled": 1000, "chunk_size": 500},
    "no loss": {"chunk_size": 500},
}
BACKENDS = ("torch", "jax", "tensorflow")
BATCH, LENGTH, VOCABULARY = 80, 50, 30_000
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
ROUNDS, STEPS = 3, 2


def processor_seconds():
    """Processor time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def megabytes(field):
    """Memory of this process in MB: "VmRSS" is the current value, "VmHWM" the peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def reset_peak():
    """Return free memory to the system and restart the peak counter "VmHWM"."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def make_batch():
    """Return inputs and labels with Zipf-distributed ids: the n-th id has frequency 1 / n."""
    import numpy as np

    frequencies = 1.0 / np.arange(1, VOCABULARY - 3)
    rng = np.random.default_rng(0)
    source, target = rng.choice(
        np.arange(4, VOCABULARY), (2, BATCH, LENGTH), p=frequencies / frequencies.sum()
    ).astype("int32")
    return {"source": source, "target": target}, np.roll(target, -1, axis=1)


def measure(name):
    """Megabytes and seconds of a training step."""
    import keras

    from keras_bahdanau import TokenCrossentropy

    class NoLoss(TokenCrossentropy):
        def total(self, y_true, y_pred, weight):
            return keras.ops.sum(y_pred.features) + keras.ops.sum(y_pred.kernel)

    loss = NoLoss if name == "no loss" else TokenCrossentropy
    model = make_model(VOCABULARY, readout_state="current")
    model.build()
    model.compile(
        keras.optimizers.Adam(global_clipnorm=1.0),
        loss(label_smoothing=0.1, **LOSS_OPTIONS[name]),
        jit_compile=keras.config.backend() == "jax",
    )
    model.optimizer.build(model.trainable_variables)
    inputs, labels = make_batch()
    memory, processor, wall = [], [], []
    for _ in range(STEPS + 1):
        reset_peak()
        before = megabytes("VmRSS")
        wall_began, processor_began = time.perf_counter(), processor_seconds()
        float(model.train_on_batch(inputs, labels))
        processor.append(processor_seconds() - processor_began)
        wall.append(time.perf_counter() - wall_began)
        memory.append(megabytes("VmHWM") - before)
    return {
        "megabytes": max(memory[1:]),  # the first step compiles
        "processor": statistics.median(processor[1:]),
        "wall": min(wall[1:]),
    }


def main():
    parser = benchmark_parser(__doc__, ROUNDS)
    parser.add_argument("backends", nargs="*", help=f"any of {', '.join(BACKENDS)} (default: all)")
    arguments = parser.parse_args()
    os.environ.update(ONE_THREAD)
    cases = [(backend, name) for backend in arguments.backends or BACKENDS for name in LOSS_OPTIONS]
    figures = medians(measure_in_processes(__file__, cases, arguments.rounds))
    print(f"{os.cpu_count()} cores, batch {BATCH} x {LENGTH}, V={VOCABULARY}, {UNITS} units")
    for backend, name in cases:
        reference, case = figures[backend, "all logits"], figures[backend, name]
        print(
            f"{backend:11} {name:11} {case['megabytes']:6.0f} MB "
            f"({case['megabytes'] / reference['megabytes']:.2f})  "
            f"{case['processor']:6.2f} s processor time "
            f"({case['processor'] / reference['processor']:.2f})  "
            f"{case['wall']:6.2f} s wall time at best ({case['wall'] / reference['wall']:.2f})"
        )


if __name__ == "__main__":
    run_as_case(measure) or main()
