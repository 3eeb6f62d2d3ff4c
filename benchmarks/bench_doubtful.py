"""How well `score --doubtful` finds wrong pairs, and what the sources of `select` are worth.

    python benchmarks/bench_doubtful.py dev bul=RUN turkish-medium=RUN --data DIR
    python benchmarks/bench_doubtful.py training bul --data DIR
    python benchmarks/bench_doubtful.py select bul --data DIR --seeds 0 1

Tasks, data and columns are those of `bench_small_tasks.py`. All three use dev sets, no test set.

`dev` gives 2 % of the pairs of the dev set wrong targets, and prints the share of these pairs that
`score RUN --doubtful --share 0.04` lists: the mean and the range of several seeds. The targets of
the wrong pairs are exchanged with each other, or one symbol of each is replaced by another one.

`training` exchanges 2 % of the targets of 2,000 training pairs, trains on them, and checks them
with the best and with the last model.

`select` trains on 1,000 pairs. `select --count 1000` then chooses sources from the other pairs of
the training set, whose targets are added. It compares this with 1,000 random pairs.

OUTPUT has a folder for each training. Finished trainings are not repeated.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import statistics
import subprocess
from pathlib import Path

from bench_small_tasks import COMMAND, TASKS, environment, format_flags, task_files

WRONG, LIST_SHARE = 0.02, 0.04  # shares of the pairs
BATCH_SIZE = 128  # the models are small
FIRST = 1000  # pairs of the first model of `select`, and of the addition


def read_rows(path):
    """Return the columns of each line."""
    return [line.split("\t") for line in path.read_text("utf-8").removesuffix("\n").split("\n")]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")


def run_command(*arguments):
    """Run the command `keras-bahdanau` and return its output."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        check=True,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ).stdout


def exchange(rows, wrong):
    """Return rows where each of the wrong ones has the target of the next wrong one."""
    following = dict(zip(wrong, [*wrong[1:], wrong[0]], strict=True))
    targets = [rows[following.get(index, index)][1] for index in range(len(rows))]
    return [[row[0], target, *row[2:]] for row, target in zip(rows, targets, strict=True)]


def replace_symbols(rows, wrong, rng, separator):
    """Return rows where one symbol of the target of each wrong row is another one."""
    split = str.split if separator else list
    symbols = sorted({symbol for row in rows for symbol in split(row[1])})
    changed = [list(row) for row in rows]
    for index in wrong:
        parts = split(rows[index][1])
        place = rng.randrange(len(parts))
        parts[place] = rng.choice([symbol for symbol in symbols if symbol != parts[place]])
        changed[index][1] = separator.join(parts)
    return changed


def changed_lines(rows, original):
    """Return the numbers of the lines whose targets differ; some exchanged ones are equal."""
    pairs = enumerate(zip(rows, original, strict=True), start=1)
    return {number for number, (row, old) in pairs if row != old}


def open_run(path):
    """Open a run as a `TextModel` that translates each source and scores each pair only once."""
    from keras_bahdanau_cli.arguments import ModelImports, RunLimits
    from keras_bahdanau_cli.text_models import open_model
    from keras_bahdanau_runtime.batch_sizes import BatchSizes

    model = open_model(str(path), BatchSizes(batch_size=BATCH_SIZE), RunLimits(), ModelImports())
    answers, scores = {}, {}

    def translate(texts, n_best=1):
        new = [text for text in texts if (text, n_best) not in answers]
        for text, answer in zip(new, model.translate(new, n_best=n_best), strict=True):
            answers[text, n_best] = answer
        return [answers[text, n_best] for text in texts]

    def score(sources, targets):
        pairs = list(zip(sources, targets, strict=True))
        new = [pair for pair in dict.fromkeys(pairs) if pair not in scores]
        results = model.score([source for source, _ in new], [target for _, target in new])
        scores.update(zip(new, results, strict=True))
        return [scores[pair] for pair in pairs]

    return dataclasses.replace(model, translate=translate, score=score)


def text_pairs(rows, task):
    """Return line number, source and target of each row, as `score --doubtful` reads them."""
    columns = [([row[0], *row[2:]] if "-" in task else row[:1], row[1]) for row in rows]
    return [(line, "\t".join(source), target) for line, (source, target) in enumerate(columns, 1)]


def ranks_of(model, task, rows, wrong):
    """Return the ranks of the wrong lines in the list of `score --doubtful`."""
    from keras_bahdanau_runtime.bulk.doubtful_pairs import find_doubtful_pairs, most_doubtful

    doubtful = find_doubtful_pairs(text_pairs(rows, task), model, print)
    ranked = most_doubtful(doubtful, len(rows))
    return [rank for rank, pair in enumerate(ranked, start=1) if pair.line in wrong]


def listed_share(ranks, rows, wrong):
    """Return the percentage of the wrong lines that `score --doubtful --share 0.04` lists."""
    return 100 * sum(rank <= round(LIST_SHARE * len(rows)) for rank in ranks) / len(wrong)


