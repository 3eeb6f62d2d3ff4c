"""Small tasks with the defaults of `keras-bahdanau train`: errors and seconds of each.

    python benchmarks/bench_small_tasks.py medium low --data DIR
    python benchmarks/bench_small_tasks.py bul --pairs 500 1000 2000 4000 8000 --data DIR
    python benchmarks/bench_small_tasks.py inflection-high --test --data DIR -- --epochs 40

A task is a language of pronunciation, such as `bul`, a language and size of inflection, such as
`turkish-medium`, or a group of them. Each is trained by `keras-bahdanau train` with no options
except its files and their columns, and those after `--`. `keras-bahdanau evaluate --json` measures
it on the dev set, or on the test set. The Keras backend is that of KERAS_BACKEND.

DIR, or the environment variable SMALL_TASKS_DATA, is a folder with two others:

  pronunciation/   bul_train.tsv, bul_dev.tsv, ady_low_train.tsv and so on, from
                   https://github.com/sigmorphon/2021-task1: word, tab, phonemes
  inflection/      turkish-train-high.tsv, turkish-dev.tsv and so on, from
                   https://github.com/sigmorphon/conll2018: lemma, tab, form, tab, tags

OUTPUT has a folder and a JSON file for each training, and `results.json` with all rows. Finished
trainings are not repeated, so an interrupted command can be run again.
"""

