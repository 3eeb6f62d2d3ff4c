"""The command `keras-bahdanau`: prepare, train, evaluate, export, verify, translate, serve, ...

Keras is imported only inside the commands that need it: `train`, `export`, `verify`, `shortlist`,
`quickstart` and `evaluate` of a run. The import takes seconds, so it comes after every check that
does not need it.
"""

import logging
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import MissingDependencyError, require
from keras_bahdanau_runtime.manifest import Manifest, read_manifest, read_unreplaced
from keras_bahdanau_runtime.runs.folder import best_file
from keras_bahdanau_runtime.session import CPU, CUDA, available_cores, check_providers, read_graph
from keras_bahdanau_runtime.signature import MANIFEST_FILE
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.translator import Translation, Translator

try:
    import typer
    from rich.console import Console
    from rich.logging import RichHandler
    from rich.progress import Progress
    from rich.table import Table

    from keras_bahdanau_export.checks import check_beam, check_file
    from keras_bahdanau_export.commands.export import export_command
    from keras_bahdanau_export.commands.prepare import prepare
    from keras_bahdanau_export.commands.serve import serve
    from keras_bahdanau_export.commands.shortlist import shortlist
    from keras_bahdanau_export.commands.shown import console, make_harmless, plain, say
    from keras_bahdanau_export.commands.streams import text_source
    from keras_bahdanau_export.commands.train import train_command
    from keras_bahdanau_export.commands.translate import Artifact, BatchSize, BatchTokens, translate
    from keras_bahdanau_export.quiet import import_keras
except ModuleNotFoundError as error:
    raise MissingDependencyError(error.name or "typer", extra="cli") from error

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Attentive recurrent sequence-to-sequence models: train, export, translate.",
)
app.command()(serve)
app.command()(prepare)
app.command()(shortlist)


class Provider(Enum):
    """A provider of onnxruntime whose kernels are known."""

    CUDA = "cuda"


RunOrArtifact = Annotated[Path, typer.Argument(help="A run's folder (from train) or an artifact.")]


@app.callback()
def _configure(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what is done, not only warnings.")
    ] = False,
) -> None:
    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%X")
    handler.addFilter(make_harmless)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    for name in ("keras_bahdanau", "keras_bahdanau_export", "keras_bahdanau_runtime"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)


app.command()(train_command())


@app.command()
def evaluate(
    path: RunOrArtifact,
    source: Annotated[
        Path, typer.Argument(help="Source sentences, plain or .gz; - is standard input.")
    ],
    reference: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    beam_size: Annotated[
        int | None, typer.Option(help="For a run: hypotheses kept, 1 is greedy.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="For a run: exponent of the GNMT length penalty.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="For a run: tokens after which an output is cut.")
    ] = None,
    batch_size: BatchSize = BATCH_SIZE,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="For an artifact: cut sentences it is too short for.")
    ] = False,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            help="For a run: another one, the predictions of both averaged; may be repeated.",
        ),
    ] = None,
    tokenize: Annotated[
        str, typer.Option(help="How BLEU splits words: 13a, none for tokenised text, zh, ...")
    ] = "13a",
) -> None:
    """Translates a test set and prints BLEU (cased) and chrF."""
    from keras_bahdanau_runtime.text.corpus import read_parallel
    from keras_bahdanau_runtime.text.scores import bleu_metric, corpus_scores

    if not path.is_dir():
        raise ValueError(
            "Argument `path` must be the folder of a run or of an artifact, and come before the "
            f"texts. Received: {str(path)!r}, which {'is a file' if path.exists() else 'is absent'}"
        )
    bleu_metric(tokenize)  # refuses it before anything is translated
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
            "Argument `truncate` must be left out for a run: its model takes sentences of any "
            f"length. Received: truncate=True for the run {path}"
        )
    beam_size = 5 if beam_size is None else beam_size
    length_penalty = 1.0 if length_penalty is None else length_penalty
    max_length = 100 if max_length is None else max_length
    check_beam(beam_size, [length_penalty])
    check_positive(max_length=max_length)
    for run in () if is_artifact else (path, *(others or ())):
        best_file(run)  # refuses what is no run
    sources, references = read_parallel(text_source(source), text_source(reference))
    if is_artifact:
        engine, options = (
            Translator(path, parallel_batches=available_cores()),
            {"truncate": truncate},
        )
    else:
        import_keras(tensorflow=False)
        from keras_bahdanau import BeamSearch
        from keras_bahdanau.training.run import load_best

        engine = load_best(path, *(others or ()))
        options = {"search": BeamSearch(beam_size, length_penalty), "max_length": max_length}
    found = _translate_with_bar(
        engine, sources, batch_size=batch_size, batch_tokens=batch_tokens, **options
    )
    translations = [translation.text for translation in found]
    scores = corpus_scores(translations, references, tokenize)
    exact = sum(a == b for a, b in zip(translations, references, strict=True)) / len(references)
    print(f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}  exact {exact:.1%}")


