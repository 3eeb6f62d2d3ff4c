"""Command `train`, whose arguments and flags are the fields of `TrainingOptions`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.run_folder import LAST_FILE
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau.training.start import start_run
from keras_bahdanau_cli.arguments import (
    TrainingConfig,
    explicit_values,
    with_flags_of,
)
from keras_bahdanau_cli.tensorflow_logging import check_keras, import_keras
from keras_bahdanau_cli.terminal import console, print_message


@with_flags_of(TrainingOptions)
def train(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    config: TrainingConfig = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    **flags: Any,
) -> None:
    r"""Train a model on two text files, or on a prepared corpus, and keep the best one.

    Example:
        keras-bahdanau train train.en train.de --validation-source dev.en \
            --validation-target dev.de --epochs 20 --output run
    """
    train_run(TrainingOptions.from_values(explicit_values(context, flags)), output, resume)


def train_run(options: TrainingOptions, output: Path, resume: bool) -> None:
    """Train in a folder and print the path of the best model, or how to continue."""
    try:
        best = _run(options, output, resume)
    except KeyboardInterrupt:
        has_checkpoint = (output / LAST_FILE).exists()
        action = "continue from the last checkpoint" if has_checkpoint else "start again"
        print_message(f"Interrupted. Run the same command with --resume to {action} in {output}.")
        raise typer.Exit(130) from None
    print_message(f"The best model is {best}.")


def _run(options: TrainingOptions, output: Path, resume: bool) -> Path:
    """Train as `keras_bahdanau.train` does, with all work that needs no Keras before its import."""
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
