"""File names in the folder of a training run."""

import json
import os
from pathlib import Path

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.signature import MANIFEST_FILE, OF_RUNS

OPTIONS_FILE, LAST_FILE, BEST_FILE = OF_RUNS
TEXTS_FILE, HISTORY_FILE, AVERAGE_FILE = "texts.json", "history.csv", "average.keras"
FOLDER_KEY = "folder"  # in TEXTS_FILE, next to the hashes
SEEDS_FILE, CALIBRATION_FILE = "seeds.json", "calibration.json"
CORPUS_FOLDER, DISTILLED_FOLDER, MIXED_FOLDER = "corpus", "distilled", "mixed"


def member_folder(run: str | os.PathLike[str], seed: int) -> Path:
    """Return the folder of the run with a seed in a folder of several runs."""
    return Path(run) / f"seed-{seed}"


def member_runs(run: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of all runs in a folder of several runs, or a folder of one run itself.

    Raises:
        ValueError: The file with the seeds is damaged.
    """
    path = Path(run) / SEEDS_FILE
    if not path.exists():
        return [Path(run)]
    try:
        seeds = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON. Received: {error}") from error
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise ValueError(f"{path}: expected a list of seeds. Received: {seeds!r:.80}")
    return [member_folder(run, seed) for seed in seeds]


def option_folders(run: str | os.PathLike[str]) -> list[Path]:
    """Return the folders from which the relative paths in the options of a run may start.

    The first is the one in which the run was trained, if it is recorded: runs of earlier versions
    have no such record. The last is the current folder, for a run that was moved with its texts.

    Raises:
        ValueError: The file with the record is damaged.
    """
    path, folders = Path(run) / TEXTS_FILE, [Path()]
    if path.exists():
        try:
            record = json.loads(path.read_bytes())
            folder = record.get(FOLDER_KEY)
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}: expected a JSON object. Received: {error}") from error
        if isinstance(folder, str) and Path(folder) != Path.cwd():
            folders.insert(0, Path(folder))
    return folders


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
        elif (Path(run) / SEEDS_FILE).exists():
            problem = f"has several runs, such as {member_runs(run)[0]}"
        elif (Path(run) / MANIFEST_FILE).exists():
            problem = f"has a {MANIFEST_FILE} and no {BEST_FILE}, like an artifact or a corpus"
        raise argument_error(
            argument, "be the folder of a training run", received=f"{str(run)!r}, which {problem}"
        )
    return path
