"""The start of a training run: everything that comes before Keras is needed.

with begun(options, output, resume=False, rank=0) as held_out:   # a mistake is reported here
    import keras                                                 # seconds later
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare
from keras_bahdanau_runtime.runs.folder import check_folder, claimed_run
from keras_bahdanau_runtime.runs.names import CORPUS_FOLDER
from keras_bahdanau_runtime.runs.options import TrainingOptions
from keras_bahdanau_runtime.text.corpus import read_parallel
from keras_bahdanau_runtime.text.scores import bleu_metric

# Which process this is, and of how many, by the variables that a launcher sets for a backend:
# torchrun's own, and those that `keras.distribution.initialize` reads.
_LAUNCHED = {
    "torch": ("RANK", "WORLD_SIZE"),
    "jax": ("KERAS_DISTRIBUTION_PROCESS_ID", "KERAS_DISTRIBUTION_NUM_PROCESSES"),
}


def launched(backend: str | None = None) -> tuple[int, int]:
    """`(rank, processes)`: which of the processes that a launcher has started this is.

    Args:
        backend: Keras's backend; `None` for the launcher of any.
    """
    for name, (rank, processes) in _LAUNCHED.items():
        if backend in (None, name) and processes in os.environ:
            return int(os.environ[rank]), int(os.environ[processes])
    return 0, 1


@contextlib.contextmanager
def begun(
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
        check_folder(options, output, resume)
    _check_corpus(options)
    held_out = [
        read_parallel(*paths)
        for paths in zip(options.validation_source, options.validation_target, strict=True)
    ]
    with claimed_run(output) if rank == 0 else contextlib.nullcontext():
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
