"""Command `score`: log-probabilities of given translations, and their perplexity."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau_cli.arguments import (
    Artifact,
    BatchSize,
    BatchTokens,
    Encoding,
    OnBadLine,
    SourceColumn,
    TargetColumn,
)
from keras_bahdanau_cli.pairs import Megabytes, Timeout, open_output, score_pairs
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArtifactError
from keras_bahdanau_runtime.scoring import TargetScore
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS

_SKIPPED = "skipped, because the line does not have both sides or has another encoding"


def score(
    artifact: Artifact,
    source: Annotated[
        Path,
        typer.Argument(
            help="Source sentences, or a file with both sides, plain or compressed; - is standard "
            "input."
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(help="Their translations, line by line; none if the source has both sides."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; standard output by default, or for -."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON lines with the total and each token with its log-probability.",
            rich_help_panel="Output",
        ),
    ] = False,
    batch_size: BatchSize = BATCH_SIZE,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    timeout: Timeout = None,
    megabytes: Megabytes = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    encoding: Encoding = "utf-8",
    on_bad_line: OnBadLine = "stop",
) -> None:
    """Print the log-probability of each translation of a file, and the perplexity of all.

    The log-probabilities are natural logarithms and include the end of each sentence. The
    perplexity per token goes to standard error. There is a line for each pair, in their order. A
    pair with a blank or too long side gives an empty line. It is reported on standard error, and
    the exit status is then 1. A line that --on-bad-line skips gives an empty line, too.

    Example:
        keras-bahdanau score artifact test.en test.de
    """
    check_positive(batch_size=batch_size, batch_tokens=batch_tokens)
    text_format = TextFormat(source_column, target_column, encoding, on_bad_line)
    pairs = score_pairs(
        artifact,
        source,
        target,
        text_format,
        alignments=False,
        batch_size=batch_size,
        batch_tokens=batch_tokens,
        timeout=timeout,
        megabytes=megabytes,
    )
    total, tokens, scored, failures = 0.0, 0, 0, 0
    with open_output(output) as file:
        for item in pairs:
            has_score = item is not None and item.error is None
            line = _json_line(item) if as_json else f"{item.total:.6f}" if has_score else ""
            file.write(f"{line}\n".encode())
            if has_score:
                total, tokens, scored = total + item.total, tokens + len(item.tokens), scored + 1
            elif item is not None:
                failures += 1
    if scored:
        value = math.exp(-total / tokens)
        print_message(f"Perplexity {value:.4f} (pairs: {scored:,}, tokens: {tokens:,})")
    if failures:
        raise ArtifactError(f"Pairs without a score: {failures}.")


def _json_line(item: TargetScore | None) -> str:
    """Return a pair's score as one line of JSON; `None` is a skipped line."""
    error = _SKIPPED if item is None else item.error
    if item is None or error is not None:
        return json.dumps({"total": None, "error": error}, ensure_ascii=False)
    log_probs = [round(float(value), 6) for value in item.log_probs]
    document = {"total": round(item.total, 6), "tokens": item.tokens, "log_probs": log_probs}
    return json.dumps(document, ensure_ascii=False)
