"""Randomly damaged artifacts give a clear error or a translation in time and without leaks.

`make test-soak` tries many more of them (variable MUTATIONS).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from copy_artifact import COPY_STEPS, external_score, make

COUNT = int(os.environ.get("MUTATIONS", "400"))
PART = 2000  # seeds for one process
SCRIPT = Path(__file__).parents[1] / "support" / "corrupted_artifacts.py"
GROWTH = 150  # MB, over one process; the first artifacts load the libraries


@pytest.mark.parametrize("first", range(0, COUNT, PART))
def test_corrupted_artifacts_are_refused_or_run(first, tmp_path):
    score = external_score("model.onnx", offset=20)  # 4 bytes of the graph as a number
    artifact = make(tmp_path / "artifact", steps=COPY_STEPS, score=score)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    last = min(first + PART, COUNT)
    command = [sys.executable, SCRIPT, artifact, scratch, str(first), str(last)]
    finished = subprocess.run(command, capture_output=True, text=True)
    lines = finished.stdout.splitlines()
    assert finished.returncode == 0, f"{lines[-1]}\n{finished.stderr[-2000:]}"
    assert finished.stderr == ""
    ends = re.findall(r"^-> (\w+) (\S+) (\d+)$", finished.stdout, re.M)
    assert len(ends) == last - first
    seeds = lines[::2]
    slow = [seed for seed, (_, seconds, _) in zip(seeds, ends, strict=True) if float(seconds) > 5]
    assert not slow
    sizes = [int(size) for _, _, size in ends]
    assert sizes[-1] - sizes[min(50, len(sizes) - 1)] < GROWTH
    kinds = {kind for kind, _, _ in ends}
    assert {"fine", "CorruptArtifactError", "UnsupportedArtifactError"} <= kinds
