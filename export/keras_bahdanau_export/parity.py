"""Holds an artifact against the Keras model it was written from."""

from dataclasses import asdict, dataclass, replace

import keras
import numpy as np

from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.models.shortlist import Shortlist
from keras_bahdanau.search.base import search_classes
from keras_bahdanau_export.call import functional
from keras_bahdanau_export.serialized import dtype_policies, in_float32
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import CorruptArtifactError, ParityError
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.search import checked_noise
from keras_bahdanau_runtime.session import CPU, open_graph
from keras_bahdanau_runtime.signature import BEAM_FILES, MODEL_FILE, SHORTLIST_FILE
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.translation import encode_texts
from keras_bahdanau_runtime.translator import Translator

# Two hypotheses whose scores differ by less are tied: rounding decides which one leads.
_TIE = 1e-4
# In a beam of near ties rounding decides, too, which hypotheses stay; so the best one that is left
# may be better or worse by more. The beams of untrained models are full of them.
_NEAR_TIE = 1e-3
_TOLERANCE = 1e-3  # of a score or a weight of a search
_LENGTHS = (7, 16, 64, 256)  # of axes of any length, until the model takes one


@dataclass(frozen=True)
class Parity:
    """How far an artifact is from the Keras model, over `sentences` sources.

    Attributes:
        sentences: Number of sources compared.
        equal: Of those, how many got the same best tokens.
        ties: How many got other tokens with the same score to within 1e-4; or to within 1e-3, if
            the model gives those tokens the same score as the artifact, to within 1e-4.
        score_difference: Largest difference of a best score, in nats per penalty unit.
        alignment_difference: Largest difference of a best alignment weight.
        backend: Keras backend that the model ran on.
    """

    sentences: int
    equal: int
    ties: int
    score_difference: float
    alignment_difference: float
    backend: str

    def enforce(self, tolerance=_TOLERANCE):
        """Raises `ParityError` unless all tokens are equal or tied and differences are small."""
        wrong = self.sentences - self.equal - self.ties
        worst = np.maximum(self.score_difference, self.alignment_difference)  # NaN if one is
        if wrong or not worst <= tolerance:
            raise ParityError(
                "The artifact must find the tokens of the Keras model, with differences of at "
                f"most {tolerance}. Received: other tokens for {wrong} of {self.sentences} "
                f"sources; differences of a score by {self.score_difference:.2g}, of an alignment "
                f"weight by {self.alignment_difference:.2g}"
            )

    def to_json(self):
        """The figures as a plain dict, for the manifest."""
        return asdict(self)

    def __str__(self):
        return (
            f"Parity with Keras on {self.backend}: {self.equal} of {self.sentences} sources equal "
            f"({self.ties} ties); largest difference of a score {self.score_difference:.1e}, of an "
            f"alignment weight {self.alignment_difference:.1e}."
        )


@dataclass(frozen=True)
class CallParity:
    """How far the graph of a model's call is from the Keras model, over random inputs.

    Attributes:
        examples: Number of examples compared.
        difference: Largest difference of an output, as a share of the largest number of that
            output; 1 where integers differ.
        backend: Keras backend that the model ran on.
    """

    examples: int
    difference: float
    backend: str

    def enforce(self, tolerance):
        """Raises `ParityError` unless the outputs agree to within `tolerance`."""
        if not self.difference <= tolerance:
            raise ParityError(
                "The graph's outputs must differ from the Keras model's by at most "
                f"{tolerance} of the largest of each. Received: {self.difference:.2g}"
            )

    def to_json(self):
        """The figures as a plain dict, for the manifest."""
        return asdict(self)

    def __str__(self):
        return (
            f"Parity with Keras on {self.backend}: over {self.examples} random examples the "
            f"outputs differ by at most {self.difference:.1e} of the largest."
        )


def compare_loops(translator, sources, providers=CPU):
    """Raises `ParityError` unless a search driven step by step finds what its graph does.

    Args:
        translator: Of the whole graph, a `Translator`.
        sources: Lists of source ids.
        providers: What it runs on; as for `Translator`.
    """
    manifest = translator.manifest
    driven = Translator(manifest.folder, providers, loop="captured")
    for i in range(0, len(sources), 8):
        batch = pad(sources[i : i + 8])
        # Drawn once, for a search without a seed, too.
        noise = checked_noise(None, manifest.search, len(batch)) if manifest.is_sampling() else None
        ours, theirs = (one.search(batch, noise=noise) for one in (translator, driven))
        different = [name for name in ("tokens", "lengths") if (ours[name] != theirs[name]).any()]
        if different or not np.allclose(ours["scores"], theirs["scores"], rtol=1e-4, atol=1e-4):
            raise ParityError(
                "The search step by step must find what its whole graph does. Received: other "
                f"{' and '.join(different) or 'scores'} for sources {i} to {i + len(batch) - 1}"
            )


