"""Options that commands share, and checks of arguments.

Nothing here needs Keras, so mistakes are reported before its import, which takes seconds.
"""

import importlib.util
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from keras_bahdanau.user_modules import check_module, import_user_module, module_name
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


def output_path(help: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Return the field of the flag `--output`, with the `metadata` of `option`."""
    return option(default, help, flags="-o --output", **metadata)


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


@dataclass(frozen=True, kw_only=True)
class ModelImports:
    """Modules with classes of a run's model."""

    imports: tuple[str, ...] = option(
        (),
        "For a run: a module, or its .py file, with classes of the model, such as that of `train "
        "--attention`. Its code runs. May be repeated.",
        flags="--import",
        panel="Model",
    )

    def check(self, is_run: bool = True) -> None:
        """Raise a `ValueError` for a module that does not exist, without importing any.

        Args:
            is_run: Whether the model is a run; an artifact needs no modules.
        """
        if self.imports and not is_run:
            raise argument_error(
                "import",
                "be left out for an artifact, which contains no classes",
                received=str(list(self.imports)),
            )
        for module in self.imports:
            check_module("import", module)

    def load(self) -> list[str]:
        """Import the modules, which must be after the import of Keras, and return their names."""
        for module in self.imports:
            import_user_module("import", module)
        return [module_name(module) for module in self.imports]
