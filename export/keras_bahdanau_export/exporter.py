"""Export a model to an artifact folder: check, trace, write, compare, reduce precision."""

import importlib.metadata
import itertools
import logging
from dataclasses import replace

import keras

from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.models.saved_models import check_finite_weights
from keras_bahdanau.models.shortlist import check_shortlist
from keras_bahdanau.search import BeamSearch
from keras_bahdanau.search.base import check_search, search_document
from keras_bahdanau_export import parity
from keras_bahdanau_export.garbage_collection import frozen_garbage_collection
from keras_bahdanau_export.model_config import check_policies, to_float32
from keras_bahdanau_export.options import MAX_COPIED_SOURCE_LENGTH, ExportOptions
from keras_bahdanau_export.quality_loss import measure_precision_loss, measure_shortlist_loss
from keras_bahdanau_export.trace import as_functional, forward_signature, trace_and_write
from keras_bahdanau_export.tracing_process import trace_in_subprocess
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.errors import argument_error, require
from keras_bahdanau_runtime.files import folder_name
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.session import CPU, open_graph
from keras_bahdanau_runtime.signature import (
    MODEL_CARD_FILE,
    MODEL_FILE,
    SHORTLIST_FILE,
    TOKENIZER_FILE,
)
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_export")

_PACKAGES = ("keras-bahdanau", "keras", "tensorflow", "tf2onnx", "onnx", "onnx-ir", "onnxruntime")


@frozen_garbage_collection()
def export(model, path, overwrite=False, **options):
    """Write a model as an artifact folder that runs without Keras.

    For a `Seq2Seq` or an `Ensemble`, `model.onnx` contains the whole search. For any other Keras
    model it contains the forward pass. A model on JAX or torch is traced by a short-lived
    TensorFlow process that loads its `.keras` file. A model trained with "mixed_bfloat16" or
    "mixed_float16" is exported, and compared, in float32. The ONNX graphs are compared with the
    model on its own backend, and the artifact is only published if they agree.

    Args:
        model: A built `Seq2Seq`, `Ensemble`, or functional or `Sequential` Keras model, on any
            backend. GRU and LSTM layers become ONNX operators, also in models without layers of
            this package.
        path: The folder to create.
        overwrite: Whether an artifact at `path` may be replaced.
        **options: The fields of `ExportOptions`: `format`, `search`, `max_length`,
            `max_source_length`, `tokenizer`, `texts`, `references`, `stepwise`, `cuda_graphs`,
            `skip_ended`, `precision`, `max_bleu_loss`, `imports`, `input_names`, `output_names`,
            `calibrate`, `shortlist`, `model_card`.

    Returns:
        The measured `Parity`, or a `CallParity` for a model without a search, or `None` if no ONNX
        graph was written. Keras's `Model.export` returns `None`, because it compares nothing.

    Raises:
        ValueError: If an argument is wrong, `path` exists, or the model is not built, has a dtype
            policy without operators in onnxruntime, has NaN or infinity in a weight, or contains
            objects that the TensorFlow process cannot load.
        UnsupportedModelError: If ONNX has no operator for a part of the model.
        ParityError: If the graph and the model disagree.
        PrecisionError: If the precision or the shortlist costs more than `max_bleu_loss`.
        ArtifactError: If the TensorFlow process fails otherwise.
        MissingDependencyError: If a package of the extra `export` is missing.
    """
    exporter = make_exporter(model, ExportOptions.from_values(options))
    exporter.check()
    exporter.model = to_float32(exporter.model)
    with publish(path, overwrite=overwrite) as folder:
        manifest = {"packages": _versions(), "signatures": _write_files(exporter, folder)}
        manifest |= exporter.describe()
        result = None
        if "onnx" in exporter.options.formats:
            write_manifest(folder, manifest)
            result = _measure(exporter, folder, manifest)
        if exporter.options.model_card is not None:
            files = [file.name for file in folder.iterdir()]
            text = exporter.options.model_card.text(folder_name(path), manifest, files)
            (folder / MODEL_CARD_FILE).write_text(text, "utf-8")
        write_manifest(folder, manifest)
    return result


def make_exporter(model, options):
    """Return the `Exporter` that exports a model with these `ExportOptions`."""
    return (SearchExporter if isinstance(model, GenerationMixin) else ForwardExporter)(
        model, options
    )


