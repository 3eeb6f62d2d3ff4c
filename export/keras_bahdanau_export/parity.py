"""Comparison of an artifact with the Keras model that it was exported from."""

import math
from dataclasses import asdict, dataclass, replace

import keras
import numpy as np

from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.models.shortlist import Shortlist
from keras_bahdanau.search.base import search_classes
from keras_bahdanau_export.model_config import dtype_policies, to_float32
from keras_bahdanau_export.trace import as_functional
from keras_bahdanau_runtime.checks import check_range, checked_texts
from keras_bahdanau_runtime.errors import CorruptArtifactError, ParityError, argument_error
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.session import CPU, open_graph
from keras_bahdanau_runtime.signature import (
    CUDA_GRAPH_FILES,
    MODEL_FILE,
    SCORE_FILE,
    SHORTLIST_FILE,
)
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.translation import encode_texts
from keras_bahdanau_runtime.translator import Translator

# Two hypotheses are tied if their scores differ by less: rounding decides which one is first.
_TIE = 1e-4
# Rounding also decides which of two nearly tied hypotheses stays in the beam, so the best remaining
# one can differ by more. This is common in the beams of untrained models.
_NEAR_TIE = 1e-3
_TOLERANCE = 1e-3  # for scores and alignment weights of a search
_LOG_PROB_TOLERANCE = 1e-4  # for log-probabilities of given targets
# Tried in turn for axes of dynamic size, until the model accepts one. Audio needs many samples.
_LENGTHS = (7, 16, 64, 256, 2048)


@dataclass(frozen=True)
class Parity:
    """Differences between an artifact and the Keras model, over `sentences` sources.

    Attributes:
        sentences: Number of compared sources.
        equal: Number of sources with the same best tokens.
        ties: Number of sources with other best tokens, but the same score to within 1e-4. A
            difference of up to 1e-3 also counts, if the model scores the artifact's tokens as the
            artifact does, to within 1e-4.
        score_difference: Largest difference of a best score, in nats per penalty unit.
        alignment_difference: Largest difference of an alignment weight of a best hypothesis.
        backend: Keras backend of the model.
        log_prob_difference: Largest difference between `score.onnx` and `model.score` of the
            log-probability of a token, or of its alignment weights, with the best hypotheses of the
            model as targets. Log-probabilities below -1 have relative differences. `None` for an
            artifact without `score.onnx`.
    """

    sentences: int
    equal: int
    ties: int
    score_difference: float
    alignment_difference: float
    backend: str
    log_prob_difference: float | None = None

    def enforce(self, tolerance=_TOLERANCE):
        """Raise `ParityError` unless all tokens are equal or tied and differences are small."""
        wrong = self.sentences - self.equal - self.ties
        largest = np.maximum(self.score_difference, self.alignment_difference)  # NaN if one is NaN
        if wrong or not largest <= tolerance:
            raise ParityError(
                "The artifact must return the tokens of the Keras model, with differences of at "
                f"most {tolerance}. Received: other tokens for {wrong} of {self.sentences} "
                f"sources; differences of a score by {self.score_difference:.2g}, of an alignment "
                f"weight by {self.alignment_difference:.2g}"
            )
        if self.log_prob_difference is not None and not (
            self.log_prob_difference <= _LOG_PROB_TOLERANCE
        ):
            raise ParityError(
                "The artifact must score given targets as the Keras model does, with differences "
                f"of at most {_LOG_PROB_TOLERANCE}. Received: a difference of "
                f"{self.log_prob_difference:.2g}"
            )

    def to_json(self):
        """Return the figures as a plain dict, for the manifest."""
        return asdict(self)

    def __str__(self):
        scores = ""
        if self.log_prob_difference is not None:
            scores = f", of a log-probability of a given target {self.log_prob_difference:.1e}"
        return (
            f"Parity with Keras on {self.backend}: {self.equal} of {self.sentences} sources equal "
            f"({self.ties} ties); largest difference of a score {self.score_difference:.1e}, of an "
            f"alignment weight {self.alignment_difference:.1e}{scores}."
        )


