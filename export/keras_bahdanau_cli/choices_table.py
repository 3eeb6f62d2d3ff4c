"""The table of options that are chosen from the pairs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from keras_bahdanau_cli.terminal import plain

if TYPE_CHECKING:
    from keras_bahdanau.data.choices import Choice


def choices_table(choices: "Sequence[Choice]") -> Table:
    """Return a table with the flag of each option, its value and the reason for it."""
    table = Table("flag", "value", "reason")
    for choice in choices:
        table.add_row(*map(plain, (choice.flag, choice.text, choice.reason)))
    return table