class Exporter:
    """Export of one kind of model.

    Args:
        model: As for `export`.
        options: `ExportOptions`.
    """

    def __init__(self, model, options):
        self.model = model
        self.options = options

    def check(self):
        """Raise a `ValueError` that names the first argument that does not fit the model."""
        if not isinstance(self.model, keras.Model):
            raise argument_error(
                "model", "be a Keras model", received=str(type(self.model).__name__)
            )
        if not self.model.built:
            raise argument_error(
                "model",
                "have weights: train it, or call `model.build()` first",
                received=f"a {type(self.model).__name__} that is not built",
            )
        check_policies(self.model)
        check_finite_weights(self.model, "model")

    def describe(self):
        """Return the manifest entries of this kind of model."""
        raise NotImplementedError

    def open(self, folder):
        """Open the graphs in `folder`, as `compare` and `precision_loss` need them."""
        raise NotImplementedError

    def compare(self, graphs):
        """Return the parity of the opened float32 graphs and the model, or raise `ParityError`."""
        raise NotImplementedError

    def precision_loss(self, full, reduced, size):
        """Return the cost of the reduced precision for the manifest.

        Args:
            full: The opened float32 graphs.
            reduced: The opened graphs in reduced precision.
            size: Bytes of the reduced graphs, as a fraction of those in float32.

        Raises:
            PrecisionError: If the loss of BLEU is above `max_bleu_loss`.
        """
        raise NotImplementedError


class SearchExporter(Exporter):
    """Export of a model that generates: the whole search and, optionally, its single steps."""

    def __init__(self, model, options):
        search = BeamSearch() if options.search is None else options.search
        tokenizer = options.tokenizer
        if tokenizer is None:
            tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is False:
            tokenizer = None
        limit = options.max_source_length
        self._random_length = limit or 40
        if limit is None and getattr(model, "copies_source", False):
            limit = MAX_COPIED_SOURCE_LENGTH
        options = replace(options, search=search, tokenizer=tokenizer, max_source_length=limit)
        super().__init__(model, options)

    def check(self):
        super().check()
        options = self.options
        for name in ("input_names", "output_names"):
            if getattr(options, name) is not None:
                raise argument_error(
                    name,
                    f"be None for a {type(self.model).__name__}, whose graphs have the names "
                    "that the runtime reads",
                    getattr(options, name),
                )
        check_search(options.search, self.model.target_vocabulary_size)
        if options.tokenizer is not None:
            self._check_tokenizer()
        elif options.texts:
            raise argument_error(
                "tokenizer",
                "be passed, or attached to the model, to compare on `texts`",
                received="none",
            )
        if len(options.references) not in (0, len(options.texts)):
            raise argument_error(
                "references",
                f"have one item for each of {len(options.texts)} texts",
                received=str(len(options.references)),
            )
        if "onnx" not in options.formats and options.texts:
            raise argument_error(
                ("texts", "references"),
                "be left out if no ONNX graph is written, as they are only used to compare it",
                received=f"{len(options.texts)} texts",
            )
        if options.calibrate and (options.tokenizer is None or "onnx" not in options.formats):
            raise argument_error(
                "calibrate",
                "be left out for an artifact without a tokenizer or without ONNX graphs",
                received=f"{len(options.calibrate)} pairs",
            )
        if options.max_source_length is not None and options.texts:
            self._drop_long_texts()
        if options.shortlist is not None:
            check_shortlist(options.shortlist, self.model, options.search)
        search = ManifestSearch.from_json(self._search_settings())
        vocabulary = self.model.target_vocabulary_size
        if search.max_batch_size(vocabulary) < 1:
            raise argument_error(
                ("search", "max_length"),
                "leave a number of candidates and steps that fits int32",
                received=(
                    f"{search.num_hypotheses} hypotheses of up to {options.max_length} tokens "
                    f"out of {vocabulary}"
                ),
            )

    def _check_tokenizer(self):
        if not isinstance(self.options.tokenizer, Tokenizer):
            raise argument_error(
                "tokenizer",
                "be a Tokenizer, `None` for the one attached to the model, or `False` for none",
                self.options.tokenizer,
            )
        self.model.check_tokenizer(self.options.tokenizer)

    def _drop_long_texts(self):
        """Keep only the texts, with their references, that the artifact will accept."""
        encoded = self.options.tokenizer.encode_sources(self.options.texts)
        fits = [len(ids) <= self.options.max_source_length for ids in encoded]
        if not all(fits):
            logger.warning(
                "%d of %d texts have more than %d tokens and are left out.",
                fits.count(False),
                len(fits),
                self.options.max_source_length,
            )
        self.options = replace(
            self.options,
            texts=list(itertools.compress(self.options.texts, fits)),
            references=list(itertools.compress(self.options.references, fits)),
        )

    def describe(self):
        source, target = self.model.source_vocabulary_size, self.model.target_vocabulary_size
        return {
            "search": self._search_settings(),
            "vocabulary": {"source": source, "target": target},
            "max_source_length": self.options.max_source_length,
        }

    def open(self, folder):
        return Translator(folder, CPU)

    def compare(self, translator):
        sources, search = self._sources(), self.options.search
        arguments = sources, search, self.options.max_length, self.options.shortlist
        result = parity.compare(self.model, translator, *arguments)
        result.enforce()
        if self.options.cuda_graphs:
            steps = Translator(translator.manifest.folder, CPU, cuda_graphs=True)
            parity.compare(self.model, steps, *arguments).enforce()
        return result

    def precision_loss(self, full, reduced, size):
        loss = measure_precision_loss(
            full,
            reduced,
            self.options.precision,
            size,
            self._sources(),
            self.options.texts,
            self.options.references,
        )
        loss.enforce(self.options.max_bleu_loss)
        return loss.to_json()

    def shortlist_loss(self, translator):
        """Return the cost of the shortlist for the manifest.

        Raises:
            PrecisionError: If the loss of BLEU is above `max_bleu_loss`.
        """
        loss = measure_shortlist_loss(
            self.model,
            translator,
            self.options.search,
            self.options.max_length,
            self.options.shortlist.size,
            self.options.texts,
            self.options.references,
        )
        loss.enforce(self.options.max_bleu_loss)
        return loss.to_json()

    def calibration(self, translator):
        """Return the confidence of the outputs, or why there is none, for the manifest."""
        from keras_bahdanau_export.calibration import fit_calibration  # needs scikit-learn

        calibration, reason = fit_calibration(
            translator, *zip(*self.options.calibrate, strict=True)
        )
        if calibration is None:
            logger.warning("The artifact has no confidence. %s", reason)
            return {"reason": reason}
        logger.info("Confidence: %s", calibration.measured)
        return calibration.to_json()

    def _search_settings(self):
        return search_document(self.options.search, self.options.max_length)

    def _sources(self):
        """Return the sources to compare on: random ones and the encoded texts, lists of ids."""
        size = self.model.source_vocabulary_size
        sources = parity.random_sources(size, self._random_length)
        return sources + [self.options.tokenizer.encode_source(text) for text in self.options.texts]


