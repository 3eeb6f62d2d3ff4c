"""Command `evaluate`: BLEU and chrF of a run or an artifact on a test set."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from keras_bahdanau_export.commands.arguments import BatchSize, BatchTokens, check_beam
from keras_bahdanau_export.commands.tensorflow_logging import import_keras
from keras_bahdanau_export.commands.terminal import console, text_source
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.runs.folder import best_file
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.signature import MANIFEST_FILE
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.translator import Translation, Translator


def evaluate(
    path: Annotated[
        Path, typer.Argument(help="Folder of a run (from train) or of an artifact (from export).")
    ],
    source: Annotated[
        Path, typer.Argument(help="Source sentences, plain or .gz; - is standard input.")
    ],
    reference: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    beam_size: Annotated[
        int | None,
        typer.Option(help="For a run: beam size; 1 is greedy.", rich_help_panel="Search"),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="For a run: exponent of the GNMT length penalty.", rich_help_panel="Search"
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="For a run: maximum number of output tokens.", rich_help_panel="Search"),
    ] = None,
    batch_size: BatchSize = BATCH_SIZE,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate",
            help="For an artifact: truncate sentences above its limit.",
            rich_help_panel="Limits",
        ),
    ] = False,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            help="For a run: another run; the predictions of all are averaged. May be repeated.",
            rich_help_panel="Model",
        ),
    ] = None,
    tokenize: Annotated[
        str,
        typer.Option(
            help="Tokenizer of BLEU: 13a, none for tokenized text, zh, ...",
            rich_help_panel="Output",
        ),
    ] = "13a",
) -> None:
    """Translate a test set and print BLEU (cased) and chrF.

    Example:
        keras-bahdanau evaluate artifact test.en test.de
    """
    from keras_bahdanau_runtime.text.corpus import read_parallel
    from keras_bahdanau_runtime.text.scores import bleu_metric, corpus_scores

    if not path.is_dir():
        raise ValueError(
            "Argument `path` must be the folder of a run or of an artifact, and come before the "
            f"texts. Received: {str(path)!r}, which {'is a file' if path.exists() else 'is absent'}"
        )
    bleu_metric(tokenize)  # raises for an unknown tokenizer before anything is translated
    check_positive(batch_size=batch_size, batch_tokens=batch_tokens)
    is_artifact = (path / MANIFEST_FILE).exists()
    if is_artifact:
        _refuse_for_artifact(
            path,
            beam_size=beam_size,
            length_penalty=length_penalty,
            max_length=max_length,
            **{"with": [str(run) for run in others or ()] or None},
        )
    elif truncate:
        raise ValueError(
            "Argument `truncate` must be left out for a run, as its model accepts sentences of any "
            f"length. Received: truncate=True for the run {path}"
        )
    beam_size = 5 if beam_size is None else beam_size
    length_penalty = 1.0 if length_penalty is None else length_penalty
    max_length = 100 if max_length is None else max_length
    check_beam(beam_size, [length_penalty])
    check_positive(max_length=max_length)
    for run in () if is_artifact else (path, *(others or ())):
        best_file(run)  # checks that it is a run
    sources, references = read_parallel(text_source(source), text_source(reference))
    if is_artifact:
        engine = Translator(path, parallel_batches=available_cores())
        options: dict[str, Any] = {"truncate": truncate}
    else:
        import_keras(tensorflow=False)
        from keras_bahdanau import BeamSearch
        from keras_bahdanau.training.run import load_best

        engine = load_best(path, *(others or ()))
        options = {"search": BeamSearch(beam_size, length_penalty), "max_length": max_length}
    translations = _translate_with_progress(
        engine, sources, batch_size=batch_size, batch_tokens=batch_tokens, **options
    )
    texts = [translation.text for translation in translations]
    scores = corpus_scores(texts, references, tokenize)
    exact = sum(a == b for a, b in zip(texts, references, strict=True)) / len(references)
    print(f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}  exact {exact:.1%}")


def _refuse_for_artifact(path: Path, **options: Any) -> None:
    """Raise a `ValueError` for the first search option that is not `None`."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"Argument `{name}` must be set when the artifact is exported, as it contains its "
                f"search. Received: {name}={value} for the artifact {path}"
            )


def _translate_with_progress(engine: Any, texts: list[str], **options: Any) -> list[Translation]:
    """Translate with a `Translator` or a Keras model, with a progress bar."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("translating", total=len(texts))
        translations: list[Translation] = engine.translate(
            texts,
            progress=lambda done: progress.update(task, completed=done),
            alignments=False,
            **options,
        )
        return translations
