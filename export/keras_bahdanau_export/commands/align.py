"""Command `align`: draw the attention weights of translated sentences."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau_export.commands.arguments import Artifact
from keras_bahdanau_export.commands.terminal import print_message
from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.translator import Translator


def align(
    artifact: Artifact,
    texts: Annotated[
        list[str], typer.Argument(help="Sentences, each in quotes, which are drawn side by side.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The picture: .png, .svg or .pdf, or an interactive .html page."
        ),
    ] = Path("alignment.png"),
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Draw the tokenizer's pieces instead of words.")
    ] = False,
    style: Annotated[
        str, typer.Option(help="light, or paper: as figure 3 of the paper, with white for 1.")
    ] = "light",
    columns: Annotated[int, typer.Option(help="Maximum number of sentences side by side.")] = 4,
) -> None:
    """Translate sentences and draw their alignments.

    An .html file is one self-contained page: pointing at a word highlights the source words that it
    was translated from. It shows words and pieces.

    Example:
        keras-bahdanau align artifact "a man on a bike" --output alignment.png
    """
    from keras_bahdanau_runtime.pictures.figures import check_style, check_suffix
    from keras_bahdanau_runtime.pictures.page import alignment_page
    from keras_bahdanau_runtime.pictures.plots import plot_alignments
    from keras_bahdanau_runtime.pictures.words import word_alignment

    check_style(style)
    check_positive(columns=columns)
    for text in texts:
        if not text.strip():
            raise ValueError(f"Argument `texts` must contain sentences. Received: {text!r}")
    is_page = output.suffix.lower() == ".html"
    if not is_page:
        check_suffix(output)
    elif pieces or style != "light":
        raise ValueError(
            "Arguments `pieces` and `style` must be left out for an .html file, which shows words "
            f"and pieces in one style. Received: {output}"
        )
    translations = Translator(artifact).translate(texts)
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
