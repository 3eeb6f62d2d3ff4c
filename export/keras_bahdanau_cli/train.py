"""Command `train`, whose arguments and flags are the fields of `TrainingOptions`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.run_folder import LAST_FILE
from keras_bahdanau.training.options import FORMER_NAMES, TrainingOptions
from keras_bahdanau_cli.arguments import output_path
from keras_bahdanau_cli.flags import Values, config_file
from keras_bahdanau_cli.tensorflow_logging import check_keras, import_keras
from keras_bahdanau_cli.terminal import console, print_message
from keras_bahdanau_runtime.option_fields import option


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """The folder of a run to start or to continue."""

    output: Path = output_path("Folder of the run.")
    config: Path | None = config_file(FORMER_NAMES)
    resume: bool = option(False, "Continue an interrupted run.", flags="--resume")


def train(run: NewRun, options: Values[TrainingOptions]) -> None:
    r"""Train a model on two text files, or on a prepared corpus, and keep the best one.

    Example:
        keras-bahdanau train train.en train.de --validation-source dev.en \
            --validation-target dev.de --epochs 20 --output run
    """
    train_run(TrainingOptions.from_values(options), run.output, run.resume)


def train_run(options: TrainingOptions, output: Path, resume: bool) -> None:
    """Train in a folder and print the path of the best model, or how to continue."""
    try:
        best = _run(options, output, resume)
    except KeyboardInterrupt:
        has_checkpoint = (output / LAST_FILE).exists()
        action = "continue from the last checkpoint" if has_checkpoint else "start again"
        print_message(f"Interrupted. Run the same command with --resume to {action} in {output}.")
        sys.exit(130)
    print_message(f"The best model is {best}.")


def _run(options: TrainingOptions, output: Path, resume: bool) -> Path:
    """Train as `keras_bahdanau.train` does, with all work that needs no Keras before its import."""
    from keras_bahdanau.training.start import start_run

    check_keras()
    processes = launched_rank()
    with start_run(options, output, resume, rank=processes[0]) as texts:
        import_keras()
        from keras_bahdanau.distribution import rank_and_world_size
        from keras_bahdanau.training.run import run_training

        if rank_and_world_size() != processes:
            raise ValueError(
                "The Keras backend must be the one whose launcher started this process, torch for "
                f"torchrun. Received: another one, for {processes[1]} processes"
            )
        return run_training(options, output, texts, console=console)
