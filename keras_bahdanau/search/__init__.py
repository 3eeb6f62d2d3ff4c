"""Greedy, beam and sampling search, and forced decoding, over any step function."""

from keras_bahdanau.search.base import Generation, Search
from keras_bahdanau.search.beam import BeamSearch, GreedySearch
from keras_bahdanau.search.decode import Decode
from keras_bahdanau.search.forced import Scores, score_targets
from keras_bahdanau.search.sampling import Sampling

__all__ = [
    "BeamSearch",
    "Decode",
    "Generation",
    "GreedySearch",
    "Sampling",
    "Scores",
    "Search",
    "score_targets",
]
