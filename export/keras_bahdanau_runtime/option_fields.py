"""Fields of option classes, which carry the help text, the limits and the flag of an option."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field that is also an argument or a flag of a command.

    Args:
        default: Default value; `dataclasses.MISSING` if there is none.
        help: Help text.
        **metadata: Optional facts:

            - `panel`: title of its panel on the help page.
            - `flags`: names of the flag such as "-o --output", if they differ from that of the
              field. "--joint/--separate" are the flags of a bool. With a single name, a flag cannot
              set it to `False`.
            - `type`: type of the flag, if it differs from that of the field.
            - `types`: types of the values of a flag that takes several at once.
            - `positional`: whether it is an argument instead of a flag.
            - `metavar`: name of the value on the help page, if it is not the type.
            - `minimum`: smallest value of the flag, and `values`: all of its values; the command
              line accepts no others.
            - `per_unit`: number by which the value of the flag is divided.
            - `choices`: allowed values, and `limits`: arguments of `check_range`; `checked_value`
              checks them.

    Example:

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Options:
    ...     seed: int = option(0, "Random seed.", panel="System")
    >>> Options().seed
    0
    """
    return field(default=default, metadata={"help": help, **metadata})


def flag_names(option: Field[Any]) -> list[str]:
    """Return the names of the flag of an option, the longest form last.

    Example:

    >>> from dataclasses import dataclass, fields
    >>> @dataclass
    ... class Options:
    ...     best_by: str = option("bleu", "Measure.")
    >>> flag_names(fields(Options)[0])
    ['--best-by']
    """
    return option.metadata.get("flags", "").split() or [f"--{option.name.replace('_', '-')}"]


def item_type(option: Field[Any]) -> tuple[Any, bool]:
    """Return the type of the flag of an option, and whether there may be several values.

    The type is that of one value, and not `None`.

    Example:

    >>> from dataclasses import dataclass, fields
    >>> @dataclass
    ... class Options:
    ...     mix: tuple[str, ...] | None = option(None, "A corpus.")
    >>> item_type(fields(Options)[0])
    (<class 'str'>, True)
    """
    kind: Any = option.metadata.get("type", option.type)
    if get_origin(kind) is UnionType:
        kind = get_args(kind)[0]
    if get_origin(kind) in (tuple, list, Sequence) and "types" not in option.metadata:
        return get_args(kind)[0], True
    return kind, False


def checked_value(option: Field[Any], value: Any) -> Any:
    """Return the value of an option in the type of its field, or raise a `ValueError`."""
    name, rules = option.name, option.metadata
    kind: Any = option.type
    if isinstance(kind, UnionType):  # with `None`
        if value is None:
            return None
        kind, _ = get_args(kind)
    if kind == tuple[str, ...]:  # names, or a single name
        names = value if isinstance(value, list | tuple) else [value]
        choices = rules.get("choices", names)
        if not all(isinstance(item, str) and item in choices for item in names):
            expected = ", ".join(map(repr, choices)) if "choices" in rules else "text"
            raise argument_error(name, f"be one or several of {expected}", value)
        return tuple(names)
    if get_origin(kind) is tuple:  # paths, or a single path
        paths = value if isinstance(value, list | tuple) else [value]
        if not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
            raise argument_error(name, "be a path, or several", value)
        return tuple(map(Path, paths))
    if kind is Path:
        if not isinstance(value, str | os.PathLike):
            raise argument_error(name, "be a path", value)
    elif kind is bool:
        if not isinstance(value, bool):
            raise argument_error(name, "be true or false", value)
    elif kind is str:
        choices = rules.get("choices")
        if not isinstance(value, str) or (choices is not None and value not in choices):
            expected = "a name" if choices is None else f"one of {', '.join(map(repr, choices))}"
            raise argument_error(name, f"be {expected}", value)
    else:
        check_range(name, value, kind, **rules["limits"])
    return kind(value)


def check_options(options: Any) -> None:
    """Replace each value of a frozen dataclass by its `checked_value`."""
    for each in fields(options):
        object.__setattr__(options, each.name, checked_value(each, getattr(options, each.name)))


def check_option_names(options: type[Any], values: Mapping[str, Any], purpose: str) -> None:
    """Raise a `ValueError` that suggests the nearest option, unless every name is an option.

    Args:
        options: Dataclass of options.
        values: Mapping of names to values.
        purpose: Purpose of the options, such as "training", for the message.
    """
    names = [option.name for option in fields(options)]
    for name in values:
        if name not in names:
            matches = difflib.get_close_matches(str(name), names, n=1)
            hint = f"Did you mean `{matches[0]}`?" if matches else f"The options are {names}."
            raise ValueError(
                f"Argument `{name!s:.80}` must be an option of {purpose}. {hint} "
                f"Received: {name!s:.80}={values[name]!r:.200}"
            )
