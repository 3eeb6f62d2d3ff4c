"""File with the confidence of a run's best model, which `export` writes and `load_best` reads."""

import logging
import os
from pathlib import Path

from keras_bahdanau.run_folder import BEST_FILE, CALIBRATION_FILE, best_file, member_runs
from keras_bahdanau_runtime.calibration import Calibration
from keras_bahdanau_runtime.files import file_sha256, write_json
from keras_bahdanau_runtime.option_files import read_options

logger = logging.getLogger("keras_bahdanau")


def save_calibration(run: str | os.PathLike[str], calibration: Calibration) -> None:
    """Write the calibration of the best model of a run, or of an ensemble of several."""
    document = {"models": _digests(run), "calibration": calibration.to_json()}
    write_json(Path(run) / CALIBRATION_FILE, document)


def load_calibration(run: str | os.PathLike[str]) -> Calibration | None:
    """Return the calibration of a run, or of an ensemble of several; `None` if there is none.

    It belongs to the models that it was fitted for. If one of them has changed since, for example
    by more training, it is not loaded, with a warning.

    Raises:
        ValueError: The file is damaged.
    """
    path = Path(run) / CALIBRATION_FILE
    if not path.exists():
        return None
    document = read_options(path)
    calibration = Calibration.from_json(path, document.get("calibration"))
    if document.get("models") != _digests(run):
        logger.warning(
            "%s was fitted for another %s. Export the run again to fit it for this one.",
            path,
            BEST_FILE,
        )
        return None
    return calibration


def _digests(run: str | os.PathLike[str]) -> list[str]:
    """Return the SHA-256 of the best model of each member of a run."""
    return [file_sha256(best_file(member)) for member in member_runs(run)]
