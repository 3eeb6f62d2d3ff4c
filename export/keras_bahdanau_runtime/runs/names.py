"""The names of a training run's files, by which its folder is known."""

from pathlib import Path

OPTIONS_FILE, TEXTS_FILE = "options.json", "texts.json"
LAST_FILE, BEST_FILE, AVERAGE_FILE = "last.keras", "best.keras", "average.keras"
CORPUS_FOLDER = "corpus"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a training run, finished or not."""
    return any((folder / name).is_file() for name in (OPTIONS_FILE, BEST_FILE, LAST_FILE))
