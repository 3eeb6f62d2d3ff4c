"""Fill the tables of the small tasks in the documentation, and draw the curve of their errors.

    python benchmarks/draw_small_tasks.py runs/small-tasks
    python benchmarks/draw_small_tasks.py runs/small-tasks --set dev --print

The folder is the output of `bench_small_tasks.py`. Its rows without further flags become the tables
between `<!-- small tasks: NAME -->` and `<!-- end of small tasks -->` on these pages:

  summary           docs/get-started/what-do-you-have.md, with docs/pictures/small-tasks.svg
  pronunciation     docs/gallery/pronunciation.md and benchmarks/README.md
  inflection        docs/gallery/inflection.md and benchmarks/README.md
  picture           docs/pictures/README.md, the command of the curve

The rows and the set are kept in benchmarks/small_tasks.json.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

from bench_small_tasks import GROUPS, INFLECTION, ROOT

RESULTS = ROOT / "benchmarks" / "small_tasks.json"
CURVE = ROOT / "docs" / "pictures" / "small-tasks.svg"
PAGES = (
    "docs/get-started/what-do-you-have.md",
    "docs/gallery/pronunciation.md",
    "docs/gallery/inflection.md",
    "docs/pictures/README.md",
    "benchmarks/README.md",
)
LANGUAGES = {
    "bul": "Bulgarian", "geo": "Georgian", "hbs_latn": "Serbo-Croatian", "hun": "Hungarian",
    "jpn_hira": "Japanese", "kor": "Korean", "vie_hanoi": "Vietnamese", "eng_us": "English",
    "ady": "Adyghe", "gre": "Greek", "ice": "Icelandic", "ita": "Italian", "khm": "Khmer",
    **{language: language.capitalize() for language in INFLECTION},
}  # fmt: skip
# Word error rates in percent on the test sets: the baselines of the shared tasks. That of 2021 is
# an ensemble of ten; that of 2018 is made of rules.
BASELINES = {
    "bul": 18.3, "geo": 0.0, "hbs_latn": 32.1, "hun": 1.8, "jpn_hira": 5.2, "kor": 16.3,
    "vie_hanoi": 2.5, "eng_us": 41.94, "ady": 22, "gre": 21, "ice": 12, "ita": 19, "khm": 34,
    "finnish-high": 22.0, "georgian-high": 6.1, "spanish-high": 7.6, "turkish-high": 26.8,
    "finnish-medium": 55.9, "georgian-medium": 7.9, "spanish-medium": 13.7, "turkish-medium": 67.2,
}  # fmt: skip
SUMMARIES = {
    "pronunciation of words": GROUPS["medium"],
    "pronunciation of English words": ["eng_us"],
    "pronunciation of words, few pairs": GROUPS["low"],
    "inflection": GROUPS["inflection-high"],
    "inflection, few pairs": GROUPS["inflection-medium"],
}
# For readers with a dark theme: inverted lightness with the same hues.
DARK = "\n@media (prefers-color-scheme: dark) { svg { filter: invert(0.92) hue-rotate(180deg) } }"
_BLOCK = re.compile(r"(?<=<!-- small tasks: )(\w+) -->\n.*?(?=<!-- end of small tasks -->)", re.S)


class Figures:
    """The rows of the benchmark on one set.

    Args:
        rows: Rows of `results.json`.
        test_set: "dev" or "test".
    """

    def __init__(self, rows, test_set):
        self.rows = [row for row in rows if test_set in row["errors"] and not row["flags"]]
        self.test_set = test_set

    def trainings(self, task, models=None):
        """Return the rows of a task with its most pairs, one for each seed."""
        rows = [row for row in self.rows if row["task"] == task and row["seeds"] == models]
        pairs = max((row["pairs"] for row in rows), default=None)
        return [row for row in rows if row["pairs"] == pairs]

    def mean(self, rows, name="word_errors"):
        """Return the mean of an error rate over rows."""
        return statistics.mean(row["errors"][self.test_set][name] for row in rows)

    def ensembles(self):
        """Return the numbers of models of the ensembles."""
        return sorted({row["seeds"] for row in self.rows} - {None})


def duration(rows, name="seconds"):
    """Return the median time for people, of the rows that have it."""
    values = [row[name] for row in rows if row[name] is not None]
    if not values:
        return ""
    seconds = statistics.median(values)
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def summary_table(figures):
    """Return a Markdown table with a row for each group of tasks that is measured completely."""
    rows = []
    for title, tasks in SUMMARIES.items():
        trainings = [figures.trainings(task) for task in tasks]
        if not all(trainings):
            continue
        means = [figures.mean(each) for each in trainings]
        symbols = statistics.mean(figures.mean(each, "symbol_errors") for each in trainings)
        languages = f"{len(tasks)} languages" if len(tasks) > 1 else "one language"
        span = f" ({min(means):.1f} to {max(means):.1f})" if len(tasks) > 1 else ""
        pairs = statistics.median(each[0]["pairs"] for each in trainings)
        flat = [row for each in trainings for row in each]
        error = f"{statistics.mean(means):.1f} %{span}"
        rows.append([title, languages, f"{pairs:,.0f}", error, f"{symbols:.1f} %", duration(flat)])
    header = ["task", "measured on", "pairs", "outputs wrong", "symbols wrong", "training"]
    return table(header, rows)


def task_table(figures, tasks):
    """Return a Markdown table with a row for each task that is measured."""
    ensembles = figures.ensembles()
    header = ["", "pairs", "wrong, %", *(f"{models} models" for models in ensembles)]
    header += ["baseline of the task", "symbols wrong, %", "training", "first progress"]
    rows = []
    for task in tasks:
        trainings = figures.trainings(task)
        if not trainings:
            continue
        joint = [figures.trainings(task, models) for models in ensembles]
        error = f"{figures.mean(trainings):.1f}"
        if len(trainings) > 1:
            error += f", mean of {len(trainings)} seeds"
        else:
            low, high = trainings[0]["errors"][figures.test_set]["word_errors_interval"]
            error += f" ({low:.1f} to {high:.1f})"
        rows.append(
            [
                LANGUAGES[task.partition("-")[0]],
                f"{trainings[0]['pairs']:,}",
                error,
                *(f"{figures.mean(each):.1f}" if each else "" for each in joint),
                f"{BASELINES[task]:.1f}",
                f"{figures.mean(trainings, 'symbol_errors'):.2f}",
                duration(trainings),
                duration(trainings, "first_progress"),
            ]
        )
    return table(header, rows)


def curves(figures):
    """Return the word error rates by number of pairs of each language with several numbers."""
    points = {}
    for row in figures.rows:
        language, _, size = row["task"].partition("-")
        name = f"{LANGUAGES[language]}, inflection" if size else LANGUAGES[language]
        if row["seeds"] is None:
            points.setdefault(name, {}).setdefault(row["pairs"], []).append(row)
    return {
        name: {pairs: figures.mean(rows) for pairs, rows in sorted(by_pairs.items())}
        for name, by_pairs in points.items()
        if len(by_pairs) > 1
    }


def draw(errors, path):
    """Save the curves: word error rates by number of pairs, a dict for each name."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    from keras_bahdanau_runtime.pictures.style import saved_figure

    with saved_figure(path, 7, 4.2) as figure:
        axes = figure.add_subplot()
        for name, points in errors.items():
            style = "s--" if name.endswith("inflection") else "o-"
            axes.plot(list(points), list(points.values()), style, label=name)
        ticks = sorted({pairs for points in errors.values() for pairs in points})
        axes.set(xlabel="pairs", ylabel="outputs wrong, %", xscale="log", ylim=(0, None))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda pairs, _: f"{pairs:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(
            [tick for k, tick in enumerate(ticks) if not k or tick > 1.3 * ticks[k - 1]]
        )
        axes.legend()
    path.write_text(path.read_text("utf-8").replace("</style>", f"{DARK}</style>", 1), "utf-8")


