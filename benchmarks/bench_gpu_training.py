"""Training on a GPU with JAX and PyTorch at the paper's size, in float32 and bfloat16.

1,000 units, embeddings of 620, V = 30,000, batches of 80 pairs of 50 tokens (arXiv 1409.0473,
appendix B). Each case runs in its own process and rounds are interleaved. The result is the median
and the best of 20 steps after 5 warm-up steps. Without a GPU the script prints that it skips and
exits with 0.
"""

import functools
import statistics
import subprocess
import sys

from timing import (
    benchmark_parser,
    interleaved_seconds,
    measure_in_processes,
    median_and_best,
    run_as_case,
)

BATCH, LENGTH, VOCABULARY = 80, 50, 30_000
CASES = [(backend, policy) for backend in ("jax", "torch") for policy in ("float32", "bfloat16")]
ROUNDS, WARMUP, STEPS = 2, 5, 20


def has_gpu(backend):
    """Whether a backend, which may not be installed, sees a GPU."""
    check = {
        "jax": "import jax; exit(jax.default_backend() != 'gpu')",
        "torch": "import torch; exit(not torch.cuda.is_available())",
    }[backend]
    return not subprocess.run([sys.executable, "-c", check], capture_output=True).returncode


def measure(policy):
    """Median and best milliseconds of a training step."""
    import keras
    import numpy as np

    from keras_bahdanau import RNNSearch, TokenCrossentropy

    keras.utils.set_random_seed(0)
    dtype = "float32" if policy == "float32" else "mixed_bfloat16"
    model = RNNSearch(VOCABULARY, VOCABULARY, reset_after=True, dtype=dtype)
    model.compile(optimizer="adam", loss=TokenCrossentropy())
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (BATCH, LENGTH)).astype("int32")
    # `train_on_batch` returns the loss as a number, so it waits for the GPU.
    step = functools.partial(model.train_on_batch, {"source": ids, "target": ids}, ids)
    median, best = median_and_best(interleaved_seconds({"step": step}, STEPS, WARMUP)["step"])
    return {"median": 1e3 * median, "best": 1e3 * best}


def main():
    arguments = benchmark_parser(__doc__, ROUNDS).parse_args()
    backends = [backend for backend in ("jax", "torch") if has_gpu(backend)]
    if not backends:
        print("Skipped: neither JAX nor PyTorch sees a GPU.")
        return
    cases = [case for case in CASES if case[0] in backends]
    for (backend, policy), runs in measure_in_processes(__file__, cases, arguments.rounds).items():
        median = statistics.median(run["median"] for run in runs)
        best = min(run["best"] for run in runs)
        rate = BATCH * LENGTH / median * 1e3
        print(f"{backend:6} {policy:9} {median:7.1f} ms (best {best:.1f}), {rate:,.0f} tokens/s")


if __name__ == "__main__":
    run_as_case(measure) or main()
