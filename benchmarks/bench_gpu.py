"""The exported search on a GPU against the CPU, in float32 and float16, and single steps there.

Needs `pip install onnxruntime-gpu` in place of onnxruntime, and a GPU; without one it says so and
ends. The model and the search are those of `bench_export.py`.
"""

import sys
import tempfile
from pathlib import Path

import onnxruntime

GPU = "CUDAExecutionProvider"
BATCHES = (1, 32, 256)


def main():
    """Exports the model twice and prints milliseconds of a search for each provider and batch."""
    available = onnxruntime.get_available_providers()
    if GPU not in available:
        print(f"Skipped: this onnxruntime has no {GPU}; it has {', '.join(available)}.")
        return
    from bench_export import BEAM, STEPS, benchmark_model, median_seconds, source

    from keras_bahdanau import BeamSearch
    from keras_bahdanau_runtime import Translator, export
    from keras_bahdanau_runtime.manifest import read_manifest
    from keras_bahdanau_runtime.stepper import Stepper

    model = benchmark_model()
    print(f"beam {BEAM}, {STEPS} steps: ms of a search")
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("float32", "float16"):
            path = Path(folder) / precision
            export(model, path, search=BeamSearch(BEAM), max_length=STEPS, stepwise=True,
                   precision=precision)  # fmt: skip
            for provider in ("CPUExecutionProvider", GPU):
                translator = Translator(path, provider)
                for batch in BATCHES:
                    taken = 1e3 * median_seconds(translator.translate_ids, source(batch))
                    print(f"{precision} {provider:22} batch {batch:3}: {taken:8.1f}", flush=True)
            for fixed in (False, True):
                stepper = Stepper(read_manifest(path), GPU, None, fixed=fixed)
                taken = 1e3 * median_seconds(_decode, stepper, source(1), STEPS)
                how = "CUDA graphs" if fixed else "launched one by one"
                print(f"{precision} {STEPS} steps of one sentence, {how}: {taken:8.1f}", flush=True)


def _decode(stepper, source, steps):
    for _ in stepper.greedy(source, steps):
        pass


if __name__ == "__main__":
    sys.exit(main())
