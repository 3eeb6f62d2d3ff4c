"""Options that commands share, and checks of arguments.

Nothing here needs Keras, so mistakes are reported before its import, which takes seconds.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import MissingDependencyError, argument_error
from keras_bahdanau_runtime.option_fields import option

# Help texts of arguments that several commands have.
ARTIFACT = (
    "Folder of an artifact (from export), or hf://USER/NAME[@REVISION] on the Hugging Face Hub."
)
RUN = "Folder of a run (from train), or of several (from train --seeds), which are joined."
ONE_RUN = "Folder of a run (from train)."
SOURCE = "Source sentences, or a file with both sides, plain or compressed; - is standard input."
TARGET = "Their translations, line by line; none if the source has both sides."


def argument(help: str, default: Any = MISSING) -> Any:
    """Return the field of a positional argument."""
    return option(default, help, positional=True)


def output_path(help: str, default: Any = MISSING) -> Any:
    """Return the field of the flag `--output`."""
    return option(default, help, flags="-o --output")


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """Limits of the runs of a graph."""

    timeout: float | None = option(
        None, "Time limit of one run of the graph, in seconds.", panel="Limits"
    )
    megabytes: float | None = option(
        None, "Memory limit of all runs, in MB, without the weights.", panel="Limits"
    )


def check_file(name: str, path: Path) -> None:
    """Raise a `ValueError` that names the argument unless its path is a file."""
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "does not exist"
        raise argument_error(name, "be a file", received=f"{str(path)!r}, which {reason}")


def check_installed(*packages: str, extra: str) -> None:
    """Raise a `MissingDependencyError` for the first package that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, extra)


def check_modules(imports: Sequence[str]) -> None:
    """Raise a `ValueError` for the first module that does not exist, without importing any."""
    for name in imports:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise argument_error(
                "import",
                "be the name of an importable module",
                received=f"{name!r}. PYTHONPATH must contain its folder.",
            )
