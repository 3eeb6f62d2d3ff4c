"""Command `prepare`: encode text files of any size as a corpus for training."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.data.preparation import prepare as prepare_corpus
from keras_bahdanau_cli.arguments import (
    Encoding,
    OnBadLine,
    SourceColumn,
    TargetColumn,
)
from keras_bahdanau_cli.terminal import console, copied_standard_input, print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.text.tokenizer import KINDS, Tokenizer


def prepare(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="Files of source sentences, then as many files of translations; or, with --pairs, "
            "files with both sides. Plain, .gz, .bz2, .xz or .zst; a quoted pattern such as "
            "'part*.tsv' selects all matching files, and - is standard input."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder of the corpus: new, or of an interrupted command."
        ),
    ],
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Each file has both sides: tab-separated text, .csv, .jsonl, .parquet or .tmx.",
            rich_help_panel="Data",
        ),
    ] = False,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    encoding: Encoding = "utf-8",
    on_bad_line: OnBadLine = "stop",
    filter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Drop and count pairs: length=MIN:MAX in characters, ratio=LIMIT of the lengths, "
            "identical sides, duplicate pairs, or other scripts than script=SOURCE:TARGET, such as "
            "script=latin:cyrillic. May be repeated.",
            rich_help_panel="Data",
        ),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="Kind of pieces to learn: bpe, words, characters or bytes; or a file: a "
            "tokenizer.json of this package or of Hugging Face, or a .model of SentencePiece.",
            rich_help_panel="Data",
        ),
    ] = "bpe",
    alignments: Annotated[
        list[Path] | None,
        typer.Option(
            help="Token alignments in Pharaoh format, one file per pair of files.",
            rich_help_panel="Data",
        ),
    ] = None,
    vocabulary_size: Annotated[
        int, typer.Option(help="Maximum number of learned pieces.", rich_help_panel="Data")
    ] = 8000,
    joint: Annotated[
        bool,
        typer.Option(
            "--joint/--separate",
            help="One vocabulary for both languages, or two.",
            rich_help_panel="Data",
        ),
    ] = True,
    normalization: Annotated[
        str,
        typer.Option(
            help="Unicode normalization by the tokenizer: nfc, nfkc or none.",
            rich_help_panel="Data",
        ),
    ] = "none",
    sample: Annotated[
        int,
        typer.Option(
            help="Number of pairs that the pieces are learned from.", rich_help_panel="Data"
        ),
    ] = 100_000,
    shard_pairs: Annotated[
        int, typer.Option(help="Approximate number of pairs in a shard.", rich_help_panel="System")
    ] = 250_000,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Maximum tokens of a sentence; no limit by default.", rich_help_panel="Data"
        ),
    ] = None,
    too_long: Annotated[
        str,
        typer.Option(
            help="What to do with a pair above that limit: cut or drop.", rich_help_panel="Data"
        ),
    ] = "cut",
    seed: Annotated[
        int, typer.Option(help="Seed of the sample and the order.", rich_help_panel="System")
    ] = 0,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of encoding processes; one per core by default.", rich_help_panel="System"
        ),
    ] = None,
) -> None:
    r"""Encode parallel text once, as shuffled shards that training maps into memory.

    After an interruption the same command continues. Pairs with an empty side are always dropped.
    The numbers of dropped pairs are printed, and saved in the manifest.json of the corpus.

    Example:
        keras-bahdanau prepare part1.en.gz part2.en.gz part1.de.gz part2.de.gz \
            --output corpus
    """
    text_format = TextFormat(source_column, target_column, encoding, on_bad_line)
    half = len(texts) // 2
    if len(texts) % 2 and not pairs:
        raise argument_error(
            "texts",
            "contain as many files of translations as of sources, or files with both sides "
            "and --pairs",
            received=f"{len(texts)} files",
        )
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with (
        copied_standard_input("texts", texts, output) as files,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("reading", total=None)
        try:
            prepare_corpus(
                files if pairs else files[:half],
                None if pairs else files[half:],
                output,
                None if tokenizer in KINDS else Tokenizer.load(tokenizer),
                alignments,
                vocabulary_size=vocabulary_size,
                joint=joint,
                sample=sample,
                normalization=None if normalization == "none" else normalization,
                shard_pairs=shard_pairs,
                max_length=max_length,
                too_long=too_long,
                seed=seed,
                processes=processes,
                progress=lambda stage, done, total: bar.update(
                    task, description=stage, completed=done, total=total
                ),
                text_format=text_format,
                filter=filter or (),
                kind=tokenizer if tokenizer in KINDS else "bpe",
            )
        except KeyboardInterrupt:
            print_message(f"Interrupted. Run the same command again to continue in {output}.")
            raise typer.Exit(130) from None
    corpus = PreparedCorpus(output)
    for line in filter_report(corpus.manifest):
        print_message(line)
    print_message(
        f"The corpus is {output}: {corpus.pairs:,} pairs, {corpus.source_tokens:,} source and "
        f"{corpus.tokens:,} target tokens in {len(corpus.sizes)} shards."
    )


def filter_report(manifest: dict[str, Any]) -> list[str]:
    """Return the lines of a table of the pairs that each rule dropped; none without rules."""
    counts = manifest.get("filtered")
    if not counts:
        return []
    dropped = sum(counts.values())
    pairs = dropped + sum(manifest["shards"])
    pairs += manifest["blank"] + manifest["bad"] + manifest["dropped"]
    width = max(map(len, counts))
    return [
        f"Dropped {dropped:,} of {pairs:,} pairs by rules:",
        *(f"  {rule:<{width}} {count:>11,}" for rule, count in counts.items()),
    ]
