"""Export: graphs, tokenizer, parity and manifest into one artifact folder."""

import importlib
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras

from keras_bahdanau.models.generation import Generator
from keras_bahdanau.search import BeamSearch
from keras_bahdanau_export.parity import compare, compare_calls, random_sources
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.errors import ArtifactError, require
from keras_bahdanau_runtime.signature import (
    ENCODER_FILE,
    MODEL_FILE,
    PRECISIONS,
    SAVED_MODEL_FOLDER,
    STEP_FILE,
    TOKENIZER_FILE,
    hypotheses,
    most_rows,
)
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_export")

FORMATS = ("onnx", "tf_saved_model")
_POLICIES = ("float32", "float64", "float16", "mixed_float16")
_PACKAGES = ("keras-bahdanau", "keras", "tensorflow", "tf2onnx", "onnx", "onnx-ir", "onnxruntime")


def export(
    model,
    path,
    format="onnx",
    search=None,
    max_length=100,
    max_source_length=None,
    tokenizer=None,
    texts=(),
    references=(),
    stepwise=False,
    precision="float32",
    max_bleu_loss=0.5,
    imports=(),
    overwrite=False,
):
    """Writes a model as an artifact folder that runs without Keras.

    Of a `Seq2Seq` or an `Ensemble` the whole search goes into `model.onnx`; of any other Keras
    model, its call. A model on JAX or torch is traced by a short-lived TensorFlow process that
    loads its `.keras` file. The ONNX graphs are then held against the model on its own backend, and
    the artifact appears only if they agree.

    Args:
        model: A built `Seq2Seq`, `Ensemble`, or functional or `Sequential` Keras model, on any
            backend. Of models that neither generate nor hold layers of this package, too, GRU and
            LSTM layers come out as operators.
        path: The folder to make.
        format: "onnx", "tf_saved_model", or a list of both.
        search: The search in the graph; `BeamSearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        max_source_length: Longest source in tokens that the runtime accepts; `None` for no limit.
        tokenizer: The model's `Tokenizer`; without one the artifact takes ids only.
        texts: Sentences to compare on, besides random ids; needs `tokenizer`.
        references: A translation of each of `texts`, to measure what a precision costs.
        stepwise: Whether to write `encoder.onnx` and `step.onnx`, too, for decoding token by token.
        precision: "float32", "float16" (for GPUs; on a CPU it saves only room) or "int8" (for
            CPUs). The float32 graph is held against Keras first, then the smaller one against it.
        max_bleu_loss: BLEU on `texts` that the precision may cost.
        imports: Names of modules that register layers of your own, which the TensorFlow process
            imports first. Modules of the model's layers are found without it.
        overwrite: Whether an artifact at `path` may be replaced.

    Returns:
        The `Parity` that was reached, or `None` if no ONNX graph was asked for.

    Raises:
        ValueError: If an argument is wrong, the model is not built or computes in numbers that
            onnxruntime does not, or `path` exists.
        ParityError: If the graph and the model disagree.
        PrecisionError: If the precision costs more than `max_bleu_loss`.
        MissingDependencyError: If a package of the extra `export` is missing.
    """
    formats = [format] if isinstance(format, str) else list(format)
    if not formats or set(formats) - set(FORMATS):
        raise ValueError(f"Argument `format` must be among {FORMATS}. Received: {format!r}")
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Argument `model` must be a Keras model. Received: {type(model).__name__}"
        )
    if not model.built:
        raise ValueError(
            "Argument `model` has no weights yet: train it, or call `model.build()` first."
        )
    if not isinstance(max_length, int) or max_length < 1:
        raise ValueError(
            f"Argument `max_length` must be a positive integer. Received: {max_length!r}"
        )
    if precision not in PRECISIONS or (precision != "float32" and "onnx" not in formats):
        raise ValueError(
            f'Argument `precision` must be one of {PRECISIONS}, and "float32" where no ONNX graph '
            f"is written. Received: {precision!r}"
        )
    if len(references) not in (0, len(texts)):
        raise ValueError(
            f"Argument `references` must hold one for each of {len(texts)} texts. "
            f"Received: {len(references)}"
        )
    if texts and tokenizer is None:
        raise ValueError("Argument `texts` needs `tokenizer`. Received: tokenizer=None")
    generates = isinstance(model, Generator)
    if not generates and (search is not None or tokenizer is not None or stepwise):
        raise ValueError(
            "Arguments `search`, `tokenizer` and `stepwise` are for models that generate. "
            f"Received: a {type(model).__name__}"
        )
    for side in ("source", "target"):
        if tokenizer is None:
            break
        known = getattr(model, f"{side}_vocabulary_size")
        if getattr(tokenizer, f"{side}_vocabulary_size") > known:
            raise ValueError(
                f"Argument `tokenizer` must have at most the model's {known} {side} ids. "
                f"Received: {getattr(tokenizer, f'{side}_vocabulary_size')}"
            )
    policies = _policies(model)
    if not policies <= set(_POLICIES):
        raise ValueError(
            f"Argument `model` must compute by the dtype policies {_POLICIES}, for which there are "
            f"operators. Received: {sorted(policies)}. Make it anew with dtype='float32' and give "
            "it the weights: new.set_weights(model.get_weights())."
        )
    if generates and search is None:
        search = BeamSearch()
    if generates:
        settings = {
            "class": type(search).__name__,
            **search.get_config(),
            "max_length": max_length,
        }
        if most_rows(settings, model.target_vocabulary_size) < 1:
            raise ValueError(
                "Arguments `search` and `max_length`: candidates and steps are counted in int32. "
                f"Received: {hypotheses(settings)} hypotheses of up to {max_length} tokens out of "
                f"{model.target_vocabulary_size}"
            )

    with publish(path, overwrite=overwrite) as folder:
        signatures = _write_graphs(
            model, folder, formats, search, max_length, stepwise, imports=imports
        )
        contents = {"packages": _versions(), "signatures": signatures}
        if generates:
            contents["search"] = settings
            contents["vocabulary"] = {
                "source": model.source_vocabulary_size,
                "target": model.target_vocabulary_size,
            }
            contents["max_source_length"] = max_source_length
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER_FILE)
        write_manifest(folder, contents)
        if "onnx" not in formats:
            return None
        if generates:
            sources = random_sources(model.source_vocabulary_size, max_source_length or 40)
            sources += [tokenizer.encode_source(text) for text in texts]
            if max_source_length is not None:
                sources = [ids for ids in sources if len(ids) <= max_source_length]
            translator = Translator(folder, "CPUExecutionProvider")
            parity = compare(model, translator, sources, search, max_length)
        else:
            parity = compare_calls(model, folder / MODEL_FILE)
        if generates or policies <= {"float32", "float64"}:
            parity.enforce()
        else:
            parity.enforce(5e-3)  # half precision knows three digits
        logger.info("%s", parity)
        contents["parity"] = parity.to_json()
        if precision != "float32":
            size = _shrink(folder, precision)
            write_manifest(folder, contents)
            if generates:
                reduced = Translator(folder, "CPUExecutionProvider")
                from keras_bahdanau_export.precision import measure

                loss = measure(translator, reduced, precision, size, sources, texts, references)
                loss.enforce(max_bleu_loss)
                contents["precision"] = loss.to_json()
            else:
                reduced = compare_calls(model, folder / MODEL_FILE)
                contents["precision"] = {"precision": precision, "size": size, **reduced.to_json()}
            logger.info("Precision: %s", contents["precision"])
        write_manifest(folder, contents)
    return parity