class ForwardExporter(Exporter):
    """Export of a Keras model without a search: its forward pass."""

    def check(self):
        super().check()
        for name in (
            "search",
            "tokenizer",
            "max_source_length",
            "stepwise",
            "cuda_graphs",
            "skip_ended",
            "texts",
            "references",
            "calibrate",
            "shortlist",
        ):
            if getattr(self.options, name) not in (None, False, (), []):
                raise argument_error(
                    name,
                    "be left out for a model without a search",
                    received=f"one for a {type(self.model).__name__}",
                )
        model = as_functional(self.model)
        forward_signature(model, self.options.input_names, self.options.output_names)  # checks

    def describe(self):
        return {}

    def open(self, folder):
        return open_graph(read_manifest(folder), MODEL_FILE, CPU, None)

    def compare(self, session):
        result = parity.compare_calls(self.model, session)
        result.enforce(parity.call_tolerance(self.model))
        return result

    def precision_loss(self, full, reduced, size):
        result = parity.compare_calls(self.model, reduced)
        return {"precision": self.options.precision, "size": size, **result.to_json()}


def _write_files(exporter, folder):
    """Write the graphs, tokenizer and shortlist of an artifact; return the graphs' signatures."""
    require("tensorflow", extra="export")
    if exporter.options.tokenizer:
        exporter.options.tokenizer.save(folder / TOKENIZER_FILE)
    if exporter.options.shortlist is not None:
        exporter.options.shortlist.save(folder / SHORTLIST_FILE)
    is_tensorflow = keras.config.backend() == "tensorflow"
    write = trace_and_write if is_tensorflow else trace_in_subprocess
    signatures = write(exporter.model, exporter.options, folder)
    if exporter.options.precision == "float32":
        from keras_bahdanau_export.graph.shared_weights import share_weights  # needs onnx_ir

        share_weights(folder)
    return signatures


def _measure(exporter, folder, manifest):
    """Compare the graphs with the model, and reduce their precision; return the parity.

    Args:
        exporter: An `Exporter`.
        folder: The `Path` of the artifact.
        manifest: The manifest's entries, to which the figures are added.
    """
    graphs = exporter.open(folder)
    result = exporter.compare(graphs)
    manifest["parity"] = {**result.to_json(), "tf32": False}  # runtimes default to no TF32
    logger.info("%s", result)
    if exporter.options.shortlist is not None:
        manifest["shortlist"] = exporter.shortlist_loss(graphs)
        logger.info("Shortlist: %s", manifest["shortlist"])
    if exporter.options.precision != "float32":
        manifest["precision"] = _reduce_precision(exporter, folder, manifest, graphs)
        logger.info("Precision: %s", manifest["precision"])
    if exporter.options.calibrate:
        write_manifest(folder, manifest)
        manifest["calibration"] = exporter.calibration(exporter.open(folder))
    return result


def _reduce_precision(exporter, folder, manifest, graphs):
    """Rewrite every graph in reduced precision; return what that saves and costs.

    Args:
        exporter: An `Exporter`.
        folder: The `Path` of the artifact.
        manifest: The manifest's entries. It is written again, as the runtime checks the size and
            hash of each file.
        graphs: The opened float32 graphs.
    """
    # These modules need onnx_ir.
    from keras_bahdanau_export.graph.precision import reduce_precision
    from keras_bahdanau_export.graph.shared_weights import share_weights

    size = _size(folder)
    for path in sorted(folder.glob("*.onnx")):
        reduce_precision(path, exporter.options.precision)
    size = _size(folder) / size
    share_weights(folder)
    write_manifest(folder, manifest)
    return exporter.precision_loss(graphs, exporter.open(folder), size)


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
