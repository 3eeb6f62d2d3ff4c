"""Measurements in processes of their own, taken in turns.

A script calls itself for each case; rounds are interleaved, so that a slow minute of the machine
hits all cases alike.
"""

import json
import os
import statistics
import subprocess
import sys


def rounds_in_turns(script, cases, rounds):
    """Runs `script` for every case in every round.

    Args:
        script: Path of the script; it answers by `result`.
        cases: List of `(backend, *arguments)`, all `str`.
        rounds: How often each case is run.

    Returns:
        A dict from case to its figures in each round, a list of dicts from name to float.
    """
    found = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            run = subprocess.run(
                [sys.executable, script, "measure", *case[1:]],
                env={**os.environ, "KERAS_BACKEND": case[0]},
                capture_output=True,
                text=True,
            )
            if run.returncode:
                raise RuntimeError(f"Measuring {case} failed:\n{run.stderr}")
            found[case].append(json.loads(run.stdout.splitlines()[-1]))
    return found


def in_turns(script, cases, rounds):
    """As `rounds_in_turns`, but of each figure the median of its rounds, a float."""
    return {
        case: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for case, runs in rounds_in_turns(script, cases, rounds).items()
    }


def result(measure):
    """Prints the figures of `measure(*arguments)` if this process is one of `in_turns`; says so."""
    if sys.argv[1:2] != ["measure"]:
        return False
    print(json.dumps(measure(*sys.argv[2:])))
    return True
