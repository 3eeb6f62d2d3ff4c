"""File names in the folder of a training run."""

import os
from pathlib import Path

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.signature import MANIFEST_FILE, OF_RUNS

OPTIONS_FILE, LAST_FILE, BEST_FILE = OF_RUNS
TEXTS_FILE, HISTORY_FILE, AVERAGE_FILE = "texts.json", "history.csv", "average.keras"
CORPUS_FOLDER, DISTILLED_FOLDER, MIXED_FOLDER = "corpus", "distilled", "mixed"


def best_file(run: str | os.PathLike[str], argument: str = "run") -> Path:
    """Return the file of a run's best model.

    Args:
        run: Folder of a run of `train`.
        argument: Name of the argument, for the message.

    Raises:
        ValueError: The folder has no best model.
    """
    path = Path(run) / BEST_FILE
    if not path.exists():
        problem = f"has no {BEST_FILE}"
        if not os.path.lexists(run):
            problem = "does not exist"
        elif not Path(run).is_dir():
            problem = "is a file"
        elif (Path(run) / MANIFEST_FILE).exists():
            problem = f"has a {MANIFEST_FILE} and no {BEST_FILE}, like an artifact or a corpus"
        raise argument_error(
            argument, "be the folder of a training run", received=f"{str(run)!r}, which {problem}"
        )
    return path
