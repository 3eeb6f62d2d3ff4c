"""Arguments that commands share: their types, flags from option classes, and checks.

Nothing here needs Keras, so mistakes are reported before its import, which takes seconds.
"""

import difflib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer

from keras_bahdanau.training.options import FORMER_NAMES, read_options
from keras_bahdanau_runtime.errors import MissingDependencyError, argument_error, quote
from keras_bahdanau_runtime.search_settings import check_setting

Artifact = Annotated[
    str,
    typer.Argument(
        help="Folder of an artifact (from export), or hf://USER/NAME[@REVISION] on the Hugging "
        "Face Hub."
    ),
]
Run = Annotated[Path, typer.Argument(help="Folder of a run (from train).")]
BatchSize = Annotated[
    int,
    typer.Option(help="Maximum number of sentences in a batch.", rich_help_panel="Batching"),
]
BatchTokens = Annotated[
    int,
    typer.Option(
        help="Maximum number of source tokens in a batch, including padding.",
        rich_help_panel="Batching",
    ),
]
MaxCharacters = Annotated[
    int, typer.Option(help="Maximum characters of a text.", min=1, rich_help_panel="Limits")
]
MaxTokens = Annotated[
    int, typer.Option(help="Maximum tokens of a text.", min=1, rich_help_panel="Limits")
]

SourceColumn = Annotated[
    str | None,
    typer.Option(
        help="For files with both sides, the column of the sources: a name, a number from 1 for "
        "tab-separated text, or a language code for .tmx.",
        rich_help_panel="Data",
    ),
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        help="The column of the translations, like --source-column.", rich_help_panel="Data"
    ),
]
Encoding = Annotated[str, typer.Option(help="Encoding of the text files.", rich_help_panel="Data")]
OnBadLine = Annotated[
    str,
    typer.Option(
        help="What to do with a line that does not have both sides or has another encoding: stop "
        "or skip.",
        rich_help_panel="Data",
    ),
]


