"""What an export does for each kind of model: for one that generates, and for the call of any."""

import itertools
import logging
from typing import Any, NamedTuple

import keras

from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.models.shortlist import check_shortlist
from keras_bahdanau.search import BeamSearch
from keras_bahdanau.search.base import check_search
from keras_bahdanau_export import parity
from keras_bahdanau_export.call import call_signature, functional
from keras_bahdanau_export.serialized import check_policies
from keras_bahdanau_export.shortlist_loss import shortlist_loss
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.session import CPU, open_graph
from keras_bahdanau_runtime.signature import (
    ENCODER_FILE,
    MODEL_FILE,
    SAVED_MODEL_FOLDER,
    STEP_FILE,
    Signature,
    max_batch_size,
    num_hypotheses,
)
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_export")


def job_for(model, options):
    """The job of exporting a model with these `ExportOptions`."""
    return (GenerationJob if isinstance(model, GenerationMixin) else CallJob)(model, options)


class Graph(NamedTuple):
    """One function of a model.

    Attributes:
        function: A `tf.function`.
        signature: Its `Signature`.
        file: Name of its ONNX file; `None` where only the SavedModel holds it.
        description: What it computes, for those who open the file.
        captured: Whether it is a search that is to be written cut at its loop, too.
    """

    function: Any
    signature: Signature
    file: str | None
    description: str
    captured: bool = False


class Job:
    """Export of one kind of model, and its comparison with the model.

    Args:
        model: As for `export`.
        options: `ExportOptions`.
    """

    def __init__(self, model, options):
        self.model = model
        self.options = options
        self.search, self.tokenizer = options.search, options.tokenizer
        self.texts, self.references = options.texts, options.references

    def check(self):
        """Raises a `ValueError` that names the first argument that does not fit the model."""
        if not isinstance(self.model, keras.Model):
            raise ValueError(
                f"Argument `model` must be a Keras model. Received: {type(self.model).__name__}"
            )
        if not self.model.built:
            raise ValueError(
                "Argument `model` must have weights: train it, or call `model.build()` first. "
                f"Received: a {type(self.model).__name__} that is not built"
            )
        check_policies(self.model)

    def write(self, functions, folder):
        """Writes the graphs of a model on the TensorFlow backend.

        Args:
            functions: What `functions` gave.
            folder: The `Path` to write into.

        Returns:
            The signatures of the ONNX files, by name, as plain dicts.
        """
        from keras_bahdanau_export.graph.writer import write_onnx
        from keras_bahdanau_export.saved_model import write_saved_model

        if "tf_saved_model" in self.options.formats:
            traced = {name: graph.function for name, graph in functions.items()}
            write_saved_model(self.model, folder / SAVED_MODEL_FOLDER, traced)
        if "onnx" not in self.options.formats:
            return {}
        signatures = {}
        for function, signature, file, description, captured in functions.values():
            if file is not None:
                path = folder / file
                signatures[file] = signature
                signatures |= write_onnx(
                    function, signature, path, self.model.variables, captured, description
                )
        return {name: signature.to_json() for name, signature in signatures.items()}


