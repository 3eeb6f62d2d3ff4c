"""Open a run or an artifact to translate and score texts."""

from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

from keras_bahdanau.run_folder import best_file, member_runs
from keras_bahdanau_cli.arguments import ModelImports, RunLimits
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.text_model import TextModel
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.hub import is_hub_address
from keras_bahdanau_runtime.signature import MANIFEST_FILE

MODEL = (
    "Folder of a run or of several (from train) or of an artifact (from export), or an artifact's "
    "address hf://USER/NAME[@REVISION]."
)


def check_model(
    path: str, limits: RunLimits, imported: ModelImports, argument: str = "model"
) -> None:
    """Check without Keras that `open_model` can open a path.

    Raises:
        ValueError: The path is not the folder of a run or of an artifact, there are limits for a
            run or modules for an artifact, or a module does not exist.
    """
    folder = Path(path)
    is_artifact = is_hub_address(path) or (folder / MANIFEST_FILE).exists()
    imported.check(is_run=not is_artifact)
    if is_hub_address(path):
        return
    if not folder.is_dir():
        raise argument_error(
            argument,
            "be the folder of a run or of an artifact, and come before the texts",
            received=f"{path!r}, which {'is a file' if folder.exists() else 'is absent'}",
        )
    if is_artifact:
        return
    for run in member_runs(folder):
        best_file(run, argument)
    for limit in fields(limits):
        value = getattr(limits, limit.name)
        if value is not None:
            raise argument_error(
                limit.name, "be left out for a run, which has no graph", received=str(value)
            )


def open_model(
    path: str, batches: BatchSizes, limits: RunLimits, imported: ModelImports
) -> TextModel:
    """Open an artifact, or the models of a run; `check_model` has checked the path.

    Args:
        path: Folder of a run, of several runs or of an artifact, or an address on the Hub.
        batches: Sizes of batches.
        limits: Limits of the runs of a graph.
        imported: Modules with classes of the models of a run.
    """
    settings = {**asdict(batches), "alignments": False, "on_error": "keep"}
    if is_hub_address(path) or (Path(path) / MANIFEST_FILE).exists():
        from keras_bahdanau_runtime.session import available_cores
        from keras_bahdanau_runtime.translator import Translator

        translator = Translator(
            artifact_folder(path), parallel_batches=available_cores(), **asdict(limits)
        )
        tokenizer = translator.require_tokenizer()
        return TextModel(
            tokenizer,
            translator.manifest.search.num_hypotheses,
            partial(translator.translate, **settings),
            partial(translator.score, **settings),
        )
    import_keras(tensorflow=False)
    from keras_bahdanau.search import BeamSearch
    from keras_bahdanau.training.run import load_best
    from keras_bahdanau_runtime.scoring import score_texts

    imported.load()
    model, search = load_best(Path(path)), BeamSearch()

    def score(source, target):
        outputs = model.score(source, target)
        return {name: getattr(outputs, name) for name in ("totals", "log_probs", "lengths")}

    return TextModel(
        model.tokenizer,
        search.num_hypotheses,
        partial(model.translate, search=search, **settings),
        partial(
            score_texts,
            tokenizer=model.tokenizer,
            score=score,
            on_error="keep",
            **asdict(batches),
        ),
    )
