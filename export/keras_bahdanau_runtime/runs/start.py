"""The start of a training run: everything that comes before Keras is needed.

with begun(options, output, resume=False, rank=0) as held_out:   # a mistake is reported here
    import keras                                                 # seconds later
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.files import atomic_write, claim_folder
from keras_bahdanau_runtime.prepared.blocks import check_files
from keras_bahdanau_runtime.prepared.corpus import MANIFEST_FILE, PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare
from keras_bahdanau_runtime.runs.folder import (
    CORPUS_FOLDER,
    LAST_FILE,
    OPTIONS_FILE,
    TEXTS_FILE,
)
from keras_bahdanau_runtime.runs.options import TrainingOptions, read_options
from keras_bahdanau_runtime.text.corpus import read_parallel
from keras_bahdanau_runtime.text.scores import bleu_metric

logger = logging.getLogger("keras_bahdanau")


def check_run_folder(options: TrainingOptions, output: Path, resume: bool) -> None:
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
    changed = [name for name, value in text_hashes(options).items() if before.get(name) != value]
    if changed:
        raise ValueError(
            "Argument `options` must name the texts that the run was started with. "
            f"Received: {', '.join(changed)}, changed since then"
        )


def text_hashes(options: TrainingOptions) -> dict[str, str]:
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
def claim_run(output: Path) -> Iterator[None]:
    """Makes the run's folder and keeps other processes out; takes it away again if it stays empty.

    Files that a killed process was writing are removed.
    """
    with claim_folder(output, "trains in"):
        for path in output.glob(".*.writing.*"):
            path.unlink()
        yield


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    with atomic_write(path) as writing:
        writing.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


# Which process this is, and of how many, by the variables that a launcher sets for a backend:
# torchrun's own, and those that `keras.distribution.initialize` reads.
_LAUNCHED = {
    "torch": ("RANK", "WORLD_SIZE"),
    "jax": ("KERAS_DISTRIBUTION_PROCESS_ID", "KERAS_DISTRIBUTION_NUM_PROCESSES"),
}


def launched_rank(backend: str | None = None) -> tuple[int, int]:
    """`(rank, processes)`: which of the processes that a launcher has started this is.

    Args:
        backend: Keras's backend; `None` for the launcher of any.
    """
    for name, (rank, processes) in _LAUNCHED.items():
        if backend in (None, name) and processes in os.environ:
            return int(os.environ[rank]), int(os.environ[processes])
    return 0, 1


@contextlib.contextmanager
def start_run(
    options: TrainingOptions, output: Path, resume: bool, rank: int
) -> Iterator[list[tuple[list[str], list[str]]]]:
    """Checks a run, and keeps other processes out of its folder while the block runs.

    The texts of a run on one device are prepared, too, so that a wrong line is reported at once.
    With several devices that comes later, when the processes have met.

    Args:
        options: `TrainingOptions`.
        output: The run's folder.
        resume: bool. Whether to go on with the run in it.
        rank: int. Which of the processes that train together this is. The first one alone writes.

    Yields:
        Sources and targets of each held-out set.

    Raises:
        ValueError: As `train`.
        OSError: A text is not there, or the disk is full.
        MissingDependencyError: sacrebleu is not installed.
    """
    bleu_metric(options.tokenize)  # refuses it before the texts are prepared
    if rank == 0:
        check_run_folder(options, output, resume)
    _check_corpus(options)
    held_out = [
        read_parallel(*paths)
        for paths in zip(options.validation_source, options.validation_target, strict=True)
    ]
    with claim_run(output) if rank == 0 else contextlib.nullcontext():
        if rank == 0 and options.devices == 1:
            prepare_texts(options, output)
        yield held_out


def prepare_texts(options: TrainingOptions, output: Path) -> None:
    """Prepares the two text files of a run inside its folder; a prepared corpus stays as it is."""
    if options.target is not None:
        prepare(
            [options.source],
            [options.target],
            output / CORPUS_FOLDER,
            vocabulary_size=options.vocabulary_size,
            joint=options.joint,
            normalization=options.normalization,
            seed=options.seed,
        )


def _check_corpus(options: TrainingOptions) -> None:
    if options.target is not None:
        return
    if PreparedCorpus(options.source).aligned and options.bpe_dropout:
        raise ValueError(
            "Argument `bpe_dropout` must be 0 for a corpus with alignments, whose places it moves. "
            f"Received: {options.bpe_dropout}"
        )
