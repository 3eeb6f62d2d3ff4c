"""The command `keras-bahdanau`: train, evaluate, export, translate, align, quickstart.

Keras is imported only inside the commands that need it; `translate` runs without it.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from keras_bahdanau_export.errors import ArtifactError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Attentive recurrent sequence-to-sequence models: train, export, translate.",
)
# Messages go to standard error, so that standard output holds nothing but results.
console = Console(stderr=True)

RunOrArtifact = Annotated[Path, typer.Argument(help="A run's folder (from train) or an artifact.")]
Artifact = Annotated[Path, typer.Argument(help="An artifact (from export).")]
Beam = Annotated[int, typer.Option(help="Hypotheses kept by the search; 1 is greedy.")]
LengthPenalty = Annotated[float, typer.Option(help="Exponent of the GNMT length penalty.")]
MaxLength = Annotated[int, typer.Option(help="Tokens after which an output is cut.")]


@app.callback()
def _configure(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only warnings.")] = False,
) -> None:
    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%X")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    for name in ("keras_bahdanau", "keras_bahdanau_export"):
        logging.getLogger(name).setLevel(logging.WARNING if quiet else logging.INFO)


@app.command()
def train(
    source: Annotated[Path, typer.Argument(help="Source sentences, one a line; plain or .gz.")],
    target: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    validation_source: Annotated[Path, typer.Option(help="Held-out source sentences.")],
    validation_target: Annotated[Path, typer.Option(help="Their translations.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The run's folder.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    model: Annotated[str, typer.Option(help="rnnsearch or rnnencdec.")] = "rnnsearch",
    vocabulary_size: Annotated[int, typer.Option(help="Byte-pair pieces to learn.")] = 5000,
    joint: Annotated[
        bool, typer.Option("--joint/--separate", help="One vocabulary for both languages, or two.")
    ] = True,
    units: Annotated[int, typer.Option(help="Width of each recurrence.")] = 256,
    embedding_dim: Annotated[int, typer.Option(help="Width of the embeddings.")] = 256,
    attention_units: Annotated[int, typer.Option(help="Width of the alignment model.")] = 256,
    tie_embeddings: Annotated[
        bool, typer.Option(help="Use the target embedding as the output layer.")
    ] = True,
    dropout: Annotated[float, typer.Option(help="Share of features dropped.")] = 0.3,
    label_smoothing: Annotated[float, typer.Option(help="Share of the target spread out.")] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Sentences in a batch.")] = 64,
    epochs: Annotated[int, typer.Option(help="Passes over the text.")] = 25,
    learning_rate: Annotated[float, typer.Option(help="Adam's peak rate; falls to zero.")] = 1e-3,
    warmup: Annotated[float, typer.Option(help="Epochs until the peak rate.")] = 0.5,
    clip_norm: Annotated[float, typer.Option(help="Largest norm of all gradients.")] = 1.0,
    max_length: Annotated[int, typer.Option(help="Longest sentence in tokens.")] = 100,
    validation_beam: Annotated[int, typer.Option(help="Beam of each epoch's validation.")] = 1,
    seed: Annotated[int, typer.Option(help="Randomness of weights, order and dropout.")] = 0,
) -> None:
    """Trains a model on two text files and keeps the best by validation BLEU."""
    from keras_bahdanau_export import training

    options = training.TrainingOptions(
        source=str(source),
        target=str(target),
        validation_source=str(validation_source),
        validation_target=str(validation_target),
        model=model,
        vocabulary_size=vocabulary_size,
        joint=joint,
        units=units,
        embedding_dim=embedding_dim,
        attention_units=attention_units,
        tie_embeddings=tie_embeddings,
        dropout=dropout,
        label_smoothing=label_smoothing,
        batch_size=batch_size,
        epochs=epochs,
        learning_rate=learning_rate,
        warmup=warmup,
        clip_norm=clip_norm,
        max_length=max_length,
        validation_beam=validation_beam,
        seed=seed,
    )
    try:
        best = training.train(options, output, resume=resume, console=console)
    except KeyboardInterrupt:
        console.print(
            f"Interrupted. The last whole epoch is kept in {output}: "
            "give the same command with --resume to go on."
        )
        raise typer.Exit(130) from None
    console.print(f"The best model is {best}.")


def main() -> None:
    """Runs the command; a mistake of the user's is one line, not a traceback."""
    try:
        app()
    except (ValueError, OSError, ImportError, ArtifactError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
