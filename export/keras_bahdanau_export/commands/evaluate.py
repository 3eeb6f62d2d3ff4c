"""Command `evaluate`: BLEU and chrF of a run or an artifact on a test set."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from keras_bahdanau_export.commands.arguments import (
    BatchSize,
    BatchTokens,
    BeamSize,
    CoveragePenalty,
    DisableUnknown,
    LengthPenalty,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    Suppress,
    check_beam,
)
from keras_bahdanau_export.commands.tensorflow_logging import import_keras
from keras_bahdanau_export.commands.terminal import console, print_message, text_source
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
    references: Annotated[
        list[Path],
        typer.Argument(help="Their translations, line by line; several files for several."),
    ],
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    no_repeat_ngram: NoRepeatNgram = None,
    repetition_penalty: RepetitionPenalty = None,
    suppress: Suppress = None,
    disable_unknown: DisableUnknown = False,
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
    from keras_bahdanau_runtime.text.scores import bleu_metric, corpus_scores

    if not path.is_dir():
        raise ValueError(
            "Argument `path` must be the folder of a run or of an artifact, and come before the "
            f"texts. Received: {str(path)!r}, which {'is a file' if path.exists() else 'is absent'}"
        )
    bleu_metric(tokenize)  # raises for an unknown tokenizer before anything is translated
    check_positive(batch_size=batch_size, batch_tokens=batch_tokens)
    is_artifact = (path / MANIFEST_FILE).exists()
    options: dict[str, Any] = {
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "min_length": min_length,
        "max_length": max_length,
        "no_repeat_ngram": no_repeat_ngram,
        "repetition_penalty": repetition_penalty,
        "beam_size": beam_size,
        "suppressed": suppress or None,
        "disable_unknown": disable_unknown or None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if is_artifact and others:
        raise ValueError(
            "Argument `with` must be used with runs: `export --with` writes an artifact of several "
            f"runs. Received: {[str(run) for run in others]} for the artifact {path}"
        )
    if not is_artifact and truncate:
        raise ValueError(
            "Argument `truncate` must be left out for a run, as its model accepts sentences of any "
            f"length. Received: truncate=True for the run {path}"
        )
    check_beam(beam_size or 1, [length_penalty or 0.0])
    if max_length is not None:
        check_positive(max_length=max_length)
    for run in () if is_artifact else (path, *(others or ())):
        best_file(run)  # checks that it is a run
    sources, reference, *more_references = _read_texts(source, references)
    if is_artifact:
        engine = Translator(path, parallel_batches=available_cores())
        options["truncate"] = truncate
    else:
        import_keras(tensorflow=False)
        from keras_bahdanau.training.run import load_best

        engine = load_best(path, *(others or ()))
    translations = _translate_with_progress(
        engine, sources, batch_size=batch_size, batch_tokens=batch_tokens, **options
    )
    texts = [translation.text for translation in translations]
    scores = corpus_scores(texts, reference, tokenize, more_references)
    rows = zip(*(reference, *more_references), strict=True)
    exact = sum(text in row for text, row in zip(texts, rows, strict=True)) / len(texts)
    print(f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}  exact {exact:.1%}")


def _read_texts(source: Path, references: list[Path]) -> list[list[str]]:
    """Return the sources and the references, without the lines that are blank in one of them."""
    from keras_bahdanau_runtime.text.corpus import read_lines, read_parallel

    if len(references) == 1:
        return list(read_parallel(text_source(source), text_source(references[0])))
    texts = [read_lines(text_source(path)) for path in (source, *references)]
    lengths = [len(lines) for lines in texts]
    if len(set(lengths)) > 1:
        raise ValueError(
            "Arguments `source` and `references` must have the same number of lines. "
            f"Received: {lengths}"
        )
    rows = [row for row in zip(*texts, strict=True) if all(text.strip() for text in row)]
    if not rows:
        raise ValueError(
            "Arguments `source` and `references` must have a line that is blank in none of them. "
            f"Received: {lengths[0]} lines"
        )
    if len(rows) < lengths[0]:
        print_message(f"Dropped {lengths[0] - len(rows)} of {lengths[0]} lines: one is blank.")
    return [list(column) for column in zip(*rows, strict=True)]


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
