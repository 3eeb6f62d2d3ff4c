"""Command `score`: log-probabilities of given translations, and their perplexity."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keras_bahdanau_cli.arguments import (
    ARTIFACT,
    SOURCE,
    TARGET,
    ModelImports,
    RunLimits,
    argument,
    output_path,
)
from keras_bahdanau_cli.doubtful import list_doubtful_pairs
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_cli.pairs import check_output, open_output, score_pairs
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.text.parallel import TextFormat

if TYPE_CHECKING:
    from keras_bahdanau_runtime.scoring import TargetScore


_DOUBTFUL_PAIRS = 100
_SKIPPED = "skipped, because the line does not have both sides or has another encoding"


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Files of the command, and the format of its output."""

    artifact: str = argument(ARTIFACT)
    source: Path = argument(SOURCE)
    target: Path | None = argument(TARGET, None)
    output: Path | None = output_path("File to write; standard output by default, or for -.", None)
    as_json: bool = option(
        False,
        "Print JSON lines with the total and each token with its log-probability.",
        flags="--json",
        panel="Output",
    )
    doubtful: bool = option(
        False,
        "List the pairs whose translations are probably wrong instead, the most doubtful first; "
        "also with a run, or several.",
        flags="--doubtful",
        panel="Output",
    )
    count: int | None = option(
        None, "Maximum number of doubtful pairs; 100 by default.", panel="Output"
    )
    share: float | None = option(
        None,
        "Instead of --count: the maximum share of the pairs to list, such as 0.04.",
        panel="Output",
    )

    def __post_init__(self) -> None:
        for name in ("count", "share"):
            value = getattr(self, name)
            if value is not None and not self.doubtful:
                raise argument_error(name, "be used with `doubtful`", received=str(value))
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
        return self.count or _DOUBTFUL_PAIRS


def score(
    options: ScoreOptions,
    imported: ModelImports,
    batches: BatchSizes,
    limits: RunLimits,
    text_format: TextFormat,
) -> None:
    """Print the log-probability of each translation of a file, and the perplexity of all.

    The log-probabilities are natural logarithms and include the end of each sentence. The
    perplexity per token goes to standard error. There is a line for each pair, in their order. A
    pair with a blank or too long side gives an empty line. It is reported on standard error, and
    the exit status is then 3. A line that --on-bad-line skips gives an empty line, too.

    With --doubtful, the command lists the pairs for which the model has a more probable answer. The
    list is sorted by the difference of the two log-probabilities. If a source has several lines,
    the translations of all of them are accepted as answers.

    Example:
        keras-bahdanau score artifact test.en test.de
    """
    if options.doubtful:
        list_doubtful_pairs(
            options.artifact,
            (options.source, options.target),
            options.output,
            options.limit,
            options.as_json,
            batches,
            limits,
            imported,
            text_format,
        )
        return
    imported.check(is_run=False)
    check_output(options.output)
    files = options.artifact, options.source, options.target
    pairs = score_pairs(*files, text_format, batches, limits, alignments=False)
    total, tokens, scored, failures = 0.0, 0, 0, 0
    with open_output(options.output) as file:
        for item in pairs:
            has_score = item is not None and item.error is None
            line = _json_line(item) if options.as_json else f"{item.total:.6f}" if has_score else ""
            file.write(f"{line}\n".encode())
            if has_score:
                total, tokens, scored = total + item.total, tokens + len(item.tokens), scored + 1
            elif item is not None:
                failures += 1
    if scored:
        value = math.exp(-total / tokens)
        print_message(f"Perplexity {value:.4f} (pairs: {scored:,}, tokens: {tokens:,})")
    if failures:
        raise IncompleteError(f"Pairs without a score: {failures}.")


def _json_line(item: "TargetScore | None") -> str:
    """Return a pair's score as one line of JSON; `None` is a skipped line."""
    error = _SKIPPED if item is None else item.error
    if item is None or error is not None:
        return json.dumps({"total": None, "error": error}, ensure_ascii=False)
    log_probs = [round(float(value), 6) for value in item.log_probs]
    document = {"total": round(item.total, 6), "tokens": item.tokens, "log_probs": log_probs}
    return json.dumps(document, ensure_ascii=False)
