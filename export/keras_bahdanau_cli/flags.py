"""Commands whose arguments and flags are the fields of dataclasses.

A command is a function with annotated parameters. Each one is a dataclass, whose fields are made by
`option`, or `Values` of a dataclass. The function's docstring is the help page.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin

import click

from keras_bahdanau_cli.help_pages import HelpCommand, type_name
from keras_bahdanau_runtime.errors import argument_error, quote
from keras_bahdanau_runtime.option_fields import flag_names, item_type, option
from keras_bahdanau_runtime.option_files import read_options

_Options = TypeVar("_Options")
_EXPLICIT = ("COMMANDLINE", "DEFAULT_MAP")  # sources of values that are not defaults


class Values(dict[str, Any], Generic[_Options]):
    """Values of a dataclass by the names of its fields, without those that are defaults.

    A command has a parameter of this type instead of the dataclass if the object needs values that
    are not flags, or if a file may have the required values. None of its flags is required.
    """


class Without(NamedTuple):
    """Annotation of a parameter: fields of its dataclass that are not flags of the command."""

    names: tuple[str, ...]


def config_file(
    former_names: Mapping[str, str] | None = None,
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: values,
) -> Any:
    """Return the field of the flag `--config`.

    The values of the file become the defaults of the command's parameters, so every flag and
    argument of the command can be in the file, and flags on the command line override it.

    Args:
        former_names: Present names of parameters by those of earlier versions.
        upgrade: Returns the values that those of a file of an earlier version mean.
    """
    help = "YAML or JSON file with any of these options; flags override it."
    return option(None, help, former_names=former_names or {}, upgrade=upgrade)


class _Group(NamedTuple):
    """The type of a parameter of a command's function, and its fields that are flags."""

    options: Callable[..., Any]
    fields: list[Field[Any]]

    def read(self, context: click.Context) -> Any:
        """Return the object with the values of the command line and of `--config`."""
        values = dict[str, Any]()
        for field in self.fields:
            source, value = context.get_parameter_source(field.name), context.params[field.name]
            if source is None or source.name not in _EXPLICIT or value is None:
                continue
            _, is_list = item_type(field)
            per_unit = field.metadata.get("per_unit")
            values[field.name] = list(value) if is_list else value / per_unit if per_unit else value
        return self.options(**values)


def make_command(name: str, function: Callable[..., None]) -> HelpCommand:
    """Return the command of a function."""
    groups, parameters, options = {}, [], {}
    for argument in inspect.signature(function).parameters.values():
        annotation, excluded = argument.annotation, ()
        if get_origin(annotation) is Annotated:
            annotation, excluded = annotation.__origin__, annotation.__metadata__[0].names
        is_partial = get_origin(annotation) is Values
        options_class = get_args(annotation)[0] if is_partial else annotation
        flags = [
            field
            for field in fields(options_class)
            if "help" in field.metadata and field.name not in excluded
        ]
        groups[argument.name] = _Group(dict if is_partial else options_class, flags)
        parameters += [_parameter(field, is_partial) for field in flags]
        options |= {field.name: field for field in flags}

    def run(**_: Any) -> None:
        context = click.get_current_context()
        function(**{name: group.read(context) for name, group in groups.items()})

    help = inspect.getdoc(function)
    return HelpCommand(name, options, params=parameters, callback=run, help=help)


def _parameter(field: Field[Any], is_partial: bool) -> click.Parameter:
    """Return the parameter of a command for a field that `option` has made."""
    metadata, help = field.metadata, field.metadata["help"]
    kind, is_list = item_type(field)
    has_default = field.default is not MISSING
    settings: dict[str, Any] = {"type": kind, "required": not has_default and not is_partial}
    if is_partial and not has_default:
        help += " Required, here or in the file."
    if has_default and not is_list:
        settings["default"] = field.default
        if "per_unit" in metadata:
            settings["default"] *= metadata["per_unit"]
    if metadata.get("positional"):
        shape = "{%s}" if settings["required"] else "[%s]"
        metavar = shape % field.name + "..." * is_list
        nargs = -1 if is_list else 1
        return click.Argument([field.name], help=help, metavar=metavar, nargs=nargs, **settings)
    names = flag_names(field)
    if kind is bool:
        settings["is_flag"] = True
        if "flags" not in metadata:
            names = [f"{names[0]}/--no-{names[0][2:]}"]
    else:
        settings["metavar"] = type_name(field)
    if "types" in metadata:
        settings |= {"type": metadata["types"], "nargs": len(metadata["types"])}
    if "values" in metadata:
        settings["type"] = click.Choice(metadata["values"])
    if "minimum" in metadata:
        settings["type"] = click.IntRange(min=metadata["minimum"])
    if "former_names" in metadata:
        settings |= {"is_eager": True, "callback": _reader(metadata)}
    return click.Option(
        [field.name, *names], help=help, multiple=is_list, show_default=True, **settings
    )


def _reader(metadata: Mapping[str, Any]) -> Callable[..., Path | None]:
    """Return the callback of the flag `--config` with this metadata of its field."""

    def read(context: click.Context, _: Any, path: Path | None) -> Path | None:
        if path is not None:
            values = metadata["upgrade"](read_options(path))
            names = metadata["former_names"]
            try:
                context.default_map = _file_values(context.command, values, names)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        return path

    return read


def _file_values(
    command: HelpCommand, values: Mapping[str, Any], former_names: Mapping[str, str]
) -> dict[str, Any]:
    """Return values of a file by the names of the command's parameters.

    Args:
        command: The command.
        values: Values by the names of flags, with dashes or underscores, or of fields.
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
        value = _checked_value(str(key), command.options[parameter.name], value)
        if value is not None and f"--{name.replace('_', '-')}" in parameter.secondary_opts:
            value = not value  # such as `separate`, the opposite of `joint`
        result[parameter.name] = value
    # `None` means the default: click would turn it into an empty list for several values.
    return {name: value for name, value in result.items() if value is not None}


def _checked_value(name: str, option: Field[Any], value: Any) -> Any:
    """Return a value of a file for an option; click would convert values of other types."""
    kind, is_list = item_type(option)
    if value is None or not is_list:
        return None if value is None else _checked_item(name, kind, value)
    items = value if isinstance(value, list) else [value]
    return [_checked_item(name, kind, item) for item in items]


def _checked_item(name: str, kind: Any, value: Any) -> Any:
    expected, types = {
        int: ("an int", int),
        float: ("a number", (int, float)),
        bool: ("true or false", bool),
    }.get(kind, ("a text", str))
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise argument_error(name, f"be {expected}", received=str(quote(value)))
    return value
