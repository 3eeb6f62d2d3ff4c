"""Read notebooks that are scripts with `# %%` cells, and run them.

`python docs/_extensions/notebook_scripts.py docs/notebooks` runs every notebook of a folder in the
current folder and writes it with its outputs to `docs/_build/notebooks`. The site shows these
outputs while the cells of the scripts are the same.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jupytext
import nbformat

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
EXECUTED = DOCS / "_build" / "notebooks"


def setup(app: "Sphinx") -> dict[str, Any]:
    """Read a notebook again after it has run."""
    app.connect("env-get-outdated", _pages_of_executed_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _pages_of_executed_notebooks(
    app: "Sphinx", env: Any, added: set[str], changed: set[str], removed: set[str]
) -> Sequence[str]:
    pages = [f"notebooks/{path.stem}" for path in sorted(EXECUTED.glob("*.ipynb"))]
    return [page for page in pages if page in env.found_docs]


def read(text: str) -> nbformat.NotebookNode:
    """Return a script as a notebook, with its outputs if `make notebooks` has run it.

    Args:
        text: The script. The outputs of an executed notebook are used only if its cells are equal.
    """
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    for path in sorted(EXECUTED.glob("*.ipynb")):
        executed = nbformat.read(path, as_version=4)
        if _sources(executed) == _sources(notebook):
            for cell, executed_cell in zip(notebook.cells, executed.cells, strict=True):
                if cell.cell_type == "code":
                    cell.outputs = executed_cell.outputs
    return notebook


def _sources(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def run(script: Path) -> None:
    """Run a notebook in a new kernel and write it with its outputs to `EXECUTED`.

    Args:
        script: The notebook as a script.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised an exception.
    """
    from nbclient import NotebookClient

    notebook = jupytext.read(script, fmt="py:percent")
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    for cell in notebook.cells:
        # Native libraries write log lines to stderr that say nothing about the example.
        outputs = cell.get("outputs", [])
        outputs[:] = [output for output in outputs if output.get("name") != "stderr"]
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, EXECUTED / f"{script.stem}.ipynb")


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.py")):
        print(f"Running {path}", flush=True)
        run(path)
