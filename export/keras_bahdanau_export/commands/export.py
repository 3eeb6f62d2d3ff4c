"""The command `export`: from a run to an artifact, or to a repository for Triton."""

import contextlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bahdanau_export.checks import (
    check_beam,
    check_file,
    check_installed,
    check_modules,
)
from keras_bahdanau_export.commands.shown import say
from keras_bahdanau_export.commands.streams import text_source
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.quiet import import_keras
from keras_bahdanau_export.triton.layout import triton_repository
from keras_bahdanau_runtime.artifact import check_destination
from keras_bahdanau_runtime.files import folder_name
from keras_bahdanau_runtime.runs.folder import best_file

_LAYOUTS = ("artifact", "triton")


def export_command() -> Callable[..., None]:
    """Makes the function that typer turns into the command.

    Returns:
        A function whose signature also has a parameter for each `ExportOptions` field with a help
        text.
    """
    *parameters, _ = inspect.signature(_export).parameters.values()  # without `**values`
    flags = [_flag_of(option) for option in fields(ExportOptions) if "help" in option.metadata]

    def export(**arguments: Any) -> None:
        """Writes the best model of a run, or of several, as an artifact that runs without Keras."""
        _export(**arguments)

    export.__signature__ = inspect.Signature([*parameters, *flags])  # type: ignore[attr-defined]
    return export


def _flag_of(option: Field[Any]) -> inspect.Parameter:
    """Return the command's parameter for a field of `ExportOptions`."""
    kind, default = option.metadata.get("type"), option.default
    if kind is not None:  # several values
        kind, default = kind | None, None
    names = [f"--{option.name}"] if option.type is bool else []
    about = typer.Option(
        *([option.metadata["flag"]] if "flag" in option.metadata else names),
        help=option.metadata["help"],
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind or option.type, about],
    )


def _export(
    run: Annotated[Path, typer.Argument(help="A run's folder (from train).")],
    path: Annotated[Path, typer.Argument(help="The folder to make.")],
    layout: Annotated[
        str,
        typer.Option(help="artifact, or triton: a repository for Triton Inference Server."),
    ] = "artifact",
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Another run, the predictions of both averaged; may be repeated."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of Triton's models; that of the run's folder if absent.")
    ] = None,
    beam_size: Annotated[int, typer.Option(help="Hypotheses kept by the search; 1 is greedy.")] = 5,
    length_penalty: Annotated[
        list[float] | None,
        typer.Option(
            help="Exponent of the GNMT length penalty, 1 if absent; given again, the one with the "
            "best BLEU on --source and --reference is taken."
        ),
    ] = None,
    max_length_ratio: Annotated[
        float | None,
        typer.Option(help="Tokens for each of the source after which an output is cut, too."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Sentences to measure on, none of a test set; - is standard input."),
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    shortlist: Annotated[
        Path | None, typer.Option(help="A file (from shortlist): search among its ids only.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an artifact or repository at the path.")
    ] = False,
    **values: Any,
) -> None:
    """Check the arguments, export, and print where the artifact is; `values` are the flags."""
    from keras_bahdanau_runtime.text.corpus import read_parallel

    if (source is None) != (reference is None):
        raise ValueError(
            "Arguments `source` and `reference` must be given together. Received: one of them"
        )
    penalties = length_penalty or [1.0]
    if len(penalties) > 1 and source is None:
        raise ValueError(
            "Argument `length_penalty` must be given once where there is no `source` to choose it "
            f"on. Received: {penalties}"
        )
    values = {key: value for key, value in values.items() if value is not None}
    options = ExportOptions(**values)
    formats = options.formats
    if source is not None and "onnx" not in formats and len(penalties) == 1:
        raise ValueError(
            "Arguments `source` and `reference` must be left out where no ONNX graph is written "
            f"and no length penalty is chosen. Received: {source} and {reference}"
        )
    check_beam(beam_size, penalties, max_length_ratio)
    check_modules(options.imports)
    if shortlist is not None:
        check_file("shortlist", shortlist)
    place = _place(layout, path, name, run, formats, overwrite)
    for each in (run, *(others or ())):
        best_file(each)  # refuses what is no run
    check_installed("tensorflow", extra="export")
    if "onnx" in formats:
        check_installed("tf2onnx", "onnx", "onnx_ir", extra="export")
    texts, references = [], []
    if source is not None:
        texts, references = read_parallel(text_source(source), text_source(reference))
    with place as artifact:
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
                say(f"length penalty {penalty:g}: BLEU {bleu:.2f}")
            penalties = [max(scores, key=scores.get)]
        if "onnx" not in formats:
            texts = references = []  # they were for the penalty alone
        model.export(
            artifact,
            overwrite=overwrite,
            search=BeamSearch(beam_size, *penalties, max_length_ratio=max_length_ratio),
            texts=texts,
            references=references,
            shortlist=None if shortlist is None else Shortlist.load(shortlist),
            **values,
        )
    say(f"The {'artifact' if layout == 'artifact' else 'Triton repository'} is {path}.")


def _place(
    layout: str, path: Path, name: str | None, run: Path, formats: list[str], overwrite: bool
) -> contextlib.AbstractContextManager[Path]:
    """Gives where to export to; arguments as for `export`."""
    if layout not in _LAYOUTS:
        raise ValueError(f"Argument `layout` must be one of {_LAYOUTS}. Received: {layout!r}")
    if layout == "triton":
        if "onnx" not in formats:
            raise ValueError(
                f"Argument `format` must hold 'onnx' for the layout 'triton'. Received: {formats}"
            )
        return triton_repository(path, folder_name(run) if name is None else name, overwrite)
    if name is not None:
        raise ValueError(
            f"Argument `name` must be given only for the layout 'triton'. Received: {name!r}"
        )
    check_destination(path, overwrite)
    return contextlib.nullcontext(path)
