"""Export: graphs, tokenizer, parity and manifest into one artifact folder."""

import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras

from keras_bahdanau.search import BeamSearch
from keras_bahdanau.seq2seq import Seq2Seq
from keras_bahdanau_export.artifact import publish, write_manifest
from keras_bahdanau_export.errors import ArtifactError, require
from keras_bahdanau_export.parity import compare, random_sources
from keras_bahdanau_export.runtime import Translator
from keras_bahdanau_export.signature import (
    MODEL_FILE,
    SAMPLE,
    SAVED_MODEL_FOLDER,
    TOKENIZER_FILE,
)

logger = logging.getLogger("keras_bahdanau_export")

FORMATS = ("onnx", "tf_saved_model")
_PACKAGES = ("keras-bahdanau", "keras", "tensorflow", "tf2onnx", "onnx", "onnxruntime")


def export(
    model,
    path,
    format="onnx",
    search=None,
    max_length=100,
    max_source_length=None,
    tokenizer=None,
    texts=(),
    overwrite=False,
):
    """Writes a model as an artifact folder that runs without Keras.

    The search goes into the graph. A model on JAX or torch is traced by a short-lived TensorFlow
    process that loads its `.keras` file. The ONNX graph is then held against the model on its own
    backend, and the artifact appears only if they agree.

    Args:
        model: A built `Seq2Seq`, on any backend.
        path: The folder to make.
        format: "onnx", "tf_saved_model", or a list of both.
        search: The search in the graph; `BeamSearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        max_source_length: Longest source in tokens that the runtime accepts; `None` for no limit.
        tokenizer: The model's `Tokenizer`; without one the artifact takes ids only.
        texts: Sentences to compare on, besides random ids; needs `tokenizer`.
        overwrite: Whether an artifact at `path` may be replaced.

    Returns:
        The `Parity` that was reached, or `None` if no ONNX graph was asked for.

    Raises:
        ValueError: If an argument is wrong, the model is not built, or `path` exists.
        ParityError: If the graph and the model disagree.
        MissingDependencyError: If a package of the extra `export` is missing.
    """
    formats = [format] if isinstance(format, str) else list(format)
    if not formats or set(formats) - set(FORMATS):
        raise ValueError(f"Argument `format` must be among {FORMATS}. Received: {format!r}")
    if not isinstance(model, Seq2Seq):
        raise ValueError(f"Argument `model` must be a Seq2Seq. Received: {type(model).__name__}")
    if not model.built:
        raise ValueError(
            "Argument `model` has no weights yet: train it, or call `model.build()` first."
        )
    if not isinstance(max_length, int) or max_length < 1:
        raise ValueError(
            f"Argument `max_length` must be a positive integer. Received: {max_length!r}"
        )
    if texts and tokenizer is None:
        raise ValueError("Argument `texts` needs `tokenizer`. Received: tokenizer=None")
    for side in ("source", "target"):
        known = getattr(model, f"{side}_vocabulary_size")
        if tokenizer is not None and getattr(tokenizer, f"{side}_vocabulary_size") > known:
            raise ValueError(
                f"Argument `tokenizer` must have at most the model's {known} {side} ids. "
                f"Received: {getattr(tokenizer, f'{side}_vocabulary_size')}"
            )
    search = BeamSearch() if search is None else search

    with publish(path, overwrite=overwrite) as folder:
        _write_graphs(model, folder, formats, search, max_length)
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER_FILE)
        contents = {
            "search": {
                "class": type(search).__name__,
                **search.get_config(),
                "max_length": max_length,
            },
            "vocabulary": {
                "source": model.source_vocabulary_size,
                "target": model.target_vocabulary_size,
            },
            "max_source_length": max_source_length,
            "packages": _versions(),
        }
        if "onnx" in formats and search.noise(1, 1) is not None:
            contents["signatures"] = {MODEL_FILE: SAMPLE.to_json()}
        write_manifest(folder, contents)
        parity = None
        if "onnx" in formats:
            sources = random_sources(model.source_vocabulary_size, max_source_length or 40)
            sources += [tokenizer.encode_source(text) for text in texts]
            if max_source_length is not None:
                sources = [ids for ids in sources if len(ids) <= max_source_length]
            parity = compare(
                model, Translator(folder, "CPUExecutionProvider"), sources, search, max_length
            )
            parity.enforce()
            write_manifest(folder, {**contents, "parity": parity.to_json()})
            logger.info(
                "Parity with Keras on %s: %d of %d sources equal (%d ties); largest difference of "
                "a score %.1e, of an alignment weight %.1e.",
                parity.backend, parity.equal, parity.sentences, parity.ties,
                parity.score_difference, parity.alignment_difference,
            )  # fmt: skip
    return parity


def write_graphs(model, folder, formats, search, max_length):
    """Writes the graphs of a model on the TensorFlow backend into `folder`."""
    from keras_bahdanau_export.onnx_graph import write_onnx
    from keras_bahdanau_export.saved_model import write_saved_model

    if "tf_saved_model" in formats:
        write_saved_model(model, folder / SAVED_MODEL_FOLDER, search, max_length)
    if "onnx" in formats:
        write_onnx(model, folder / MODEL_FILE, search, max_length)


def _write_graphs(model, folder, formats, search, max_length):
    require("tensorflow", extra="export")
    if keras.config.backend() == "tensorflow":
        write_graphs(model, folder, formats, search, max_length)
        return
    logger.info("The model runs on %s: a TensorFlow process traces it.", keras.config.backend())
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch) / "model.keras"
        model.save(saved)
        request = {
            "model": str(saved),
            "folder": str(folder),
            "formats": formats,
            "search": keras.saving.serialize_keras_object(search),
            "max_length": max_length,
        }
        finished = subprocess.run(
            [sys.executable, "-m", "keras_bahdanau_export.exporter"],
            input=json.dumps(request),
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            check=False,
        )
    if finished.returncode:
        raise ArtifactError(
            f"The TensorFlow process that traces the model failed:\n{finished.stderr[-4000:]}"
        )


def _versions():
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            logger.debug("%s is not installed as a package.", name)
    return versions


def _main():
    request = json.load(sys.stdin)
    write_graphs(
        keras.saving.load_model(request["model"], compile=False),
        Path(request["folder"]),
        request["formats"],
        keras.saving.deserialize_keras_object(request["search"]),
        request["max_length"],
    )


if __name__ == "__main__":
    _main()