def _shrink(folder, precision):
    """Writes every graph in smaller numbers; returns the share of bytes that is left."""
    from keras_bahdanau_export.precision import reduce_precision

    before = _size(folder)
    for path in sorted(folder.glob("*.onnx")):
        reduce_precision(path, precision)
    return _size(folder) / before


def _size(folder):
    return sum(path.stat().st_size for path in folder.glob("*.onnx*"))


def write_graphs(model, folder, formats, search, max_length, stepwise):
    """Writes the graphs of a model on the TensorFlow backend into `folder`.

    Returns:
        The signatures of the ONNX files, by name, as plain dicts.
    """
    from keras_bahdanau_export import trace as functions
    from keras_bahdanau_export.onnx_graph import write_onnx
    from keras_bahdanau_export.saved_model import write_saved_model

    if isinstance(model, Generator):
        made = {"translate": functions.search_function(model, search, max_length)}
        if stepwise or "tf_saved_model" in formats:
            made["encode"] = functions.encode_function(model)
            made["step"] = functions.step_function(model)
        files = {"translate": MODEL_FILE}
        if stepwise:
            files |= {"encode": ENCODER_FILE, "step": STEP_FILE}
    else:
        made = {"call": functions.forward_function(model)}
        files = {"call": MODEL_FILE}
    if "tf_saved_model" in formats:
        write_saved_model(
            model, folder / SAVED_MODEL_FOLDER, {name: pair[0] for name, pair in made.items()}
        )
    if "onnx" not in formats:
        return {}
    for name, file in files.items():
        write_onnx(*made[name], folder / file, model.variables)
    return {file: made[name][1].to_json() for name, file in files.items()}


