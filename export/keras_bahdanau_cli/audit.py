"""Command `audit`: list the pairs whose targets are probably wrong."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from keras_bahdanau_cli.arguments import SOURCE, TARGET, RunLimits, argument, output_path
from keras_bahdanau_cli.pairs import open_output
from keras_bahdanau_cli.terminal import console, pair_sources, print_message
from keras_bahdanau_cli.text_models import MODEL, check_model, open_model
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import ArtifactError, argument_error
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.text.parallel import TextFormat, list_pairs

if TYPE_CHECKING:
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


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """A model, the pairs to check, and the list."""

    model: str = argument(MODEL)
    source: Path = argument(SOURCE)
    target: Path | None = argument(TARGET, None)
    output: Path | None = output_path("File to write; standard output by default, or for -.", None)
    count: int | None = option(
        None, "Maximum number of pairs to list; 100 by default.", panel="Output"
    )
    share: float | None = option(
        None,
        "Instead of --count: the maximum share of the pairs to list, such as 0.04.",
        panel="Output",
    )
    as_json: bool = option(
        False, "Print JSON lines instead of tab-separated text.", flags="--json", panel="Output"
    )

    def __post_init__(self) -> None:
        if self.count is not None:
            check_positive(count=self.count)
        if self.share is not None:
            check_range("share", self.share, float, 0, 1, open_low=True)
            if self.count is not None:
                raise argument_error(
                    ("count", "share"),
                    "not be passed together",
                    received=f"{self.count} and {self.share}",
                )

    def limit(self, pairs: int) -> int:
        """Return the maximum number of listed pairs for a number of pairs."""
        if self.share is not None:
            return max(1, round(self.share * pairs))
        return self.count or _COUNT


def audit(
    options: AuditOptions, batches: BatchSizes, limits: RunLimits, text_format: TextFormat
) -> None:
    """List the pairs of a file whose translations are probably wrong, the most doubtful first.

    A pair is doubtful if the model has another answer that is more probable than the translation.
    The list is sorted by the difference of the two log-probabilities, natural logarithms. If a
    source has several lines, the translations of all of them are accepted as answers. A pair that
    cannot be compared is reported on standard error, and the exit status is then 1.

    Example:
        keras-bahdanau audit artifact train.en train.de --output doubtful.tsv
    """
    from keras_bahdanau_runtime.bulk.doubtful_pairs import find_doubtful_pairs, most_doubtful

    check_model(options.model, limits)
    pairs = list_pairs(*pair_sources(options.source, options.target), text_format)
    model = open_model(options.model, batches, limits)
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
        ranked = most_doubtful(doubtful, options.limit(len(pairs)))
    with open_output(options.output) as file:
        if not options.as_json:
            file.write(("\t".join(_COLUMNS) + "\n").encode())
        for rank, pair in enumerate(ranked, start=1):
            file.write(f"{_line(rank, pair, options.as_json)}\n".encode())
    if failures:
        raise ArtifactError(f"Pairs that could not be compared: {failures}.")


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
