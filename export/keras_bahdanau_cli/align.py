"""Command `align`: link the words of given translations, or draw attention weights."""

from dataclasses import asdict, dataclass
from pathlib import Path

from keras_bahdanau_cli.arguments import ARTIFACT, RunLimits, argument, output_path
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.pairs import check_output, open_output, score_pairs
from keras_bahdanau_cli.terminal import is_dash, print_message
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.text.parallel import TextFormat

_PICTURE = Path("alignment.png")


@dataclass(frozen=True, kw_only=True)
class AlignOptions:
    """Files of the command, the links, and the picture of `--draw`."""

    artifact: str = argument(ARTIFACT)
    inputs: list[str] = argument(
        "Source sentences and their translations line by line, two files; or a file with both "
        "sides. Plain or compressed; - is standard input. With --draw: sentences, each in quotes, "
        "which are translated and drawn side by side."
    )
    output: Path | None = output_path(
        "File for the links; standard output by default, or for -. With --draw the picture: .png, "
        ".svg or .pdf, or an interactive .html page; alignment.png by default.",
        None,
    )
    draw: bool = option(
        False, "Translate sentences and draw their attention weights.", flags="--draw"
    )
    copied: bool = option(
        False,
        "With --draw: draw which part of each token was copied, and from where, instead of the "
        "attention weights. For a model that copies.",
        flags="--copied",
    )
    pieces: bool = option(
        False, "Link or draw the tokenizer's pieces instead of words.", flags="--pieces"
    )
    threshold: float | None = option(
        None,
        "Link all words with at least this weight; by default each translated word has a link to "
        "the source word with the largest weight.",
    )
    style: str | None = option(
        None, "With --draw: light, or paper: as figure 3 of the paper, with white for 1."
    )
    columns: int | None = option(
        None, "With --draw: maximum number of sentences side by side; 4 by default."
    )


def align(
    options: AlignOptions, batches: BatchSizes, limits: RunLimits, text_format: TextFormat
) -> None:
    """Align the words of given translations, and write the links in Pharaoh format.

    A line such as 0-0 1-2 links the first word of the source to the first of the translation, and
    the second to the third. Words are separated by spaces. There is a line for each pair, in their
    order. A pair with a blank or too long side gives an empty line. It is reported on standard
    error, and the exit status is then 3. A line that --on-bad-line skips gives an empty line, too.

    With --draw, sentences are translated and their attention weights drawn. A sentence with one
    word at a side, such as a word and its phonemes, is drawn by its pieces. An .html file is one
    self-contained page: pointing at a word highlights the source words that it was translated from.
    It shows words and pieces. --copied draws what was copied instead.

    Example:
        keras-bahdanau align artifact test.en test.de --output links.txt
    """
    from keras_bahdanau_runtime.text.alignment import text_links, to_pharaoh

    inputs, threshold = options.inputs, options.threshold
    check_output(options.output)
    if options.draw:
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
        _draw(options, limits)
        return
    only_drawn = {"style": options.style, "columns": options.columns, "copied": options.copied}
    for name, value in only_drawn.items():
        if value:
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
    if threshold is not None:
        check_range("threshold", threshold, float, 0, 1, open_low=True)
    files = options.artifact, source, target
    scores = score_pairs(*files, text_format, batches, limits, alignments=True)
    failures = 0
    with open_output(options.output) as file:
        for score in scores:
            links = []
            if score is not None and score.alignment is not None:
                tokens = score.source_tokens, score.tokens
                links = text_links(score.alignment, *tokens, threshold, options.pieces)
            elif score is not None:
                failures += 1
            file.write(f"{to_pharaoh(links)}\n".encode())
    if failures:
        raise IncompleteError(f"Pairs without an alignment: {failures}.")


def _draw(options: AlignOptions, limits: RunLimits) -> None:
    """Translate sentences and draw their attention weights."""
    from keras_bahdanau_runtime.pictures.figures import check_style, check_suffix
    from keras_bahdanau_runtime.pictures.page import alignment_page
    from keras_bahdanau_runtime.pictures.plots import plot_alignments
    from keras_bahdanau_runtime.pictures.words import readable_alignment
    from keras_bahdanau_runtime.translator import Translator

    texts, output, pieces = options.inputs, options.output or _PICTURE, options.pieces
    style, columns = options.style or "light", 4 if options.columns is None else options.columns
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
    translator = Translator(artifact_folder(options.artifact), **asdict(limits))
    translations = translator.translate(texts)
    panels = [(item.alignment, item.source_tokens, item.tokens) for item in translations]
    if options.copied:
        scores = translator.score(texts, [item.text for item in translations])
        if any(score.copied is None for score in scores):
            raise argument_error(
                "copied",
                "be used with an artifact of a model that copies; an artifact of an older version "
                "must be exported again",
                received=options.artifact,
            )
        panels = [(score.copied, score.source_tokens, score.tokens) for score in scores]
    if is_page:
        alignment_page(panels, output)
    else:
        if not pieces:
            panels = [readable_alignment(*panel) for panel in panels]
        elif translator.require_tokenizer().target_unit == "symbols":
            # Each symbol begins with the space before it, which says nothing in a picture.
            panels = [
                (*panel[:2], [token.removeprefix(" ") for token in panel[2]]) for panel in panels
            ]
        scale = "copied share" if options.copied else "attention weight"
        plot_alignments(panels, output, style=style, columns=columns, scale=scale)
    for translation in translations:
        print(one_line(translation.text))
    subject = "alignment is" if len(texts) == 1 else "alignments are"
    print_message(f"The {subject} drawn in {output}.")
