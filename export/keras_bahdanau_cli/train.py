"""Command `train`, whose arguments and flags are the fields of `TrainingOptions`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.run_folder import LAST_FILE
from keras_bahdanau.training.options import FORMER_NAMES, TrainingOptions, upgrade_options
from keras_bahdanau_cli.arguments import output_path
from keras_bahdanau_cli.choices_table import choices_table
from keras_bahdanau_cli.flags import Values, config_file
from keras_bahdanau_cli.tensorflow_logging import check_keras, import_keras
from keras_bahdanau_cli.terminal import console, print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """The folder of a run to start or to continue."""

    output: Path = output_path("Folder of the run.")
    config: Path | None = config_file(FORMER_NAMES, upgrade_options)
    resume: bool = option(False, "Continue an interrupted run.", flags="--resume")


@dataclass(frozen=True, kw_only=True)
class NewOrExplainedRun(NewRun):
    """The folder of a run to start or to continue; none for a run that is only explained."""

    output: Path | None = output_path("Folder of the run; required without --explain.", None)
    explain: bool = option(
        False,
        "Print the options that the pairs choose, with reasons, and end.",
        flags="--explain",
    )


def train(run: NewOrExplainedRun, options: Values[TrainingOptions]) -> None:
    r"""Train a model on two text files, or on a prepared corpus, and keep the best one.

    Options without a value are chosen from the pairs, and printed with the reasons.

    Example:
        keras-bahdanau train train.en train.de --validation-source dev.en \
            --validation-target dev.de --epochs 20 --output run
    """
    checked = TrainingOptions.from_values(options)
    if run.explain:
        from keras_bahdanau.training.start import explain_run

        Console().print(choices_table(explain_run(checked)))
        return
    if run.output is None:
        raise argument_error("output", "be given without `explain`", None)
    train_run(checked, run.output, run.resume)


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
    from keras_bahdanau.data.choices import Choice
    from keras_bahdanau.training.start import start_run

    check_keras()
    processes = launched_rank()

    def print_choices(choices: list[Choice]) -> None:
        console.print(choices_table(choices))

    with start_run(options, output, resume, processes[0], print_choices) as texts:
        import_keras()
        from keras_bahdanau.distribution import rank_and_world_size
        from keras_bahdanau.training.run import run_training

        if rank_and_world_size() != processes:
            raise ValueError(
                "The Keras backend must be the one whose launcher started this process, torch for "
                f"torchrun. Received: another one, for {processes[1]} processes"
            )
        return run_training(texts, console=console)
