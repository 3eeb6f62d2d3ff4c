"""Text that is generated from the code, in place of comments such as `<!-- generate: commands -->`.

| comment | text |
|---|---|
| `generate: namespace MODULE [NAME ...]` | The names of `MODULE.__all__`, or those in the list |
| `generate: shortcuts MODULE` | A table of the names that other namespaces document |
| `generate: options MODULE.CLASS` | A table of the fields of an option class that are flags |
| `generate: settings` | A table of the settings of a search that a call may change |
| `generate: commands` | Every command with its options |
| `generate: statuses` | A table of the exit statuses of the commands |
| `generate: rules` | Tables of the rules that choose options from the pairs |
| `generate: example` | The first Python block of README.md |
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

from keras_bahdanau.data.choices import PIECE_RULES
from keras_bahdanau.training.rules import RULES
from keras_bahdanau_runtime.search_settings import SearchSettings

# A name in several namespaces is documented in the first of them.
NAMESPACES = (
    *(
        f"keras_bahdanau.{name}"
        for name in (
            "layers",
            "models",
            "toolkits",
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
    "keras_bahdanau_runtime.site",
)
_README = Path(__file__).resolve().parents[2] / "README.md"
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
    if "<!-- generate: example -->" in source[0]:
        app.env.note_dependency(str(_README))
    source[0] = _COMMENT.sub(lambda match: _generate(*match[1].split()), source[0])


def _generate(kind: str, *arguments: str) -> str:
    generators = {
        "namespace": _namespace,
        "shortcuts": _shortcuts,
        "options": _options,
        "settings": _settings,
        "commands": _commands,
        "statuses": _statuses,
        "rules": _rules,
        "example": _example,
    }
    return "\n".join(generators[kind](*arguments))


def _namespace(module: str, *names: str) -> Iterator[str]:
    """Yield a table of summaries and the entry of every name."""
    names = names or tuple(importlib.import_module(module).__all__)
    yield from _table(f"{module}.{name}" for name in names)
    for name in names:
        yield ""
        yield "```{eval-rst}"
        yield from _entry(f"{module}.{name}")
        yield "```"


def _shortcuts(module: str) -> Iterator[str]:
    """Yield a table of the names that are documented in other namespaces."""
    loaded = importlib.import_module(module)
    objects = {name: getattr(loaded, name) for name in loaded.__all__}
    yield from _table(
        _DOCUMENTED[id(value)] for value in objects.values() if not isinstance(value, ModuleType)
    )


def _options(name: str) -> Iterator[str]:
    """Yield a table of the fields of an option class that are arguments or flags of commands."""
    yield "| field | default | flag | |"
    yield "|---|---|---|---|"
    for option in dataclasses.fields(_resolve(name)):
        if "help" in option.metadata:
            flags = option.metadata.get("flags", f"--{option.name.replace('_', '-')}")
            text = _plain(option.metadata["help"])
            yield f"| `{option.name}` | `{option.default!r}` | `{flags}` | {text} |"


def _settings() -> Iterator[str]:
    """Yield a table of the settings of a search that a call may change."""
    yield "| setting | dtype | from | to | meaning |"
    yield "|---|---|---|---|---|"
    for setting in dataclasses.fields(SearchSettings):
        limits = setting.metadata["range"]
        low, high = f"{limits.low:,}", f"{limits.high:,}"
        meaning = setting.metadata["meaning"]
        yield f"| `{setting.name}` | {limits.dtype} | {low} | {high} | {meaning} |"


def _rules() -> Iterator[str]:
    """Yield a table of the rules of pieces, and a table of the rules of training settings."""
    yield "| option | value | condition |"
    yield "|---|---|---|"
    for options, value, condition in PIECE_RULES:
        flags = ", ".join(f"`--{option}`" for option in options.split(", "))
        yield f"| {flags} | {value} | {condition} |"
    yield ""
    names = list(dict.fromkeys(name for rule in RULES for name in rule.values))
    yield f"| | {' | '.join(rule.name for rule in RULES)} |"
    yield f"|---|{'---|' * len(RULES)}"
    yield f"| condition | {' | '.join(rule.condition for rule in RULES)} |"
    for name in names:
        values = " | ".join(str(rule.values.get(name, "")) for rule in RULES)
        yield f"| `--{name.replace('_', '-')}` | {values} |"
    updates = " | ".join(f"{rule.updates:,}" if rule.updates else "" for rule in RULES)
    yield f"| updates that the epochs are chosen for | {updates} |"
    interval = " | ".join(f"{rule.validation_updates:,}" for rule in RULES)
    yield f"| updates between validations, at least | {interval} |"
    factors = " | ".join(str(rule.length_factor or "") for rule in RULES)
    yield f"| `--max-length`, in lengths of the longest text | {factors} |"


def _table(names: Iterator[str]) -> Iterator[str]:
    yield "| name | |"
    yield "|---|---|"
    for name in names:
        text = (inspect.getdoc(_resolve(name)) or "").split("\n\n")[0]
        text = " ".join(text.split()).replace("|", r"\|")
        yield f"| {{py:obj}}`{name.rpartition('.')[2]} <{name}>` | {text} |"


def _resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _entry(name: str) -> Iterator[str]:
    """Yield the directive that documents a name."""
    value = _resolve(name)
    documented = _DOCUMENTED[id(value)]
    if name != documented:
        yield f".. py:{'class' if inspect.isclass(value) else 'function'}:: {name}"
        yield ""
        yield f"   The same as :py:obj:`{documented}`."
    elif not inspect.isclass(value):
        yield f".. autofunction:: {name}"
    else:
        kind = "exception" if issubclass(value, BaseException) else "class"
        yield f".. auto{kind}:: {name}"
        yield "   :members:"
        yield f"   :inherited-members: {', '.join(_documented_bases(value))}"


def _documented_bases(value: type) -> list[str]:
    """Return the bases whose members are not repeated: public ones, and those of other packages."""
    return sorted(
        {
            base.__name__
            for base in value.__mro__[1:]
            if id(base) in _DOCUMENTED or not base.__module__.startswith("keras_bahdanau")
        }
    )


def _example() -> Iterator[str]:
    """Yield the first Python block of the README."""
    [block] = re.findall(r"^```python\n[\s\S]*?^```$", _README.read_text("utf-8"), re.M)[:1]
    yield from block.split("\n")


def _commands() -> Iterator[str]:
    """Yield a section for each command: help, usage and tables of its parameters."""
    from keras_bahdanau_cli.app import app
    from keras_bahdanau_cli.help_pages import example, paragraphs

    yield "## Options of every command"
    yield ""
    yield from _parameters(app, app.params)
    for name, command in app.load_commands().items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(_argument(parameter) for parameter in arguments)
        yield ""
        yield f"## {name}"
        yield ""
        for paragraph in paragraphs(command.help):
            yield from (_plain(paragraph), "")
        yield "```text"
        yield f"keras-bahdanau {name} [OPTIONS] {usage}".rstrip()
        yield "```"
        yield ""
        yield from _parameters(command, command.params)
        yield from ("Example:", "", "```text", example(command.help), "```")


def _statuses() -> Iterator[str]:
    """Yield a table of the exit statuses of the commands."""
    from keras_bahdanau_cli.exit_status import EXIT_STATUSES

    yield "| exit status | meaning |"
    yield "|---|---|"
    for status, meaning in EXIT_STATUSES.items():
        yield f"| {status} | {meaning} |"


def _argument(parameter: Any) -> str:
    name = parameter.name.upper()
    name += "..." if parameter.nargs != 1 else ""
    return name if parameter.required else f"[{name}]"


def _parameters(command: Any, parameters: list[Any]) -> Iterator[str]:
    """Yield a table for each panel of parameters, in the order of the help page."""
    from keras_bahdanau_cli.help_pages import PANELS, panel_of

    panels: dict[str, list[Any]] = {}
    for parameter in parameters:
        panels.setdefault(panel_of(command, parameter), []).append(parameter)
    for panel in sorted(panels, key=PANELS.index):
        members = panels[panel]
        yield f"**{panel}**"
        yield ""
        yield "| name | default | |"
        yield "|---|---|---|"
        for parameter in members:
            yield f"| {_names(parameter)} | {_default(parameter)} | {_plain(parameter.help)} |"
        yield ""


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
