"""Cost of copying, and how well a model writes names and numbers that it never saw.

    python benchmarks/bench_copying.py speed
    python benchmarks/bench_copying.py words --output DIR

`speed` times the exported search and a training step of the same model with and without copying:
256 units, 8,000 ids, beam 5, all 30 steps, sources of 16 tokens. The graphs alternate in one
process, and so do the steps, on the backend of KERAS_BACKEND.

`words` trains on pairs of sentences such as `pay 4312 euros to anna berg on monday` and
`zahle anna berg 4312 euro am montag`, by the command `train` with and without `--copy`. The numbers
of the training set have up to four digits. The names of the test set do not occur in it, and the
numbers of the test set have six digits. Only the 300 most frequent words are in the vocabulary.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from benchmark_model import BEAM, LENGTH, STEPS, VOCABULARY, make_model, random_source
from timing import interleaved_seconds

COMMAND = [sys.executable, "-m", "keras_bahdanau_cli"]
BATCHES = (1, 32)
TRAINING_BATCH = 64
PAIRS = {"train": 5000, "dev": 500, "test": 1000}
DAYS = {
    "monday": "montag",
    "tuesday": "dienstag",
    "wednesday": "mittwoch",
    "thursday": "donnerstag",
    "friday": "freitag",
}
VERBS = {"pay": "zahle", "send": "sende", "owe": "schulde", "lend": "leihe"}
COINS = {"euros": "euro", "pounds": "pfund", "dollars": "dollar"}
SYLLABLES = "ba be bi bo da de do fa fi ga ge ka ki ko la le li lo ma me mi na ne ni ra re ri sa se"


def searches(copies, folder):
    """Return a `Translator` of an exported search with random weights."""
    from keras_bahdanau import BeamSearch
    from keras_bahdanau_export import export
    from keras_bahdanau_runtime import Translator
    from keras_bahdanau_runtime.ids import EOS

    model = make_model(copy=copies)
    model.build()
    # No hypothesis ends before the last step, so every run does the same work.
    model.output_layer.bias.assign(np.where(np.arange(VOCABULARY) == EOS, -1e4, 0.0))
    path = Path(folder, f"copy-{copies}")
    export(model, path, search=BeamSearch(BEAM), max_length=STEPS)
    return Translator(path)


def training_step(copies, ids):
    """Return a function that runs a training step of 64 pairs."""
    from keras_bahdanau import TokenCrossentropy
    from keras_bahdanau.optimizers import Adam

    model = make_model(copy=copies)
    model.compile(Adam(), TokenCrossentropy(0.1, chunk_size=512), jit_compile=False)
    return lambda: float(model.train_on_batch({"source": ids, "target": ids}, ids))


def measure_speed(rounds):
    print("| work | batch | without, best ms | copying, best ms | times (range) |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        translators = {copies: searches(copies, folder) for copies in (False, True)}
        for batch in BATCHES:
            source = random_source(batch)
            report(
                f"search | {batch}",
                {name: lambda t=t, s=source: t.search(s) for name, t in translators.items()},
                rounds,
            )
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (TRAINING_BATCH, LENGTH)).astype("int32")
    steps = {copies: training_step(copies, ids) for copies in (False, True)}
    report(f"training step | {TRAINING_BATCH}", steps, rounds)


def report(case, calls, rounds):
    """Time calls without and with copying and print a row."""
    seconds = interleaved_seconds(calls, rounds, warmup=2)
    without, copying = seconds[False], seconds[True]
    ratios = sorted(b / a for a, b in zip(without, copying, strict=True))
    print(
        f"| {case} | {1e3 * min(without):.1f} | {1e3 * min(copying):.1f} | "
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
        flush=True,
    )


def word_pairs(rng, count, names, digits):
    """Return pairs of sentences; the numbers have a number of digits of the range `digits`."""
    pairs = []
    for _ in range(count):
        verb, coin, day = (rng.choice([*table]) for table in (VERBS, COINS, DAYS))
        name, surname = rng.sample(names, 2)
        length = rng.randint(*digits)
        number = rng.randrange(10 ** (length - 1), 10**length)
        pairs.append(
            (
                f"{verb} {number} {coin} to {name} {surname} on {day}",
                f"{VERBS[verb]} {name} {surname} {number} {COINS[coin]} am {DAYS[day]}",
            )
        )
    return pairs


def measure_words(output):
    rng = random.Random(0)
    syllables = SYLLABLES.split()
    names = list(dict.fromkeys("".join(rng.choices(syllables, k=3)) for _ in range(4000)))
    training_names, test_names = names[: len(names) // 2], names[len(names) // 2 :]
    output.mkdir(parents=True, exist_ok=True)
    for name, count in PAIRS.items():
        is_test = name == "test"
        pairs = word_pairs(
            rng, count, test_names if is_test else training_names, (6, 6) if is_test else (1, 4)
        )
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (output / f"{name}.tsv").write_text(lines, "utf-8")
    print("| | pairs wrong of the dev set, % | of the test set, % |")
    print("|---|---|---|")
    for flag in ("--no-copy", "--copy"):
        run = output / f"run{flag}"
        shutil.rmtree(run, ignore_errors=True)
        command = ["train", output / "train.tsv", "--validation-source", output / "dev.tsv"]
        options = ["--output", run, "--tokenizer", "symbols", "--vocabulary-size", "300"]
        run_command(*command, *options, flag)
        errors = []
        for name in ("dev", "test"):
            report = json.loads(run_command("evaluate", run, output / f"{name}.tsv", "--json"))
            errors.append(f"{100 - report['exact']:.1f}")
        print(f"| `{flag}` | {' | '.join(errors)} |", flush=True)


def run_command(*arguments):
    """Run the command `keras-bahdanau` and return its output."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "words"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("build/copying"))
    arguments = parser.parse_args()
    if arguments.what == "speed":
        measure_speed(arguments.rounds)
    else:
        measure_words(arguments.output)


if __name__ == "__main__":
    main()
