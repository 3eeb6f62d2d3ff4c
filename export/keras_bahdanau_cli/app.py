"""The command `keras-bahdanau`: its subcommands, its version and its log output.

Keras is imported only inside the commands that need it: `train`, `distill`, `import`, `export`,
`verify`, `shortlist`, `quickstart`, and `evaluate` for a run. The import takes seconds, so it comes
after all checks that do not need it.
"""

import logging
from typing import Annotated

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.version import __version__

try:
    import typer
    from rich.logging import RichHandler

    from keras_bahdanau_cli.align import align
    from keras_bahdanau_cli.distill import distill
    from keras_bahdanau_cli.evaluate import evaluate
    from keras_bahdanau_cli.export import export
    from keras_bahdanau_cli.help_pages import HelpCommand, HelpGroup
    from keras_bahdanau_cli.import_model import import_model
    from keras_bahdanau_cli.inspect import inspect
    from keras_bahdanau_cli.prepare import prepare
    from keras_bahdanau_cli.quickstart import quickstart
    from keras_bahdanau_cli.score import score
    from keras_bahdanau_cli.serve import serve
    from keras_bahdanau_cli.shortlist import shortlist
    from keras_bahdanau_cli.site import site
    from keras_bahdanau_cli.terminal import console, escape_record
    from keras_bahdanau_cli.train import train
    from keras_bahdanau_cli.translate import translate
    from keras_bahdanau_cli.verify import verify
except ModuleNotFoundError as error:
    raise MissingDependencyError(error.name or "typer", extra="cli") from error

_COMMANDS = {
    "First steps": (quickstart,),
    "Training": (prepare, train, distill, import_model, evaluate),
    "Export": (shortlist, export, verify),
    "Use of artifacts": (translate, score, align, inspect, serve, site),
}
_HELP = """Attentive recurrent sequence-to-sequence models: train, export, translate.

Example:
    keras-bahdanau quickstart
"""

app = typer.Typer(
    cls=HelpGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=_HELP,
)
# Names that differ from those of the functions, because they are keywords of Python.
_NAMES = {import_model: "import"}
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(_NAMES.get(_command), cls=HelpCommand, rich_help_panel=_panel)(_command)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"keras-bahdanau {__version__}")
        raise typer.Exit


@app.callback()
def _configure_logging(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show progress messages, not only warnings.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%X")
    handler.addFilter(escape_record)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    for name in ("keras_bahdanau", "keras_bahdanau_export", "keras_bahdanau_runtime"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)
