"""Confidences of small tasks: calibrated on the dev sets, measured on the test sets.

    python benchmarks/bench_confidence.py bul=RUN turkish-medium=RUN --data DIR --output OUT

A run is one of `bench_small_tasks.py`, with the task's name in front. `export` calibrates it on its
validation set, and `evaluate --json` measures the artifact on the test set, or with `--set dev` on
the dev set by folds (the figures of the manifest). Artifacts in OUT are not exported again.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench_small_tasks import COMMAND, TASKS, environment, format_flags, task_files


def run(*arguments):
    """Run a command of the package; return its standard output."""
    command = [*COMMAND, *map(str, arguments)]
    process = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    return process.stdout


def measure(task, folder, data, output, test_set):
    """Export a run, unless it is done; return the row of the table."""
    artifact = output / task
    if not artifact.exists():
        run("export", folder, artifact)
    if test_set == "dev":
        manifest = json.loads((artifact / "manifest.json").read_text("utf-8"))
        return manifest["calibration"]["measured"]
    scores = json.loads(
        run("evaluate", artifact, data / task_files(task)[2], *format_flags(task), "--json")
    )
    return {**scores["confidence"], "ser": scores["ser"]}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="TASK=RUN")
    parser.add_argument("--data", type=Path, default=os.environ.get("SMALL_TASKS_DATA"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--set", choices=("dev", "test"), default="test")
    options = parser.parse_args()
    runs = dict(run.split("=", 1) for run in options.runs)
    unknown = [task for task in runs if task not in TASKS]
    if unknown:
        parser.error(f"unknown tasks: {', '.join(unknown)}")
    options.output.mkdir(parents=True, exist_ok=True)
    if options.set == "test":
        print("| task | calibration error | wrong: all | 90 % | 80 % | 50 % | 80 % / all | symbol "
              "errors | expected |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for task, folder in runs.items():
        row = measure(task, folder, options.data, options.output, options.set)
        if options.set == "dev":
            print(task, {name: round(value, 2) for name, value in row.items()}, flush=True)
            continue
        low, high = row["interval"]
        wrong = {int(part): share for part, share in row["wrong"].items()}
        ratio = f"{wrong[80] / wrong[100]:.2f}" if wrong[100] else "-"
        shares = " | ".join(f"{wrong[part]:.1f} %" for part in (100, 90, 80, 50))
        print(
            f"| {task} | {row['calibration_error']:.1f} % ({low:.1f} to {high:.1f}) | {shares} | "
            f"{ratio} | {row['ser']:.1f} % | {row['expected_errors']:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