def random_sources(vocabulary_size, max_length, count=16, seed=0):
    """Sources of varied length and random tokens: `count` lists of ids that end with `EOS`.

    Args:
        vocabulary_size: Number of source ids.
        max_length: Longest source, in tokens; none has more than 40.
        count: Number of sources.
        seed: Randomness.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, min(max_length, 40) + 1, count)
    lowest = min(4, vocabulary_size - 1)
    return [[*rng.integers(lowest, vocabulary_size, n - 1).tolist(), 3] for n in lengths]


def verify(model, path, texts=(), count=16, seed=0, providers=CPU):
    """Holds a written artifact against the Keras model it came from.

    An artifact in float16 or int8 differs from the model by design: it is compared, but only its
    tokens are counted.

    Args:
        model: The Keras model, on any backend.
        path: The artifact.
        texts: Sentences to compare on; needs the tokenizer in the artifact.
        count: Number of random sources to compare on, too; of examples, for the call of a model.
        seed: Randomness of these.
        providers: What the artifact runs on; as for `Translator`.

    Returns:
        A `Parity`, or a `CallParity` for the call of a model.

    Raises:
        ValueError: `count` or `seed` is negative, there is nothing to compare on, or the model is
            none that generates where the artifact holds a search, or has other inputs or outputs
            than a graph of its call; or `texts` are given for such a graph.
        ParityError: If they disagree.
        ArtifactError: As `Translator`, of the artifact.
    """
    manifest, model = read_manifest(path), in_float32(model)
    check_range("count", count, int, 0 if manifest.search else 1)
    check_range("seed", seed, int, 0)
    reduced = "precision" in manifest.other
    if not manifest.search:
        if len(texts):
            raise ValueError(
                "Argument `texts` must be left out for the call of a model, which takes arrays. "
                f"Received: {len(texts)} texts"
            )
        session = open_graph(manifest, MODEL_FILE, providers, None)
        found = compare_calls(model, session, examples=count, seed=seed)
        tolerance = call_tolerance(model)
    else:
        if not isinstance(model, GenerationMixin):
            raise ValueError(
                "Argument `model` must be the one that the artifact was exported from, which "
                f"generates. Received: a {type(model).__name__}"
            )
        settings = dict(manifest.search)
        max_length, name = settings.pop("max_length", 1), settings.pop("class", None)
        try:
            search = search_classes()[name].from_config(settings)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptArtifactError(
                f"{manifest.folder}: expected the settings of a search that is imported. "
                f"Received: {manifest.search!r:.200}"
            ) from error
        translator = Translator(path, providers, loop="graph")
        limit = manifest.max_source_length
        sources = random_sources(model.source_vocabulary_size, limit or 40, count, seed)
        encoded = encode_texts(texts, translator.require_tokenizer()) if len(texts) else []
        sources += [ids for ids in encoded if ids and (limit is None or len(ids) <= limit)]
        if not sources:
            raise ValueError(
                "Arguments `texts` and `count` must give sources to compare on. Received: "
                f"{len(texts)} texts, blank or too long, and count={count}"
            )
        shortlist = None
        if SHORTLIST_FILE in manifest.files:
            shortlist = Shortlist.parse(manifest.read(SHORTLIST_FILE), SHORTLIST_FILE)
        found = compare(model, translator, sources, search, max_length, shortlist)
        tolerance = _TOLERANCE
        # Smaller numbers are scaled by what they stand beside, and the step pads other sources.
        if set(BEAM_FILES) <= set(manifest.files) and not reduced:
            compare_loops(translator, sources, providers)
    if not reduced:
        found.enforce(tolerance)
    return found


def call_tolerance(model):
    """What the graph of a model's call may differ by: half precision knows three digits."""
    return 1e-4 if dtype_policies(model) <= {"float32", "float64"} else 5e-3


def compare_calls(model, session, examples=3, seed=0):
    """Calls a model and its graph with random inputs.

    Numbers are normally distributed, or their sizes are where the model makes NaN of such ones;
    integers are 0 or 1, as ids of any embedding may be. Axes of any length have the first of
    7, 16, 64 and 256 places that the model takes.

    Args:
        model: A functional or `Sequential` Keras model, on any backend.
        session: The graph of its call, opened by `open_session`.
        examples: Size of the batch.
        seed: Randomness.

    Returns:
        A `CallParity`.

    Raises:
        ValueError: The model has other inputs or outputs than the graph, or takes no such lengths.
    """
    model = functional(model)
    _check_same(model, session)
    inputs, ours = _called(model, examples, np.random.default_rng(seed))
    names = [given.name for given in session.get_inputs()]
    theirs = session.run(None, dict(zip(names, inputs, strict=True)))
    gaps = list(map(difference, ours, theirs))
    return CallParity(examples, float(np.max(gaps)), keras.config.backend())


