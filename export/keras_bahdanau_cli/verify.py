"""Command `verify`: compare an artifact with the Keras model it was exported from."""

from dataclasses import dataclass
from pathlib import Path

from keras_bahdanau.run_folder import best_file, member_runs
from keras_bahdanau_cli.arguments import ARTIFACT, ModelImports, argument, check_file
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import text_source
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.option_fields import check_options, option


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """An artifact and its model, and the sources to compare them on."""

    artifact: str = argument(ARTIFACT)
    model: Path = argument("The run's folder, or the .keras file, that it was exported from.")
    source: Path | None = option(
        None, "Sentences to compare on, plain or .gz; - is standard input."
    )
    count: int = option(16, "Number of random sources to compare on.", limits={"low": 0})
    seed: int = option(0, "Seed of the random sources.", limits={"low": 0})
    provider: str = option(
        "cpu", "Execution provider of the artifact: cpu, cuda, or onnxruntime's name."
    )

    def __post_init__(self) -> None:
        check_options(self)


def verify(options: VerifyOptions, imported: ModelImports) -> None:
    """Compare an artifact with its Keras model again; exit with status 1 if they disagree.

    For float16 and int8 only the number of equal translations is reported.

    Example:
        keras-bahdanau verify artifact run --source dev.en
    """
    from keras_bahdanau_runtime.session import CPU, CUDA, check_providers
    from keras_bahdanau_runtime.text.parallel import UTF_8_TEXT, read_side

    providers = {"cpu": CPU, "cuda": CUDA}.get(options.provider, options.provider)
    check_providers(providers)
    model, source, folder = options.model, options.source, artifact_folder(options.artifact)
    read_manifest(folder, verify=False)  # checks that it is an artifact
    is_run = model.is_dir()
    for path in [best_file(run) for run in member_runs(model)] if is_run else [model]:
        check_file("model", path)
    imported.check()
    texts = [] if source is None else read_side(text_source(source), UTF_8_TEXT)
    import_keras()
    from keras_bahdanau.models.saved_models import load_saved_model
    from keras_bahdanau.training.run import load_best
    from keras_bahdanau_export import parity

    imported.load()
    loaded = load_best(model) if is_run else load_saved_model(model, "model")
    settings = {"count": options.count, "seed": options.seed, "providers": providers}
    print(parity.verify(loaded, folder, texts=texts, **settings))
