"""Command `train`, whose arguments and flags are the fields of `TrainingOptions`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.run_folder import LAST_FILE, SEEDS_FILE
from keras_bahdanau.training.options import FORMER_NAMES, TrainingOptions, upgrade_options
from keras_bahdanau.user_modules import check_module, split_class
from keras_bahdanau_cli.arguments import output_path
from keras_bahdanau_cli.choices_table import choices_table
from keras_bahdanau_cli.exit_status import INTERRUPTED
from keras_bahdanau_cli.flags import Values, config_file
from keras_bahdanau_cli.tensorflow_logging import check_keras, import_keras_for_training
from keras_bahdanau_cli.terminal import console, print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option

if TYPE_CHECKING:
    from keras_bahdanau.data.choices import Choice


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
    seeds: int = option(
        1,
        "Number of models to train, one after the other, with the seeds --seed, --seed + 1 and so "
        "on, in OUTPUT/seed-0 and so on; export and evaluate join them.",
        minimum=1,
    )
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
    train_run(checked, run.output, run.resume, run.seeds)


def train_run(options: TrainingOptions, output: Path, resume: bool, seeds: int = 1) -> None:
    """Train in a folder and print the path of the best model, or how to continue."""
    check_attention(options)
    try:
        if seeds > 1:
            _run_seeds(options, output, resume, seeds)
            print_message(f"The best models are in {output}. `export` joins them.")
            return
        best = _run(options, output, resume, _print_choices)
    except KeyboardInterrupt:
        has_checkpoint = (output / LAST_FILE).exists() or (output / SEEDS_FILE).exists()
        action = "continue from the last checkpoint" if has_checkpoint else "start again"
        print_message(f"Interrupted. Run the same command with --resume to {action} in {output}.")
        sys.exit(INTERRUPTED)
    print_message(f"The best model is {best}.")


def check_attention(options: TrainingOptions) -> None:
    """Raise a `ValueError` for an attention from a file of `--config`, or without its module."""
    source = click.get_current_context().get_parameter_source("attention")
    if source is not None and source.name == "DEFAULT_MAP":
        raise argument_error(
            "attention",
            "be given on the command line, because its module is executed, and the file of "
            "`config` may be that of somebody else",
            options.attention,
        )
    if options.attention is not None:
        check_module("attention", split_class("attention", options.attention)[0])


def _run_seeds(options: TrainingOptions, output: Path, resume: bool, seeds: int) -> None:
    """Train as `keras_bahdanau.training.train_seeds` does, and print the scores of the models."""
    from keras_bahdanau.training.seeds import prepare_seeds
    from keras_bahdanau_runtime.text.scores import MEASURES

    check_keras()
    _, processes = launched_rank()
    if processes > 1:
        raise argument_error(
            "seeds", "be 1 in several processes; train one run at a time", received=str(seeds)
        )
    members = prepare_seeds(options, output, seeds, resume, _print_choices)
    for number, member in enumerate(members, start=1):
        print_message(f"Model {number} of {seeds}, in {member.folder}:")
        _run(member.options, member.folder, resume, lambda choices: None)
    from keras_bahdanau.training.run import compare_seeds, shown_measures

    comparison = compare_seeds(members)
    print_message("Best model of each run, and their ensemble, on held-out text:")
    for name, scores in comparison.items():
        values = "  ".join(
            f"{MEASURES[measure].title} {scores[measure]:.{MEASURES[measure].places}f}"
            for measure in shown_measures(members[0].options)
            if measure in scores
        )
        print_message(f"  {name}  {values}")


def _print_choices(choices: "list[Choice]") -> None:
    console.print(choices_table(choices))


def _run(
    options: TrainingOptions,
    output: Path,
    resume: bool,
    on_choices: "Callable[[list[Choice]], None]",
) -> Path:
    """Train as `keras_bahdanau.train` does, with all work that needs no Keras before its import."""
    from keras_bahdanau.training.start import start_run

    check_keras()
    processes = launched_rank()
    with start_run(options, output, resume, processes[0], on_choices) as texts:
        if processes[0] == 0 and "keras" not in sys.modules:
            print_message("The texts are checked. Importing Keras takes a few seconds.")
        import_keras_for_training()
        from keras_bahdanau.distribution import rank_and_world_size
        from keras_bahdanau.training.run import run_training

        if rank_and_world_size() != processes:
            raise ValueError(
                "The Keras backend must be the one whose launcher started this process, torch for "
                f"torchrun. Received: another one, for {processes[1]} processes"
            )
        return run_training(texts, console=console)
