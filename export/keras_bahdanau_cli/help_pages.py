"""Help pages of the commands: options in panels, no text cut, and an example at the end."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any

import click
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from keras_bahdanau_runtime.errors import ArgumentError
from keras_bahdanau_runtime.option_fields import item_type

# Titles of panels, in their order on a page.
ARGUMENTS, OPTIONS = "Arguments", "Options"
PANELS = (
    ARGUMENTS,
    OPTIONS,
    "Data",
    "Model",
    "Fine-tuning",
    "Search",
    "Optimization",
    "Regularization",
    "Validation",
    "Output",
    "Network",
    "Access",
    "Batching",
    "Limits",
    "System",
)

_NAMES_WIDTH = 28
_COMMANDS_WIDTH = 12


class HelpCommand(click.Command):
    """A command whose help text ends with a section "Example:".

    Args:
        name: Name of the command.
        options: Fields of option classes by the names of the parameters.
        **settings: Other arguments of `click.Command`.
    """

    def __init__(self, name: str, options: Mapping[str, Field[Any]], **settings: Any) -> None:
        super().__init__(name, **settings)
        self.options = options

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page."""
        _print_page(self, ctx, _option_panels(self, ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of a value from the file of `--config` names the file."""
        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            source = ctx.get_parameter_source(error.name)
            if source is None or source.name != "DEFAULT_MAP":
                raise
            raise ValueError(f"{ctx.params['config']}: {error}") from error


class HelpGroup(click.Group):
    """A group of commands whose help text ends with a section "Example:".

    Args:
        panels: Names of the commands by the title of their panel.
        load: Function that returns the command of a name. A command is loaded when it is needed.
        **settings: Other arguments of `click.Group`.
    """

    def __init__(
        self,
        *,
        panels: Mapping[str, Sequence[str]],
        load: Callable[[str], click.Command],
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._panels, self._load = panels, load

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the help page."""
        return [name for names in self._panels.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> click.Command | None:
        """Return the command of a name; `None` if there is none."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            self.commands[cmd_name] = self._load(cmd_name)
        return self.commands.get(cmd_name)

    def load_commands(self) -> dict[str, click.Command]:
        """Return all commands by name."""
        return {name: self.get_command(None, name) for name in self.list_commands(None)}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page, with the first sentence of each command's help."""
        texts = {name: paragraphs(each.help)[0] for name, each in self.load_commands().items()}
        commands = {
            title: _definitions([(name, texts[name]) for name in names], _COMMANDS_WIDTH)
            for title, names in self._panels.items()
        }
        _print_page(self, ctx, _option_panels(self, ctx) | commands)


def panel_of(command: click.Command, parameter: click.Parameter) -> str:
    """Return the title of the panel of a parameter."""
    default = ARGUMENTS if parameter.param_type_name == "argument" else OPTIONS
    option = getattr(command, "options", {}).get(parameter.name)
    return default if option is None else option.metadata.get("panel", default)


def help_record(command: click.Command, parameter: Any, context: Any) -> tuple[str, str]:
    """Return the names and the type of a parameter, and its text."""
    names, text = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        kind = type_name(command.options[parameter.name])  # type: ignore[attr-defined]
        names = f"{parameter.name}{'...' if parameter.nargs != 1 else ''} {kind}"
        text = f"{text} [required]" if parameter.required else text
    return names, " ".join(text.split())


def type_name(option: Field[Any]) -> str:
    """Return the name of the type of an option, such as "<int>"."""
    kind, _ = item_type(option)
    if "metavar" in option.metadata:
        return str(option.metadata["metavar"])
    if "values" in option.metadata:
        return f"<{'|'.join(option.metadata['values'])}>"
    return f"<{kind.__name__.lower()}{' range' if 'minimum' in option.metadata else ''}>"


def _option_panels(command: click.Command, context: Any) -> dict[str, Group]:
    """Return the contents of the panels of arguments and options, by title."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = help_record(command, parameter, context)
        panels.setdefault(panel_of(command, parameter), []).append(record)
    return {
        title: _definitions(panels[title], _NAMES_WIDTH)
        for title in sorted(panels, key=PANELS.index)
    }


def _definitions(rows: Iterable[tuple[str, str]], width: int) -> Group:
    """Return rows of a name and a text; a name that is too wide has a separate line."""
    lines: list[Text | Table] = []
    for name, text in rows:
        label = Text(name, "bold cyan", overflow="fold")
        if label.cell_len > width:
            lines.append(label)
            label = Text()
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(width=width)
        row.add_column(ratio=1, overflow="fold")
        row.add_row(label, Text(text))
        lines.append(row)
    return Group(*lines)


def _print_page(command: Any, context: Any, panels: dict[str, Group]) -> None:
    """Print the usage, the description, the panels, and the example of a command."""
    console = Console(highlight=False)
    console.print()
    console.print(Padding(Text(command.get_usage(context), "bold"), (0, 1, 1, 1)))
    for paragraph in paragraphs(command.help):
        console.print(Padding(Text(paragraph), (0, 1, 1, 1)))
    for title, content in panels.items():
        console.print(Panel(content, title=title, title_align="left", border_style="dim"))
    console.print(Text("\n Example:", "bold"))
    for line in example(command.help).splitlines():
        console.print(Text(f"   {line}"), soft_wrap=True)
    console.print()


def _split(help_text: str) -> tuple[str, str]:
    """Return the description and the example of a help text."""
    description, heading, lines = inspect.cleandoc(help_text).partition("\n\nExample:\n")
    if not heading:
        raise ValueError(f'A help text must end with a section "Example:". Received: {help_text!r}')
    return description, inspect.cleandoc(f"\n{lines}")


def paragraphs(help_text: str) -> list[str]:
    """Return the paragraphs of a help text, one line each, without the example."""
    return [" ".join(paragraph.split()) for paragraph in _split(help_text)[0].split("\n\n")]


def example(help_text: str) -> str:
    """Return the shell command at the end of a help text."""
    return _split(help_text)[1]
