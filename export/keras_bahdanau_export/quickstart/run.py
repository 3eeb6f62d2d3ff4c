"""The quickstart: dates as people write them, in many languages, to ISO dates.

quickstart/
  data/         the generated text files
  run/          the training run, with best.keras
  artifact/     what a service would load
  alignment.png
"""

import time
from pathlib import Path

import keras
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_bahdanau import BeamSearch, TrainingOptions, plot_alignment, train
from keras_bahdanau.text import word_alignment
from keras_bahdanau_export.quickstart.checks import check_arguments
from keras_bahdanau_export.quickstart.dates import split_dates
from keras_bahdanau_runtime.errors import ParityError
from keras_bahdanau_runtime.text.corpus import read_parallel
from keras_bahdanau_runtime.text.scores import corpus_scores
from keras_bahdanau_runtime.translator import Translator

SEARCH = BeamSearch(size=3)
MAX_LENGTH = 16
HELD_OUT = 1000


def quickstart(output, pairs, epochs, console=None):
    """Trains on generated dates, exports, and translates unseen dates with onnxruntime.

    Args:
        output: The folder to make.
        pairs: Number of pairs to train on.
        epochs: Passes over them.
        console: A rich console, or `None` for one of its own.

    Returns:
        The share of 1,000 unseen dates that came out exactly right.

    Raises:
        ValueError: If `output` exists, or `pairs` or `epochs` is not a positive integer.
        MissingDependencyError: A package that draws or exports is missing.
        ParityError: If the artifact and Keras disagree on any of the unseen dates.
    """
    console = Console() if console is None else console
    output = Path(output)
    check_arguments(output, pairs, epochs)
    began = time.perf_counter()
    console.rule("1. Dates in many languages")
    options = _write_data(output / "data", pairs, epochs)
    unseen, expected = read_parallel(output / "data/test.source", output / "data/test.target")
    for text, iso in list(zip(unseen, expected, strict=True))[:4]:
        console.print(f"{text}  ->  {iso}", highlight=False, markup=False)

    console.rule("2. Training with model.fit")
    best = train(options, output / "run", console=console)
    model = keras.saving.load_model(best, compile=False)

    console.rule("3. Export, and the same with onnxruntime")
    translator = _export(model, output / "artifact", unseen)
    found = translator.translate(unseen)
    _compare(found, model.translate(unseen, search=SEARCH, max_length=MAX_LENGTH))

    console.rule("4. Dates it has never seen")
    _show_examples(console, unseen, found, expected)
    picture = output / "alignment.png"
    example = translator.translate(["Thursday, 3 March 1994"])[0]
    words = word_alignment(example.alignment, example.source_tokens, example.tokens)
    plot_alignment(*words, picture)
    exact = sum(t.text == iso for t, iso in zip(found, expected, strict=True)) / len(expected)
    bleu = corpus_scores([t.text for t in found], expected)["bleu"]
    console.print(
        f"exact match on {len(unseen)} unseen dates: {exact:.1%} (BLEU {bleu:.1f}); "
        f"artifact equal to Keras on all {len(unseen)}\n"
        f"model {best}, artifact {output / 'artifact'}, picture {picture}\n"
        f"{time.perf_counter() - began:.0f} seconds",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return exact


def _export(model, folder, texts):
    model.export(
        folder,
        search=SEARCH,
        max_length=MAX_LENGTH,
        texts=texts[:32],
    )
    return Translator(folder)


def _compare(found, by_keras):
    differing = sum(a.text != b.text for a, b in zip(found, by_keras, strict=True))
    if differing:
        raise ParityError(f"{differing} of {len(found)} unseen dates differ between the two.")


def _show_examples(console, texts, found, expected, count=8):
    table = Table("a person writes", "onnxruntime answers", "right?")
    for text, translation, iso in list(zip(texts, found, expected, strict=True))[:count]:
        right = "yes" if translation.text == iso else f"no: {iso}"
        # Texts of the model are no markup.
        table.add_row(text, Text(translation.text), right)
    console.print(table)


def _write_data(folder, pairs, epochs):
    folder.mkdir(parents=True)
    names = ("train", "validation", "test")
    for name, part in zip(names, split_dates(pairs, 500, HELD_OUT), strict=True):
        for suffix, column in (("source", 0), ("target", 1)):
            lines = "".join(f"{pair[column]}\n" for pair in part)
            (folder / f"{name}.{suffix}").write_text(lines, encoding="utf-8")
    return TrainingOptions(
        source=folder / "train.source",
        target=folder / "train.target",
        validation_source=folder / "validation.source",
        validation_target=folder / "validation.target",
        vocabulary_size=1000,
        units=128,
        embedding_dim=64,
        attention_units=128,
        join_embeddings=False,
        conditional=False,
        dropout=0.1,
        label_smoothing=0.0,
        batch_size=64,
        epochs=epochs,
        learning_rate=3e-3,
        max_length=64,
    )