@dataclass(frozen=True)
class CallParity:
    """Differences between a forward-pass graph and the Keras model, over random inputs.

    Attributes:
        examples: Number of compared examples.
        difference: Largest difference of an output, divided by the largest absolute value of that
            output; 1 if integers differ.
        backend: Keras backend of the model.
    """

    examples: int
    difference: float
    backend: str

    def enforce(self, tolerance):
        """Raise `ParityError` unless the outputs agree to within `tolerance`."""
        if not self.difference <= tolerance:
            raise ParityError(
                "The graph's outputs must differ from the Keras model's by at most "
                f"{tolerance} of the largest of each. Received: {self.difference:.2g}"
            )

    def to_json(self):
        """Return the figures as a plain dict, for the manifest."""
        return asdict(self)

    def __str__(self):
        return (
            f"Parity with Keras on {self.backend}: over {self.examples} random examples the "
            f"outputs differ by at most {self.difference:.1e} of the largest."
        )


def verify(model, path, texts=(), count=16, seed=0, providers=CPU):
    """Compare a written artifact with the Keras model that it was exported from.

    An artifact in float16 or int8 differs from the model by design: the differences are returned,
    but raise no error.

    Args:
        model: The Keras model, on any backend.
        path: The artifact.
        texts: Sentences to compare on; they need a tokenizer in the artifact.
        count: Number of random sources to compare on, in addition to `texts`; for a model without a
            search, the number of random examples.
        seed: Seed of the random sources or examples.
        providers: Execution providers of the artifact, as for `Translator`.

    Returns:
        A `Parity`, or a `CallParity` for a model without a search.

    Raises:
        ValueError: If `count` or `seed` is negative, there are no sources to compare on, `texts`
            are passed for a model without a search, or the model does not fit the artifact: it has
            no search, or other inputs or outputs than the graph.
        ParityError: If they disagree.
        ArtifactError: As `Translator` raises it for the artifact.
    """
    manifest, model = read_manifest(path), to_float32(model)
    check_range("count", count, int, 0 if manifest.search.document else 1)
    check_range("seed", seed, int, 0)
    is_reduced = "precision" in manifest.other
    if not manifest.search.document:
        if len(texts):
            raise argument_error(
                "texts",
                "be left out for a model without a search, which takes arrays",
                received=f"{len(texts)} texts",
            )
        session = open_graph(manifest, MODEL_FILE, providers, None)
        result = compare_calls(model, session, examples=count, seed=seed)
        tolerance = call_tolerance(model)
    else:
        result = _compare_search(model, manifest, texts, count, seed, providers)
        tolerance = _TOLERANCE
    if not is_reduced:
        result.enforce(tolerance)
    return result


def _compare_search(model, manifest, texts, count, seed, providers):
    """Compare the search of an artifact with the model's; arguments as for `verify`."""
    if not isinstance(model, GenerationMixin):
        raise argument_error(
            "model",
            "be the model that the artifact was exported from, which has a search",
            received=f"a {type(model).__name__}",
        )
    settings = dict(manifest.search.document)
    max_length, name = settings.pop("max_length", 1), settings.pop("class", None)
    try:
        search = search_classes()[name].from_config(settings)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptArtifactError(
            f"{manifest.folder}: expected the settings of a search that is imported. "
            f"Received: {manifest.search.document!r:.200}"
        ) from error
    translator = Translator(manifest.folder, providers, cuda_graphs=False)
    limit = manifest.max_source_length
    sources = random_sources(model.source_vocabulary_size, limit or 40, count, seed)
    texts = checked_texts("texts", texts)
    encoded = encode_texts(texts, translator.require_tokenizer()) if texts else []
    sources += [ids for ids in encoded if ids and (limit is None or len(ids) <= limit)]
    if not sources:
        raise argument_error(
            ("texts", "count"),
            "give sources to compare on",
            received=f"{len(texts)} texts, blank or too long, and count={count}",
        )
    shortlist = None
    if SHORTLIST_FILE in manifest.files:
        shortlist = Shortlist.parse(manifest.read(SHORTLIST_FILE), SHORTLIST_FILE)
    arguments = sources, search, max_length, shortlist
    # Not in int8: quantization ranges depend on the whole batch, which CUDA graphs pad.
    if set(CUDA_GRAPH_FILES) <= set(manifest.files) and "precision" not in manifest.other:
        steps = Translator(manifest.folder, providers, cuda_graphs=True)
        compare(model, steps, *arguments).enforce()
    return compare(model, translator, *arguments)


