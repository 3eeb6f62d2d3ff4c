"""The checks of the quickstart's arguments, which need no Keras."""

from pathlib import Path

from keras_bahdanau_export.checks import check_installed
from keras_bahdanau_runtime.checks import check_positive


def check_arguments(output: Path, pairs: int, epochs: int) -> None:
    """Raises a `ValueError`, or a `MissingDependencyError`; arguments as for `quickstart`."""
    check_positive(pairs=pairs, epochs=epochs)
    check_installed("matplotlib", extra="plot")
    check_installed("tensorflow", extra="export")
    if output.exists():
        raise ValueError(
            f"Argument `output` must be a new folder. Received: {str(output)!r}, which exists"
        )
