"""Command `evaluate`: measures of a run or an artifact on a test set."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.progress import Progress

from keras_bahdanau.run_folder import best_file, member_runs
from keras_bahdanau_cli.arguments import SOURCE, ModelImports, argument, output_path
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.pairs import check_output, open_output
from keras_bahdanau_cli.search_flags import SearchFlags
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import (
    console,
    pair_sources,
    print_message,
    text_source,
)
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.records import one_cell
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.hub import is_hub_address
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.signature import MANIFEST_FILE
from keras_bahdanau_runtime.text.parallel import TextFormat, read_pairs, read_parallel, read_side

if TYPE_CHECKING:
    from keras_bahdanau_runtime.text.error_rates import Comparison, Edit
    from keras_bahdanau_runtime.translator import Translation

_SHORT = 40  # mean symbols of outputs whose errors are printed
_SHOWN_ERRORS, _SHOWN_OUTPUTS = 10, 5


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """A model, a test set, and the metrics."""

    path: str = argument(
        "Folder of a run or of several (from train) or of an artifact (from export), or an "
        "artifact's address "
        "hf://USER/NAME[@REVISION]."
    )
    source: Path = argument(SOURCE)
    references: tuple[Path, ...] = argument(
        "Their translations, line by line; several files for several; none if the source has both "
        "sides.",
        (),
    )
    truncate: bool = option(
        False,
        "For an artifact: truncate sentences above its limit.",
        flags="--truncate",
        panel="Limits",
    )
    others: tuple[Path, ...] = option(
        (),
        "For a run: another run; the predictions of all are averaged. May be repeated.",
        flags="--with",
        panel="Model",
    )
    tokenize: str = option(
        "13a", "Tokenizer of BLEU: 13a, none for tokenized text, zh, ...", panel="Output"
    )
    as_json: bool = option(
        False,
        "Print a JSON object with all measures, their intervals and all errors of symbols.",
        flags="--json",
        panel="Output",
    )
    output: Path | None = output_path(
        "Tab-separated file to write: each source with its reference, its output and its errors, "
        "those with the most errors first.",
        None,
        panel="Output",
    )
    picture: Path | None = option(
        None,
        "SVG file to write: the most frequent errors of symbols as bars, and the outputs with the "
        "most errors, aligned with their references.",
        panel="Output",
    )
    confidence_picture: Path | None = option(
        None,
        "PNG, SVG or PDF file to write, for a calibrated model: the share of right outputs by "
        "confidence, and the share of wrong ones among the most confident.",
        panel="Output",
    )


def evaluate(
    measured: EvaluateOptions,
    imported: ModelImports,
    batches: BatchSizes,
    text_format: TextFormat,
    search: SearchFlags,
) -> None:
    """Translate a test set and print BLEU (cased), chrF, exact matches and symbol errors.

    Symbols are characters, or parts between spaces for a model of symbols. Ranges are intervals of
    95 %. For short outputs, such as pronunciations, the most frequent errors and the worst outputs
    follow, which --picture draws, and --output lists all outputs. If a source has several lines,
    the references of all of them count as right. For a model whose export fitted confidences, their
    calibration error (ECE, ten bins of the same size) and the errors among the most confident
    outputs follow, which --confidence-picture draws.

    Example:
        keras-bahdanau evaluate artifact test.en test.de
    """
    from keras_bahdanau_runtime.pictures.confidence import (
        check_confidence_picture,
        confidence_picture,
    )
    from keras_bahdanau_runtime.pictures.errors import check_picture, error_picture
    from keras_bahdanau_runtime.session import available_cores
    from keras_bahdanau_runtime.text.error_rates import (
        compare,
        confusions,
        error_intervals,
        error_rates,
        shared_references,
        worst_outputs,
    )
    from keras_bahdanau_runtime.text.scores import bleu_and_chrf, bleu_metric
    from keras_bahdanau_runtime.translator import Translator

    path, others, tokenize = measured.path, measured.others, measured.tokenize
    is_address, folder = is_hub_address(path), Path(path)
    if not is_address and not folder.is_dir():
        raise argument_error(
            "path",
            "be the folder of a run or of an artifact, and come before the texts",
            received=f"{path!r}, which {'is a file' if folder.exists() else 'is absent'}",
        )
    bleu_metric(tokenize)  # raises for an unknown tokenizer before anything is translated
    check_output(measured.output)
    check_output(measured.confidence_picture, "confidence_picture")
    if measured.picture is not None:
        check_picture(measured.picture)
    if measured.confidence_picture is not None:
        check_confidence_picture(measured.confidence_picture)
    is_artifact = is_address or (folder / MANIFEST_FILE).exists()
    options = search.options()
    imported.check(is_run=not is_artifact)
    if is_artifact and others:
        raise argument_error(
            "with",
            "be used with runs: `export --with` writes an artifact of several runs",
            received=f"{[str(run) for run in others]} for the artifact {path}",
        )
    if not is_artifact and measured.truncate:
        raise argument_error(
            "truncate",
            "be left out for a run, as its model accepts sentences of any length",
            received=f"truncate=True for the run {path}",
        )
    if not is_artifact:  # the other options are checked after the import of Keras
        search.search_options().check_values()
    for path_of_runs in () if is_artifact else (folder, *others):
        for run in member_runs(path_of_runs):
            best_file(run)  # checks that it is a run
    texts, constraints = _read_texts(
        measured.source, list(measured.references), text_format, search.constraints()
    )
    options |= constraints
    if is_artifact:
        engine = Translator(artifact_folder(path), parallel_batches=available_cores())
        options["truncate"] = measured.truncate
    else:
        import_keras(tensorflow=False)
        from keras_bahdanau.training.run import load_best

        imported.load()
        engine = load_best(folder, *others)
    text_format.check_columns(engine.tokenizer.has_columns)
    if measured.confidence_picture is not None and engine.calibration is None:
        raise argument_error(
            "confidence_picture",
            "be used with a calibrated model; `export` calibrates it on held-out pairs",
            received=f"{path}, which has no confidences",
        )
    sources, *targets = texts
    # Split references are joined like the translations.
    join = engine.tokenizer.join_target
    references_of = [[join(text) for text in row] for row in zip(*targets, strict=True)]
    translations = _translate_with_progress(engine, sources, **asdict(batches), **options)
    outputs = [translation.text for translation in translations]
    unit = engine.tokenizer.target_unit
    comparisons = compare(outputs, shared_references(sources, references_of), unit)
    scores = bleu_and_chrf(outputs, references_of, tokenize) | error_rates(comparisons)
    intervals = error_intervals(comparisons)
    errors = confusions(comparisons)
    if measured.picture is not None:
        error_picture(sources, comparisons, measured.picture)
        print_message(f"The errors are drawn in {measured.picture}.")
    if measured.output is not None:
        _write_errors(measured.output, sources, comparisons, translations)
        print_message(f"The outputs and their errors are in {measured.output}.")
    confidence = _confidence_scores(translations, comparisons)
    if measured.confidence_picture is not None:
        if confidence is None:
            raise argument_error(
                "confidence_picture",
                "be used with the search that was calibrated",
                received=str(translations[0].uncalibrated),
            )
        values, is_right = _confidences(translations, comparisons)
        confidence_picture(values, is_right, measured.confidence_picture)
        print_message(f"The confidences are drawn in {measured.confidence_picture}.")
    if measured.as_json:
        rows = [{**edit._asdict(), "count": count} for edit, count in errors.most_common()]
        document = {"outputs": len(outputs), **scores, "intervals": intervals, "errors": rows}
        document["confidence"] = confidence
        print(json.dumps(document, ensure_ascii=False))
        return
    exact, ser = (f"({low:.1f} to {high:.1f})" for low, high in intervals.values())
    print(f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}")
    print(f"exact {scores['exact']:.1f}% {exact}  symbol errors {scores['ser']:.1f}% {ser}")
    if confidence is not None:
        low, high = confidence["interval"]
        wrong = ", ".join(f"{part}% {share:.1f}%" for part, share in confidence["wrong"].items())
        print(f"calibration error {confidence['calibration_error']:.1f}% ({low:.1f} to {high:.1f})")
        print(f"wrong among the most confident outputs: {wrong}")
    elif translations[0].uncalibrated is not None:
        print_message(translations[0].uncalibrated)
    symbols = sum(comparison.length for comparison in comparisons)
    if errors and symbols <= _SHORT * len(comparisons):
        _print_errors(errors, worst_outputs(sources, comparisons)[:_SHOWN_OUTPUTS])


def _write_errors(
    path: Path,
    sources: list[str],
    comparisons: "Sequence[Comparison]",
    translations: "Sequence[Translation]",
) -> None:
    """Write a row for each output, those with the most errors first."""
    columns = ["source", "reference", "output", "errors", "symbols", "error_rate"]
    has_confidence = any(translation.confidence is not None for translation in translations)
    rows = []
    for source, comparison, translation in zip(sources, comparisons, translations, strict=True):
        errors, symbols = len(comparison.edits), comparison.length
        texts = source, comparison.reference, comparison.output
        row = [*map(one_cell, texts), errors, symbols, f"{100 * errors / max(symbols, 1):.1f}"]
        if has_confidence:
            is_known = translation.confidence is not None
            row.append(f"{translation.confidence:.4f}" if is_known else "")
        rows.append(row)
    rows.sort(key=lambda row: -row[3])
    with open_output(path) as file:
        for row in [columns + ["confidence"] * has_confidence, *rows]:
            file.write("\t".join(map(str, row)).encode() + b"\n")


def _confidences(
    translations: "Sequence[Translation]", comparisons: "Sequence[Comparison]"
) -> tuple[list[float], list[bool]]:
    """Return the confidence of each output that has one, and whether the output is right."""
    pairs = [
        (translation.confidence, comparison.is_exact)
        for translation, comparison in zip(translations, comparisons, strict=True)
        if translation.confidence is not None
    ]
    return [confidence for confidence, _ in pairs], [is_right for _, is_right in pairs]


def _confidence_scores(
    translations: "Sequence[Translation]", comparisons: "Sequence[Comparison]"
) -> dict[str, Any] | None:
    """Return the measures of the confidences in percent, or `None` if there are none."""
    from keras_bahdanau_runtime.text.confidence_scores import (
        calibration_error,
        calibration_interval,
        coverage_errors,
    )

    values, is_right = _confidences(translations, comparisons)
    if not values:
        return None
    errors = [t.expected_errors or 0.0 for t in translations if t.confidence is not None]
    return {
        "outputs": len(values),
        "calibration_error": calibration_error(values, is_right),
        "interval": calibration_interval(values, is_right),
        "wrong": coverage_errors(values, is_right),
        "expected_wrong": 100 * (1 - sum(values) / len(values)),
        "expected_errors": 100 * sum(errors) / len(errors),
    }


def _print_errors(errors: "Counter[Edit]", worst: "list[tuple[str, Comparison]]") -> None:
    """Print the most frequent errors of symbols, and the worst outputs below their sources."""
    print("\nErrors (expected, received, number of times):")
    for (expected, received), count in errors.most_common(_SHOWN_ERRORS):
        print(f"  {expected or '-'} {received or '-'} {count}")
    print("\nWorst outputs (source, expected, received):")
    for source, comparison in worst:
        print(f"  {source}")
        columns = [[symbol or "-" for symbol in edit] for edit in comparison.alignment]
        widths = [max(map(cell_len, column)) for column in columns]
        for side in range(2):
            cells = (column[side] for column in columns)
            print(" ", *(set_cell_size(*cell) for cell in zip(cells, widths, strict=True)))
        print()


def _read_texts(
    source: Path,
    references: list[Path],
    text_format: TextFormat,
    constraints: dict[str, list[Any]],
) -> tuple[list[list[str]], dict[str, list[Any]]]:
    """Return the sources and the references, and the constraints for each source.

    Lines that are blank in one of the texts are dropped from all.
    """
    if len(references) <= 1 and not constraints:  # with more checks of pairs
        target = references[0] if references else None
        return list(read_parallel(*pair_sources(source, target), text_format)), {}
    if references:
        texts = [read_side(text_source(path), text_format) for path in (source, *references)]
    else:
        texts = list(read_pairs(text_source(source), None, text_format))
    columns = [*texts, *constraints.values()]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        names = ["source", *["references"] * len(references), *constraints]
        counts = (f"{count} in `{name}`" for name, count in zip(names, lengths, strict=True))
        raise argument_error(
            ("source", "references", "prefix", "required"),
            "have the same number of lines",
            received=str(", ".join(counts)),
        )
    rows = [row for row in zip(*columns, strict=True) if all(map(str.strip, row[: len(texts)]))]
    if not rows:
        raise argument_error(
            ("source", "references"),
            "have a line that is blank in none of them",
            received=f"{lengths[0]} lines",
        )
    if len(rows) < lengths[0]:
        print_message(f"Dropped {lengths[0] - len(rows)} of {lengths[0]} lines: one is blank.")
    used = [list(column) for column in zip(*rows, strict=True)]
    return used[: len(texts)], dict(zip(constraints, used[len(texts) :], strict=True))


def _translate_with_progress(engine: Any, texts: list[str], **options: Any) -> "list[Translation]":
    """Translate with a `Translator` or a Keras model, with a progress bar."""
    from keras_bahdanau_runtime.translator import Translation

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("translating", total=len(texts))
        translations: list[Translation] = engine.translate(
            texts,
            progress=lambda done: progress.update(task, completed=done),
            alignments=False,
            **options,
        )
        return translations