import argparse
import datetime
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "keras_bahdanau_cli"]
MEDIUM = ("bul", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi")
LOW = ("ady", "gre", "ice", "ita", "khm")
INFLECTION = ("finnish", "georgian", "spanish", "turkish")
GROUPS = {
    "medium": list(MEDIUM),
    "low": list(LOW),
    "inflection-high": [f"{language}-high" for language in INFLECTION],
    "inflection-medium": [f"{language}-medium" for language in INFLECTION],
}
TASKS = [*MEDIUM, "eng_us", *LOW, *GROUPS["inflection-high"], *GROUPS["inflection-medium"]]
_LOSS = re.compile(r"\bloss \d")  # in each progress line of `train`


def task_files(task):
    """Return the paths of the training, dev and test set, relative to the folder of the data."""
    language, _, size = task.partition("-")
    if size:
        names = [f"train-{size}", "dev", "test"]
        return [Path("inflection") / f"{language}-{name}.tsv" for name in names]
    language += "_low" if task in LOW else ""
    names = ["train", "dev", "test"]
    return [Path("pronunciation") / f"{language}_{name}.tsv" for name in names]


def format_flags(task):
    """Return the flags for the columns of a file: lemma, form and tags of inflection."""
    columns = ["--source-column", "1", "--source-column", "3", "--target-column", "2"]
    return columns if "-" in task else []


@dataclass(frozen=True)
class Training:
    """One training.

    Args:
        task: One of `TASKS`.
        pairs: Number of pairs of the training set that are used; all if `None`.
        seed: `--seed` of the command; none if `None`.
        seeds: `--seeds` of the command, models of an ensemble; none if `None`.
        flags: More flags of the command.
    """

    task: str
    pairs: int | None = None
    seed: int | None = None
    seeds: int | None = None
    flags: tuple[str, ...] = ()

    @property
    def name(self):
        """Name of its folder."""
        name = self.task + (f"-{self.pairs}" if self.pairs else "")
        name += "" if self.seed is None else f"-seed{self.seed}"
        name += "" if self.seeds is None else f"-seeds{self.seeds}"
        return name + (f"-{zlib.crc32(' '.join(self.flags).encode()):08x}" if self.flags else "")

    def arguments(self):
        """The options of `train` in addition to the files and their columns."""
        seed = [] if self.seed is None else ["--seed", str(self.seed)]
        seeds = [] if self.seeds is None else ["--seeds", str(self.seeds)]
        return [*seed, *seeds, *self.flags]


def write_files(training, data, folder):
    """Write the training, dev and test set of a training into a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for path in task_files(training.task):
        path = data / path
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
        if not files and training.pairs:
            if training.pairs > len(lines):
                raise SystemExit(f"{path} has {len(lines)} pairs, fewer than {training.pairs}.")
            # A smaller subset is a part of the larger ones, and its lines are not sorted by word.
            lines = random.Random(0).sample(lines, len(lines))[: training.pairs]
        copy = folder / path.name
        copy.write_text("\n".join(lines) + "\n", "utf-8")
        files.append(copy)
    return files


def environment():
    paths = [str(ROOT / "export"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def progress_seconds(command, variables, log, clock):
    """Run `train` and read a clock at its progress; a caller that stops early ends the process.

    Args:
        command: Arguments of the process.
        variables: Its environment variables.
        log: An open text file that receives the messages of `train`.
        clock: Function of the `subprocess.Popen` of the command that returns seconds.

    Yields:
        The seconds at each line with a loss.
    """
    line, command = "", [*map(str, command)]
    with subprocess.Popen(
        command, env=variables, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            for line in process.stderr:
                log.write(line)
                if _LOSS.search(line):
                    yield clock(process)
        except GeneratorExit:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=line)


def train(training, files, run):
    """Train, with the progress in `train.log` next to the run.

    Returns:
        A dict of the number of pairs, the seconds of the whole command and until the first line
        with a loss, the updates, the backend and the date.
    """
    shutil.rmtree(run, ignore_errors=True)
    command = [*COMMAND, "train", files[0], "--validation-source", files[1], "--output", run]
    command += [*format_flags(training.task), *training.arguments()]
    began = time.perf_counter()
    with run.with_name("train.log").open("w", 1, "utf-8") as log:
        progress = progress_seconds(
            command, environment(), log, lambda process: time.perf_counter() - began
        )
        lines = list(progress)
    seconds = time.perf_counter() - began
    # An ensemble has a run for each model.
    histories = [path.read_text("utf-8").splitlines() for path in sorted(run.rglob("history.csv"))]
    return {
        "pairs": files[0].read_text("utf-8").count("\n"),
        "seconds": round(seconds, 1),
        "first_progress": round(lines[0], 1) if lines else None,
        "updates": sum(int(lines[-1].split(",")[1]) for lines in histories),
        "backend": os.environ.get("KERAS_BACKEND", "tensorflow"),
        "date": datetime.date.today().isoformat(),
    }


def evaluate(run, path, flags):
    """Return the error rates in percent with their intervals."""
    command = [*map(str, [*COMMAND, "evaluate", run, path, *flags, "--json"])]
    process = subprocess.run(command, env=environment(), capture_output=True, encoding="utf-8")
    if process.returncode:
        line = process.stderr.strip().rpartition("\n")[2]
        raise subprocess.CalledProcessError(process.returncode, command, stderr=line)
    scores = json.loads(process.stdout)
    low, high = scores["intervals"]["exact"]
    return {
        "outputs": scores["outputs"],
        "word_errors": round(100 - scores["exact"], 2),
        "word_errors_interval": [round(100 - high, 2), round(100 - low, 2)],
        "symbol_errors": round(scores["ser"], 2),
        "symbol_errors_interval": [round(limit, 2) for limit in scores["intervals"]["ser"]],
    }


def measure(training, data, output, test_set, is_busy=False):
    """Train and evaluate, unless it is done; return the row of the results."""
    folder = output / training.name
    path, document = folder / "measured.json", {}
    if path.exists():
        document = json.loads(path.read_text("utf-8"))
    if not (document and test_set in document["errors"]):
        files = write_files(training, data, folder)
        if not document:
            described = {
                "task": training.task,
                "seed": training.seed,
                "seeds": training.seeds,
                "flags": list(training.flags),
            }
            document = {**described, **train(training, files, folder / "run"), "errors": {}}
            if is_busy:
                document |= {"seconds": None, "first_progress": None}
            path.write_text(json.dumps(document))  # so a failed evaluation costs no training
        path_of_set = files[1 + (test_set == "test")]
        flags = format_flags(training.task)
        document["errors"][test_set] = evaluate(folder / "run", path_of_set, flags)
        path.write_text(json.dumps(document, indent=1))
    return document


def write_results(output):
    """Write `results.json` of all trainings in a folder, from their own files."""
    paths = sorted(output.glob("*/measured.json"))
    rows = [json.loads(path.read_text("utf-8")) for path in paths]
    temporary = output / f"results-{os.getpid()}.json"  # several processes may measure
    temporary.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    temporary.replace(output / "results.json")


def print_row(row, test_set):
    errors = row["errors"][test_set]
    low, high = errors["word_errors_interval"]
    title = [row["task"], *row["flags"]]
    title += [] if row["seed"] is None else [f"seed {row['seed']}"]
    title += [] if row["seeds"] is None else [f"{row['seeds']} models"]
    seconds = [
        "" if row[name] is None else f"{row[name]:.0f} s" for name in ("seconds", "first_progress")
    ]
    print(
        f"| {' '.join(title)} | {row['pairs']:,} | {errors['word_errors']:.1f} "
        f"({low:.1f} to {high:.1f}) | {errors['symbol_errors']:.2f} | {seconds[0]} | {seconds[1]} "
        f"| {row['updates']:,} |",
        flush=True,
    )


def data_folder(path, tasks):
    """Return the folder of the data, or end with a message if a file is absent."""
    if path is None:
        raise SystemExit("Name the folder of the data with --data or SMALL_TASKS_DATA; see --help.")
    for task in tasks:
        for file in task_files(task):
            if not (path / file).is_file():
                raise SystemExit(f"The data of {task} lack {path / file}; --help has their source.")
    return path


def main():
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tasks", nargs="+", choices=[*GROUPS, *TASKS], metavar="TASK",
        help=f"groups: {', '.join(GROUPS)}; tasks: {', '.join(TASKS)}",
    )  # fmt: skip
    data = os.environ.get("SMALL_TASKS_DATA")
    parser.add_argument("--data", type=Path, default=data and Path(data))
    parser.add_argument("--output", type=Path, default=Path("runs/small-tasks"))
    parser.add_argument("--test", action="store_true", help="measure on the test set")
    parser.add_argument("--pairs", type=int, nargs="+", default=[None], help="pairs to train on")
    parser.add_argument("--train-seed", type=int, nargs="+", default=[None], help="--seed of train")
    parser.add_argument("--seeds", type=int, help="--seeds of train: models of an ensemble")
    parser.add_argument(
        "--busy", action="store_true", help="record no seconds, as the machine has other work"
    )
    options = parser.parse_args(arguments[:split])
    tasks = [task for name in options.tasks for task in GROUPS.get(name, [name])]
    folder, test_set = data_folder(options.data, tasks), "test" if options.test else "dev"
    flags, failed, word_errors = tuple(arguments[split + 1 :]), [], []
    print(
        f"| {test_set} set | pairs | words wrong, % (95 % interval) | symbols wrong, % | training "
        "| first progress | updates |\n|---|---|---|---|---|---|---|"
    )
    for task in tasks:
        for pairs in options.pairs:
            for seed in options.train_seed:
                training = Training(task, pairs, seed, options.seeds, flags)
                try:
                    row = measure(training, folder, options.output, test_set, options.busy)
                except subprocess.CalledProcessError as error:
                    failed.append(f"{training.name}: {error.stderr.strip()}")
                    continue
                write_results(options.output)
                print_row(row, test_set)
                word_errors.append(row["errors"][test_set]["word_errors"])
    if len(word_errors) > 1:
        print(
            f"\nMean of {len(word_errors)} word error rates: {statistics.mean(word_errors):.2f} %"
        )
    if failed:
        raise SystemExit("Failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
