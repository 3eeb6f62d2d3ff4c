"""The folder of a training run: its files, and who may write them."""

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path

import keras

from keras_bahdanau.models.ensemble import Ensemble
from keras_bahdanau.training.options import TrainingOptions, read_options
from keras_bahdanau_runtime.files import claimed, written
from keras_bahdanau_runtime.prepared.corpus import MANIFEST_FILE
from keras_bahdanau_runtime.prepared.reading import check_files

logger = logging.getLogger("keras_bahdanau")

OPTIONS_FILE, TEXTS_FILE = "options.json", "texts.json"
LAST_FILE, BEST_FILE, AVERAGE_FILE = "last.keras", "best.keras", "average.keras"
CORPUS_FOLDER = "corpus"


def load_best(*runs):
    """The best model of a run, with its tokenizer and without its optimiser.

    Args:
        *runs: A run's folder, as `train` leaves it; of several, an `Ensemble` of their models.

    Raises:
        ValueError: If a folder holds no best model yet, or one without a tokenizer; or the models
            have other vocabularies.
    """
    models = [_load_best(run) for run in runs]
    return models[0] if len(models) == 1 else Ensemble(models)


def _load_best(run):
    path = Path(run) / BEST_FILE
    if not path.exists():
        raise ValueError(
            f"Argument `run` must be the folder of a training run. Received: {str(run)!r}, which "
            f"has no {BEST_FILE}"
        )
    return load(path, compile=False)


def load(path, compile):
    """A model of a run, which must hold its tokenizer."""
    model = keras.saving.load_model(path, compile=compile)
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "Argument `run` must be the folder of a run of this version of keras_bahdanau. "
            f"Received: {str(path.parent)!r}, whose {path.name} holds no tokenizer: set "
            "`model.tokenizer` and save it again, or train anew"
        )
    return model


def check_folder(options, output, resume):
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


def _check_texts(options, path):
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


def hashes(options):
    """The SHA-256 of each text file by the name of its option and, for further ones, a number.

    Of a prepared corpus it is that of the manifest, which has the others.
    """
    prepared = options.target is None
    files = {
        "source": [options.source / MANIFEST_FILE if prepared else options.source],
        "target": [] if prepared else [options.target],
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
def claimed_run(output):
    """Makes the run's folder and keeps other processes out; takes it away again if it stays empty.

    Files that a killed process was writing are removed.
    """
    with claimed(output, "trains in"):
        for path in output.glob(".*.writing.*"):
            path.unlink()
        yield


def write_json(path, values):
    """Writes a JSON file, whole or not at all."""
    with written(path) as writing:
        writing.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
