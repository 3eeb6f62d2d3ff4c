"""Ratios of speed and memory, compared with those recorded for this machine in ratios.json.

Every ratio compares two programs that are measured in turn on the same machine. Exit status:

  0  no ratio is worse than the recorded one by more than its noise
  1  a ratio is worse
  3  no ratio is worse, but this machine has no record of some; `--record` writes them

| part              | ratio                                                 | measured             |
|-------------------|-------------------------------------------------------|----------------------|
| search            | fastest backend / exported search                     | wall time, all cores |
| options           | exported search with an option / without              | processor time       |
| ended rows        | search without `skip_ended` / with it                 | processor time       |
| export            | `export` / import of TensorFlow and Keras             | processor time       |
| training step     | plain PyTorch / ours                                  | processor time       |
| progress          | `train` until its first progress line / import, and   | processor time       |
|                   | on JAX until its first epoch ends / import            |                      |
| service           | until ready, after load, idle / a script that         | processor time,      |
|                   | translates one sentence                               | resident memory      |
| attention memory  | ours / `keras.layers.AdditiveAttention`               | peak memory          |

Processor time is that of processes that are pinned to one core, so they have one thread. The
service is not pinned. "Import" is a new process that imports the backend and Keras.

Each time is the best of its rounds, because other work on the machine only adds time. A ratio that
is worse is measured again, and fails only if it is worse both times.

`--record` measures everything three times. It writes the medians and their noise, which is the
range of the three runs and at least 5 %, and leaves the records of other machines as they are.

Not measured here, because it takes hours: BLEU by training time and the BLEU of students; see
benchmarks/README.md.
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_attention
import bench_export
import bench_small_tasks
import bench_training
from bench_passes import search_of
from http_load import run_load
from server_process import megabytes, processor_seconds, running_service
from timing import interleaved_seconds, measure_in_processes, minima, one_core

from keras_bahdanau_runtime.files import write_json

RECORD = Path(__file__).parent / "ratios.json"
WORSE, NOT_RECORDED = 1, 3  # exit status; argparse uses 2
RECORD_RUNS, LEAST_NOISE = 3, 0.05
PORT = 8767
# Instruction sets that products of matrices use, as Linux names them.
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
SEARCH_CASES = (
    ("tensorflow", "xla"),
    ("jax", "keras"),
    ("tensorflow", "float32"),
    ("tensorflow", "int8"),
)
OPTIONS = {
    "no_repeat_ngram": {"no_repeat_ngram": 2},
    "coverage_penalty": {"coverage_penalty": 0.2},
    "prefix": {"prefix": [[5, 6, 7]]},
}
IMPORT = "import keras, time; print(time.process_time())"
IDLE_SECONDS = 15  # the service returns memory 5 to 12 seconds after its last batch


def export_artifacts(folder):
    """Write the model and its graphs into a folder, unless it has them."""
    if (folder / "ended").exists():
        return
    for part in ("export", "ended"):
        subprocess.run(
            [sys.executable, bench_export.__file__, part, folder],
            env=backend_environment("tensorflow"),
            check=True,
        )


def backend_environment(backend):
    return {**os.environ, "KERAS_BACKEND": backend}


def import_seconds(backend):
    """Return the processor seconds of a new process that imports a backend and Keras."""
    command, environment = [sys.executable, "-c", IMPORT], backend_environment(backend)
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(process.stdout)


def best_seconds(calls, rounds):
    """Return the smallest processor seconds of each function; the first round is a warm-up."""
    seconds = interleaved_seconds(calls, rounds, clock=time.process_time)
    return {name: min(times) for name, times in seconds.items()}


def search_ratios(folder, rounds):
    export_artifacts(folder)
    cases = [(*case, str(folder)) for case in SEARCH_CASES]
    figures = minima(measure_in_processes(bench_export.__file__, cases, rounds))
    ratios = {}
    for batch in (f"batch {size}" for size in bench_export.BATCHES):
        *backends, float32, int8 = (figures[case][batch] for case in cases)
        ratios[f"search, float32, {batch}"] = min(backends) / float32
        ratios[f"search, int8, {batch}"] = min(backends) / int8
    return ratios


def option_ratios(folder, rounds):
    export_artifacts(folder)
    path = folder / "float32" / "model.onnx"
    calls = {
        name: search_of(path, bench_export.LENGTH, 1, 1, **options)
        for name, options in {"": {}, **OPTIONS}.items()
    }
    seconds = best_seconds(calls, rounds)
    return {f"options, {name}": seconds[name] / seconds[""] for name in OPTIONS}


def ended_row_ratios(folder, rounds):
    export_artifacts(folder)
    ratios = {}
    for batch in (16, 32):
        calls = {
            name: search_of(folder / "ended" / f"{name}.onnx", bench_export.LENGTH, batch, 1)
            for name in ("all", "skipped")
        }
        seconds = best_seconds(calls, rounds)
        ratios[f"ended rows, batch {batch}"] = seconds["all"] / seconds["skipped"]
    return ratios


def export_ratios(folder, rounds):
    export_artifacts(folder)
    imports = min(import_seconds("tensorflow") for _ in range(rounds))
    case = ("tensorflow", "export", str(folder))
    figures = minima(measure_in_processes(bench_export.__file__, [case], rounds))
    return {"export": figures[case]["seconds"] / imports}


def training_ratios(folder, rounds):
    figures = minima(measure_in_processes(bench_training.__file__, bench_training.CASES, rounds))
    baseline = figures[bench_training.BASELINE]["median"]
    return {
        f"training step, {backend}": baseline / figures[backend, name]["median"]
        for backend, name in bench_training.CASES
        if (backend, name) != bench_training.BASELINE
    }


def write_task(folder):
    """Write files of words and their reverse, in four batch shapes; return their paths."""
    rng, paths = random.Random(0), []
    for name, pairs in (("train", 600), ("validation", 40)):
        words = [
            "".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 24))) for _ in range(pairs)
        ]
        path = folder / f"{name}.tsv"
        path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
        paths.append(path)
    return paths


def progress_seconds(backend):
    """Processor seconds of `train` on a small task.

    Returns:
        A dict with those until the first progress line. On JAX, which compiles a step for each
        shape of a batch, also those until the end of the first epoch.
    """
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as log:
        train, validation = write_task(Path(folder))
        command = [*bench_small_tasks.COMMAND, "train", train, "--validation-source", validation]
        command += ["--output", Path(folder) / "run", "--epochs", "1"]
        variables = bench_small_tasks.environment() | {"KERAS_BACKEND": backend}
        progress = bench_small_tasks.progress_seconds(
            command, variables, log, lambda process: processor_seconds(process.pid)
        )
        with contextlib.closing(progress):
            seconds = {"first line": next(progress)}
            if backend == "jax":
                *_, seconds["first epoch"] = progress
            return seconds


def progress_ratios(folder, rounds):
    ratios = {}
    for backend in bench_attention.BACKENDS:
        imports = min(import_seconds(backend) for _ in range(rounds))
        figures = minima({backend: [progress_seconds(backend) for _ in range(rounds)]})
        for line, seconds in figures[backend].items():
            ratios[f"progress, {line}, {backend}"] = seconds / imports
    return ratios


def service_ratios(folder, rounds):
    export_artifacts(folder)
    artifact, runs = folder / "float32", []
    for _ in range(rounds):
        _, script_megabytes, script_seconds = bench_export.measure_start_up(artifact, 1)
        run = {"script": script_seconds, "script memory": script_megabytes}
        with running_service(artifact, PORT) as server:
            run["start"] = processor_seconds(server.pid)
            run_load(PORT, 16, "/translate", translation_requests(200, words=3), 60)
            run["memory after load"] = megabytes(server)
            # Long texts need memory that the service returns when it is idle.
            run_load(PORT, 16, "/translate", translation_requests(16, words=200), 60)
            time.sleep(IDLE_SECONDS)
            run["idle memory"] = megabytes(server)
        runs.append(run)
    [best] = minima({"service": runs}).values()
    return {
        "service, start": best["start"] / best["script"],
        "service, memory after load": best["memory after load"] / best["script memory"],
        "service, idle memory": best["idle memory"] / best["script memory"],
    }


def translation_requests(count, words):
    body = json.dumps({"text": " ".join(["abcd"] * words)}).encode()
    return [body] * count


def attention_ratios(folder, rounds):
    cases = [(b, layer) for b in bench_attention.BACKENDS for layer in bench_attention.LAYERS]
    figures = minima(measure_in_processes(bench_attention.__file__, cases, rounds))
    return {
        f"attention memory, {backend}": figures[backend, "keras_bahdanau"]["bytes"]
        / figures[backend, "keras"]["bytes"]
        for backend in bench_attention.BACKENDS
    }


@dataclass(frozen=True)
class Part:
    """Ratios that are measured together.

    Args:
        measure: Function of a folder for artifacts and of the number of rounds that returns a dict
            from name to ratio. Names begin with the name of the part.
        better: "higher" or "lower", which ratios are better.
        rounds: Number of rounds.
        cores: "one" to pin the processes to one core, or "all".
    """

    measure: Callable[[Path, int], dict[str, float]]
    better: str
    rounds: int
    cores: str = "one"

    def is_worse(self, ratio, record):
        """Whether a ratio is worse than a recorded one by more than its noise."""
        if self.better == "higher":
            return ratio < record["ratio"] * (1 - record["noise"])
        return ratio > record["ratio"] * (1 + record["noise"])


PARTS = {
    "search": Part(search_ratios, "higher", rounds=2, cores="all"),
    "options": Part(option_ratios, "lower", rounds=100),
    "ended rows": Part(ended_row_ratios, "higher", rounds=15),
    "export": Part(export_ratios, "lower", rounds=2),
    "training step": Part(training_ratios, "higher", rounds=2),
    "progress": Part(progress_ratios, "lower", rounds=2),
    "service": Part(service_ratios, "lower", rounds=3, cores="all"),
    "attention memory": Part(attention_ratios, "lower", rounds=1),
}


def machine_name():
    """Return the processor, the number of cores and the instruction sets of this machine."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    fields = dict(line.partition(":")[::2] for line in lines)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags = fields.get("flags", "").split()
    sets = " ".join(name for name in INSTRUCTION_SETS if name in flags)
    processor = fields.get("model name", "unknown processor")
    return f"{processor}, {len(os.sched_getaffinity(0))} cores, {sets or 'no AVX2'}"