class GenerationJob(Job):
    """Of a model that generates: the whole search and, if asked for, its single steps."""

    def __init__(self, model, options):
        super().__init__(model, options)
        if self.search is None:
            self.search = BeamSearch()
        if self.tokenizer is None:
            self.tokenizer = getattr(model, "tokenizer", None)
        self.tokenizer = self.tokenizer or None  # `False` is for none

    def check(self):
        super().check()
        for name in ("input_names", "output_names"):
            if getattr(self.options, name) is not None:
                raise ValueError(
                    f"Argument `{name}` must be None for a {type(self.model).__name__}, whose "
                    f"graphs have the names that the runtime reads. Received: "
                    f"{getattr(self.options, name)!r}"
                )
        check_search(self.search, self.model.target_vocabulary_size)
        if self.tokenizer is not None:
            self._check_tokenizer()
        elif len(self.texts):
            raise ValueError(
                "Argument `tokenizer` must be given, or attached to the model, where `texts` are. "
                "Received: none"
            )
        if len(self.references) not in (0, len(self.texts)):
            raise ValueError(
                f"Argument `references` must hold one for each of {len(self.texts)} texts. "
                f"Received: {len(self.references)}"
            )
        if "onnx" not in self.options.formats and len(self.texts):
            raise ValueError(
                "Arguments `texts` and `references` must be left out where no ONNX graph is "
                f"written, which they are for. Received: {len(self.texts)} texts"
            )
        if self.options.max_source_length is not None and len(self.texts):
            self._leave_out_long_texts()
        if self.options.shortlist is not None:
            check_shortlist(self.options.shortlist, self.model, self.search)
        settings, vocabulary = self._settings(), self.model.target_vocabulary_size
        if max_batch_size(settings, vocabulary) < 1:
            raise ValueError(
                "Arguments `search` and `max_length` must leave candidates and steps that int32 "
                f"counts. Received: {num_hypotheses(settings)} hypotheses of up to "
                f"{self.options.max_length} tokens out of {vocabulary}"
            )

    def _check_tokenizer(self):
        if not isinstance(self.tokenizer, Tokenizer):
            raise ValueError(
                "Argument `tokenizer` must be a Tokenizer, `None` for the one attached to the "
                f"model, or `False` for none. Received: {self.tokenizer!r}"
            )
        self.model.check_tokenizer(self.tokenizer)

    def functions(self):
        """What goes into the graphs, by name, each as a `Graph`; on the TensorFlow backend."""
        from keras_bahdanau_export.trace import encode_function, search_function, step_function

        search = search_function(
            self.model, self.search, self.options.max_length, self.options.shortlist
        )
        kind, files = type(self.model).__name__, (None, None)
        if self.options.stepwise:
            files = ENCODER_FILE, STEP_FILE
        texts = (
            f"{type(self.search).__name__} of a {kind}: source ids in, target ids out",
            f"Encoder of a {kind}: source ids in, memory and first state of the decoder out",
            f"Decoder step of a {kind}: last ids, memory and state in, log-probabilities of the "
            "next ids and next state out",
        )
        found = {"translate": Graph(*search, MODEL_FILE, texts[0], self.options.captured)}
        if self.options.stepwise or "tf_saved_model" in self.options.formats:
            found["encode"] = Graph(*encode_function(self.model), files[0], texts[1])
            found["step"] = Graph(*step_function(self.model), files[1], texts[2])
        return found

    def describe(self):
        """What the manifest says of this kind of model."""
        source, target = self.model.source_vocabulary_size, self.model.target_vocabulary_size
        return {
            "search": self._settings(),
            "vocabulary": {"source": source, "target": target},
            "max_source_length": self.options.max_source_length,
        }

    def open(self, folder):
        """What runs the graphs that stand in `folder` now, as `compare` and `measure` take it."""
        return Translator(folder, CPU)

    def compare(self, translator):
        """Holds the float32 graphs against the model; a `Parity`, or `ParityError`."""
        found = parity.compare(
            self.model,
            translator,
            self._sources(),
            self.search,
            self.options.max_length,
            self.options.shortlist,
        )
        found.enforce()
        if self.options.captured:
            parity.compare_loops(translator, self._sources())
        return found

    def measure(self, full, reduced, size):
        """What the smaller numbers cost, for the manifest.

        Args:
            full: The float32 graphs, opened.
            reduced: The smaller ones, opened.
            size: Share of the bytes left.

        Raises:
            PrecisionError: If they cost more than `max_bleu_loss`.
        """
        from keras_bahdanau_export.precision import measure

        sources = self._sources()
        loss = measure(
            full, reduced, self.options.precision, size, sources, self.texts, self.references
        )
        loss.enforce(self.options.max_bleu_loss)
        return loss.to_json()

    def cost_of_shortlist(self, translator):
        """What the shortlist costs, for the manifest; `PrecisionError` if more than told."""
        loss = shortlist_loss(
            self.model,
            translator,
            self.search,
            self.options.max_length,
            self.options.shortlist.size,
            self.texts,
            self.references,
        )
        loss.enforce(self.options.max_bleu_loss)
        return loss.to_json()

    def _settings(self):
        name, config = type(self.search).__name__, self.search.get_config()
        return {"class": name, **config, "max_length": self.options.max_length}

    def _leave_out_long_texts(self):
        """Keeps the texts that the artifact takes, and their references."""
        encoded = self.tokenizer.encode_sources(self.texts)
        taken = [len(ids) <= self.options.max_source_length for ids in encoded]
        if not all(taken):
            logger.warning(
                "%d of %d texts have more than %d tokens and are left out.",
                taken.count(False),
                len(taken),
                self.options.max_source_length,
            )
        self.texts, self.references = (  # of which there may be none
            list(itertools.compress(side, taken)) for side in (self.texts, self.references)
        )

    def _sources(self):
        """The sources compared: random ones and the encoded texts, lists of ids."""
        longest = self.options.max_source_length or 40
        sources = parity.random_sources(self.model.source_vocabulary_size, longest)
        return sources + [self.tokenizer.encode_source(text) for text in self.texts]


class CallJob(Job):
    """Of any other Keras model: its call."""

    def check(self):
        super().check()
        for name in (
            "search",
            "tokenizer",
            "max_source_length",
            "stepwise",
            "captured",
            "texts",
            "references",
            "shortlist",
        ):
            if getattr(self.options, name) not in (None, False, (), []):
                raise ValueError(
                    f"Argument `{name}` must be given only for models that generate. "
                    f"Received: one for a {type(self.model).__name__}"
                )
        self._signature(functional(self.model))

    def functions(self):
        """As for a model that generates."""
        from keras_bahdanau_export.trace import forward_function

        model = functional(self.model)
        function = forward_function(model, self._signature(model))
        text = f"Forward pass of the Keras model {self.model.name}"
        return {"call": Graph(*function, MODEL_FILE, text)}

    def describe(self):
        """As for a model that generates."""
        return {}

    def open(self, folder):
        """As for a model that generates."""
        return open_graph(read_manifest(folder), MODEL_FILE, CPU, None)

    def compare(self, session):
        """As for a model that generates; a `CallParity`."""
        found = parity.compare_calls(self.model, session)
        found.enforce(parity.call_tolerance(self.model))
        return found

    def measure(self, full, reduced, size):
        """As for a model that generates; there is no quality to lose but closeness."""
        found = parity.compare_calls(self.model, reduced)
        return {"precision": self.options.precision, "size": size, **found.to_json()}

    def _signature(self, model):
        return call_signature(model, self.options.input_names, self.options.output_names)
