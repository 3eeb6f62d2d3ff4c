"""The Python of the README and of the recipes runs, top to bottom."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_blocks(name, count):
    """Run the blocks of a document in one namespace."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == count
    namespace = {}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def test_the_readme_runs():
    run_blocks("README.md", 3)


def test_the_recipes_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the recipes export to the current folder
    run_blocks("docs/recipes.md", 10)
