"""Command `export`, whose flags include the fields of `ExportOptions` with a help text.

This is the only module that imports the folder `triton`.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from keras_bahdanau.run_folder import OPTIONS_FILE, best_file, member_runs
from keras_bahdanau_cli.arguments import (
    RUN,
    ModelImports,
    argument,
    check_file,
    check_installed,
)
from keras_bahdanau_cli.flags import Values, config_file
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import pair_sources, print_message
from keras_bahdanau_export.model_card import ModelCard
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_runtime.artifact import check_destination
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import folder_name
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.search_settings import ExportedSearch
from keras_bahdanau_runtime.text.parallel import TextFormat, read_parallel

_LAYOUTS = ("artifact", "triton")


@dataclass(frozen=True, kw_only=True)
class ExportedRuns:
    """Runs to export, the folder to create, and the texts to measure on."""

    run: Path = argument(RUN)
    path: Path = argument("The folder to create.")
    config: Path | None = config_file()
    layout: str = option(
        "artifact", "artifact, or triton: a repository for Triton Inference Server.", panel="Output"
    )
    others: tuple[Path, ...] = option(
        (),
        "Another run; the predictions of all are averaged. May be repeated.",
        flags="--with",
        panel="Model",
    )
    name: str | None = option(
        None,
        "Name of Triton's models; the name of the run's folder by default.",
        panel="Output",
    )
    source: Path | None = option(
        None,
        "Source sentences to measure on, or a file with both sides, not from a test set; - is "
        "standard input.",
        panel="Validation",
    )
    reference: Path | None = option(
        None, "Their translations; none if the source has both sides.", panel="Validation"
    )
    calibrate: tuple[Path, ...] = option(
        (),
        "Pairs to fit the confidence of translations on, not from training: a file with both "
        "sides, or repeated for sources and translations. By default the validation set of the "
        "run.",
        panel="Validation",
    )
    calibration: bool = option(
        True,
        "Fit the confidence of translations.",
        panel="Validation",
    )
    shortlist: Path | None = option(
        None, "A file (from shortlist) with the target ids to search.", panel="Search"
    )
    overwrite: bool = option(
        False,
        "Replace an artifact or repository at the path.",
        flags="--overwrite",
        panel="Output",
    )

    @property
    def runs(self) -> list[Path]:
        """All runs."""
        return [run for path in (self.run, *self.others) for run in member_runs(path)]


@dataclass(frozen=True, kw_only=True)
class CardFlags:
    """The model card."""

    model_card: bool = option(
        False,
        "Also write README.md, which makes the artifact a model repository of the Hugging Face "
        "Hub.",
        flags="--model-card",
        panel="Output",
    )
    license: str | None = option(
        None,
        "With --model-card: license, such as apache-2.0, cc-by-4.0 or other.",
        panel="Output",
    )
    language: tuple[str, ...] = option(
        (),
        "With --model-card: code of the source language, and again of the target language, such as "
        "en and de; by default the endings of the run's text files.",
        panel="Output",
    )
    card_notes: Path | None = option(
        None,
        "With --model-card: a Markdown file that is added, such as intended use and limits.",
        panel="Output",
    )

    def check(self, layout: str) -> None:
        """Raise a `ValueError` for options without a card, or for a card in a repository."""
        if self.model_card and layout != "artifact":
            raise argument_error(
                "model_card",
                "be left out for the layout 'triton', which is no model repository of the Hub",
                received="model_card=True",
            )
        for name in ("license", "language", "card_notes"):
            value = getattr(self, name)
            if value and not self.model_card:
                raise argument_error(name, "be used with --model-card", received=str(value))

    def card(self, runs: list[Path]) -> ModelCard | None:
        """Return the card; `None` if it is not requested."""
        if not self.model_card:
            return None
        notes = "" if self.card_notes is None else _read_notes(self.card_notes)
        return ModelCard(languages=self.language, license=self.license, runs=runs, notes=notes)


def export(
    exported: ExportedRuns,
    search: ExportedSearch,
    text_format: TextFormat,
    card_flags: CardFlags,
    values: Values[ExportOptions],
) -> None:
    r"""Write the best model of a run, or of several, as an artifact that runs without Keras.

    Example:
        keras-bahdanau export run artifact --precision int8 --source dev.en \
            --reference dev.de
    """
    source, reference, path = exported.source, exported.reference, exported.path
    if source is None and reference is not None:
        raise argument_error(
            "reference", "be passed together with `source`", received=str(reference)
        )
    if source is None and not exported.calibrate and text_format != TextFormat():
        raise argument_error(
            ("source_column", "target_column", "encoding", "on_bad_line"),
            "be passed together with `source` or `calibrate`",
            received="one of them without both",
        )
    penalties = search.length_penalty
    if len(penalties) > 1 and source is None:
        raise argument_error(
            "length_penalty",
            "be passed once if there is no `source` to choose it on",
            received=str(list(penalties)),
        )
    options = ExportOptions(**values)
    formats = options.formats
    if source is not None and "onnx" not in formats and len(penalties) == 1:
        raise argument_error(
            ("source", "reference"),
            "be left out if no ONNX graph is written and no length penalty is chosen",
            received=f"{source} and {reference}",
        )
    imported = ModelImports(imports=tuple(options.imports))
    imported.check()
    if exported.shortlist is not None:
        check_file("shortlist", exported.shortlist)
    card_flags.check(exported.layout)
    destination = _destination(exported, formats)
    for run in exported.runs:
        best_file(run)  # checks that it is a run
    card = card_flags.card(exported.runs)
    check_installed("tensorflow", extra="export")
    if "onnx" in formats:
        check_installed("tf2onnx", "onnx", "onnx_ir", "sklearn", "rapidfuzz", extra="export")
    texts, references = [], []
    if source is not None:
        texts, references = read_parallel(*pair_sources(source, reference), text_format)
    # `calibrate` without an ONNX graph is refused by the export.
    is_calibrated = "onnx" in formats or bool(exported.calibrate)
    pairs = _calibration_pairs(exported, text_format) if is_calibrated else []
    with destination as artifact:
        import_keras()
        from keras_bahdanau import BeamSearch
        from keras_bahdanau.models import Shortlist
        from keras_bahdanau.training import length_penalty_scores
        from keras_bahdanau.training.run import load_best

        values["imports"] = imported.load()
        model = load_best(*exported.runs)
        text_format.check_columns(model.tokenizer.has_columns)
        if len(penalties) > 1:
            scores = length_penalty_scores(
                model,
                texts,
                references,
                penalties,
                search.beam_size,
                options.max_length,
                max_length_ratio=search.max_length_ratio,
            )
            for penalty, bleu in scores.items():
                print_message(f"length penalty {penalty:g}: BLEU {bleu:.2f}")
            penalties = (max(scores, key=scores.get),)
        if "onnx" not in formats:
            texts = references = []  # only used to choose the penalty
        model.export(
            artifact,
            overwrite=exported.overwrite,
            search=BeamSearch(
                search.beam_size, *penalties, max_length_ratio=search.max_length_ratio
            ),
            texts=texts,
            references=references,
            calibrate=pairs,
            shortlist=None if exported.shortlist is None else Shortlist.load(exported.shortlist),
            model_card=card,
            **values,
        )
        is_exact = options.precision == "float32" and exported.shortlist is None
        if pairs and is_exact and not exported.others:
            _save_calibration(artifact, exported.run)
    kind = "artifact" if exported.layout == "artifact" else "Triton repository"
    print_message(f"The {kind} is {path}.")


def _calibration_pairs(exported: ExportedRuns, text_format: TextFormat) -> list[tuple[str, str]]:
    """Return the pairs to fit the confidence on; none, with a message, if there are no files."""
    if not exported.calibration:
        if exported.calibrate:
            raise argument_error(
                "calibrate", "be left out with --no-calibration", exported.calibrate
            )
        return []
    from keras_bahdanau.training.options import TrainingOptions
    from keras_bahdanau.training.start import read_held_out

    run = exported.runs[0]
    path = run / OPTIONS_FILE
    options = TrainingOptions.from_file(path) if path.exists() else None
    if exported.calibrate:
        if len(exported.calibrate) > 2:
            raise argument_error("calibrate", "be at most two files", exported.calibrate)
        if options is not None and text_format == TextFormat():
            text_format = options.text_format
        files = (*exported.calibrate, None)[:2]
        return list(zip(*read_parallel(*files, text_format), strict=True))
    if options is None:
        print_message(
            f"Translations will have no confidence: {run} names no validation set. Pass "
            "--calibrate."
        )
        return []
    try:
        sources, references = read_held_out(run)
    except (OSError, ValueError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
        print_message(
            f"Translations will have no confidence: the validation set of {run} {problem}: {error}."
            " Pass pairs with --calibrate.",
            "WARNING",
        )
        return []
    return list(zip(sources, references, strict=True))


def _save_calibration(artifact: Path, run: Path) -> None:
    """Save the confidence of an artifact in the run, for the same model in Keras."""
    from keras_bahdanau.training.calibration import save_calibration
    from keras_bahdanau_runtime.calibration import load_calibration
    from keras_bahdanau_runtime.manifest import read_manifest

    calibration = load_calibration(read_manifest(artifact, verify=False))
    if calibration is not None:
        save_calibration(run, calibration)


def _read_notes(path: Path) -> str:
    """Return the text of a Markdown file."""
    check_file("card_notes", path)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8. Received: {error}") from error


def _destination(
    exported: ExportedRuns, formats: list[str]
) -> contextlib.AbstractContextManager[Path]:
    """Return a context manager of the folder to export to."""
    from keras_bahdanau_export.triton.repository import triton_repository

    layout, name = exported.layout, exported.name
    if layout not in _LAYOUTS:
        raise argument_error("layout", f"be one of {_LAYOUTS}", layout)
    if layout == "triton":
        if "onnx" not in formats:
            raise argument_error(
                "format", "include 'onnx' for the layout 'triton'", received=str(formats)
            )
        name = folder_name(exported.run) if name is None else name
        return triton_repository(exported.path, name, exported.overwrite)
    if name is not None:
        raise argument_error("name", "be left out for the layout 'artifact'", name)
    check_destination(exported.path, exported.overwrite)
    return contextlib.nullcontext(exported.path)
