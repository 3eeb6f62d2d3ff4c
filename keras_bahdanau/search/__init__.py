"""Search for outputs over any step function: greedy, beam and sampling."""

from keras_bahdanau.search.base import Generation, Search
from keras_bahdanau.search.beam import BeamSearch, GreedySearch
from keras_bahdanau.search.decode import Decode
from keras_bahdanau.search.sampling import Sampling

__all__ = ["BeamSearch", "Decode", "Generation", "GreedySearch", "Sampling", "Search"]
