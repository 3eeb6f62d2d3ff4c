"""Command `prepare`: encode text files of any size as a corpus for training."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from keras_bahdanau.data.options import PrepareOptions
from keras_bahdanau_cli.arguments import argument, output_path
from keras_bahdanau_cli.choices_table import choices_table
from keras_bahdanau_cli.exit_status import INTERRUPTED
from keras_bahdanau_cli.flags import Values
from keras_bahdanau_cli.terminal import console, copied_standard_input, print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.text.parallel import TextFormat


@dataclass(frozen=True, kw_only=True)
class PreparedFiles:
    """Files of a corpus, and its folder."""

    texts: list[Path] = argument(
        "Files of source sentences, then as many files of translations; or, with --pairs, files "
        "with both sides. Plain, .gz, .bz2, .xz or .zst; a quoted pattern such as 'part*.tsv' "
        "selects all matching files, and - is standard input."
    )
    output: Path = output_path("Folder of the corpus: new, or of an interrupted command.")
    pairs: bool = option(
        False,
        "Each file has both sides: tab-separated text, .csv, .jsonl, .parquet or .tmx.",
        flags="--pairs",
        panel="Data",
    )
    alignments: list[Path] | None = option(
        None, "Token alignments in Pharaoh format, one file per pair of files.", panel="Data"
    )


def prepare(files: PreparedFiles, text_format: TextFormat, options: Values[PrepareOptions]) -> None:
    r"""Encode parallel text once, as shuffled shards that training maps into memory.

    After an interruption the same command continues. Pairs with an empty side are always dropped.
    The numbers of dropped pairs are printed, and saved in the manifest.json of the corpus.

    Example:
        keras-bahdanau prepare part1.en.gz part2.en.gz part1.de.gz part2.de.gz \
            --output corpus
    """
    from keras_bahdanau.data.corpus import PreparedCorpus
    from keras_bahdanau.data.preparation import prepare as prepare_corpus

    texts, output = files.texts, files.output
    half = len(texts) // 2
    if len(texts) % 2 and not files.pairs:
        raise argument_error(
            "texts",
            "contain as many files of translations as of sources, or files with both sides "
            "and --pairs",
            received=f"{len(texts)} files",
        )
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with (
        copied_standard_input("texts", texts, output) as copied,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("reading", total=None)
        try:
            prepare_corpus(
                copied if files.pairs else copied[:half],
                None if files.pairs else copied[half:],
                output,
                alignments=files.alignments,
                progress=lambda stage, done, total: bar.update(
                    task, description=stage, completed=done, total=total
                ),
                on_choices=lambda choices: console.print(choices_table(choices)),
                text_format=text_format,
                **options,
            )
        except KeyboardInterrupt:
            print_message(f"Interrupted. Run the same command again to continue in {output}.")
            sys.exit(INTERRUPTED)
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
