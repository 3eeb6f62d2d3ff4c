"""Timing for the benchmarks: cases are interleaved and reported as median and best.

Interleaving spreads a slow minute of the machine over all cases. Calls that can share a process are
timed by `interleaved_seconds`. Cases that need a backend or a memory of their own run in one
process each: `measure_in_processes` starts the script again for every case, and `run_as_case`
prints the figures of that process as JSON. `one_core` and `process_clock` measure the processor
time of one thread, which other work on the machine changes least.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time


@contextlib.contextmanager
def one_core():
    """Pin this process and those that it starts to one core, so that they use one thread."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def process_clock():
    """Return the clock for this process: processor time if it has one core, else wall time."""
    return time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter


def interleaved_seconds(calls, rounds, warmup=1, clock=time.perf_counter):
    """Run every call once per round.

    Args:
        calls: dict from a name to a function without arguments.
        rounds: Number of timed rounds.
        warmup: Number of rounds before them whose times are dropped.
        clock: Function that returns seconds; `time.process_time` for processor time.

    Returns:
        A dict from the name to a list of seconds, one per timed round.
    """
    seconds = {name: [] for name in calls}
    for _ in range(warmup + rounds):
        for name, call in calls.items():
            began = clock()
            call()
            seconds[name].append(clock() - began)
    return {name: times[warmup:] for name, times in seconds.items()}


def median_seconds(call, rounds, warmup=1):
    """Return the median seconds of one function without arguments."""
    return statistics.median(interleaved_seconds({"call": call}, rounds, warmup)["call"])


def median_and_best(values):
    """Return the median and the minimum of a list of times."""
    return statistics.median(values), min(values)


def benchmark_parser(description, rounds):
    """Return an argument parser with the option `--rounds`, whose default is `rounds`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=rounds, help=f"rounds of all cases (default: {rounds})"
    )
    return parser


def run_case(script, backend, *arguments):
    """Measure one case in a new process.

    Args:
        script: Path of a script that calls `run_as_case`.
        backend: str, the Keras backend of the process.
        *arguments: str arguments of the script's measuring function.

    Returns:
        The figures, a dict from name to float.
    """
    process = subprocess.run(
        [sys.executable, script, "measure", *arguments],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    if process.returncode:
        case = " ".join([backend, *arguments])
        raise RuntimeError(f"The measurement of `{case}` failed:\n{process.stderr.strip()}")
    return json.loads(process.stdout.splitlines()[-1])


def run_as_case(measure):
    """Print the figures of `measure(*arguments)` if `run_case` started this process.

    Returns:
        `True` if it did, `False` in a process that a user started.
    """
    if sys.argv[1:2] != ["measure"]:
        return False
    print(json.dumps(measure(*sys.argv[2:])))
    return True


def measure_in_processes(script, cases, rounds):
    """Run every case in every round, each time in a new process.

    Args:
        script: Path of a script that calls `run_as_case`.
        cases: List of `(backend, *arguments)`, all `str`.
        rounds: Number of rounds.

    Returns:
        A dict from case to its figures in each round, a list of dicts from name to float.
    """
    figures = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            figures[case].append(run_case(script, *case))
    return figures


def medians(figures):
    """Return the median over the rounds of every figure from `measure_in_processes`."""
    return _summarize(figures, statistics.median)


def minima(figures):
    """Return the smallest value over the rounds of every figure from `measure_in_processes`."""
    return _summarize(figures, min)


def _summarize(figures, function):
    return {
        case: {name: function([run[name] for run in runs]) for name in runs[0]}
        for case, runs in figures.items()
    }
