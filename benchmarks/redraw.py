"""Draw the pictures whose numbers are in tables of the documentation, without measuring again.

`python benchmarks/redraw.py docs/pictures` reads the tables and writes three pictures:

  memory.png          benchmarks/README.md, "Preparing a large corpus" and "Reading a large corpus"
  transformer.png     benchmarks/README.md, "A transformer in CTranslate2"
  paper-figure2.png   examples/paper/README.md, BLEU by source length
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def table(page, first_cell, heading=""):
    """Return a table of a Markdown file as a list of rows, each a dict from header to cell.

    Args:
        page: Path of the file, relative to the root.
        first_cell: First cell of the header row. The first such table after the heading is read.
        heading: A line of the file; empty for its start.
    """
    text = (ROOT / page).read_text("utf-8")
    header, rows = None, []
    for line in text[text.index(heading) :].splitlines():
        cells = [cell.strip() for cell in line.removesuffix("|").split("|")[1:]]
        if header is None:
            header = cells if line.startswith("|") and cells[0] == first_cell else None
        elif not line.startswith("|"):
            break
        else:
            rows.append(dict(zip(header, cells, strict=True)))
    return rows[1:]  # the first is the line below the header


def memory_by_pairs(heading, column):
    """Return a dict from number of pairs to MB, from a table of the benchmarks."""
    rows = table("benchmarks/README.md", "pairs", heading)
    # Remarks and targets follow in parentheses.
    pairs = [int(row["pairs"].split(" (")[0].replace(",", "")) for row in rows]
    memory = [float(row[column].split(" (")[0]) for row in rows]
    return dict(zip(pairs, memory, strict=True))


def transformers():
    """Return the speeds and scores of models that are trained, as `compare_transformer.draw`."""
    page, heading = "benchmarks/README.md", "## A transformer in CTranslate2"
    speeds = {
        row["model"]: float(row["sentences per CPU s"].replace(",", ""))
        for row in table(page, "model", heading)
        if row["outputs"] == "own"
    }
    scores = {
        row[""].removesuffix(", beam 5"): float(row["test_2016_flickr"].split(",")[0])
        for row in table(page, "", heading)
    }
    del scores["transformer of 256 units, int8"]  # not trained to the end
    return {name.replace("`", ""): (speeds[name], bleu) for name, bleu in scores.items()}


def bleu_by_length():
    """Return the scores of the paper's models in the form that `draw_lengths` expects."""
    scores = {}
    for row in table("examples/paper/README.md", "source words"):
        name = row.pop("source words")
        scores[name] = {"by_length": {label: {"bleu": float(row[label])} for label in row}}
    return scores


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    folder = parser.parse_args(arguments).folder
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples" / "paper")]
    import bench_large_corpus
    import compare_transformer
    import figures

    prepare = memory_by_pairs("## Preparing a large corpus", "MB")
    loader = memory_by_pairs("## Reading a large corpus", "MB beyond imports")
    bench_large_corpus.draw(prepare, loader, folder / "memory.png")
    compare_transformer.draw(transformers(), folder / "transformer.png")
    figures.draw_lengths(bleu_by_length(), folder / "paper-figure2.png")


if __name__ == "__main__":
    main()
