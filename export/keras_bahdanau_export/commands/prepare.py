"""The command `prepare`: from text files of any size to a corpus for training."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from keras_bahdanau_export.commands.shown import console, say
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare as prepare_corpus
from keras_bahdanau_runtime.text.tokenizer import Tokenizer


def prepare(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="Files of source sentences, then as many of their translations; plain or .gz."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The corpus's folder, new or of an interrupted command."
        ),
    ],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json to encode by; learned if absent.")
    ] = None,
    alignments: Annotated[
        list[Path] | None,
        typer.Option(
            help="Alignments of the tokenizer's tokens in Pharaoh format, for each pair of files."
        ),
    ] = None,
    vocabulary_size: Annotated[int, typer.Option(help="Most pieces that are learned.")] = 8000,
    joint: Annotated[
        bool, typer.Option("--joint/--separate", help="One vocabulary for both languages, or two.")
    ] = True,
    normalization: Annotated[
        str | None,
        typer.Option(
            help="Unicode form that the tokenizer brings all text into: nfc or nfkc; none if "
            "absent."
        ),
    ] = None,
    sample: Annotated[int, typer.Option(help="Pairs that the pieces are learned from.")] = 100_000,
    shard_pairs: Annotated[int, typer.Option(help="Pairs of a shard, about.")] = 250_000,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a sentence; no limit if absent.")
    ] = None,
    too_long: Annotated[
        str, typer.Option(help="What becomes of a pair with a longer one: cut or drop.")
    ] = "cut",
    seed: Annotated[int, typer.Option(help="Randomness of sample and order.")] = 0,
    processes: Annotated[
        int | None, typer.Option(help="Processes that encode; one for each core if absent.")
    ] = None,
) -> None:
    """Encodes parallel text once, into shuffled shards that training maps into memory.

    Interrupted, it goes on where it was when the same command is given again.
    """
    half = len(texts) // 2
    if len(texts) % 2:
        raise ValueError(
            "Argument `texts` must hold as many files of translations as of sources. "
            f"Received: {len(texts)} files"
        )
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("reading", total=None)
        try:
            prepare_corpus(
                texts[:half],
                texts[half:],
                output,
                None if tokenizer is None else Tokenizer.load(tokenizer),
                alignments,
                vocabulary_size=vocabulary_size,
                joint=joint,
                sample=sample,
                normalization=normalization,
                shard_pairs=shard_pairs,
                max_length=max_length,
                too_long=too_long,
                seed=seed,
                processes=processes,
                progress=lambda stage, done, total: bar.update(
                    task, description=stage, completed=done, total=total
                ),
            )
        except KeyboardInterrupt:
            say(f"Interrupted. Give the same command again to go on in {output}.")
            raise typer.Exit(130) from None
    corpus = PreparedCorpus(output)
    say(
        f"The corpus is {output}: {corpus.pairs:,} pairs, {corpus.source_tokens:,} source and "
        f"{corpus.tokens:,} target tokens in {len(corpus.sizes)} shards."
    )
