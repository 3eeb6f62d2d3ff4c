"""Adapt an English-German model to a domain it has never seen, and measure what it forgets.

    python examples/multi30k/fine_tuning.py --data DIR --output adapted

The domain is the captions whose English side names a dog. The base model is trained on all other
captions. It is then fine-tuned on 1,000 pairs of the domain, without and with `--mix`. Scores are
BLEU (beam 5) of held-out captions with a dog (in-domain) and of the captions of test_2016_flickr
without one (out of domain). The same command resumes.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import multi30k_files

from keras_bahdanau_runtime.files import atomic_write

DOMAIN = re.compile(r"\b(dogs?|pupp(y|ies))\b", re.IGNORECASE)
TRAINING_PAIRS, DEVELOPMENT_PAIRS = 1000, 200
COMMAND = (sys.executable, "-m", "keras_bahdanau_cli")
TEST = "test_2016_flickr"
RUNS = {
    "domain only": ("--epochs", "4", "--batch-size", "32"),
    "--mix 0.5": ("--epochs", "4", "--batch-size", "32", "--mix", "{base}/corpus=0.5"),
    "--mix 0.8": ("--epochs", "3", "--mix", "{base}/corpus=0.8"),
}


def read_pairs(data, part):
    """Return the pairs of a part: those of the domain, and the others."""
    sides = [multi30k_files.read_lines(data, part, language) for language in ("en", "de")]
    pairs = list(zip(*sides, strict=True))
    inside = [pair for pair in pairs if DOMAIN.search(pair[0])]
    return inside, [pair for pair in pairs if not DOMAIN.search(pair[0])]


def write_pairs(folder, name, pairs):
    """Write the pairs to two text files, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{language}" for language in ("en", "de")]
    for side, path in enumerate(paths):
        with atomic_write(path) as writing:
            writing.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return paths


def split(data, folder):
    """Write the texts of base and domain, and return the two paths of each by its name."""
    domain, base = read_pairs(data, multi30k_files.TRAINING)
    domain_of_val, val = read_pairs(data, multi30k_files.VALIDATION)
    domain_of_test, test = read_pairs(data, TEST)
    end = TRAINING_PAIRS + DEVELOPMENT_PAIRS
    texts = {
        "base": base,
        "base-dev": val,
        "base-test": test,
        "domain": domain[:TRAINING_PAIRS],
        "domain-dev": domain[TRAINING_PAIRS:end],
        "domain-test": [*domain[end:], *domain_of_val, *domain_of_test],
    }
    for name, pairs in texts.items():
        print(f"{name}: {len(pairs):,} pairs")
    return {name: write_pairs(folder, name, pairs) for name, pairs in texts.items()}


def run_command(*arguments):
    finished = subprocess.run(
        [*COMMAND, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    )
    return finished.stdout


def train(run, texts, held_out, *options):
    """Train in a folder, or continue there."""
    validation = []
    for name in held_out:
        source, target = texts[name]
        validation += ["--validation-source", source, "--validation-target", target]
    resume = ("--resume",) * run.exists()
    return run_command("train", *options, *validation, "--output", run, *resume)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("multi30k"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base-epochs", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    multi30k_files.download(args.data, "de")
    texts = split(args.data, args.output / "texts")
    base = args.output / "base"
    seed = "--seed", args.seed
    train(base, texts, ["base-dev"], *texts["base"], "--epochs", args.base_epochs, *seed)
    runs = {"base": base}
    for name, flags in RUNS.items():
        runs[name] = args.output / re.sub(r"[^a-z0-9]+", "-", name).strip("-")
        flags = [flag.format(base=base) for flag in flags]
        options = (*texts["domain"], "--init", base, "--learning-rate", "1e-3", *flags, *seed)
        train(runs[name], texts, ["domain-dev", "base-dev"], *options)
    print("| run | with a dog | without |\n|---|---|---|")
    for name, run in runs.items():
        scores = [
            run_command("evaluate", run, *texts[test], "--beam-size", 5).strip()
            for test in ("domain-test", "base-test")
        ]
        print(f"| {name} | {scores[0]} | {scores[1]} |", flush=True)


if __name__ == "__main__":
    main()
