"""The exported search on a GPU: what it finds and how fast, against the CPU, JAX and PyTorch.

    python benchmarks/bench_gpu.py export FOLDER            # where TensorFlow is; no GPU is needed
    python benchmarks/bench_gpu.py run FOLDER [ARTIFACT...] [--text FILE] [--provider NAME]

The second needs `pip install onnxruntime-gpu` in place of onnxruntime, and a GPU; without one it
says so and ends with 0. It takes less than 10 minutes:

- parity: what every artifact, those of FOLDER and all that are named, finds on the GPU and the CPU;
- milliseconds of a search (256 units, V = 8,000, beam 5, 30 steps) at batch 1, 8, 32 and 256 in
  float32 and float16, with the loop in the graph and with its step captured, in turns;
- the same of the Keras model on JAX and PyTorch, where they are installed;
- sentences a second of a text, with the first ARTIFACT;
- memory of the GPU, and the operators of one search that take longest.
"""

import argparse
import collections
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
UNITS, VOCABULARY, BEAM, STEPS, LENGTH = 256, 8000, 5, 30, 16
BATCHES = (1, 8, 32, 256)
CALLS = 9


def export_all(folder):
    """Writes the model and its artifacts into a folder."""
    import keras

    from keras_bahdanau import BeamSearch, RNNSearch

    keras.utils.set_random_seed(0)
    sizes = {"embedding_dim": UNITS, "attention_units": UNITS, "maxout_units": UNITS}
    model = RNNSearch(VOCABULARY, VOCABULARY, UNITS, **sizes, reset_after=True, initializer=None)
    model.build()
    folder.mkdir(parents=True)
    model.save(folder / "model.keras")
    # No sentence ends before the last step, so that all are made.
    search = BeamSearch(BEAM, min_length=STEPS)
    for precision in ("float32", "float16"):
        model.export(folder / precision, search=search, max_length=STEPS, captured=True,
                     precision=precision)  # fmt: skip


def source(batch):
    """Random sources, `(batch, LENGTH)` int32."""
    return np.random.default_rng(0).integers(4, VOCABULARY, (batch, LENGTH)).astype("int32")


def milliseconds(calls):
    """`(median, best)` milliseconds of each of several functions, called in turns."""
    taken = {name: [] for name in calls}
    for _ in range(CALLS + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: (statistics.median(of[1:]), min(of[1:])) for name, of in taken.items()}


def parity(path, provider):
    """What an artifact finds on a provider, against the CPU: a line."""
    from keras_bahdanau_runtime import Translator

    there, here = Translator(path, provider), Translator(path, CPU, loop="graph")
    size = here.manifest.vocabulary["source"]
    ids = np.random.default_rng(1).integers(min(4, size - 1), size, (8, 12)).astype("int32")
    ids[:, -1] = 3
    a, b = there.translate_ids(ids), here.translate_ids(ids)
    best = [[row[row > 0].tolist() for row in found["tokens"][:, 0]] for found in (a, b)]
    equal = sum(x == y for x, y in zip(*best, strict=True))
    worst = np.abs(a["scores"][:, 0] - b["scores"][:, 0]).max()
    return f"{equal} of 8 best hypotheses equal, scores differ by at most {worst:.1e}"


def keras_case(backend, folder):
    """`(median, best)` milliseconds of the Keras model's search on a backend, by batch."""
    code = (
        "import json, sys, keras; sys.path.insert(0, sys.argv[2]); import bench_gpu as b; "
        "from keras_bahdanau import BeamSearch; "
        "m = keras.saving.load_model(sys.argv[1], compile=False); s = BeamSearch(b.BEAM, "
        "min_length=b.STEPS); print(json.dumps(b.milliseconds({n: lambda n=n: "
        "m.generate(b.source(n), s, max_length=b.STEPS) for n in b.BATCHES})))"
    )
    command = [sys.executable, "-c", code, folder / "model.keras", Path(__file__).parent]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        return run.stderr.strip().splitlines()[-1]
    return json.loads(run.stdout.splitlines()[-1])


def used_memory():
    """Megabytes of the GPU that are in use, or `None`."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True).stdout.split()[0])
    except (FileNotFoundError, IndexError):
        return None


def profile(path, provider):
    """Microseconds of the operators of one search, most first."""
    import onnxruntime

    from keras_bahdanau_runtime.session import chosen_providers

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    asked = list(dict.fromkeys([provider, CPU]))
    providers = chosen_providers(asked, onnxruntime.get_available_providers(), capture=False)
    session = onnxruntime.InferenceSession(path / "model.onnx", options, providers=providers)
    for _ in range(2):
        session.run(None, {"source": source(8)})
    file = Path(session.end_profiling())
    events, taken = json.loads(file.read_text()), collections.Counter()
    file.unlink()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["args"]["op_name"]] += event["dur"] // 2
    return taken.most_common(8)


def run_all(folder, artifacts, text, provider):
    """Prints every figure."""
    from keras_bahdanau_runtime import Translator

    own = [folder / "float32", folder / "float16"]
    for path in (*own, *artifacts):
        print(f"parity {path.name}: {parity(path, provider)}", flush=True)
    translators = {
        f"{path.name} {loop}": Translator(path, provider, loop=loop)
        for path in own
        for loop in ("graph", "captured")
    }
    print(f"\nms of a search, beam {BEAM}, {STEPS} steps, median (best)")
    for batch in BATCHES:
        calls = {
            name: functools.partial(translator.translate_ids, source(batch))
            for name, translator in translators.items()
        }
        for name, (median, best) in milliseconds(calls).items():
            print(f"batch {batch:3} {name:18} {median:8.1f} ({best:.1f})", flush=True)
    print(f"memory of the GPU in use: {used_memory()} MB")
    for backend in ("jax", "torch"):
        found = keras_case(backend, folder)
        print(f"{backend}: {found}", flush=True)
    if text is not None and artifacts:
        lines = text.read_text(encoding="utf-8").splitlines()
        translator = Translator(artifacts[0], provider)
        began = time.perf_counter()
        translator.translate(lines, batch_size=256, batch_tokens=None)
        print(f"{len(lines) / (time.perf_counter() - began):.0f} sentences/s of {text.name}")
    print("us of the operators of one search at batch 8:", profile(own[0], provider))


def main():
    """Reads the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("export", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("artifacts", type=Path, nargs="*")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--provider", default=GPU)
    asked = parser.parse_args()
    if asked.action == "export":
        export_all(asked.folder)
        return
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if asked.provider not in available:
        print(f"Skipped: this onnxruntime has no {asked.provider}, but {', '.join(available)}.")
        return
    from keras_bahdanau_runtime import Translator

    try:
        Translator(asked.folder / "float32", asked.provider)
    except ValueError as error:
        print(f"Skipped: {error}")
        return
    run_all(asked.folder, asked.artifacts, asked.text, asked.provider)


if __name__ == "__main__":
    main()