def measure(names, folder, rounds):
    """Measure parts, and print the seconds that each takes.

    Args:
        names: Keys of `PARTS`.
        folder: Path of a folder for graphs.
        rounds: Number of rounds of every part, or `None` for the part's own.

    Returns:
        A dict from the names of the parts to dicts from name to ratio.
    """
    figures = {}
    for name in names:
        part, began = PARTS[name], time.perf_counter()
        with one_core() if part.cores == "one" else contextlib.nullcontext():
            try:
                figures[name] = part.measure(folder, rounds or part.rounds)
            except subprocess.CalledProcessError as error:
                message = f"The measurement of `{name}` failed: {error}\n{error.stderr or ''}"
                raise RuntimeError(message) from error
        print(f"measured {name} in {time.perf_counter() - began:.0f} s", flush=True)
    return figures


def compare(figures, record):
    """Print each ratio next to the recorded one.

    Args:
        figures: Dict from `measure`.
        record: dict from name to `ratio` and `noise`, a share of the ratio.

    Returns:
        The set of the names of ratios that are worse.
    """
    worse = set()
    print(f"{'':32} {'ratio':>6}  {'recorded':>8}  noise")
    for name, ratios in figures.items():
        for ratio_name, ratio in ratios.items():
            line = f"{ratio_name:32} {ratio:6.3f}"
            if recorded := record.get(ratio_name):
                line += f"  {recorded['ratio']:8.3f}  {recorded['noise']:.0%}"
                if PARTS[name].is_worse(ratio, recorded):
                    worse.add(ratio_name)
                    line += f"  WORSE: {PARTS[name].better} is better"
            print(line)
    return worse