def measure_dev(models, data, seeds):
    print("| dev set | wrong answers, % | exchanged: listed, % | one symbol: listed, % |")
    print("|---|---|---|---|")
    for task, path in models.items():
        rows, model = read_rows(data / task_files(task)[1]), open_run(path)
        _, sources, targets = zip(*text_pairs(rows, task), strict=True)
        answers = [translation.text for translation in model.translate(list(sources))]
        errors = sum(map(str.__ne__, answers, targets)) / len(rows)
        cells = [f"{task} | {100 * errors:.1f}"]
        for kind in ("exchanged", "symbol"):
            shares = []
            for seed in seeds:
                rng = random.Random(seed)
                wrong = rng.sample(range(len(rows)), round(WRONG * len(rows)))
                separator = "" if "-" in task else " "  # forms are characters
                changed = (
                    exchange(rows, wrong)
                    if kind == "exchanged"
                    else replace_symbols(rows, wrong, rng, separator)
                )
                lines = changed_lines(changed, rows)
                ranks = ranks_of(model, task, changed, lines)
                shares.append(listed_share(ranks, rows, lines))
            mean = statistics.mean(shares)
            cells.append(f"{mean:.1f} ({min(shares):.0f} to {max(shares):.0f})")
        print(f"| {' | '.join(cells)} |", flush=True)


def train(folder, rows, dev, task, seed):
    """Train on rows with the defaults of `train`, and return the run; a finished one is kept."""
    run = folder / "run"
    if (folder / "finished").exists():
        return run
    shutil.rmtree(run, ignore_errors=True)
    write_rows(folder / "train.tsv", rows)
    shutil.copyfile(dev, folder / "dev.tsv")
    files = folder / "train.tsv", "--validation-source", folder / "dev.tsv"
    run_command("train", *files, *format_flags(task), "--seed", seed, "--output", run)
    (folder / "finished").touch()
    return run


def evaluate(model, path, task):
    """Return the exact matches of a model in percent."""
    output = run_command(
        "evaluate", model, path, *format_flags(task), "--json", "--batch-size", BATCH_SIZE
    )
    return json.loads(output)["exact"]


def measure_training(task, data, output, pairs, seed=0):
    train_file, dev, _ = (data / path for path in task_files(task))
    rows = read_rows(train_file)
    rows = random.Random(seed).sample(rows, len(rows))[:pairs]
    wrong = random.Random(seed).sample(range(pairs), round(WRONG * pairs))
    changed = exchange(rows, wrong)
    lines = changed_lines(changed, rows)
    folder = output / f"{task}-exchanged-{pairs}"
    run = train(folder, changed, dev, task, seed)
    last = folder / "last-model"
    shutil.rmtree(last, ignore_errors=True)
    shutil.copytree(run, last)
    shutil.copyfile(run / "last.keras", last / "best.keras")
    print(f"| {task}, {len(lines)} of {pairs:,} pairs exchanged | listed, % | last rank |")
    print("|---|---|---|")
    for title, model in (("best", run), ("last", last)):
        ranks = ranks_of(open_run(model), task, changed, lines)
        share, rank = listed_share(ranks, rows, lines), max(ranks)
        print(f"| {title} model, which was trained on them | {share:.1f} | {rank} |", flush=True)


def measure_select(task, data, output, seeds):
    train_file, dev, _ = (data / path for path in task_files(task))
    print(f"| {task}, dev set: wrong, % | {FIRST:,} pairs | with random | with selected |")
    print("|---|---|---|---|")
    for seed in seeds:
        rows = read_rows(train_file)
        rows = random.Random(seed).sample(rows, len(rows))
        folder = output / f"{task}-select-{seed}"
        first = train(folder / "first", rows[:FIRST], dev, task, seed)
        by_source = {"\t".join([row[0], *row[2:]]): row for row in rows[FIRST:]}
        path = folder / "unlabeled.txt"
        path.write_text("".join(f"{source}\n" for source in by_source), "utf-8")
        chosen = run_command(
            "select", first, path, "--count", FIRST, "--json", "--batch-size", BATCH_SIZE
        ).splitlines()
        selected = [by_source[json.loads(line)["source"]] for line in chosen]
        runs = [
            first,
            train(folder / "random", rows[: 2 * FIRST], dev, task, seed),
            train(folder / "selected", [*rows[:FIRST], *selected], dev, task, seed),
        ]
        errors = [f"{100 - evaluate(run, dev, task):.1f}" for run in runs]
        print(f"| seed {seed} | {' | '.join(errors)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("dev", "training", "select"))
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="for dev: TASK=RUN")
    data = os.environ.get("SMALL_TASKS_DATA")
    parser.add_argument("--data", type=Path, default=data and Path(data), required=not data)
    parser.add_argument("--output", type=Path, default=Path("runs/doubtful"))
    parser.add_argument("--pairs", type=int, default=2000, help="for training: number of pairs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    models = dict(task.partition("=")[::2] for task in options.tasks)
    for task, model in models.items():
        if task not in TASKS or bool(model) != (options.what == "dev"):
            parser.error(f"{task}: expected a task, and =RUN for dev only.")
    if options.what == "dev":
        measure_dev(models, options.data, options.seeds)
    for task in models:
        if options.what == "training":
            measure_training(task, options.data, options.output, options.pairs)
        elif options.what == "select":
            measure_select(task, options.data, options.output, options.seeds)


if __name__ == "__main__":
    main()
