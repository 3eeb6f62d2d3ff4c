"""Command `export`, whose flags include the fields of `ExportOptions` with a help text.

This is the only module that imports the folder `triton`.
"""

import contextlib
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bahdanau.run_folder import best_file
from keras_bahdanau_cli.arguments import (
    Config,
    Encoding,
    OnBadLine,
    Run,
    SourceColumn,
    TargetColumn,
    check_beam,
    check_file,
    check_installed,
    check_modules,
    explicit_values,
    with_flags_of,
)
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import pair_sources, print_message
from keras_bahdanau_export.model_card import ModelCard
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.triton.repository import triton_repository
from keras_bahdanau_runtime.artifact import check_destination
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import folder_name

_LAYOUTS = ("artifact", "triton")


@with_flags_of(ExportOptions)
def export(
    context: typer.Context,
    run: Run,
    path: Annotated[Path, typer.Argument(help="The folder to create.")],
    config: Config = None,
    layout: Annotated[
        str,
        typer.Option(
            help="artifact, or triton: a repository for Triton Inference Server.",
            rich_help_panel="Output",
        ),
    ] = "artifact",
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            help="Another run; the predictions of all are averaged. May be repeated.",
            rich_help_panel="Model",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of Triton's models; the name of the run's folder by default.",
            rich_help_panel="Output",
        ),
    ] = None,
    beam_size: Annotated[
        int, typer.Option(help="Beam size of the search; 1 is greedy.", rich_help_panel="Search")
    ] = 5,
    length_penalty: Annotated[
        list[float] | None,
        typer.Option(
            help="Exponent of the GNMT length penalty, 1 by default. If repeated, the one with the "
            "best BLEU on --source and --reference is used.",
            rich_help_panel="Search",
        ),
    ] = None,
    max_length_ratio: Annotated[
        float | None,
        typer.Option(
            help="Maximum number of output tokens per source token; no limit by default.",
            rich_help_panel="Search",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Source sentences to measure on, or a file with both sides, not from a test set; "
            "- is standard input.",
            rich_help_panel="Validation",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Their translations; none if the source has both sides.",
            rich_help_panel="Validation",
        ),
    ] = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    encoding: Encoding = "utf-8",
    on_bad_line: OnBadLine = "stop",
    shortlist: Annotated[
        Path | None,
        typer.Option(
            help="A file (from shortlist) with the target ids to search.", rich_help_panel="Search"
        ),
    ] = None,
    model_card: Annotated[
        bool,
        typer.Option(
            "--model-card",
            help="Also write README.md, which makes the artifact a model repository of the Hugging "
            "Face Hub.",
            rich_help_panel="Output",
        ),
    ] = False,
    license: Annotated[
        str | None,
        typer.Option(
            help="With --model-card: license, such as apache-2.0, cc-by-4.0 or other.",
            rich_help_panel="Output",
        ),
    ] = None,
    language: Annotated[
        list[str] | None,
        typer.Option(
            help="With --model-card: code of the source language, and again of the target "
            "language, such as en and de; by default the endings of the run's text files.",
            rich_help_panel="Output",
        ),
    ] = None,
    card_notes: Annotated[
        Path | None,
        typer.Option(
            help="With --model-card: a Markdown file that is added, such as intended use and "
            "limits.",
            rich_help_panel="Output",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace an artifact or repository at the path.",
            rich_help_panel="Output",
        ),
    ] = False,
    **flags: Any,
) -> None:
    r"""Write the best model of a run, or of several, as an artifact that runs without Keras.

    Example:
        keras-bahdanau export run artifact --precision int8 --source dev.en \
            --reference dev.de
    """
    from keras_bahdanau_runtime.text.parallel import TextFormat, read_parallel

    text_format = TextFormat(source_column, target_column, encoding, on_bad_line)
    if source is None and (reference is not None or text_format != TextFormat()):
        raise argument_error(
            ("reference", "source_column", "target_column", "encoding", "on_bad_line"),
            "be passed together with `source`",
            received="one of them without `source`",
        )
    penalties = length_penalty or [1.0]
    if len(penalties) > 1 and source is None:
        raise argument_error(
            "length_penalty",
            "be passed once if there is no `source` to choose it on",
            received=str(penalties),
        )
    values = explicit_values(context, flags)
    options = ExportOptions(**values)
    formats = options.formats
    if source is not None and "onnx" not in formats and len(penalties) == 1:
        raise argument_error(
            ("source", "reference"),
            "be left out if no ONNX graph is written and no length penalty is chosen",
            received=f"{source} and {reference}",
        )
    check_beam(beam_size, penalties, max_length_ratio)
    check_modules(options.imports)
    if shortlist is not None:
        check_file("shortlist", shortlist)
    card_flags = {"license": license, "language": language, "card_notes": card_notes}
    _check_card_flags(model_card, layout, card_flags)
    destination = _destination(layout, path, name, run, formats, overwrite)
    for each in (run, *(others or ())):
        best_file(each)  # checks that it is a run
    card = None
    if model_card:
        card = ModelCard(
            languages=language or (),
            license=license,
            runs=[run, *(others or ())],
            notes="" if card_notes is None else _read_notes(card_notes),
        )
    check_installed("tensorflow", extra="export")
    if "onnx" in formats:
        check_installed("tf2onnx", "onnx", "onnx_ir", extra="export")
    texts, references = [], []
    if source is not None:
        texts, references = read_parallel(*pair_sources(source, reference), text_format)
    with destination as artifact:
        import_keras()
        from keras_bahdanau import BeamSearch
        from keras_bahdanau.models import Shortlist
        from keras_bahdanau.training import length_penalty_scores
        from keras_bahdanau.training.run import load_best

        for module in options.imports:
            importlib.import_module(module)
        model = load_best(run, *(others or ()))
        if len(penalties) > 1:
            scores = length_penalty_scores(
                model,
                texts,
                references,
                penalties,
                beam_size,
                options.max_length,
                max_length_ratio=max_length_ratio,
            )
            for penalty, bleu in scores.items():
                print_message(f"length penalty {penalty:g}: BLEU {bleu:.2f}")
            penalties = [max(scores, key=scores.get)]
        if "onnx" not in formats:
            texts = references = []  # only used to choose the penalty
        model.export(
            artifact,
            overwrite=overwrite,
            search=BeamSearch(beam_size, *penalties, max_length_ratio=max_length_ratio),
            texts=texts,
            references=references,
            shortlist=None if shortlist is None else Shortlist.load(shortlist),
            model_card=card,
            **values,
        )
    kind = "artifact" if layout == "artifact" else "Triton repository"
    print_message(f"The {kind} is {path}.")


