"""Read notebooks that are scripts with `# %%` cells."""

from pathlib import Path

import jupytext
import nbformat

EXECUTED = Path(__file__).resolve().parents[1] / "_build" / "notebooks"


def read(text: str) -> nbformat.NotebookNode:
    """Return a script as a notebook, with its outputs if `make notebooks` has run it.

    Args:
        text: The script. The outputs of an executed notebook are used only if its cells are equal.
    """
    notebook = jupytext.reads(text, fmt="py:percent")
    for path in sorted(EXECUTED.glob("*.ipynb")):
        executed = nbformat.read(path, as_version=4)
        if _sources(executed) == _sources(notebook):
            return executed
    return notebook


def _sources(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]