def check(names, folder, rounds, machine, record):
    """Compare the ratios of parts with the recorded ones; return the exit status."""
    figures = measure(names, folder, rounds)
    worse = compare(figures, record)
    if worse:
        print("Measuring the parts that are worse again.")
        names = [name for name in names if not worse.isdisjoint(figures[name])]
        worse &= compare(measure(names, folder, rounds), record)
    if worse:
        print(f"Worse than recorded by more than the noise: {', '.join(sorted(worse))}")
        return WORSE
    missing = [name for ratios in figures.values() for name in ratios if name not in record]
    if missing:
        print(f"{RECORD.name} has no record of this machine for: {', '.join(missing)}.")
        print(f'The machine is "{machine}". Run this command with --record while it is idle.')
        return NOT_RECORDED
    return 0


def ratios_with_noise(runs):
    """Return the median of each ratio over several results of `measure`, with its noise."""
    recorded = {}
    for name, ratios in runs[0].items():
        for ratio_name in ratios:
            values = [run[name][ratio_name] for run in runs]
            ratio = statistics.median(values)
            noise = max(LEAST_NOISE, (max(values) - min(values)) / ratio)
            recorded[ratio_name] = {"ratio": round(ratio, 4), "noise": math.ceil(noise * 100) / 100}
            print(f"{ratio_name:32} {ratio:6.3f}  noise {noise:.1%}")
    return recorded


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="NAME", help="parts whose name contains NAME")
    parser.add_argument("--rounds", type=int, help="rounds of each part (default: its own)")
    parser.add_argument(
        "--record", action="store_true", help="write the ratios of this machine to ratios.json"
    )
    args = parser.parse_args(arguments)
    names = [name for name in PARTS if args.only in name]
    if not names:
        parser.error(f"--only must be part of one of these names: {', '.join(PARTS)}")
    machine, records = machine_name(), json.loads(RECORD.read_text("utf-8"))
    record, began = records.get(machine, {}), time.perf_counter()
    print(machine)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        if args.record:
            runs = [measure(names, Path(folder), args.rounds) for _ in range(RECORD_RUNS)]
            new = ratios_with_noise(runs)
            # A record of all parts replaces ratios that no longer exist.
            records[machine] = record | new if args.only else new
            write_json(RECORD, records)
        else:
            status = check(names, Path(folder), args.rounds, machine, record)
    print(f"{time.perf_counter() - began:.0f} s")
    sys.exit(status)


if __name__ == "__main__":
    main()