def _check_card_flags(model_card: bool, layout: str, flags: dict[str, Any]) -> None:
    """Raise a `ValueError` for flags of a model card without one, or for a card in a repository."""
    if model_card and layout != "artifact":
        raise argument_error(
            "model_card",
            "be left out for the layout 'triton', which is no model repository of the Hub",
            received="model_card=True",
        )
    for name, value in flags.items():
        if value and not model_card:
            raise argument_error(name, "be used with --model-card", received=str(value))


def _read_notes(path: Path) -> str:
    """Return the text of a Markdown file."""
    check_file("card_notes", path)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8. Received: {error}") from error


def _destination(
    layout: str, path: Path, name: str | None, run: Path, formats: list[str], overwrite: bool
) -> contextlib.AbstractContextManager[Path]:
    """Return a context manager of the folder to export to; arguments as for `export`."""
    if layout not in _LAYOUTS:
        raise argument_error("layout", f"be one of {_LAYOUTS}", layout)
    if layout == "triton":
        if "onnx" not in formats:
            raise argument_error(
                "format", "include 'onnx' for the layout 'triton'", received=str(formats)
            )
        return triton_repository(path, folder_name(run) if name is None else name, overwrite)
    if name is not None:
        raise argument_error("name", "be left out for the layout 'artifact'", name)
    check_destination(path, overwrite)
    return contextlib.nullcontext(path)
