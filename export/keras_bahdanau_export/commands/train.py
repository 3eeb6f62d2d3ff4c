"""The command `train`: its arguments and flags are the fields of `TrainingOptions`."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from keras_bahdanau_export.commands.shown import console, say
from keras_bahdanau_export.quiet import check_keras, import_keras
from keras_bahdanau_runtime.runs.folder import LAST_FILE
from keras_bahdanau_runtime.runs.options import TrainingOptions, read_options
from keras_bahdanau_runtime.runs.start import launched_rank, start_run

Output = Annotated[Path, typer.Option("--output", "-o", help="The run's folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
Config = Annotated[
    Path | None,
    typer.Option(
        help="YAML or JSON file of any of these options; what is given here wins over it."
    ),
]


def train_command() -> Callable[..., None]:
    """Makes the function that typer turns into the command.

    Returns:
        A function whose signature holds a parameter for each field of `TrainingOptions`.
    """

    def train(
        context: typer.Context, output: Path, resume: bool, config: Path | None, **options: Any
    ) -> None:
        """Trains a model on two text files, or on a prepared corpus, and keeps the best."""
        read = {} if config is None else read_options(config)
        given = {
            name: value
            for name, value in options.items()
            if context.get_parameter_source(name).name == "COMMANDLINE"
        }
        try:
            best = _run(TrainingOptions.from_values({**read, **given}), output, resume)
        except KeyboardInterrupt:
            kept = "go on from the last checkpoint" if (output / LAST_FILE).exists() else "begin"
            say(f"Interrupted. Give the same command with --resume to {kept} in {output}.")
            raise typer.Exit(130) from None
        say(f"The best model is {best}.")

    needed = [option for option in fields(TrainingOptions) if option.default is MISSING]
    others = [option for option in fields(TrainingOptions) if option.default is not MISSING]
    train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            _parameter("context", typer.Context),
            *map(_parameter_of, needed),
            _parameter("output", Output),
            _parameter("config", Config, None),
            _parameter("resume", Resume, False),
            *map(_parameter_of, others),
        ]
    )
    return train


def _run(options: TrainingOptions, output: Path, resume: bool) -> Path:
    """As `keras_bahdanau.train`, but Keras is imported after everything that does not need it."""
    check_keras()
    processes = launched_rank()
    with start_run(options, output, resume, rank=processes[0]) as held_out:
        import_keras()
        from keras_bahdanau.distribution import rank_and_world_size
        from keras_bahdanau.training.run import run_training

        if rank_and_world_size() != processes:
            raise ValueError(
                "The backend of Keras must be the one whose launcher starts several processes, "
                f"torch for torchrun. Received: another one, for {processes[1]} processes"
            )
        return run_training(options, output, held_out, console=console)


def _parameter_of(option: Field[Any]) -> inspect.Parameter:
    """The parameter of a field; one that must be given may come from the file, and so may lack."""
    flags = [option.metadata["flags"]] if "flags" in option.metadata else []
    kind = typer.Argument if option.metadata.get("positional") else typer.Option
    of_option = list[Path] if get_origin(option.type) is tuple else option.type
    if option.default is not MISSING:
        about = kind(*flags, help=option.metadata["help"])
        return _parameter(option.name, Annotated[of_option, about], option.default)
    about = kind(*flags, help=option.metadata["help"] + " Required, here or in the file.")
    return _parameter(option.name, Annotated[of_option | None, about], None)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