def _refuse_for_artifact(path: Path, **search: Any) -> None:
    """Raises a `ValueError` for the first option of the search that is not `None`."""
    for name, value in search.items():
        if value is not None:
            raise ValueError(
                f"Argument `{name}` must be given to export: an artifact holds its search. "
                f"Received: {name}={value} for the artifact {path}"
            )


app.command()(export_command())


@app.command()
def verify(
    artifact: Artifact,
    model: Annotated[
        Path, typer.Argument(help="What it was exported from: a run's folder, or a .keras file.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(help="Sentences to compare on, plain or .gz; - is standard input."),
    ] = None,
    count: Annotated[int, typer.Option(help="Random sources to compare on.")] = 16,
    seed: Annotated[int, typer.Option(help="Randomness of these.")] = 0,
    provider: Annotated[
        str, typer.Option(help="What the artifact runs on: cpu, cuda, or a name of onnxruntime's.")
    ] = "cpu",
) -> None:
    """Holds an artifact against the Keras model once more; exit status 1 if they disagree.

    Of float16 and int8 it is only counted how often they do.
    """
    from keras_bahdanau_runtime.text.corpus import read_lines

    chosen = {"cpu": CPU, "cuda": CUDA}.get(provider, provider)
    check_providers(chosen)
    check_range("count", count, int, 0)
    check_range("seed", seed, int, 0)
    read_manifest(artifact, verify=False)  # refuses what is no artifact
    is_run = model.is_dir()
    check_file("model", best_file(model) if is_run else model)
    texts = [] if source is None else read_lines(text_source(source))
    import_keras()
    import keras

    from keras_bahdanau.training.run import load_best
    from keras_bahdanau_export import parity

    loaded = load_best(model) if is_run else keras.saving.load_model(model, compile=False)
    found = parity.verify(loaded, artifact, texts=texts, count=count, seed=seed, providers=chosen)
    print(found)


app.command()(translate)


@app.command()
def align(
    artifact: Artifact,
    texts: Annotated[
        list[str], typer.Argument(help="Sentences, each in quotes; drawn side by side.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf; .html to point at."),
    ] = Path("alignment.png"),
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Draw the pieces of the tokenizer, not words.")
    ] = False,
    style: Annotated[
        str, typer.Option(help="light, or paper: as figure 3 of the paper, white for 1.")
    ] = "light",
    columns: Annotated[int, typer.Option(help="Most sentences side by side.")] = 4,
) -> None:
    """Translates sentences and draws their alignments.

    An .html file is one page that needs nothing else: pointing at a word lights where it came from.
    It shows words and pieces.
    """
    from keras_bahdanau_runtime.pictures.figures import check_style, check_suffix
    from keras_bahdanau_runtime.pictures.page import alignment_page
    from keras_bahdanau_runtime.pictures.plots import plot_alignments
    from keras_bahdanau_runtime.pictures.words import word_alignment

    check_style(style)
    check_positive(columns=columns)
    for text in texts:
        if not text.strip():
            raise ValueError(f"Argument `texts` must hold sentences. Received: {text!r}")
    page = output.suffix.lower() == ".html"
    if not page:
        check_suffix(output)
    elif pieces or style != "light":
        raise ValueError(
            "Arguments `pieces` and `style` must be left out for an .html file, which shows words "
            f"and pieces in one style. Received: {output}"
        )
    translations = Translator(artifact).translate(texts)
    found = [(one.alignment, one.source_tokens, one.tokens) for one in translations]
    if page:
        alignment_page(found, output)
    else:
        panels = found if pieces else [word_alignment(*panel) for panel in found]
        plot_alignments(panels, output, style=style, columns=columns)
    for one in translations:
        print(one_line(one.text))
    shown = "alignment is" if len(texts) == 1 else "alignments are"
    say(f"The {shown} drawn in {output}.")


