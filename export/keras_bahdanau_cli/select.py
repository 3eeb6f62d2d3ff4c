"""Command `select`: list the sources that a person should translate next."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from keras_bahdanau_cli.arguments import ModelImports, RunLimits, argument, output_path
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_cli.pairs import check_output, open_output
from keras_bahdanau_cli.terminal import console, print_message, text_source
from keras_bahdanau_cli.text_models import MODEL, check_model, open_model
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.records import Lines, is_text, one_cell
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option

_MAX_COUNT = 10_000  # each source is compared with those that are listed before it


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """A model, sources without translations, and the list."""

    model: str = argument(MODEL)
    source: Path = argument(
        "UTF-8 text with one source sentence a line, plain or compressed; - is standard input."
    )
    output: Path | None = output_path("File to write; standard output by default, or for -.", None)
    count: int = option(100, f"Number of sources to list, at most {_MAX_COUNT:,}.", panel="Output")
    similarity: float = option(
        0.8,
        "Leave out a source that has at least this share of its characters in common with one "
        "listed before it; 1 keeps all different sources.",
        panel="Output",
    )
    as_json: bool = option(
        False, "Print JSON lines instead of tab-separated text.", flags="--json", panel="Output"
    )

    def __post_init__(self) -> None:
        check_range("count", self.count, int, 1, _MAX_COUNT)
        check_range("similarity", self.similarity, float, 0, 1, open_low=True)


def select(
    options: SelectOptions, imported: ModelImports, batches: BatchSizes, limits: RunLimits
) -> None:
    """List the sources whose answers have the lowest confidence, for a person to translate.

    Near duplicates are left out. A line has the source, the answer of the model and its confidence,
    separated by tabs. Correct the answers, and train with the columns of sources and answers. A
    source that cannot be translated is reported on standard error, and the exit status is then 3.

    Example:
        keras-bahdanau select artifact unlabeled.txt --output selected.tsv
    """
    from keras_bahdanau_runtime.bulk.selection import find_candidates, select_candidates

    check_model(options.model, limits, imported)
    check_output(options.output)
    source = text_source(options.source)
    if not is_text(source):
        raise argument_error(
            "source", "be a file with one sentence per line", received=str(options.source)
        )
    failures = 0

    def report_failure(line: int, reason: str) -> None:
        nonlocal failures
        failures += 1
        print_message(f"line {line}: {reason}")

    lines = []
    for number, row in enumerate(Lines(source).rows(), start=1):
        if row.error is None:
            lines.append((number, row.text))
        else:
            report_failure(number, row.error)
    model = open_model(options.model, batches, limits, imported)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("translating", total=len(lines))
        candidates = find_candidates(
            lines, model, report_failure, lambda done: progress.update(task, completed=done)
        )
        selected = select_candidates(candidates, options.count, options.similarity)
    with open_output(options.output) as file:
        for item in selected:
            values = {
                "line": item.line,
                "source": item.source,
                "answer": item.answer,
                "confidence": round(item.confidence, 6),
            }
            source_cell = item.source if model.tokenizer.has_columns else one_cell(item.source)
            columns = (source_cell, one_cell(item.answer), f"{item.confidence:.6f}")
            line = json.dumps(values, ensure_ascii=False) if options.as_json else "\t".join(columns)
            file.write(f"{line}\n".encode())
    if failures:
        raise IncompleteError(f"Sources without a translation: {failures}.")
