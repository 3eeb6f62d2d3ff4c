"""The exported search on a GPU against the CPU, in float32 and float16.

Needs `pip install onnxruntime-gpu` in place of onnxruntime, and a GPU; without one it says so and
ends. The model and the search are those of `bench_export.py`.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime

GPU = "CUDAExecutionProvider"
BATCHES = (1, 32, 256)
CALLS = 9


def main():
    """Exports the model twice and prints milliseconds of a search for each provider and batch."""
    available = onnxruntime.get_available_providers()
    if GPU not in available:
        print(f"Skipped: this onnxruntime has no {GPU}; it has {', '.join(available)}.")
        return
    from bench_export import BEAM, STEPS, benchmark_model, source

    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export import Translator, export

    model = benchmark_model()
    print(f"beam {BEAM}, {STEPS} steps: ms of a search")
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("float32", "float16"):
            path = Path(folder) / precision
            export(model, path, search=BeamSearch(BEAM), max_length=STEPS, precision=precision)
            for provider in ("CPUExecutionProvider", GPU):
                translator = Translator(path, provider)
                for batch in BATCHES:
                    seconds = []
                    for _ in range(CALLS + 1):
                        began = time.perf_counter()
                        translator.translate_ids(source(batch))
                        seconds.append(time.perf_counter() - began)
                    median = statistics.median(seconds[1:]) * 1e3
                    print(f"{precision} {provider:22} batch {batch:3}: {median:8.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
