"""The claims of arXiv 1409.0473 on Multi30k: Table 1, Figure 2 and Figure 3 in one command.

RNNsearch and RNNencdec, at equal size and with an equal number of updates, are trained on sentences
of up to 30 and of up to 50 words. Started again, the command goes on where it was.
"""

import argparse
import hashlib
import json
import logging
import os
import platform
import runpy
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import keras
from figures import chosen_for_alignment, draw_alignments, draw_lengths
from joining import SOURCE, TARGET, find_files, read_pairs, test_text, training_text
from runs import LIMITS, QUICK, RUNS, Settings, trained, training_figures
from scoring import claims, scores, table, translations
from words import word_tokenizer

from keras_bahdanau_runtime.files import atomic_write, claim_folder


def reproduce(data, output, settings):
    """Trains what is not trained yet, scores it, and writes results.json, table and pictures.

    Args:
        data: Folder of Multi30k; see `joining.find_files`.
        output: Folder to write to; made if it is not there.
        settings: `Settings`.

    Returns:
        What is in `results.json`.

    Raises:
        ValueError: If files of `data` are missing, `output` is of a run with other settings or
            data, or another process works in it.
    """
    files = find_files(data)
    with claim_folder(output, "works in"):
        _check_same(output / "settings.json", {**asdict(settings), **_hashes(files)})
        tokenizer, texts = _texts(files, settings, output / "texts")
        models = {}
        for name, (_, limit) in RUNS.items():
            folder = output / name
            model = trained(
                name, settings, tokenizer, texts[f"train-{limit}"], texts[f"val-{limit}"], folder
            )
            found = translations(model, texts["test"], settings.beam, folder / "translations.json")
            models[name] = {
                "weights": model.count_params(),
                "training": training_figures(folder),
                "translation_seconds": found["seconds"],
                **scores(found, texts["test"], tokenizer),
            }
            print(f"{name}: BLEU {models[name]['all']['bleu']:.2f}", flush=True)
            if name == "RNNsearch-50":
                chosen = chosen_for_alignment(texts["test"], tokenizer)
                draw_alignments(model, chosen, settings.beam, output / "figure3.png")
        return _write_results(output, settings, models)


def _texts(files, settings, folder):
    """The tokenizer and all joined texts, which are also written down as text files."""
    pairs = {part: read_pairs(paths) for part, paths in files.items()}
    texts = {"test": test_text(pairs["test"], settings.test_pairs, settings.seed)}
    for limit in LIMITS:
        texts[f"train-{limit}"] = training_text(
            pairs["train"], limit, settings.pairs, settings.seed
        )
        texts[f"val-{limit}"] = training_text(
            pairs["validation"], limit, settings.validation_pairs, settings.seed
        )
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        for side in ("source", "target"):
            lines = "".join(f"{getattr(pair, side)}\n" for pair in text)
            (folder / f"{name}.{side}").write_text(lines, encoding="utf-8")
    tokenizer = word_tokenizer(
        [pair.source for pair in pairs["train"]],
        [pair.target for pair in pairs["train"]],
        settings.vocabulary_size,
    )
    return tokenizer, texts


def check_versions(folder):
    """Raises a `ValueError` for files that are not those of Multi30k, which its recipe knows."""
    known = runpy.run_path(str(Path(__file__).resolve().parents[1] / "multi30k" / "data.py"))
    for part in (known["TRAINING"], known["VALIDATION"], *known["TESTS"]):
        for language in (SOURCE, TARGET):
            known["find"](folder, part, language, tokenized=True)


def _hashes(files):
    paths = [path for part in files.values() for both in part for path in both]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _check_same(path, values):
    """Notes what a folder was started with, or refuses other settings and data."""
    if not path.exists():
        _write_json(path, values)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [
        f"{name} was {before.get(name)!r}, is {values.get(name)!r}"
        for name in {**before, **values}
        if before.get(name) != values.get(name)
    ]
    if changed:
        raise ValueError(
            "Argument `output` must be a new folder, or of a run with the same settings and data. "
            f"Received: {str(path.parent)!r}, where {'; '.join(changed)}"
        )


def _write_results(output, settings, models):
    results = {
        "settings": asdict(settings),
        "backend": keras.config.backend(),
        "versions": {name: version(name) for name in ("keras", "sacrebleu", "numpy")},
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "models": models,
        "claims": claims(models),
    }
    _write_json(output / "results.json", results)
    text = table(models)
    (output / "table.md").write_text(text, encoding="utf-8")
    draw_lengths(models, output / "figure2.png")
    print(f"\n{text}")
    for claim, value in results["claims"].items():
        print(f"{claim}: {'-' if value is None else f'{value:.2f}'}")
    return results


def _write_json(path, values):
    with atomic_write(path) as writing:
        writing.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k, with tok/")
    parser.add_argument("--output", type=Path, default=Path("build/examples/paper"))
    parser.add_argument("--quick", action="store_true", help="small models, few updates")
    for name in ("units", "epochs", "pairs", "seed"):
        parser.add_argument(f"--{name}", type=int, help=f"{getattr(Settings(), name)} unless told")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in ("units", "epochs", "pairs", "seed")}
    settings = replace(
        QUICK if options.quick else Settings(),
        **{name: value for name, value in given.items() if value is not None},
    )
    logging.basicConfig(format="%(message)s")
    try:
        find_files(options.data)
        check_versions(options.data)
        reproduce(options.data, options.output, settings)
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
