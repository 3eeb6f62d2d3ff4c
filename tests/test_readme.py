"""The README's Python runs, top to bottom, and so do the examples."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_blocks(name, count):
    """Runs the blocks of a document, which share their names."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == count
    namespace = {}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


@pytest.mark.tracing
def test_the_readme_runs():
    run_blocks("README.md", 3)


@pytest.mark.once
def test_the_recipes_run():
    run_blocks("docs/recipes.md", 5)


@pytest.mark.tracing
def test_the_classifier_example_learns():
    example = runpy.run_path(str(ROOT / "examples" / "classify_with_attention.py"))
    assert example["main"](examples=1000, epochs=10) > 0.95