def _check_same(model, session):
    """Raises a `ValueError` unless a model's inputs and outputs are those of the graph."""
    for side, graph in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        ours = [tuple(part.shape) for part in getattr(model, side)]
        theirs = [tuple(n if type(n) is int else None for n in part.shape) for part in graph]
        if len(ours) != len(theirs) or not all(map(_fit, ours, theirs)):
            raise ValueError(
                "Argument `model` must be the one that the artifact was exported from, with "
                f"{side} of shapes {theirs}. Received: a model with {ours}"
            )


def _fit(shape, other):
    """Whether an array may have both shapes, where `None` is any size."""
    pairs = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(a == b or None in (a, b) for a, b in pairs)


def _called(model, examples, rng):
    """Random inputs that a functional model takes, and its outputs: lists of arrays."""
    found = failed = None
    for length in _LENGTHS:
        for positive in (False, True):
            inputs = [_drawn(part, examples, length, positive, rng) for part in model.inputs]
            given = keras.tree.pack_sequence_as(model.input, inputs)
            try:
                outputs = keras.tree.flatten(model(given, training=False))
            except Exception as error:  # whatever the backend raises where axes are too short
                failed = error
                break
            found = inputs, list(map(keras.ops.convert_to_numpy, outputs))
            if all(part.size and not np.isnan(part).any() for part in found[1]):
                return found
    if found is None:
        raise ValueError(
            "Argument `model` must take inputs whose axes of any length have one of "
            f"{_LENGTHS} places, to be compared on. Received: {failed}"
        ) from failed
    return found


def _drawn(part, examples, length, positive, rng):
    free = [examples, *[length] * (len(part.shape) - 1)]
    shape = [n if size is None else size for n, size in zip(free, part.shape, strict=True)]
    dtype = keras.backend.standardize_dtype(part.dtype)
    if np.dtype(dtype).kind != "f":  # ids padded with zeros at the right, or a mask that is so
        return np.sort(rng.integers(0, 2, shape))[..., ::-1].astype(dtype)
    drawn = rng.normal(size=shape)
    return (np.abs(drawn) if positive else drawn).astype(dtype)


def difference(ours, theirs):
    """The largest difference as a share of our largest number; of integers 1 if any differs.

    Two of the same infinity, such as scores of hypotheses that do not exist, do not differ. Raises
    `ParityError` for two shapes.
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
    return _gap(ours, theirs) / max(largest, 1e-30)


def _gap(ours, theirs):
    """The largest difference; two of the same infinity do not differ, and NaN does from all."""
    differ = ours != theirs
    return float(np.abs(ours[differ] - theirs[differ]).max(initial=0))


def forced_score(model, source, tokens, search, max_length, shortlist=None):
    """The score that a search of the model gives to tokens that it has no choice but to find.

    Args:
        model: The Keras model.
        source: List of source ids.
        tokens: List of target ids, up to `EOS` or as long as the limit.
        search: A `BeamSearch` or `GreedySearch`.
        max_length: The length limit.
        shortlist: A `Shortlist`, or `None`.
    """
    found = model.generate([source], search, max_length, prefix=[tokens], shortlist=shortlist)
    return float(found.scores[0, 0])


def compare(model, translator, sources, search, max_length, shortlist=None, batch_size=32):
    """Searches `sources` with both and compares the best hypotheses.

    Args:
        model: The Keras model, on any backend.
        translator: A `Translator` of the artifact.
        sources: Lists of source ids.
        search: The search inside the artifact.
        max_length: The length limit inside the artifact.
        shortlist: The `Shortlist` inside the artifact, or `None`.
        batch_size: Sources searched at once.

    Returns:
        A `Parity`.
    """
    draws = search.noise(1, 1) is not None
    if draws:  # with the same numbers on both sides
        search = replace(search, seed=0)
    equal = ties = 0
    score_difference = alignment_difference = 0.0
    for start in range(0, len(sources), batch_size):
        rows = sources[start : start + batch_size]
        source = pad(rows)
        ours = model.generate(source, search, max_length, shortlist=shortlist)
        noise = search.noise(len(rows), max_length) if draws else None
        theirs = translator.translate_ids(source, noise=noise)
        for i in range(len(rows)):
            length = ours.lengths[i, 0]
            same_length = theirs["lengths"][i, 0] == length
            difference = _gap(ours.scores[i, 0], theirs["scores"][i, 0])
            score_difference = np.maximum(score_difference, difference)
            if same_length and np.array_equal(
                ours.tokens[i, 0, :length], theirs["tokens"][i, 0, :length]
            ):
                equal += 1
                gap = _gap(ours.alignments[i, 0, :length], theirs["alignments"][i, 0, :length])
                alignment_difference = np.maximum(alignment_difference, gap)
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
    )
