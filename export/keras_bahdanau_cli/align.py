"""Command `align`: link the words of given translations, or draw attention weights."""

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
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.pairs import Megabytes, Timeout, open_output, score_pairs
from keras_bahdanau_cli.terminal import is_dash, print_message
from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import ArtifactError, argument_error
from keras_bahdanau_runtime.text.alignment import text_links, to_pharaoh
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.translator import Translator

_PICTURE = Path("alignment.png")


def align(
    artifact: Artifact,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Source sentences and their translations line by line, two files; or a file with "
            "both sides. Plain or compressed; - is standard input. With --draw: sentences, each in "
            "quotes, which are translated and drawn side by side."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File for the links; standard output by default, or for -. With --draw the "
            "picture: .png, .svg or .pdf, or an interactive .html page; alignment.png by default.",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Translate sentences and draw their attention weights.")
    ] = False,
    pieces: Annotated[
        bool,
        typer.Option("--pieces", help="Link or draw the tokenizer's pieces instead of words."),
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Link all words with at least this weight; by default each translated word has a "
            "link to the source word with the largest weight.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            help="With --draw: light, or paper: as figure 3 of the paper, with white for 1."
        ),
    ] = None,
    columns: Annotated[
        int | None,
        typer.Option(help="With --draw: maximum number of sentences side by side; 4 by default."),
    ] = None,
    batch_size: BatchSize = BATCH_SIZE,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    timeout: Timeout = None,
    megabytes: Megabytes = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    encoding: Encoding = "utf-8",
    on_bad_line: OnBadLine = "stop",
) -> None:
    """Align the words of given translations, and write the links in Pharaoh format.

    A line such as 0-0 1-2 links the first word of the source to the first of the translation, and
    the second to the third. Words are separated by spaces. There is a line for each pair, in their
    order. A pair with a blank or too long side gives an empty line. It is reported on standard
    error, and the exit status is then 1. A line that --on-bad-line skips gives an empty line, too.

    With --draw, sentences are translated and their attention weights drawn. An .html file is one
    self-contained page: pointing at a word highlights the source words that it was translated from.
    It shows words and pieces.

    Example:
        keras-bahdanau align artifact test.en test.de --output links.txt
    """
    limits = {"timeout": timeout, "megabytes": megabytes}
    text_format = TextFormat(source_column, target_column, encoding, on_bad_line)
    if draw:
        if threshold is not None:
            raise argument_error(
                "threshold",
                "be left out with --draw, which draws all weights",
                received=str(threshold),
            )
        if text_format != TextFormat():
            raise argument_error(
                ("source_column", "target_column", "encoding", "on_bad_line"),
                "be left out with --draw, which reads no file",
                received=str(text_format),
            )
        style, columns = style or "light", 4 if columns is None else columns
        _draw(artifact, inputs, output or _PICTURE, pieces, style, columns, **limits)
        return
    for name, value in {"style": style, "columns": columns}.items():
        if value is not None:
            raise argument_error(name, "be used with --draw", received=str(value))
    source, target = Path(inputs[0]), Path(inputs[1]) if len(inputs) > 1 else None
    is_sentence = target is None and not (is_dash(source) or source.exists())
    if len(inputs) > 2 or is_sentence:
        raise argument_error(
            "inputs",
            "be two files, of source sentences and of their translations, or a file with both "
            "sides; add --draw to translate and draw sentences",
            received=str(inputs),
        )
    check_positive(batch_size=batch_size, batch_tokens=batch_tokens)
    if threshold is not None:
        check_range("threshold", threshold, float, 0, 1, open_low=True)
    scores = score_pairs(
        artifact,
        source,
        target,
        text_format,
        alignments=True,
        batch_size=batch_size,
        batch_tokens=batch_tokens,
        **limits,
    )
    failures = 0
    with open_output(output) as file:
        for score in scores:
            links = []
            if score is not None and score.alignment is not None:
                tokens = score.source_tokens, score.tokens
                links = text_links(score.alignment, *tokens, threshold, pieces)
            elif score is not None:
                failures += 1
            file.write(f"{to_pharaoh(links)}\n".encode())
    if failures:
        raise ArtifactError(f"Pairs without an alignment: {failures}.")


def _draw(
    artifact: str,
    texts: list[str],
    output: Path,
    pieces: bool,
    style: str,
    columns: int,
    **limits: float | None,
) -> None:
    """Translate sentences and draw their attention weights; arguments as for `align`."""
    from keras_bahdanau_runtime.pictures.figures import check_style, check_suffix
    from keras_bahdanau_runtime.pictures.page import alignment_page
    from keras_bahdanau_runtime.pictures.plots import plot_alignments
    from keras_bahdanau_runtime.pictures.words import word_alignment

    check_style(style)
    check_positive(columns=columns)
    for text in texts:
        if not text.strip():
            raise argument_error("inputs", "contain sentences", text)
    is_page = output.suffix.lower() == ".html"
    if not is_page:
        check_suffix(output)
    elif pieces or style != "light":
        raise argument_error(
            ("pieces", "style"),
            "be left out for an .html file, which shows words and pieces in one style",
            received=str(output),
        )
    translations = Translator(artifact_folder(artifact), **limits).translate(texts)
    panels = [(item.alignment, item.source_tokens, item.tokens) for item in translations]
    if is_page:
        alignment_page(panels, output)
    else:
        panels = panels if pieces else [word_alignment(*panel) for panel in panels]
        plot_alignments(panels, output, style=style, columns=columns)
    for translation in translations:
        print(one_line(translation.text))
    subject = "alignment is" if len(texts) == 1 else "alignments are"
    print_message(f"The {subject} drawn in {output}.")
