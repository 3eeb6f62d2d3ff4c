"""Ratios of speed and memory, compared with the recorded ones in ratios.json.

Every ratio compares two programs that are measured in turn on the same machine, so it can be
checked elsewhere, where the times themselves differ. The exit status is 1 if a ratio is worse than
the recorded one by more than its noise. `--record` writes the measured ratios to ratios.json.

Not measured here, because it takes hours: BLEU by training time and the BLEU of students; see
benchmarks/README.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_attention
import bench_export
import bench_training
from http_load import run_load
from server_process import megabytes, running_service
from timing import measure_in_processes, medians

RECORD = Path(__file__).parent / "ratios.json"
PORT = 8767
SEARCH_CASES = (
    ("tensorflow", "xla"),
    ("jax", "keras"),
    ("tensorflow", "float32"),
    ("tensorflow", "int8"),
)


def attention_ratios(rounds):
    """Peak memory of forward and backward: ours over `keras.layers.AdditiveAttention`."""
    cases = [(b, layer) for b in bench_attention.BACKENDS for layer in bench_attention.LAYERS]
    figures = medians(measure_in_processes(bench_attention.__file__, cases, rounds))
    return {
        f"attention memory, {backend}": figures[backend, "keras_bahdanau"]["bytes"]
        / figures[backend, "keras"]["bytes"]
        for backend in bench_attention.BACKENDS
    }


def training_ratios(rounds):
    """Time of a training step: plain PyTorch over ours."""
    figures = medians(measure_in_processes(bench_training.__file__, bench_training.CASES, rounds))
    baseline = figures[bench_training.BASELINE]["median"]
    return {
        f"training step, {backend}": baseline / figures[backend, name]["median"]
        for backend, name in bench_training.CASES
        if (backend, name) != bench_training.BASELINE
    }


def search_ratios(folder, rounds):
    """Time of a search: the fastest backend over float32, and float32 over int8."""
    cases = [(*case, folder) for case in SEARCH_CASES]
    figures = medians(measure_in_processes(bench_export.__file__, cases, rounds))
    ratios = {}
    for batch in (f"batch {size}" for size in bench_export.BATCHES):
        *backends, float32, _ = (figures[case][batch] for case in cases)
        ratios[f"float32 search, {batch}"] = min(backends) / float32
    float32, int8 = (figures[case]["batch 32"] for case in cases[-2:])
    ratios["int8 search, batch 32"] = float32 / int8
    return ratios


def service_ratios(artifact, rounds):
    """Start and memory of the service, over those of a script that translates one sentence."""
    ready, memory = [], []
    body = json.dumps({"text": "abcd efgh ijkl"}).encode()
    for _ in range(rounds):
        script_seconds, script_megabytes = bench_export.measure_start_up(artifact, 1)
        began = time.perf_counter()
        with running_service(artifact, PORT) as server:
            ready.append((time.perf_counter() - began) / script_seconds)
            # The service opens its session with more threads after it is ready.
            run_load(PORT, 1, "/translate", [body] * 50, 60)
            memory.append(megabytes(server) / script_megabytes)
    return {
        "service, seconds until ready": statistics.median(ready),
        "service, memory": statistics.median(memory),
    }


def compare(ratios, record):
    """Print each ratio next to the recorded one; return the names of those that are worse.

    Args:
        ratios: dict from name to float.
        record: dict from name to `ratio`, `noise` (a share of the ratio) and `better` ("higher" or
            "lower").
    """
    worse = []
    print(f"{'':32} {'ratio':>6}  {'recorded':>8}  noise")
    for name, ratio in ratios.items():
        recorded, noise = record[name]["ratio"], record[name]["noise"]
        is_higher = record[name]["better"] == "higher"
        limit = recorded * (1 - noise if is_higher else 1 + noise)
        is_worse = ratio < limit if is_higher else ratio > limit
        worse += [name] * is_worse
        note = f"  WORSE: {record[name]['better']} is better" if is_worse else ""
        print(f"{name:32} {ratio:6.2f}  {recorded:8.2f}  {noise:.0%}{note}")
    return worse


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all cases (default: 3)")
    parser.add_argument("--record", action="store_true", help="write the ratios to ratios.json")
    args = parser.parse_args(arguments)
    record = json.loads(RECORD.read_text("utf-8"))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, bench_export.__file__, "export", folder],
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            check=True,
        )
        ratios = search_ratios(folder, args.rounds)
        ratios |= service_ratios(Path(folder) / "float32", args.rounds)
    ratios |= training_ratios(args.rounds)
    ratios |= attention_ratios(1)  # memory is nearly the same in every round
    worse = compare(ratios, record)
    print(f"{os.cpu_count()} cores, {args.rounds} rounds, {time.perf_counter() - began:.0f} s")
    if args.record:
        for name, ratio in ratios.items():
            record[name]["ratio"] = round(ratio, 3)
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    elif worse:
        raise SystemExit(f"Worse than recorded by more than the noise: {', '.join(worse)}")


if __name__ == "__main__":
    main()
