"""Sequence-to-sequence models, ensembles of them, and shortlists."""

from keras_bahdanau.models.ensemble import Ensemble
from keras_bahdanau.models.rnn_search import RNNEncoderDecoder, RNNSearch
from keras_bahdanau.models.seq2seq import Seq2Seq
from keras_bahdanau.models.shortlist import Shortlist

__all__ = [
    "Ensemble",
    "RNNEncoderDecoder",
    "RNNSearch",
    "Seq2Seq",
    "Shortlist",
]
