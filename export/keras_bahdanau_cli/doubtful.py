"""List of the pairs whose targets are probably wrong, for `score --doubtful`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from keras_bahdanau_cli.arguments import ModelImports, RunLimits
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_cli.pairs import check_output, open_output
from keras_bahdanau_cli.terminal import console, pair_sources, print_message
from keras_bahdanau_cli.text_models import check_model, open_model
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.records import one_cell
from keras_bahdanau_runtime.text.parallel import TextFormat, list_pairs

if TYPE_CHECKING:
    from keras_bahdanau_runtime.bulk.doubtful_pairs import DoubtfulPair

_COLUMNS = (
    "rank",
    "line",
    "difference",
    "target_log_prob",
    "target_log_prob_per_token",
    "answer_log_prob",
    "source",
    "target",
    "answer",
)


def list_doubtful_pairs(
    path: str,
    files: tuple[Path, Path | None],
    output: Path | None,
    limit: Callable[[int], int],
    as_json: bool,
    batches: BatchSizes,
    limits: RunLimits,
    imported: ModelImports,
    text_format: TextFormat,
) -> None:
    """Write the list of `score --doubtful`.

    A pair is doubtful if the model has another answer that is more probable than the translation.

    Args:
        path: Artifact or run.
        files: Sources and translations; `None` for a file with both sides.
        output: File to write; `None` for standard output.
        limit: Function from the number of pairs to the largest number of listed ones.
        as_json: Whether to write JSON lines instead of tab-separated text.
        batches: Sizes of batches.
        limits: Limits of the runs of a graph.
        imported: Modules with classes of the models of a run.
        text_format: Format of the files.
    """
    from keras_bahdanau_runtime.bulk.doubtful_pairs import find_doubtful_pairs, most_doubtful

    check_model(path, limits, imported, "artifact")
    check_output(output)
    pairs = list_pairs(*pair_sources(*files), text_format)
    model = open_model(path, batches, limits, imported)
    text_format.check_columns(model.tokenizer.has_columns)
    failures = 0

    def report_failure(line: int, reason: str) -> None:
        nonlocal failures
        failures += 1
        print_message(f"line {line}: {reason}")

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("comparing", total=len(pairs))
        doubtful = find_doubtful_pairs(
            pairs, model, report_failure, lambda done: progress.update(task, completed=done)
        )
        ranked = most_doubtful(doubtful, limit(len(pairs)))
    with open_output(output) as file:
        if not as_json:
            file.write(("\t".join(_COLUMNS) + "\n").encode())
        for rank, pair in enumerate(ranked, start=1):
            file.write(f"{_line(rank, pair, as_json)}\n".encode())
    if failures:
        raise IncompleteError(f"Pairs that could not be compared: {failures}.")


def _line(rank: int, pair: "DoubtfulPair", as_json: bool) -> str:
    """Return a pair as one line, without its line break."""
    values: dict[str, int | float | str] = {"rank": rank}
    for name in _COLUMNS[1:]:
        value = getattr(pair, name)
        values[name] = round(value, 4) if isinstance(value, float) else value
    if as_json:
        return json.dumps(values, ensure_ascii=False)
    return "\t".join(one_cell(str(value)) for value in values.values())
