"""Command `shortlist`: learn the likely target ids of each source id from a run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from keras_bahdanau.run_folder import best_file
from keras_bahdanau_cli.arguments import (
    Encoding,
    OnBadLine,
    Run,
    SourceColumn,
    TargetColumn,
)
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import console, pair_sources, print_message
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import SPECIAL


def shortlist(
    run: Run,
    source: Annotated[
        Path,
        typer.Argument(
            help="Source sentences, as of training, or a file with both sides; - is standard input."
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(help="Their translations, line by line; none if the source has both sides."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, .npz.")] = Path(
        "shortlist.npz"
    ),
    size: Annotated[int, typer.Option(help="Number of target ids for a batch.")] = 2048,
    candidates: Annotated[
        int, typer.Option(help="Maximum number of target ids for a source id.")
    ] = 50,
    sentences: Annotated[int, typer.Option(help="Maximum number of pairs to align.")] = 100_000,
    alignments: Annotated[
        Path | None,
        typer.Option(help="Token alignments in Pharaoh format, instead of the model's attention."),
    ] = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    encoding: Encoding = "utf-8",
    on_bad_line: OnBadLine = "stop",
) -> None:
    """Learn a vocabulary shortlist from the attention of the best model of a run.

    Example:
        keras-bahdanau shortlist run train.en train.de --output shortlist.npz
    """
    from keras_bahdanau_runtime.text.corpus import read_alignments
    from keras_bahdanau_runtime.text.parallel import TextFormat, read_parallel

    text_format = TextFormat(source_column, target_column, encoding, on_bad_line)
    check_range("size", size, int, 2 * len(SPECIAL))
    check_positive(candidates=candidates, sentences=sentences)
    best_file(run)  # checks that it is a run
    if output.is_dir():
        raise argument_error("output", "be a file", received=f"{output}, a folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    texts = read_parallel(*pair_sources(source, target), text_format)
    links = None if alignments is None else read_alignments(alignments)
    if links is not None and len(links) != len(texts[0]):
        raise argument_error(
            "alignments",
            f"have one line for each of {len(texts[0])} pairs, except pairs with a blank side",
            received=str(len(links)),
        )
    texts, links = [side[:sentences] for side in texts], links and links[:sentences]
    import_keras(tensorflow=False)
    from keras_bahdanau.models import Shortlist
    from keras_bahdanau.training.run import load_best

    model = load_best(run)
    encode = model.tokenizer.encode_sources, model.tokenizer.encode_targets
    sources, targets = (to_ids(side) for to_ids, side in zip(encode, texts, strict=True))
    size = min(size, model.target_vocabulary_size)
    if links is not None:
        sizes = model.source_vocabulary_size, model.target_vocabulary_size
        pairs = zip(sources, targets, links, strict=True)
        Shortlist.from_links(pairs, *sizes, size, candidates).save(output)
        _print_usage(output)
        return
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("aligning", total=len(sources))
        Shortlist.learned(
            model,
            sources,
            targets,
            size,
            candidates,
            progress=lambda done: bar.update(task, completed=done),
        ).save(output)
    _print_usage(output)


def _print_usage(output: Path) -> None:
    flag = f"--shortlist {shlex.quote(str(output))}"
    print_message(f"The shortlist is {output}. Use it with `keras-bahdanau export {flag}`.")
