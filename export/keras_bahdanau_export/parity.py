"""Holds an artifact against the Keras model it was written from."""

from dataclasses import asdict, dataclass, replace

import keras
import numpy as np

from keras_bahdanau.data import pad
from keras_bahdanau_export.errors import ParityError

# Two hypotheses whose scores differ by less are tied: rounding decides which one leads.
_TIE = 1e-4


@dataclass(frozen=True)
class Parity:
    """How far an artifact is from the Keras model, over `sentences` sources.

    Attributes:
        sentences: Number of sources compared.
        equal: Of those, how many got the same best tokens.
        ties: How many got other tokens with the same score to within 1e-4.
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

    def enforce(self, tolerance=1e-3):
        """Raises `ParityError` unless all tokens are equal or tied and differences are small."""
        wrong = self.sentences - self.equal - self.ties
        worst = max(self.score_difference, self.alignment_difference)
        if wrong or not worst <= tolerance:
            raise ParityError(
                f"The artifact and the Keras model disagree: {wrong} of {self.sentences} sources "
                f"got other tokens; expected 0 and differences of at most {tolerance}. "
                f"Received: score {self.score_difference:.2g}, "
                f"alignment {self.alignment_difference:.2g}"
            )

    def to_json(self):
        """The figures as a plain dict, for the manifest."""
        return asdict(self)


def random_sources(vocabulary_size, max_length, count=16, seed=0):
    """Sources of varied length and random tokens: `count` lists of ids that end with `EOS`.

    Args:
        vocabulary_size: Number of source ids.
        max_length: Longest source, in tokens.
        count: Number of sources.
        seed: Randomness.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, max(2, min(max_length, 40)), count)
    lowest = min(4, vocabulary_size - 1)
    return [[*rng.integers(lowest, vocabulary_size, n - 1).tolist(), 3] for n in lengths]


def compare(model, translator, sources, search, max_length, batch_size=32):
    """Searches `sources` with both and compares the best hypotheses.

    Args:
        model: The Keras model, on any backend.
        translator: A `Translator` of the artifact.
        sources: Lists of source ids.
        search: The search inside the artifact.
        max_length: The length limit inside the artifact.
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
        ours = model.generate(source, search=search, max_length=max_length)
        noise = search.noise(len(rows), max_length) if draws else None
        theirs = translator.translate_ids(source, noise=noise)
        for i in range(len(rows)):
            length = ours.lengths[i, 0]
            same_length = theirs["lengths"][i, 0] == length
            difference = abs(float(ours.scores[i, 0] - theirs["scores"][i, 0]))
            score_difference = max(score_difference, difference)
            if same_length and np.array_equal(
                ours.tokens[i, 0, :length], theirs["tokens"][i, 0, :length]
            ):
                equal += 1
                gap = ours.alignments[i, 0, :length] - theirs["alignments"][i, 0, :length]
                alignment_difference = max(alignment_difference, float(np.abs(gap).max()))
            elif difference < _TIE:
                ties += 1
    return Parity(
        sentences=len(sources),
        equal=equal,
        ties=ties,
        score_difference=score_difference,
        alignment_difference=alignment_difference,
        backend=keras.config.backend(),
    )
