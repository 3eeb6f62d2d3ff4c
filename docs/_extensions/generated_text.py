"""Text that is generated from the code, in place of comments such as `<!-- generate: commands -->`.

| comment | text |
|---|---|
| `generate: namespace MODULE [NAME ...]` | The names of `MODULE.__all__`, or those in the list |
| `generate: shortcuts MODULE` | A table of the names that other namespaces document |
| `generate: commands` | Every command with its options |
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

# A name in several namespaces is documented in the first of them.
NAMESPACES = (
    *(
        f"keras_bahdanau.{name}"
        for name in (
            "layers",
            "models",
            "search",
            "losses",
            "metrics",
            "data",
            "text",
            "callbacks",
            "training",
            "optimizers",
            "distribution",
            "initializers",
            "plot",
        )
    ),
    "keras_bahdanau_export",
    "keras_bahdanau_runtime",
)
_COMMENT = re.compile(r"^<!-- generate: ([\w. ]+?) -->$", re.M)


def _public_objects() -> Iterator[tuple[str, Any]]:
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            yield f"{namespace}.{name}", getattr(module, name)


_DOCUMENTED: dict[int, str] = {}
for _name, _object in _public_objects():
    _DOCUMENTED.setdefault(id(_object), _name)
# The documented name of each public class, by its last part.
CLASSES = {
    name.rpartition(".")[2]: _DOCUMENTED[id(value)]
    for name, value in _public_objects()
    if inspect.isclass(value)
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the comments when a page is read."""
    app.connect("source-read", _replace_comments)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _replace_comments(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _COMMENT.sub(lambda match: _generate(*match[1].split()), source[0])


def _generate(kind: str, *arguments: str) -> str:
    generators = {"namespace": _namespace, "shortcuts": _shortcuts, "commands": _commands}
    return "\n".join(generators[kind](*arguments))


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or callable(value) or "UNSET" in repr(value) or value in ([], (), ""):
        return ""
    if isinstance(value, bool):
        if not parameter.secondary_opts:
            return ""
        return f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`"
    if isinstance(value, list | tuple):
        return ", ".join(f"`{getattr(item, 'value', item)}`" for item in value)
    return f"`{getattr(value, 'value', value)}`"


def _plain(text: str | None) -> str:
    """Return a help text as one line of Markdown."""
    line = " ".join((text or "").split())
    line = re.sub(r"(?<![`\w])(--?[a-z][\w-]*)", r"`\1`", line)
    return re.sub(r"([|*<_\[])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", line)
