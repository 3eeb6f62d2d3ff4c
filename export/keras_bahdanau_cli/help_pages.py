"""Help pages of the commands: options in panels, no text cut, and an example at the end.

The help pages of typer put names, types and texts into columns and cut what does not fit.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from keras_bahdanau_runtime.errors import ArgumentError

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


class HelpCommand(TyperCommand):
    """A command whose docstring ends with a section "Example:"."""

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


class HelpGroup(TyperGroup):
    """A group of commands whose help text ends with a section "Example:"."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help page, with the first sentence of each command's help."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            row = name, paragraphs(command.help)[0]
            panels.setdefault(command.rich_help_panel or "Commands", []).append(row)
        commands = {title: _definitions(rows, _COMMANDS_WIDTH) for title, rows in panels.items()}
        _print_page(self, ctx, _option_panels(self, ctx) | commands)


def panel_of(parameter: Any) -> str:
    """Return the title of the panel of a parameter."""
    default = ARGUMENTS if parameter.param_type_name == "argument" else OPTIONS
    return getattr(parameter, "rich_help_panel", None) or default


def _option_panels(command: Any, context: Any) -> dict[str, Group]:
    """Return the contents of the panels of arguments and options, by title."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        title = panel_of(parameter)
        names, text = parameter.get_help_record(context)
        names = re.sub(r"<list\[(\w+)\]>", lambda match: f"<{match[1].lower()}>", names)
        panels.setdefault(title, []).append((names, " ".join(text.split())))
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
