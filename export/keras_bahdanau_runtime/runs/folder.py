"""The folder of a training run: what may be written to it, and what may be read from it."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.files import claimed, written
from keras_bahdanau_runtime.prepared.corpus import MANIFEST_FILE
from keras_bahdanau_runtime.prepared.reading import check_files
from keras_bahdanau_runtime.runs.names import (
    BEST_FILE,
    CORPUS_FOLDER,
    LAST_FILE,
    OPTIONS_FILE,
    TEXTS_FILE,
)
from keras_bahdanau_runtime.runs.options import TrainingOptions, read_options

logger = logging.getLogger("keras_bahdanau")


def best_file(run: str | os.PathLike[str]) -> Path:
    """The file of a run's best model.

    Args:
        run: A run's folder, as `train` leaves it.

    Raises:
        ValueError: The folder holds no best model.
    """
    path = Path(run) / BEST_FILE
    if not path.exists():
        why = f"has no {BEST_FILE}"
        if not os.path.lexists(run):
            why = "does not exist"
        elif not Path(run).is_dir():
            why = "is a file"
        elif (Path(run) / MANIFEST_FILE).exists():
            why = f"has a {MANIFEST_FILE} and no {BEST_FILE}, as an artifact or a corpus"
        raise ValueError(
            f"Argument `run` must be the folder of a training run. Received: {str(run)!r}, "
            f"which {why}"
        )
    return path


def check_folder(options: TrainingOptions, output: Path, resume: bool) -> None:
    """Refuses a folder that is taken, or whose run had other options."""
    if (options.target is None and options.source.is_file()) or (
        options.target is not None and options.source.is_dir()
    ):
        raise ValueError(
            "Argument `target` must be the translations of a text file, and be left out for a "
            f"prepared corpus. Received: {options.target!s} for {options.source}"
        )
    check_files(
        validation_source=options.validation_source, validation_target=options.validation_target
    )
    if options.log_dir is not None and options.log_dir.exists() and not options.log_dir.is_dir():
        raise ValueError(
            f"Argument `log_dir` must be a folder. Received: {str(options.log_dir)!r}, a file"
        )
    if output.exists() and not output.is_dir():
        raise ValueError(f"Argument `output` must be a folder. Received: {str(output)!r}, a file")
    if not resume:
        # A start that was refused, by its learning rate, say, has left the corpus at most.
        if output.exists() and os.listdir(output) != [CORPUS_FOLDER]:
            raise ValueError(
                "Argument `output` must be a new folder; `resume` goes on with the run in an old "
                f"one. Received: {str(output)!r}, which exists"
            )
        return
    path = output / OPTIONS_FILE
    if not path.exists():
        if (output / LAST_FILE).exists():
            raise ValueError(
                "Argument `output` must be the folder of a run of `train` to go on with. Received: "
                f"{str(output)!r}, which has a {LAST_FILE} and no {OPTIONS_FILE}"
            )
        return  # interrupted before it began
    try:
        before = TrainingOptions.from_file(path).to_dict()
    except ValueError as error:
        raise ValueError(
            "Argument `output` must be the folder of a run of this version of keras_bahdanau. "
            f"Received: {str(output)!r}, whose {OPTIONS_FILE} says otherwise: {error}"
        ) from error
    changed = [
        f"`{name}` was {before[name]!r}, is {value!r}"
        for name, value in options.to_dict().items()
        if before[name] != value and name != "log_dir"  # which decides nothing
    ]
    if changed:
        raise ValueError(
            f"Argument `options` must be those of the run in {output}. "
            f"Received: {', '.join(changed)}"
        )
    _check_texts(options, output / TEXTS_FILE)


def _check_texts(options: TrainingOptions, path: Path) -> None:
    """Refuses texts that are no longer those that the run was started with."""
    if not path.exists():
        logger.warning("%s is missing: the texts may be others than the run's.", path)
        return
    before = read_options(path)
    changed = [name for name, value in hashes(options).items() if before.get(name) != value]
    if changed:
        raise ValueError(
            "Argument `options` must name the texts that the run was started with. "
            f"Received: {', '.join(changed)}, changed since then"
        )


def hashes(options: TrainingOptions) -> dict[str, str]:
    """The SHA-256 of each text file by the name of its option and, for further ones, a number.

    Of a prepared corpus it is that of the manifest, which has the others.
    """
    prepared = options.target is None
    files: dict[str, Sequence[Path]] = {
        "source": [options.source / MANIFEST_FILE if prepared else options.source],
        "target": [] if options.target is None else [options.target],
        "validation_source": options.validation_source,
        "validation_target": options.validation_target,
    }
    found = {}
    for name, paths in files.items():
        for number, path in enumerate(paths, start=1):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[f"`{name}`" if number == 1 else f"`{name}` {number}"] = digest
    return found


@contextlib.contextmanager
def claimed_run(output: Path) -> Iterator[None]:
    """Makes the run's folder and keeps other processes out; takes it away again if it stays empty.

    Files that a killed process was writing are removed.
    """
    with claimed(output, "trains in"):
        for path in output.glob(".*.writing.*"):
            path.unlink()
        yield


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    with written(path) as writing:
        writing.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
