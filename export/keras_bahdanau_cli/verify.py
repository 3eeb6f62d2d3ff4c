"""Command `verify`: compare an artifact with the Keras model it was exported from."""

from pathlib import Path
from typing import Annotated

import typer

from keras_bahdanau.run_folder import best_file
from keras_bahdanau_cli.arguments import Artifact, check_file
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import text_source
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.session import CPU, CUDA, check_providers


def verify(
    artifact: Artifact,
    model: Annotated[
        Path,
        typer.Argument(help="The run's folder, or the .keras file, that it was exported from."),
    ],
    source: Annotated[
        Path | None,
        typer.Option(help="Sentences to compare on, plain or .gz; - is standard input."),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of random sources to compare on.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the random sources.")] = 0,
    provider: Annotated[
        str,
        typer.Option(help="Execution provider of the artifact: cpu, cuda, or onnxruntime's name."),
    ] = "cpu",
) -> None:
    """Compare an artifact with its Keras model again; exit with status 1 if they disagree.

    For float16 and int8 only the number of equal translations is reported.

    Example:
        keras-bahdanau verify artifact run --source dev.en
    """
    from keras_bahdanau_runtime.text.parallel import UTF_8_TEXT, read_side

    providers = {"cpu": CPU, "cuda": CUDA}.get(provider, provider)
    check_providers(providers)
    check_range("count", count, int, 0)
    check_range("seed", seed, int, 0)
    folder = artifact_folder(artifact)
    read_manifest(folder, verify=False)  # checks that it is an artifact
    is_run = model.is_dir()
    check_file("model", best_file(model) if is_run else model)
    texts = [] if source is None else read_side(text_source(source), UTF_8_TEXT)
    import_keras()
    from keras_bahdanau.models.saved_models import load_saved_model
    from keras_bahdanau.training.run import load_best
    from keras_bahdanau_export import parity

    loaded = load_best(model) if is_run else load_saved_model(model, "model")
    print(parity.verify(loaded, folder, texts=texts, count=count, seed=seed, providers=providers))
