"""The command `train`: its arguments and flags are the fields of `TrainingOptions`."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from keras_bahdanau.training.options import TrainingOptions, read_options
from keras_bahdanau.training.run import train
from keras_bahdanau.training.run_folder import LAST_FILE
from keras_bahdanau_export.shown import console, say

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

    def command(
        context: typer.Context, output: Path, resume: bool, config: Path | None, **options: Any
    ) -> None:
        read = {} if config is None else read_options(config)
        given = {
            name: value
            for name, value in options.items()
            if context.get_parameter_source(name).name == "COMMANDLINE"
        }
        try:
            best = train(
                TrainingOptions.from_values({**read, **given}),
                output,
                resume=resume,
                console=console,
            )
        except KeyboardInterrupt:
            kept = "go on from the last checkpoint" if (output / LAST_FILE).exists() else "begin"
            say(f"Interrupted. Give the same command with --resume to {kept} in {output}.")
            raise typer.Exit(130) from None
        say(f"The best model is {best}.")

    needed = [option for option in fields(TrainingOptions) if option.default is MISSING]
    others = [option for option in fields(TrainingOptions) if option.default is not MISSING]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            _parameter("context", typer.Context),
            *map(_parameter_of, needed),
            _parameter("output", Output),
            _parameter("config", Config, None),
            _parameter("resume", Resume, False),
            *map(_parameter_of, others),
        ]
    )
    return command


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
