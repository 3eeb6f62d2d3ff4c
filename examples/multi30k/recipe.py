"""Train on Multi30k, select the search on the validation set and evaluate the test sets once.

    python examples/multi30k/recipe.py en-de --data DIR --output runs/en-de-0 --seed 0
    python examples/multi30k/recipe.py en-de --data DIR --output runs/en-de --ensemble runs/en-de-*

The exported graphs translate the test sets; they are saved in `artifact` (float32) and
`artifact-int8`. The same command resumes an interrupted run. `--tokenized` uses the lower-cased,
tokenized files and scores without a tokenizer, as in the literature. Otherwise text is raw, and
BLEU is cased (13a).
"""

import argparse
import json
import time
from pathlib import Path

import keras
import multi30k_files

from keras_bahdanau import BeamSearch, TrainingOptions, train
from keras_bahdanau.training import length_penalty_scores, load_best
from keras_bahdanau_export import export
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.text.scores import corpus_scores

BEAM, MAX_LENGTH = 10, 100
LENGTH_PENALTIES = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0)  # candidates, selected on validation
HERE = Path(__file__).parent


def export_translator(model, penalty, folder, precision="float32"):
    """Export a model with a length penalty and return a `Translator` of the artifact."""
    search = BeamSearch(BEAM, penalty)
    export(model, folder, search=search, max_length=MAX_LENGTH, precision=precision, overwrite=True)
    return Translator(folder, parallel_batches=available_cores())


def translate(translator, sources):
    """Return the best translation of each source text."""
    return [result.text for result in translator.translate(sources, alignments=False)]


def train_model(args, files):
    """Return the best model of a run, and the seconds spent on training in this process."""
    settings = HERE / f"{args.pair}.yaml"
    overrides = {"seed": args.seed, "tokenize": args.tokenize, **args.overrides}
    options = TrainingOptions.from_file(settings, **files, **overrides)
    start = time.perf_counter()
    resume = (args.output / "run").exists()
    best = train(options, args.output / "run", resume=resume, verbose=not args.quiet)
    return load_best(best.parent), time.perf_counter() - start


def _parse_value(text):
    """Parse a number or boolean; return any other text unchanged."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main(arguments=None):
    try:
        return run(arguments)
    except ValueError as error:
        raise SystemExit(str(error)) from error


def run(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pair", choices=["en-de", "en-fr"])
    parser.add_argument(
        "--data", type=Path, default=Path("multi30k"), help="missing files are downloaded into it"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenized", action="store_true")
    parser.add_argument("--ensemble", nargs="+", type=Path, help="outputs of earlier runs")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="other training options"
    )
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args(arguments)
    settings = (setting.partition("=") for setting in args.set)
    args.overrides = {name: _parse_value(value) for name, _, value in settings}
    if "seed" in args.overrides:
        raise ValueError("Argument `set` must not contain the seed; use --seed. Received: seed")
    args.tokenize = "none" if args.tokenized else "13a"  # tokenizer of BLEU
    language = args.pair[-2:]
    multi30k_files.download(args.data, language, args.tokenized)

    def read_pair(part):
        return [
            multi30k_files.read_lines(args.data, part, side, args.tokenized)
            for side in ("en", language)
        ]

    parts = (("", multi30k_files.TRAINING), ("validation_", multi30k_files.VALIDATION))
    files = {
        f"{prefix}{side}": multi30k_files.find_file(args.data, part, code, args.tokenized)
        for prefix, part in parts
        for side, code in (("source", "en"), ("target", language))
    }
    seconds = None
    if args.ensemble:
        model = load_best(*(path / "run" for path in args.ensemble))
    else:
        model, seconds = train_model(args, files)
    validation = length_penalty_scores(
        model,
        *read_pair(multi30k_files.VALIDATION),
        LENGTH_PENALTIES,
        BEAM,
        MAX_LENGTH,
        args.tokenize,
    )
    penalty = max(validation, key=validation.get)
    translators = {
        "float32": export_translator(model, penalty, args.output / "artifact"),
        "int8": export_translator(model, penalty, args.output / "artifact-int8", "int8"),
    }
    results = {
        "pair": args.pair,
        "tokenized": args.tokenized,
        "seed": args.seed,
        "options": args.overrides,
        "backend": keras.config.backend(),
        "weights": model.count_params(),
        "seconds": seconds,
        "beam": BEAM,
        "length_penalty": penalty,
        "validation": validation,
    }
    for part in multi30k_files.TESTS:
        sources, references = read_pair(part)
        results[part] = {
            precision: corpus_scores(translate(translator, sources), references, args.tokenize)[
                "bleu"
            ]
            for precision, translator in translators.items()
        }
    with atomic_write(args.output / "results.json") as file:
        file.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    main()
