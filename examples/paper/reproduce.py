"""Reproduce Table 1, Figure 2 and Figure 3 of arXiv 1409.0473 on Multi30k.

Trains RNNsearch and RNNencdec, with equal sizes and equal numbers of updates, on sentences of up to
30 and up to 50 words. The same command resumes an interrupted run.
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
from figures import draw_alignments, draw_lengths, select_for_alignment
from joined_sentences import (
    SOURCE,
    TARGET,
    find_files,
    make_test_pairs,
    make_training_pairs,
    read_pairs,
)
from scoring import claims, score, table, translate_or_load
from training import LIMITS, QUICK, RUNS, Settings, train_or_load, training_figures
from word_tokenizer import word_tokenizer

from keras_bahdanau_runtime.files import atomic_write, claim_folder


def reproduce(data, output, settings):
    """Train and score all models that are not finished, and write results, table and figures.

    Args:
        data: Folder of Multi30k; see `joined_sentences.find_files`.
        output: Folder to write to; created if it does not exist.
        settings: `Settings`.

    Returns:
        The contents of `results.json`.

    Raises:
        ValueError: If files of `data` are missing, `output` has a run with other settings or data,
            or another process uses it.
    """
    files = find_files(data)
    with claim_folder(output, "works in"):
        _check_same(output / "settings.json", {**asdict(settings), **_hashes(files)})
        tokenizer, texts = _texts(files, settings, output / "texts")
        models = {}
        for name, (_, limit) in RUNS.items():
            folder = output / name
            model = train_or_load(
                name, settings, tokenizer, texts[f"train-{limit}"], texts[f"val-{limit}"], folder
            )
            translations = translate_or_load(
                model, texts["test"], settings.beam, folder / "translations.json"
            )
            models[name] = {
                "weights": model.count_params(),
                "training": training_figures(folder),
                "translation_seconds": translations["seconds"],
                **score(translations, texts["test"], tokenizer),
            }
            print(f"{name}: BLEU {models[name]['all']['bleu']:.2f}", flush=True)
            if name == "RNNsearch-50":
                examples = select_for_alignment(texts["test"], tokenizer)
                draw_alignments(model, examples, settings.beam, output / "figure3.png")
        return _write_results(output, settings, models)


def _texts(files, settings, folder):
    """Return the tokenizer and all joined texts, and write these as text files."""
    pairs = {part: read_pairs(paths) for part, paths in files.items()}
    texts = {"test": make_test_pairs(pairs["test"], settings.test_pairs, settings.seed)}
    for limit in LIMITS:
        texts[f"train-{limit}"] = make_training_pairs(
            pairs["train"], limit, settings.pairs, settings.seed
        )
        texts[f"val-{limit}"] = make_training_pairs(
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
    """Raise a `ValueError` unless the files have the checksums of the Multi30k recipe."""
    path = Path(__file__).resolve().parents[1] / "multi30k" / "multi30k_files.py"
    multi30k = runpy.run_path(str(path))
    for part in (multi30k["TRAINING"], multi30k["VALIDATION"], *multi30k["TESTS"]):
        for language in (SOURCE, TARGET):
            multi30k["find_file"](folder, part, language, tokenized=True)


def _hashes(files):
    paths = [path for part in files.values() for pair in part for path in pair]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _check_same(path, values):
    """Save the settings of a new folder, or raise if a folder has other settings or data."""
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
            "Argument `output` must be a new folder or a run with the same settings and data. "
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
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of Multi30k, with a subfolder tok"
    )
    parser.add_argument("--output", type=Path, default=Path("build/examples/paper"))
    parser.add_argument("--quick", action="store_true", help="train small models for few updates")
    for name in ("units", "epochs", "pairs", "seed"):
        parser.add_argument(f"--{name}", type=int, help=f"default: {getattr(Settings(), name)}")
    args = parser.parse_args(arguments)
    overrides = {name: getattr(args, name) for name in ("units", "epochs", "pairs", "seed")}
    settings = replace(
        QUICK if args.quick else Settings(),
        **{name: value for name, value in overrides.items() if value is not None},
    )
    logging.basicConfig(format="%(message)s")
    try:
        find_files(args.data)
        check_versions(args.data)
        reproduce(args.data, args.output, settings)
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