@app.command()
def inspect(
    artifact: Artifact,
    provider: Annotated[
        Provider | None,
        typer.Option(help="Also say what of its graphs would not run on this provider, and why."),
    ] = None,
) -> None:
    """Checks an artifact and prints what its manifest says."""

    def check(manifest: Manifest) -> tuple[Manifest, dict[str, Any]]:
        graphs = {}
        for name in manifest.files:
            if name.endswith(".onnx"):
                checked = read_graph(manifest, name)
                if provider is not None:  # and it is looked at once more
                    graphs[name] = checked
            else:
                manifest.check(name)
        return manifest, graphs

    manifest, graphs = read_unreplaced(artifact, check)
    table = Table("property", "value", title=plain(artifact))
    table.add_row("format version", str(manifest.format_version))
    for name, record in manifest.files.items():
        row = f"{record.bytes:,} bytes, sha256 {record.sha256[:12]}..."
        table.add_row(plain(name), plain(row))
    sections = {
        name: getattr(manifest, name) for name in ("search", "vocabulary", "packages", "parity")
    }
    for name, values in {**sections, **manifest.other}.items():
        if isinstance(values, dict):
            values = "\n".join(f"{key}: {value}" for key, value in values.items())
        table.add_row(plain(name), plain(values))
    table.add_row("max source length", str(manifest.max_source_length))
    if provider is not None:
        for name, lines in _on_host(graphs).items():
            told = "\n".join(lines) or "all of it but sizes runs there"
            table.add_row(plain(f"{name} on {provider.value}"), plain(told))
    Console().print(table)


def _on_host(graphs: dict[str, tuple[bytes, dict[str, bytes]]]) -> dict[str, list[str]]:
    """What of each graph would stay on the host, where CUDA runs it; of bytes that were checked."""
    onnx_ir = require("onnx_ir", extra="export")
    from keras_bahdanau_export.cuda.placement import on_host, summary

    found = {}
    for name, (contents, data) in graphs.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            for file, of in {name: contents, **data}.items():
                Path(folder, file).write_bytes(of)
            found[name] = summary(on_host(onnx_ir.load(path)))
    return found


@app.command()
def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")] = Path(
        "quickstart"
    ),
    pairs: Annotated[int, typer.Option(help="Dates to train on.")] = 20000,
    epochs: Annotated[int, typer.Option(help="Passes over them.")] = 4,
) -> None:
    """Dates as people write them to ISO dates: trains, exports and translates, in minutes."""
    from keras_bahdanau_export.quickstart.checks import check_arguments

    check_arguments(output, pairs, epochs)
    import_keras()
    from keras_bahdanau_export.quickstart.run import quickstart as run

    run(output, pairs=pairs, epochs=epochs, console=console)


def _translate_with_bar(engine: Any, texts: list[str], **options: Any) -> list[Translation]:
    """Translates with a `Translator` or a Keras model and shows how far it is."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("translating", total=len(texts))
        found: list[Translation] = engine.translate(
            texts,
            progress=lambda done: progress.update(task, completed=done),
            alignments=False,
            **options,
        )
        return found
