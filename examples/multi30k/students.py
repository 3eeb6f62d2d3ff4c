"""Train students of an English-German teacher, and measure BLEU against speed.

    python examples/multi30k/students.py --teacher runs/en-de-0/run --data DIR --output students

The teacher translates the training sentences with a beam of 5, and the students learn the one of
the five translations that is closest to the human one. Teacher and students are exported in float32
and int8, with and without a vocabulary shortlist. Then `keras-bahdanau translate` translates the
1,000 sentences of test_2016_flickr with each artifact, in rounds. The same command resumes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import multi30k_files

from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.pictures.style import COLORS, GRAY, saved_figure
from keras_bahdanau_runtime.text.scores import corpus_scores

TEST = "test_2016_flickr"
TEACHER_BEAM, TEACHER_PENALTY, SHORTLIST_SIZE = 5, 1.0, 1024
STUDENT_UNITS = (256, 192, 128)
# One epoch more than the default of `train`.
STUDENT_OPTIONS = ("--epochs", "8")
PRECISIONS = ("float32", "int8")
COMMAND = (sys.executable, "-m", "keras_bahdanau_cli")


def run_command(*arguments):
    subprocess.run([*COMMAND, *map(str, arguments)], check=True)


def train_students(args, files):
    """Train the students that are missing, and return their runs by name."""
    held_out = (
        "--validation-source",
        files["val", "en"],
        "--validation-target",
        files["val", "de"],
    )
    teacher, runs = args.output / "teacher-beam-float32", {}
    texts = ()
    for units in args.units:
        run = args.output / f"student-{units}" / "run"
        sizes = [f"--{name}={units}" for name in ("units", "embedding-dim", "attention-units")]
        options = (*held_out, *STUDENT_OPTIONS, *args.options, *sizes, "--output", run)
        resume = ("--resume",) * run.exists()
        if texts:
            run_command("train", *texts, *options, *resume)
        else:
            source, reference = files["train", "en"], files["train", "de"]
            run_command("distill", teacher, source, "--reference", reference, *options, *resume)
            # The others learn from the same texts.
            texts = (run / "distilled" / "source.txt", run / "distilled" / "target.txt")
        runs[f"student-{units}"] = run
    return runs


def export_all(args, files, name, run, search, search_name=""):
    """Export a run in both precisions, with and without a shortlist; return artifacts by label."""
    shortlist = args.output / f"{name}-shortlist.npz"
    if not shortlist.exists():
        texts = files["train", "en"], files["train", "de"]
        run_command("shortlist", run, *texts, "--size", SHORTLIST_SIZE, "--output", shortlist)
    artifacts = {}
    for precision in PRECISIONS:
        for ending, flags in (("", ()), ("-shortlist", ("--shortlist", shortlist))):
            artifact = args.output / f"{name}{search_name}-{precision}{ending}"
            artifacts[artifact.name] = artifact
            if not artifact.exists():
                run_command("export", run, artifact, "--precision", precision, *search, *flags)
    return artifacts


def measure(args, files, artifacts):
    """Translate the test set with each artifact, each time in a new process.

    Returns:
        A dict from label to `bleu`, and the `median` and `best` seconds of a whole process.
    """
    references = multi30k_files.read_lines(args.data, TEST, "de")
    seconds = {label: [] for label in artifacts}
    results = {}
    for _ in range(args.rounds):
        for label, artifact in artifacts.items():
            output = args.output / f"{label}.de"
            output.unlink(missing_ok=True)
            start = time.perf_counter()
            run_command("translate", artifact, files[TEST, "en"], "--output", output)
            seconds[label].append(time.perf_counter() - start)
    for label, times in seconds.items():
        texts = (args.output / f"{label}.de").read_text("utf-8").splitlines()
        results[label] = {
            "bleu": corpus_scores(texts, references)["bleu"],
            "median": statistics.median(times),
            "best": min(times),
        }
    return results


def draw(results, path):
    """Draw BLEU over sentences per second; int8 is filled, and a shortlist a square."""
    models = dict.fromkeys(label.rpartition("-int8")[0] for label in results if "-int8" in label)
    colors = dict(zip(models, (GRAY, *COLORS), strict=False))
    with saved_figure(path, 8, 5) as figure:
        axes = figure.subplots()
        for label, result in results.items():
            [model] = [model for model in models if label.startswith(model)]
            color = colors[model]
            axes.plot(
                1000 / result["median"],
                result["bleu"],
                marker="s" if label.endswith("-shortlist") else "o",
                markersize=8,
                color=color,
                markerfacecolor=color if "-int8" in label else "white",
                linestyle="none",
                label=model if label.endswith("-int8") else None,
            )
        axes.set(
            xlabel="sentences per second, start of the process included",
            ylabel="BLEU on test_2016_flickr",
            title="filled: int8, open: float32; square: with a shortlist, round: without",
        )
        axes.legend()


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teacher", type=Path, required=True, help="folder of the teacher's run")
    parser.add_argument("--data", type=Path, default=Path("multi30k"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--units", type=int, nargs="+", default=STUDENT_UNITS)
    parser.add_argument("--options", nargs="*", default=(), help="other options of `train`")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments)
    multi30k_files.download(args.data, "de")
    files = {
        (part, side): multi30k_files.find_file(args.data, part, side)
        for part in (multi30k_files.TRAINING, multi30k_files.VALIDATION, TEST)
        for side in ("en", "de")
    }
    args.output.mkdir(parents=True, exist_ok=True)
    beam = ("--beam-size", TEACHER_BEAM, "--length-penalty", TEACHER_PENALTY)
    greedy = ("--beam-size", 1)
    artifacts = export_all(args, files, "teacher", args.teacher, beam, "-beam")
    artifacts |= export_all(args, files, "teacher", args.teacher, greedy, "-greedy")
    for name, run in train_students(args, files).items():
        artifacts |= export_all(args, files, name, run, greedy)
    results = measure(args, files, artifacts)
    with atomic_write(args.output / "results.json") as file:
        file.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, args.output / "students.png")
    for label, result in results.items():
        print(
            f"{label:32} {result['bleu']:5.2f} BLEU  {result['median']:5.2f} s "
            f"(best {result['best']:.2f})"
        )
    return results


if __name__ == "__main__":
    main()
