"""The README's Python runs, top to bottom, and so do the examples."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S
)


@pytest.mark.tracing
def test_the_readme_runs():
    assert len(BLOCKS) == 3
    namespace = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)


@pytest.mark.tracing
def test_the_classifier_example_learns():
    example = runpy.run_path(str(ROOT / "examples" / "classify_with_attention.py"))
    assert example["main"](examples=1000, epochs=10) > 0.95
