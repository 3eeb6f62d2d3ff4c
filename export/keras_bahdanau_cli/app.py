"""The command `keras-bahdanau`: its subcommands, its version and its log output.

A subcommand is imported when it runs. Keras is imported only inside the commands that need it:
`train`, `distill`, `import`, `export`, `verify`, `shortlist`, `quickstart`, and `evaluate`,
`select` and `score --doubtful` for a run. The import takes seconds, so it comes after all checks
that do not need it.
"""

import importlib
import logging
import sys

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.version import __version__

try:
    import click

    from keras_bahdanau_cli.exit_status import INTERRUPTED
    from keras_bahdanau_cli.flags import make_command
    from keras_bahdanau_cli.help_pages import HelpCommand, HelpGroup
    from keras_bahdanau_cli.terminal import console, escape_record
except ModuleNotFoundError as error:
    raise MissingDependencyError(error.name or "click", extra="cli") from error

_PANELS = {
    "First steps": ("quickstart",),
    "Training": ("prepare", "train", "distill", "import", "evaluate"),
    "Checks of data": ("select",),
    "Export": ("shortlist", "export", "verify"),
    "Use of artifacts": ("translate", "score", "align", "inspect", "serve", "site"),
}
_HELP = """Attentive recurrent sequence-to-sequence models: train, export, translate.

Example:
    keras-bahdanau quickstart
"""


def _load_command(name: str) -> HelpCommand:
    """Import the module of a command, whose function has the same name."""
    function = {"import": "import_model"}.get(name, name)  # `import` is a keyword of Python
    module = importlib.import_module(f"keras_bahdanau_cli.{function}")
    return make_command(name, getattr(module, function))


@click.group(cls=HelpGroup, panels=_PANELS, load=_load_command, no_args_is_help=True, help=_HELP)
@click.option("--verbose", "-v", is_flag=True, help="Show progress messages, not only warnings.")
@click.version_option(
    __version__,
    prog_name="keras-bahdanau",
    message="%(prog)s %(version)s",
    help="Print the version.",
)
def app(verbose: bool) -> None:
    """Configure the log output of every command."""
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%X")
    handler.addFilter(escape_record)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    for name in ("keras_bahdanau", "keras_bahdanau_export", "keras_bahdanau_runtime"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)


def run() -> None:
    """Run the command; exit with the status of a usage error or of Ctrl-C."""
    try:
        app.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