def compare(model, translator, sources, search, max_length, shortlist=None, batch_size=32):
    """Search `sources` with the model and the artifact, and compare the best hypotheses.

    Args:
        model: The Keras model, on any backend.
        translator: A `Translator` of the artifact.
        sources: Lists of source ids.
        search: The search in the artifact.
        max_length: The `max_length` of the artifact.
        shortlist: The `Shortlist` of the artifact, or `None`.
        batch_size: Number of sources in a batch.

    Returns:
        A `Parity`.
    """
    draws = search.noise(1, 1) is not None
    if draws:  # both use the same random numbers
        search = replace(search, seed=0)
    equal = ties = 0
    score_difference = alignment_difference = 0.0
    log_prob_difference = 0.0 if SCORE_FILE in translator.manifest.files else None
    for start in range(0, len(sources), batch_size):
        rows = sources[start : start + batch_size]
        source = pad(rows)
        ours = model.generate(source, search, max_length, shortlist=shortlist)
        noise = search.noise(len(rows), max_length) if draws else None
        theirs = translator.translate_ids(source, noise=noise)
        if log_prob_difference is not None:
            difference = _scoring_difference(model, translator, source, ours.tokens[:, 0])
            log_prob_difference = np.maximum(log_prob_difference, difference)
        for i in range(len(rows)):
            length = ours.lengths[i, 0]
            same_length = theirs["lengths"][i, 0] == length
            difference = _largest_difference(ours.scores[i, 0], theirs["scores"][i, 0])
            score_difference = np.maximum(score_difference, difference)
            if same_length and np.array_equal(
                ours.tokens[i, 0, :length], theirs["tokens"][i, 0, :length]
            ):
                equal += 1
                alignment_difference = np.maximum(
                    alignment_difference,
                    _largest_difference(
                        ours.alignments[i, 0, :length], theirs["alignments"][i, 0, :length]
                    ),
                )
            elif difference < _TIE:
                ties += 1
            elif difference < _NEAR_TIE and not draws:
                tokens = theirs["tokens"][i, 0, : theirs["lengths"][i, 0]].tolist()
                score = forced_score(model, rows[i], tokens, search, max_length, shortlist)
                ties += int(abs(score - theirs["scores"][i, 0]) < _TIE)
    return Parity(
        sentences=len(sources),
        equal=equal,
        ties=ties,
        score_difference=float(score_difference),
        alignment_difference=float(alignment_difference),
        backend=keras.config.backend(),
        log_prob_difference=None if log_prob_difference is None else float(log_prob_difference),
    )


def _scoring_difference(model, translator, source, tokens):
    """Return the `log_prob_difference` of one batch, see `Parity`.

    Args:
        model: The Keras model.
        translator: A `Translator` of the artifact.
        source: `(B, Tx)` int32 source ids.
        tokens: `(B, T)` int32 hypotheses.
    """
    target = as_targets(tokens)
    ours, theirs = model.score(source, target)._asdict(), translator.score_ids(source, target)
    scale = {"log_probs": np.maximum(1, np.abs(ours["log_probs"])), "alignments": 1}
    if "copied" in theirs:
        scale["copied"] = 1
    differences = [
        _largest_difference(ours[name] / scale[name], theirs[name] / scale[name]) for name in scale
    ]
    # The totals are sums of the log-probabilities.
    lengths, totals = theirs["lengths"], theirs["log_probs"].sum(axis=1)
    differences.append(_largest_difference(totals / lengths, theirs["totals"] / lengths))
    return float(np.max(differences)) if (lengths == ours["lengths"]).all() else math.inf


def as_targets(tokens):
    """Return hypotheses `(B, T)` as targets to score: padded at the right only, no row empty.

    A search that may choose `PAD` gives hypotheses with padding between their ids.
    """
    return pad([[token for token in row if token != PAD] or [EOS] for row in tokens.tolist()])


