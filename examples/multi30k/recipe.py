"""Multi30k, English to German or French: trains, chooses the search on validation, tests once.

    python examples/multi30k/recipe.py en-de --data DIR --output runs/en-de-0 --seed 0
    python examples/multi30k/recipe.py en-de --data DIR --output runs/en-de --ensemble runs/en-de-*

The test files are translated by the exported graph, which is left in `artifact`, and in int8 in
`artifact-int8`. Started again, it goes on where it was. `--tokenized` takes the lower-cased,
tokenised files and scores without a tokenizer, as the literature does; otherwise text is raw, and
BLEU is cased (13a).
"""

import argparse
import json
import time
from pathlib import Path

import data
import keras

from keras_bahdanau import BeamSearch, Ensemble, TrainingOptions, train
from keras_bahdanau.training import length_penalty_scores
from keras_bahdanau_export import export
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.text.scores import corpus_scores

BEAM, MAX_LENGTH = 10, 100
PENALTIES = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0)  # of length, of which validation chooses one
HERE = Path(__file__).parent


def exported(model, penalty, folder, precision="float32"):
    """The artifact of a model and a length penalty, opened."""
    search = BeamSearch(BEAM, penalty)
    export(model, folder, search=search, max_length=MAX_LENGTH, precision=precision, overwrite=True)
    return Translator(folder, parallel_batches=available_cores())


def translations(translator, sources):
    """The best translation of each source."""
    return [found.text for found in translator.translate(sources, alignments=False)]


def trained(given, files):
    """The model of a run, and the seconds that its training took here."""
    settings = HERE / f"{given.pair}.yaml"
    values = {"seed": given.seed, "tokenize": given.tokenize, **given.more}
    options = TrainingOptions.from_file(settings, **files, **values)
    began = time.perf_counter()
    resume = (given.output / "run").exists()
    best = train(options, given.output / "run", resume=resume, verbose=not given.quiet)
    return keras.saving.load_model(best, compile=False), time.perf_counter() - began


def _value(text):
    """The number, the truth or the word that an option is given as."""
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
    parser.add_argument("--data", type=Path, default=Path("multi30k"), help="made if it is absent")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenized", action="store_true")
    parser.add_argument("--ensemble", nargs="+", type=Path, help="outputs of earlier commands")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other options")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(arguments)
    given.more = {name: _value(of) for name, _, of in (one.partition("=") for one in given.set)}
    if "seed" in given.more:
        raise ValueError("Argument `set` must leave the seed to --seed. Received: seed")
    given.tokenize = "none" if given.tokenized else "13a"  # how BLEU splits words
    language = given.pair[-2:]
    data.download(given.data, language, given.tokenized)

    def texts(part):
        return [data.texts(given.data, part, each, given.tokenized) for each in ("en", language)]

    files = {
        f"{prefix}{side}": data.find(given.data, part, each, given.tokenized)
        for prefix, part in (("", data.TRAINING), ("validation_", data.VALIDATION))
        for side, each in (("source", "en"), ("target", language))
    }
    seconds = None
    if given.ensemble:
        runs = [path / "run" / "best.keras" for path in given.ensemble]
        model = Ensemble([keras.saving.load_model(path, compile=False) for path in runs])
    else:
        model, seconds = trained(given, files)
    folder = given.output / "artifact"
    validation = length_penalty_scores(
        model, *texts(data.VALIDATION), PENALTIES, BEAM, MAX_LENGTH, given.tokenize
    )
    penalty = max(validation, key=validation.get)
    graphs = {
        "float32": exported(model, penalty, folder),
        "int8": exported(model, penalty, given.output / "artifact-int8", "int8"),
    }
    results = {
        "pair": given.pair,
        "tokenized": given.tokenized,
        "seed": given.seed,
        "options": given.more,
        "backend": keras.config.backend(),
        "weights": model.count_params(),
        "seconds": seconds,
        "beam": BEAM,
        "length_penalty": penalty,
        "validation": validation,
    }
    for part in data.TESTS:
        sources, references = texts(part)
        results[part] = {
            precision: corpus_scores(translations(graph, sources), references, given.tokenize)[
                "bleu"
            ]
            for precision, graph in graphs.items()
        }
    with atomic_write(given.output / "results.json") as file:
        file.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return results


if __name__ == "__main__":
    main()
