"""Checks of arguments that need no Keras, for the library and, before its import, the commands."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.signature import PRECISIONS

FORMATS = ("onnx", "tf_saved_model")
# Why there are no more formats for a model that generates.
OTHER_FORMATS = "Keras's other exporters know nothing of a search"


def check_settings(
    formats: Sequence[str], precision: str, max_bleu_loss: float, other_formats: str
) -> None:
    """Raises a `ValueError` that names the first of these arguments of `export` that is wrong.

    Args:
        formats: Formats.
        precision: As for `export`.
        max_bleu_loss: As for `export`.
        other_formats: Why there are no more formats, for the message.
    """
    unknown = [format for format in formats if format not in FORMATS]
    if unknown or not formats:
        raise ValueError(
            f"Argument `format` must be one of {FORMATS} or a list of both; {other_formats}. "
            f"Received: {unknown[0] if unknown else []!r}"
        )
    if precision not in PRECISIONS or (precision != "float32" and "onnx" not in formats):
        raise ValueError(
            f'Argument `precision` must be one of {PRECISIONS}, and "float32" where no ONNX graph '
            f"is written. Received: {precision!r}"
        )
    check_range("max_bleu_loss", max_bleu_loss, float, -100, 100)


def check_lengths(max_length: int, max_source_length: int | None) -> None:
    """Raises a `ValueError` unless these arguments of `export` are positive integers."""
    check_positive(max_length=max_length)
    if max_source_length is not None:
        check_positive(max_source_length=max_source_length)


def check_captured(captured: bool, formats: Sequence[str]) -> None:
    """Raises a `ValueError` where a graph is to be cut that is not written."""
    if captured and "onnx" not in formats:
        raise ValueError(
            "Argument `captured` must be False where no ONNX graph is written. Received: True"
        )


def check_beam(
    beam: int, length_penalties: Sequence[float], max_length_ratio: float | None = None
) -> None:
    """Raises a `ValueError` that names the first of a command's search options that is wrong."""
    check_positive(beam=beam)
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