def random_sources(vocabulary_size, max_length, count=16, seed=0):
    """Return random sources of different lengths: `count` lists of ids that end with `EOS`.

    Args:
        vocabulary_size: Number of source ids.
        max_length: Maximum length of a source, in tokens; values above 40 count as 40.
        count: Number of sources.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, min(max_length, 40) + 1, count)
    lowest = min(4, vocabulary_size - 1)
    return [[*rng.integers(lowest, vocabulary_size, n - 1).tolist(), 3] for n in lengths]


def forced_score(model, source, tokens, search, max_length, shortlist=None):
    """Return the model's score of given tokens, by a search that is forced to choose them.

    Args:
        model: The Keras model.
        source: List of source ids.
        tokens: List of target ids, which end with `EOS` or have the maximum length.
        search: A `BeamSearch` or `GreedySearch`.
        max_length: The maximum length.
        shortlist: A `Shortlist`, or `None`.
    """
    result = model.generate([source], search, max_length, prefix=[tokens], shortlist=shortlist)
    return float(result.scores[0, 0])


def call_tolerance(model):
    """Return the relative tolerance for the outputs of a forward pass.

    Half precision has three significant digits.
    """
    return 1e-4 if dtype_policies(model) <= {"float32", "float64"} else 5e-3


def compare_calls(model, session, examples=3, seed=0):
    """Call a model and its graph with random inputs, and compare the outputs.

    Floating-point inputs are normally distributed; their absolute values are used if the model
    returns NaN otherwise. Integers are 0 or 1, which are valid ids of any embedding. Axes of
    dynamic size have the first of the sizes 7, 16, 64, 256 and 2,048 that the model accepts.

    Args:
        model: A functional or `Sequential` Keras model, on any backend.
        session: The session of its forward-pass graph, from `open_graph`.
        examples: Size of the batch.
        seed: Seed of the random inputs.

    Returns:
        A `CallParity`.

    Raises:
        ValueError: If the model has other inputs or outputs than the graph, or accepts none of the
            sizes.
    """
    model = as_functional(model)
    _check_same_shapes(model, session)
    inputs, ours = _random_call(model, examples, np.random.default_rng(seed))
    names = [tensor.name for tensor in session.get_inputs()]
    theirs = session.run(None, dict(zip(names, inputs, strict=True)))
    differences = list(map(relative_difference, ours, theirs))
    return CallParity(examples, float(np.max(differences)), keras.config.backend())


def _check_same_shapes(model, session):
    """Raise a `ValueError` unless a model's inputs and outputs have the shapes of the graph's."""
    for side, tensors in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        ours = [tuple(tensor.shape) for tensor in getattr(model, side)]
        theirs = [tuple(n if type(n) is int else None for n in t.shape) for t in tensors]
        if len(ours) != len(theirs) or not all(map(_are_compatible, ours, theirs)):
            raise argument_error(
                "model",
                f"be the model that the artifact was exported from, with {side} of shapes {theirs}",
                received=f"a model with {ours}",
            )


def _are_compatible(shape, other):
    """Whether an array can have both shapes, where `None` is any size."""
    sizes = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(a == b or None in (a, b) for a, b in sizes)


def _random_call(model, examples, rng):
    """Return random inputs that a functional model accepts, and its outputs: lists of arrays."""
    result = failure = None
    for length in _LENGTHS:
        for positive in (False, True):
            inputs = [_random_input(spec, examples, length, positive, rng) for spec in model.inputs]
            nested = keras.tree.pack_sequence_as(model.input, inputs)
            try:
                outputs = keras.tree.flatten(model(nested, training=False))
            except Exception as error:  # any type: the backend decides what a short axis raises
                failure = error
                break
            result = inputs, list(map(keras.ops.convert_to_numpy, outputs))
            if all(array.size and not np.isnan(array).any() for array in result[1]):
                return result
    if result is None:
        raise argument_error(
            "model",
            f"accept inputs whose dynamic axes all have one of the sizes {_LENGTHS}, to be "
            "compared on",
            received=str(failure),
        ) from failure
    return result


def _random_input(spec, examples, length, positive, rng):
    dynamic = [examples, *[length] * (len(spec.shape) - 1)]
    shape = [n if size is None else size for n, size in zip(dynamic, spec.shape, strict=True)]
    dtype = keras.backend.standardize_dtype(spec.dtype)
    if np.dtype(dtype).kind != "f":  # ids or a mask with padding at the right
        return np.sort(rng.integers(0, 2, shape))[..., ::-1].astype(dtype)
    values = rng.normal(size=shape)
    return (np.abs(values) if positive else values).astype(dtype)


def relative_difference(ours, theirs):
    """Return the largest difference, divided by the largest absolute value of `ours`.

    For integers it is 1 if any differ. Equal infinities, such as scores of hypotheses that do not
    exist, do not differ.

    Raises:
        ParityError: If the shapes differ.
    """
    if ours.shape != theirs.shape:
        raise ParityError(
            "The graph's outputs must have the shapes of the Keras model's. "
            f"Received: {theirs.shape} for {ours.shape}"
        )
    differ = ours != theirs
    if ours.dtype.kind != "f" or not differ.any():
        return float(differ.any())
    largest = float(np.abs(ours[np.isfinite(ours)]).max(initial=0))
    return _largest_difference(ours, theirs) / max(largest, 1e-30)


def _largest_difference(ours, theirs):
    """Return the largest absolute difference; equal infinities do not differ, NaN always does."""
    differ = ours != theirs
    return float(np.abs(ours[differ] - theirs[differ]).max(initial=0))