def blocks(figures, curve_set):
    """Return the text of each block by its name; `curve_set` is `None` without a curve."""
    tasks = {
        "pronunciation": [*GROUPS["medium"], "eng_us", *GROUPS["low"]],
        "inflection": [*GROUPS["inflection-high"], *GROUPS["inflection-medium"]],
    }
    note = f"Measured on {figures.test_set} sets.\n\n"
    texts = {"summary": note + summary_table(figures), "picture": ""}
    if curve_set:
        texts["summary"] += (
            "\n![The share of wrong outputs falls with the number of pairs, one line for each "
            "language](../pictures/small-tasks.svg)\n\n"
            f"*Drawn by `benchmarks/draw_small_tasks.py`, on {curve_set} sets.*\n"
        )
        texts["picture"] = "`small-tasks.svg`: `python benchmarks/draw_small_tasks.py FOLDER`\n"
    return texts | {name: note + task_table(figures, names) for name, names in tasks.items()}


def fill(page, texts):
    """Replace the blocks of a page."""
    path = ROOT / page
    filled = _BLOCK.sub(
        lambda block: f"{block[1]} -->\n\n{texts[block[1]]}\n", path.read_text("utf-8")
    )
    path.write_text(filled, "utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="output of bench_small_tasks.py")
    parser.add_argument("--set", choices=["dev", "test"], default="test", help="default: test")
    parser.add_argument("--curve-set", choices=["dev", "test"], default="dev", help="default: dev")
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    arguments = parser.parse_args()
    rows = json.loads((arguments.folder / "results.json").read_text("utf-8"))
    rows = [row for row in rows if not row["flags"]]
    figures, errors = Figures(rows, arguments.set), curves(Figures(rows, arguments.curve_set))
    texts = blocks(figures, arguments.curve_set if errors else None)
    if arguments.print:
        print("\n".join(texts.values()))
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "export")]
    kept = {"set": arguments.set, "rows": rows}
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if errors:
        draw(errors, CURVE)
    for page in PAGES:
        fill(page, texts)


if __name__ == "__main__":
    main()
