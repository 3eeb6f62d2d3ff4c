"""Command `quickstart`: train, export and translate dates as people write them to ISO dates.

quickstart/
  data/         the generated text files
  run/          the training run, with best.keras
  artifact/     the exported model
  alignment.png
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau_cli.arguments import check_installed, output_path
from keras_bahdanau_cli.quickstart_dates import split_dates
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import console
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option

if TYPE_CHECKING:
    from keras_bahdanau_runtime.translator import Translation


MAX_LENGTH = 16
BEAM = 3
TEST_PAIRS = 1000


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """Size and folder of the quickstart."""

    output: Path = output_path("The folder to create.", Path("quickstart"))
    pairs: int = option(20000, "Number of dates to train on.")
    epochs: int = option(4, "Passes over the dates.")


def quickstart(options: QuickstartOptions) -> None:
    """Train, export and translate dates as people write them to ISO dates, in minutes.

    Example:
        keras-bahdanau quickstart --output quickstart
    """
    from keras_bahdanau_runtime.translator import Translator

    output, pairs, epochs = options.output, options.pairs, options.epochs
    check_positive(pairs=pairs, epochs=epochs)
    check_installed("matplotlib", extra="plot")
    check_installed("tensorflow", extra="export")
    if output.exists():
        raise argument_error("output", "be a new folder", received=f"{str(output)!r}, which exists")
    import_keras()
    import keras

    from keras_bahdanau import BeamSearch, plot_alignment, train
    from keras_bahdanau.text import word_alignment
    from keras_bahdanau_export.parity import verify
    from keras_bahdanau_runtime.text.parallel import read_parallel
    from keras_bahdanau_runtime.text.scores import corpus_scores

    start = time.perf_counter()
    console.rule("1. Dates in many languages")
    training = _write_data(output / "data", pairs, epochs)
    texts, references = read_parallel(output / "data/test.source", output / "data/test.target")
    for text, iso in list(zip(texts, references, strict=True))[:4]:
        console.print(f"{text}  ->  {iso}", highlight=False, markup=False)

    console.rule("2. Training with model.fit")
    best = train(training, output / "run", console=console)
    model = keras.saving.load_model(best, compile=False)

    console.rule("3. Export, and translation with onnxruntime")
    search = BeamSearch(beam_size=BEAM)
    model.export(output / "artifact", search=search, max_length=MAX_LENGTH, texts=texts[:32])
    translator = Translator(output / "artifact")
    translations = translator.translate(texts)
    # A model that has learned little has many hypotheses of equal scores, of which rounding chooses
    # one. `verify` counts these as ties.
    parity = verify(model, output / "artifact", texts=texts, count=0)

    console.rule("4. Dates that were not in the training data")
    _print_examples(console, texts, translations, references)
    picture = output / "alignment.png"
    example = translator.translate(["Thursday, 3 March 1994"])[0]
    words = word_alignment(example.alignment, example.source_tokens, example.tokens)
    plot_alignment(*words, picture)
    exact = sum(t.text == iso for t, iso in zip(translations, references, strict=True))
    bleu = corpus_scores([t.text for t in translations], references)["bleu"]
    console.print(
        f"exact match on {len(texts)} unseen dates: {exact / len(texts):.1%} (BLEU {bleu:.1f}); "
        f"artifact equal to Keras on {parity.equal} dates, tied on {parity.ties}\n"
        f"model {best}, artifact {output / 'artifact'}, picture {picture}\n"
        f"{time.perf_counter() - start:.0f} seconds",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _print_examples(
    console: Console,
    texts: list[str],
    translations: "list[Translation]",
    references: list[str],
    count: int = 8,
) -> None:
    table = Table("date", "translation", "correct?")
    for text, translation, iso in list(zip(texts, translations, references, strict=True))[:count]:
        verdict = "yes" if translation.text == iso else f"no: {iso}"
        table.add_row(text, Text(translation.text), verdict)  # `Text`, as it may look like markup
    console.print(table)


def _write_data(folder: Path, pairs: int, epochs: int) -> TrainingOptions:
    folder.mkdir(parents=True)
    names = ("train", "validation", "test")
    for name, part in zip(names, split_dates(pairs, 500, TEST_PAIRS), strict=True):
        for suffix, column in (("source", 0), ("target", 1)):
            lines = "".join(f"{pair[column]}\n" for pair in part)
            (folder / f"{name}.{suffix}").write_text(lines, encoding="utf-8")
    return TrainingOptions(
        source=folder / "train.source",
        target=folder / "train.target",
        validation_source=(folder / "validation.source",),
        validation_target=(folder / "validation.target",),
        tokenizer="bpe",
        vocabulary_size=1000,
        units=128,
        embedding_dim=64,
        attention_units=128,
        join_embeddings=False,
        conditional=False,
        dropout=0.1,
        label_smoothing=0.0,
        # At least two batches, because TensorFlow refuses a pass of one batch.
        batch_size=min(64, max(1, pairs // 2)),
        epochs=epochs,
        learning_rate=3e-3,
        best_by="bleu",
        max_length=64,
    )
