"""Read options from YAML and JSON files."""

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.checks import unique_keys
from keras_bahdanau_runtime.errors import argument_error, require

_MAX_FILE_SIZE = 2**20  # bytes of a file of options, and characters of its values
_MAX_DEPTH = 100
_TOO_DEEP = f"values in more than {_MAX_DEPTH} lists and mappings"
_MAX_DIGITS = 400  # of a number in YAML: the time to convert longer ones is not linear


def read_options(path: str | os.PathLike[str], argument: str = "config") -> dict[str, Any]:
    """Read a mapping from a YAML or JSON file.

    Args:
        path: File with the suffix .json, .yaml or .yml.
        argument: Name of the argument, for messages.

    Returns:
        A `dict`, whose values are not checked; an empty YAML file gives an empty one.

    Raises:
        ValueError: The file has another suffix, another format, no mapping, a mapping with a
            duplicate key, or is too large: it has, or YAML aliases expand it to, more than 2**20
            characters.
        MissingDependencyError: The file is YAML and PyYAML is not installed.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise argument_error(argument, "end with .json, .yaml or .yml", str(path))
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE_SIZE + 1)
    if len(data) > _MAX_FILE_SIZE:
        raise argument_error(
            argument,
            f"be a file of at most {_MAX_FILE_SIZE} bytes",
            received=f"{str(path)!r}, which has more",
        )
    if suffix == ".json":
        format = "JSON"
        errors: tuple[type[Exception], ...] = (ValueError, RecursionError)
        parse: Callable[[bytes], Any] = functools.partial(json.loads, object_pairs_hook=unique_keys)
    else:
        yaml = require("yaml", extra="cli")
        # PyYAML raises the last four for tags that do not fit their values, such as !!bool x.
        errors = (yaml.YAMLError, ValueError, RecursionError)
        errors += (KeyError, IndexError, AttributeError, TypeError)
        format = "YAML"
        parse = _parse_yaml
    try:
        values = parse(data)
        if isinstance(values, dict | list):
            _check_depth(values)
    except errors as error:
        is_deep = isinstance(error, RecursionError)
        problem = _TOO_DEEP if is_deep else " ".join(str(error).split())
        raise argument_error(
            argument, f"be {format}", received=f"{str(path)!r}: {problem:.400}"
        ) from error
    values = {} if values is None and format == "YAML" else values
    if not isinstance(values, dict):
        raise argument_error(
            argument,
            "contain a mapping of options to values",
            received=f"{str(path)!r}, which contains {values!r:.80}",
        )
    return values


def _check_depth(value: Any) -> None:
    """Raise a `ValueError` for lists and mappings in more than `_MAX_DEPTH` others."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    if level:
        raise ValueError(_TOO_DEEP)


def _parse_yaml(data: bytes) -> Any:
    yaml = require("yaml", extra="cli")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """YAML 1.1 with the floats and unique keys of YAML 1.2; in YAML 1.1, 1e-3 is a str."""

        def get_single_node(self) -> Any:
            node = super().get_single_node()
            if node is not None:
                _check_expanded_size(node)
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            scalars = [pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode)]
            unique_keys([(key.value, value) for key, value in scalars])
            return super().construct_mapping(node, deep=deep)

    number = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return yaml.load(data, Loader)


def _check_expanded_size(root: Any) -> None:
    """Raise a `ValueError` for YAML whose aliases make it too large, or part of itself.

    Args:
        root: The outermost `yaml.Node`. Aliases of a node are the same object.
    """
    sizes: dict[int, int | None] = {}  # by id; `None` while the size of a node is computed

    def size_of(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = None
            value, size = node.value, 1
            if isinstance(value, str):
                size += len(value)
                if len(value) > _MAX_DIGITS and node.tag.endswith((":int", ":float")):
                    raise ValueError(f"a number of {len(value)} characters")
            for item in value if isinstance(value, list) else ():
                size += sum(map(size_of, item)) if isinstance(item, tuple) else size_of(item)
            sizes[id(node)] = size
        size_or_none = sizes[id(node)]
        if size_or_none is None:
            raise ValueError("an alias of a value that contains it")
        if size_or_none > _MAX_FILE_SIZE:
            raise ValueError(f"aliases that expand it to more than {_MAX_FILE_SIZE} characters")
        return size_or_none

    size_of(root)
