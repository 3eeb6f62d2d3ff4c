"""Training on a GPU with JAX and PyTorch, at the paper's size, in float32 and bfloat16.

    python benchmarks/bench_gpu_training.py

1,000 units, embeddings of 620, V = 30,000, 80 pairs of 50 tokens a batch (arXiv 1409.0473, appendix
B). Without a GPU it says so and ends with 0. Each case runs in a process of its own, in turns;
milliseconds of a step are the median and the best of 20 after 5.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

BATCH, LENGTH, VOCABULARY = 80, 50, 30_000
CASES = [(backend, policy) for backend in ("jax", "torch") for policy in ("float32", "bfloat16")]
ROUNDS, WARM, STEPS = 2, 5, 20


def has_gpu(backend):
    """Whether a backend, which may not be installed, sees a GPU."""
    check = {
        "jax": "import jax; exit(jax.default_backend() != 'gpu')",
        "torch": "import torch; exit(not torch.cuda.is_available())",
    }[backend]
    return not subprocess.run([sys.executable, "-c", check], capture_output=True).returncode


def measure(policy):
    """Milliseconds of a step, and megabytes at their most where the backend tells."""
    import keras

    from keras_bahdanau import RNNSearch, TokenCrossentropy

    keras.utils.set_random_seed(0)
    dtype = "float32" if policy == "float32" else "mixed_bfloat16"
    model = RNNSearch(VOCABULARY, VOCABULARY, reset_after=True, dtype=dtype)
    model.compile(optimizer="adam", loss=TokenCrossentropy())
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (BATCH, LENGTH)).astype("int32")
    inputs, taken = {"source": ids, "target": ids}, []
    for _ in range(WARM + STEPS):
        began = time.perf_counter()
        model.train_on_batch(inputs, ids)  # which hands back the loss, and so waits for it
        taken.append(1e3 * (time.perf_counter() - began))
    return {"median": statistics.median(taken[WARM:]), "best": min(taken[WARM:])}


def main():
    """Runs the cases in turns and prints the medians over the rounds."""
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(sys.argv[2])))
        return
    seen = [backend for backend in ("jax", "torch") if has_gpu(backend)]
    if not seen:
        print("Skipped: neither JAX nor PyTorch sees a GPU.")
        return
    found = {case: [] for case in CASES if case[0] in seen}
    for _ in range(ROUNDS):
        for backend, policy in found:
            run = subprocess.run(
                [sys.executable, __file__, "measure", policy],
                env={**os.environ, "KERAS_BACKEND": backend},
                capture_output=True,
                text=True,
            )
            if run.returncode:
                raise RuntimeError(f"{backend} in {policy} failed:\n{run.stderr[-2000:]}")
            found[backend, policy].append(json.loads(run.stdout.splitlines()[-1]))
    for (backend, policy), rounds in found.items():
        median = statistics.median(one["median"] for one in rounds)
        best = min(one["best"] for one in rounds)
        rate = BATCH * LENGTH / median * 1e3
        print(f"{backend:6} {policy:9} {median:7.1f} ms (best {best:.1f}), {rate:,.0f} tokens/s")


if __name__ == "__main__":
    main()