def _write_graphs(model, folder, formats, search, max_length, stepwise, imports):
    require("tensorflow", extra="export")
    if keras.config.backend() == "tensorflow":
        return write_graphs(model, folder, formats, search, max_length, stepwise)
    logger.info("The model runs on %s: a TensorFlow process traces it.", keras.config.backend())
    with tempfile.TemporaryDirectory() as scratch:
        saved, answer = Path(scratch) / "model.keras", Path(scratch) / "signatures.json"
        model.save(saved)
        request = {
            "model": str(saved),
            "answer": str(answer),
            "folder": str(folder),
            "formats": formats,
            "search": keras.saving.serialize_keras_object(search),
            "max_length": max_length,
            "stepwise": stepwise,
            "imports": [*imports, *_modules_of_parts(model)],
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
                "The TensorFlow process that traces the model failed. If it could not find a class "
                "of yours, register it with keras.saving.register_keras_serializable() and name "
                "its module in imports=[...] (--import on the command line).\n"
                f"{finished.stderr[-4000:]}"
            )
        return json.loads(answer.read_text(encoding="utf-8"))


def _modules_of_parts(model):
    """The modules, other than Keras's and ours, that a process has to import to load the model."""
    known = ("keras", "keras_bahdanau", "builtins", "__main__")
    named = {part.get("module") for part in _parts(model)}
    named = (module for module in named if isinstance(module, str))
    return sorted(module for module in named if module.split(".")[0] not in known)


def _policies(model):
    """The names of the dtype policies that the model's layers compute by."""
    parts = [part for part in _parts(model) if "DTypePolicy" in str(part.get("class_name"))]
    configs = [part.get("config", {}) for part in parts]
    return {str(config.get("name") or config.get("mode")) for config in configs}


def _parts(model):
    """Every dict in the model's serialized form."""
    left = [keras.saving.serialize_keras_object(model)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left.extend(part.values())
        elif isinstance(part, (list, tuple)):
            left.extend(part)


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
    for module in request["imports"]:
        importlib.import_module(module)
    signatures = write_graphs(
        keras.saving.load_model(request["model"], compile=False),
        Path(request["folder"]),
        request["formats"],
        keras.saving.deserialize_keras_object(request["search"]),
        request["max_length"],
        request["stepwise"],
    )
    Path(request["answer"]).write_text(json.dumps(signatures), encoding="utf-8")


if __name__ == "__main__":
    _main()
