"""Export: a model into one artifact folder, in five steps: check, trace, write, compare, shrink."""

import importlib.metadata
import logging

import keras

from keras_bahdanau_export.jobs import job_for
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.serialized import in_float32
from keras_bahdanau_export.tracing_process import write_elsewhere
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.signature import SHORTLIST_FILE, TOKENIZER_FILE

logger = logging.getLogger("keras_bahdanau_export")

_PACKAGES = ("keras-bahdanau", "keras", "tensorflow", "tf2onnx", "onnx", "onnx-ir", "onnxruntime")


def export(model, path, overwrite=False, **options):
    """Write a model as an artifact folder that runs without Keras.

    For a `Seq2Seq` or an `Ensemble`, `model.onnx` contains the whole search. For any other Keras
    model it contains the forward pass. A model on JAX or torch is traced by a short-lived
    TensorFlow process that loads its `.keras` file. What was trained with "mixed_bfloat16" is
    exported, and compared, as it computes in float32. The ONNX graphs are then compared with the
    model on its own backend, and the artifact appears only if they agree.

    Args:
        model: A built `Seq2Seq`, `Ensemble`, or functional or `Sequential` Keras model, on any
            backend. Of models that neither generate nor hold layers of this package, too, GRU and
            LSTM layers come out as operators.
        path: The folder to make.
        overwrite: Whether an artifact at `path` may be replaced.
        **options: Those of `ExportOptions`, by name: `format`, `search`, `max_length`,
            `max_source_length`, `tokenizer`, `texts`, `references`, `stepwise`, `captured`,
            `precision`, `max_bleu_loss`, `imports`, `input_names`, `output_names`, `shortlist`.

    Returns:
        The `Parity` that was reached, a `CallParity` of a model that does not generate, or `None`
        if no ONNX graph was asked for.

    Raises:
        ValueError: If an argument is wrong, the model is not built, computes in numbers that
            onnxruntime does not or holds what the TensorFlow process could not load, or `path`
            exists.
        UnsupportedModelError: If the model holds what ONNX has no operator for.
        ParityError: If the graph and the model disagree.
        PrecisionError: If the precision or the shortlist costs more than `max_bleu_loss`.
        ArtifactError: If the TensorFlow process fails otherwise.
        MissingDependencyError: If a package of the extra `export` is missing.
    """
    options = ExportOptions.from_values(options)
    job = job_for(model, options)
    job.check()
    job.model = in_float32(job.model)
    with publish(path, overwrite=overwrite) as folder:
        contents = {"packages": _versions(), "signatures": _trace_and_write(job, folder)}
        contents |= job.describe()
        write_manifest(folder, contents)
        if "onnx" not in options.formats:
            return None
        graphs = job.open(folder)
        parity = job.compare(graphs)
        contents["parity"] = {**parity.to_json(), "tf32": False}  # as a runtime without it computes
        logger.info("%s", parity)
        if options.shortlist is not None:
            contents["shortlist"] = job.cost_of_shortlist(graphs)
            logger.info("Shortlist: %s", contents["shortlist"])
        if options.precision != "float32":
            contents["precision"] = _shrink(job, folder, contents, graphs)
            logger.info("Precision: %s", contents["precision"])
        write_manifest(folder, contents)
    return parity


def _trace_and_write(job, folder):
    """Writes what goes into the artifact besides the manifest; returns the graphs' signatures."""
    require("tensorflow", extra="export")
    if job.tokenizer:
        job.tokenizer.save(folder / TOKENIZER_FILE)
    if job.options.shortlist is not None:
        job.options.shortlist.save(folder / SHORTLIST_FILE)
    if keras.config.backend() != "tensorflow":
        return write_elsewhere(job, folder)
    return job.write(job.functions(), folder)


def _shrink(job, folder, contents, graphs):
    """Writes every graph in smaller numbers; returns what that saves and costs.

    Args:
        job: A `Job`.
        folder: Its folder, a `Path`.
        contents: The manifest, for the runtime opens nothing that it does not list.
        graphs: The float32 graphs, opened.
    """
    from keras_bahdanau_export.precision import reduce_precision

    before = _size(folder)
    for path in sorted(folder.glob("*.onnx")):
        reduce_precision(path, job.options.precision)
    write_manifest(folder, contents)
    return job.measure(graphs, job.open(folder), _size(folder) / before)


def _size(folder):
    return sum(path.stat().st_size for path in folder.glob("*.onnx*"))


def _versions():
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            logger.debug("%s is not installed as a package.", name)
    return versions
