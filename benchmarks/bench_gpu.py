"""The exported search on a GPU: parity and speed, against the CPU, JAX and PyTorch.

    python benchmarks/bench_gpu.py export FOLDER     # needs TensorFlow, but no GPU
    python benchmarks/bench_gpu.py run FOLDER [ARTIFACT...] [--text FILE] [--provider NAME]

`run` needs a GPU and `pip install onnxruntime-gpu` in place of onnxruntime. Without a GPU it prints
that it skips and exits with 0. It takes less than 10 minutes and prints:

- parity: the hypotheses on the GPU against the CPU, for the artifacts of FOLDER and every ARTIFACT;
- milliseconds of a search (256 units, V = 8,000, beam 5, 30 steps) at batch 1, 8, 32 and 256 in
  float32 and float16, with and without CUDA graphs, interleaved;
- the same search of the Keras model on JAX and PyTorch, if they are installed;
- sentences per second for FILE with the first ARTIFACT;
- GPU memory in use, and the slowest operators of one search.
"""

import argparse
import collections
import functools
import json
import subprocess
from pathlib import Path

import numpy as np
from benchmark_model import BEAM, STEPS, make_model, random_source
from timing import interleaved_seconds, median_and_best, median_seconds, run_as_case, run_case

GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
BATCHES = (1, 8, 32, 256)
CALLS = 9


def export_all(folder):
    """Save the model and its float32 and float16 artifacts in a folder."""
    from keras_bahdanau import BeamSearch

    model = make_model()
    model.build()
    folder.mkdir(parents=True)
    model.save(folder / "model.keras")
    # No hypothesis ends before the last step, so every search takes all of them.
    search = BeamSearch(BEAM, min_length=STEPS)
    for precision in ("float32", "float16"):
        model.export(
            folder / precision,
            search=search,
            max_length=STEPS,
            cuda_graphs=True,
            precision=precision,
        )


def milliseconds(calls):
    """Return `(median, best)` milliseconds of each function of a dict, interleaved."""
    seconds = interleaved_seconds(calls, CALLS)
    return {
        name: tuple(1e3 * value for value in median_and_best(times))
        for name, times in seconds.items()
    }


def compare_with_cpu(path, provider):
    """Return a line that compares an artifact's hypotheses on a provider with those on the CPU."""
    from keras_bahdanau_runtime import Translator

    translators = Translator(path, provider), Translator(path, CPU, cuda_graphs=False)
    size = translators[0].manifest.vocabulary["source"]
    ids = np.random.default_rng(1).integers(min(4, size - 1), size, (8, 12)).astype("int32")
    ids[:, -1] = 3
    outputs = [translator.translate_ids(ids) for translator in translators]
    best = [[row[row > 0].tolist() for row in output["tokens"][:, 0]] for output in outputs]
    equal = sum(x == y for x, y in zip(*best, strict=True))
    difference = np.abs(outputs[0]["scores"][:, 0] - outputs[1]["scores"][:, 0]).max()
    return f"{equal} of 8 best hypotheses equal, scores differ by at most {difference:.1e}"


def measure(path):
    """Milliseconds `[median, best]` of the Keras model's search for each batch size."""
    import keras

    from keras_bahdanau import BeamSearch

    model = keras.saving.load_model(path, compile=False)
    search = BeamSearch(BEAM, min_length=STEPS)
    calls = {
        batch: functools.partial(model.generate, random_source(batch), search, max_length=STEPS)
        for batch in BATCHES
    }
    return milliseconds(calls)


def used_memory():
    """Return the GPU memory in use in MB, or `None` without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True).stdout.split()[0])
    except (FileNotFoundError, IndexError):
        return None


def slowest_operators(path, provider):
    """Return the names and microseconds of the eight slowest operators of one search."""
    import onnxruntime

    from keras_bahdanau_runtime.session import resolve_providers

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    requested = list(dict.fromkeys([provider, CPU]))
    providers = resolve_providers(requested, onnxruntime.get_available_providers())
    session = onnxruntime.InferenceSession(path / "model.onnx", options, providers=providers)
    runs = 2
    for _ in range(runs):
        session.run(None, {"source": random_source(8)})
    profile = Path(session.end_profiling())
    events, microseconds = json.loads(profile.read_text()), collections.Counter()
    profile.unlink()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            microseconds[event["args"]["op_name"]] += event["dur"] // runs
    return microseconds.most_common(8)


def run_all(folder, artifacts, text, provider):
    """Measure and print everything."""
    from keras_bahdanau_runtime import Translator

    exported = [folder / "float32", folder / "float16"]
    for path in (*exported, *artifacts):
        print(f"parity {path.name}: {compare_with_cpu(path, provider)}", flush=True)
    translators = {
        f"{path.name} {name}": Translator(path, provider, cuda_graphs=name == "CUDA graphs")
        for path in exported
        for name in ("one graph", "CUDA graphs")
    }
    print(f"\nms of a search, beam {BEAM}, {STEPS} steps, median (best)")
    for batch in BATCHES:
        calls = {
            name: functools.partial(translator.translate_ids, random_source(batch))
            for name, translator in translators.items()
        }
        for name, (median, best) in milliseconds(calls).items():
            print(f"batch {batch:3} {name:20} {median:8.1f} ({best:.1f})", flush=True)
    print(f"GPU memory in use: {used_memory()} MB")
    for backend in ("jax", "torch"):
        try:
            figures = run_case(__file__, backend, str(folder / "model.keras"))
        except RuntimeError as error:
            figures = str(error).splitlines()[-1]
        print(f"{backend}: {figures}", flush=True)
    if text is not None and artifacts:
        lines = text.read_text(encoding="utf-8").splitlines()
        translator = Translator(artifacts[0], provider)
        translate = functools.partial(
            translator.translate, lines, batch_size=256, batch_tokens=None
        )
        seconds = median_seconds(translate, rounds=1, warmup=0)
        print(f"{len(lines) / seconds:.0f} sentences/s of {text.name}")
    print("us of the operators of one search at batch 8:", slowest_operators(exported[0], provider))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("export", "run"))
    parser.add_argument("folder", type=Path, help="written by `export`, read by `run`")
    parser.add_argument("artifacts", type=Path, nargs="*", help="further artifacts to compare")
    parser.add_argument("--text", type=Path, help="text to translate with the first artifact")
    parser.add_argument("--provider", default=GPU, help=f"of onnxruntime (default: {GPU})")
    arguments = parser.parse_args()
    if arguments.action == "export":
        export_all(arguments.folder)
        return
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if arguments.provider not in available:
        print(f"Skipped: this onnxruntime has only {', '.join(available)}.")
        return
    from keras_bahdanau_runtime import Translator

    try:
        Translator(arguments.folder / "float32", arguments.provider)
    except ValueError as error:
        print(f"Skipped: {error}")
        return
    run_all(arguments.folder, arguments.artifacts, arguments.text, arguments.provider)


if __name__ == "__main__":
    run_as_case(measure) or main()
