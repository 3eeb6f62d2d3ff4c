"""Checks of the commands that need no Keras, before its import."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import MissingDependencyError


def check_beam(
    beam_size: int, length_penalties: Sequence[float], max_length_ratio: float | None = None
) -> None:
    """Raises a `ValueError` that names the first of a command's search options that is wrong."""
    check_positive(beam_size=beam_size)
    for penalty in length_penalties:
        check_range("length_penalty", penalty, float, 0)
    if max_length_ratio is not None:
        check_range("max_length_ratio", max_length_ratio, float, 0, open_low=True)


def check_file(name: str, path: Path) -> None:
    """Raises a `ValueError` that names the argument unless its path is a file."""
    if not path.is_file():
        why = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"Argument `{name}` must be a file. Received: {str(path)!r}, which {why}")


def check_installed(*packages: str, extra: str) -> None:
    """Raises a `MissingDependencyError` for the first package that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, extra)


def check_modules(imports: Sequence[str]) -> None:
    """Raises a `ValueError` for the first module that there is not, without importing any."""
    for name in imports:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise ValueError(
                f"Argument `import` must be the name of a module. Received: {name!r}, which is not "
                "found; PYTHONPATH may hold its folder"
            )
