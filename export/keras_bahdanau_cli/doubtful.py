"""List of the pairs whose targets are probably wrong, for `score --doubtful`."""

import json
from typing import TYPE_CHECKING

from rich.progress import Progress

from keras_bahdanau_cli.arguments import RunLimits
from keras_bahdanau_cli.pairs import open_output
from keras_bahdanau_cli.terminal import console, pair_sources, print_message
from keras_bahdanau_cli.text_models import check_model, open_model
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.errors import ArtifactError
from keras_bahdanau_runtime.text.parallel import TextFormat, list_pairs

if TYPE_CHECKING:
    from keras_bahdanau_cli.score import ScoreOptions
    from keras_bahdanau_runtime.bulk.doubtful_pairs import DoubtfulPair

_COUNT = 100
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
    options: "ScoreOptions", batches: BatchSizes, limits: RunLimits, text_format: TextFormat
) -> None:
    """Write the list of `score --doubtful`.

    A pair is doubtful if the model has another answer that is more probable than the translation.
    """
    from keras_bahdanau_runtime.bulk.doubtful_pairs import find_doubtful_pairs, most_doubtful

    check_model(options.artifact, limits, "artifact")
    pairs = list_pairs(*pair_sources(options.source, options.target), text_format)
    model = open_model(options.artifact, batches, limits)
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
        ranked = most_doubtful(doubtful, _limit(options, len(pairs)))
    with open_output(options.output) as file:
        if not options.as_json:
            file.write(("\t".join(_COLUMNS) + "\n").encode())
        for rank, pair in enumerate(ranked, start=1):
            file.write(f"{_line(rank, pair, options.as_json)}\n".encode())
    if failures:
        raise ArtifactError(f"Pairs that could not be compared: {failures}.")


def _limit(options: "ScoreOptions", pairs: int) -> int:
    """Return the maximum number of listed pairs for a number of pairs."""
    if options.share is not None:
        return max(1, round(options.share * pairs))
    return options.count or _COUNT


def _line(rank: int, pair: "DoubtfulPair", as_json: bool) -> str:
    """Return a pair as one line, without its line break."""
    values: dict[str, int | float | str] = {"rank": rank}
    for name in _COLUMNS[1:]:
        value = getattr(pair, name)
        values[name] = round(value, 4) if isinstance(value, float) else value
    if as_json:
        return json.dumps(values, ensure_ascii=False)
    # Tabs separate the columns of a source.
    return "\t".join(one_line(str(value)).replace("\t", " ") for value in values.values())