def _config_flag(former_names: Mapping[str, str]) -> Any:
    """Return the annotation of the flag `--config`; `former_names` are those of earlier versions.

    The values of the file become the defaults of the command's parameters, so every flag and
    argument of the command can be in the file, and flags on the command line override it.
    """

    def read_config(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            values = read_options(path)
            try:
                context.default_map = _parameter_values(context.command, values, former_names)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        return path

    help = "YAML or JSON file with any of these options; flags override it."
    # Eager: it is processed before the other parameters, which look up their defaults.
    return Annotated[Path | None, typer.Option(help=help, is_eager=True, callback=read_config)]


Config = _config_flag({})
TrainingConfig = _config_flag(FORMER_NAMES)


def _parameter_values(
    command: Any, values: Mapping[str, Any], former_names: Mapping[str, str]
) -> dict[str, Any]:
    """Return values of a file by the names of the command's parameters.

    Args:
        command: A click command.
        values: Values by the names of flags, with dashes or underscores, or of parameters.
        former_names: Present names by those of earlier versions.

    Raises:
        ValueError: A name is not that of a parameter or occurs twice, or a value has another type.
    """
    parameters = {
        name.removeprefix("--").replace("-", "_"): parameter
        for parameter in command.params
        for name in (parameter.name, *parameter.opts, *parameter.secondary_opts)
        if parameter.name != "config" and (name == parameter.name or name.startswith("--"))
    }
    parameters |= {former: parameters[name] for former, name in former_names.items()}
    result = dict[str, Any]()
    for key, value in values.items():
        name = str(key).replace("-", "_")
        parameter = parameters.get(name)
        if parameter is None:
            [match] = difflib.get_close_matches(name, parameters, n=1) or [None]
            hint = f"Did you mean `{match}`?" if match else f"They are {', '.join(parameters)}."
            raise ValueError(
                f"Argument `{key}` must be an option of {command.name}. {hint} "
                f"Received: {key}={quote(value)}"
            )
        if parameter.name in result:
            raise argument_error(
                key, "be in the file once", received="another value, by another of its names"
            )
        annotation = inspect.signature(command.callback).parameters[parameter.name].annotation
        value = _checked_value(str(key), annotation, value)
        if value is not None and f"--{name.replace('_', '-')}" in parameter.secondary_opts:
            value = not value  # such as `separate`, the opposite of `joint`
        result[parameter.name] = value
    return result


def _checked_value(name: str, annotation: Any, value: Any) -> Any:
    """Return a value of a file for a parameter; typer would convert values of other types."""
    kind = get_args(annotation)[0]  # of `Annotated`
    if isinstance(kind, UnionType):  # with `None`
        kind = get_args(kind)[0]
    if value is None:
        return None
    if get_origin(kind) is list:
        items = value if isinstance(value, list) else [value]
        return [_checked_item(name, get_args(kind)[0], item) for item in items]
    return _checked_item(name, kind, value)


def _checked_item(name: str, kind: Any, value: Any) -> Any:
    expected, types = {
        int: ("an int", int),
        float: ("a number", (int, float)),
        bool: ("true or false", bool),
    }.get(kind, ("a text", str))
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise argument_error(name, f"be {expected}", received=str(quote(value)))
    return value


def with_flags_of(
    options: type[Any], exclude: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command a flag for each option with a help text.

    The flags take the place of `**flags` in the command's signature, from which typer reads the
    parameters.

    Args:
        options: A dataclass. The metadata of its fields are `help`; `flags`, the names of the flag
            if they differ from the field's; `type`, its type if that differs; `positional` for an
            argument instead of a flag; and `panel`, its panel on the help page. The flag of a field
            without a default is optional, as its value may come from the file of `--config`.
        exclude: Names of fields without a flag.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command).parameters.values()
        parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]
        parameters += [
            _parameter(option)
            for option in fields(options)
            if "help" in option.metadata and option.name not in exclude
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(option: Field[Any]) -> inspect.Parameter:
    """Return the parameter of a command for a field of an options dataclass."""
    metadata, default = option.metadata, option.default
    annotation: Any = metadata.get("type", option.type)
    if get_origin(annotation) is tuple:  # typer supports only lists of any length
        annotation = list[get_args(annotation)[0]]  # type: ignore[misc]
    help = metadata["help"]
    if default is MISSING:
        help += " Required, here or in the file."
    if default is MISSING or get_origin(annotation) is list:
        annotation, default = annotation | None, None
    make = typer.Argument if metadata.get("positional") else typer.Option
    flags = [metadata["flags"]] if "flags" in metadata else []
    panel = metadata.get("panel")
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, make(*flags, help=help, rich_help_panel=panel)],
    )


def explicit_values(context: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the command line and of `--config`, without those that are defaults."""
    return {
        name: value
        for name, value in values.items()
        if context.get_parameter_source(name).name in ("COMMANDLINE", "DEFAULT_MAP")
        and value is not None
    }


def check_beam(
    beam_size: int, length_penalties: Sequence[float], max_length_ratio: float | None = None
) -> None:
    """Raise a `ValueError` that names the first invalid search option of a command."""
    check_setting("beam_size", beam_size)
    for penalty in length_penalties:
        check_setting("length_penalty", penalty)
    if max_length_ratio is not None:
        check_setting("max_length_ratio", max_length_ratio)


def check_file(name: str, path: Path) -> None:
    """Raise a `ValueError` that names the argument unless its path is a file."""
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "does not exist"
        raise argument_error(name, "be a file", received=f"{str(path)!r}, which {reason}")


def check_installed(*packages: str, extra: str) -> None:
    """Raise a `MissingDependencyError` for the first package that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, extra)


def check_modules(imports: Sequence[str]) -> None:
    """Raise a `ValueError` for the first module that does not exist, without importing any."""
    for name in imports:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise argument_error(
                "import",
                "be the name of an importable module",
                received=f"{name!r}. PYTHONPATH must contain its folder.",
            )
