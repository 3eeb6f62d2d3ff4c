"""Attentive recurrent sequence-to-sequence models for Keras 3."""

from keras_bahdanau import backend as backend
from keras_bahdanau.alignment import plot_alignment
from keras_bahdanau.attention import (
    Attention,
    BahdanauAttention,
    CoverageAttention,
    FixedContext,
    LocationSensitiveAttention,
    LuongAttention,
    Memory,
    MonotonicAttention,
    MultiSourceAttention,
    ScoredAttention,
)
from keras_bahdanau.averaging import average_checkpoints
from keras_bahdanau.bridge import Bridge
from keras_bahdanau.callbacks import RunCheckpoint, TranslationScore
from keras_bahdanau.cells import LayerNormGRUCell, LayerNormLSTMCell, ResidualCell
from keras_bahdanau.corpus import read_alignments
from keras_bahdanau.coverage import coverage_penalty
from keras_bahdanau.data import TranslationDataset
from keras_bahdanau.decoder import AttentiveDecoder, DecoderState
from keras_bahdanau.encoder import BidirectionalEncoder
from keras_bahdanau.ensemble import Ensemble
from keras_bahdanau.generation import Scores
from keras_bahdanau.initializers import PerGate
from keras_bahdanau.links import hard_alignment, phrase_spans, replace_unknowns, to_pharaoh
from keras_bahdanau.losses import AlignmentCrossentropy, TokenCrossentropy
from keras_bahdanau.metrics import Perplexity, TokenAccuracy
from keras_bahdanau.readout import DeepOutput
from keras_bahdanau.rnn_search import (
    PaperTraining,
    RNNEncoderDecoder,
    RNNSearch,
    paper_training,
)
from keras_bahdanau.scheduled_sampling import ScheduledSampling
from keras_bahdanau.search import BeamSearch, Generation, GreedySearch, Sampling, Search
from keras_bahdanau.seq2seq import Seq2Seq
from keras_bahdanau.text import Tokenizer
from keras_bahdanau.tfa import bahdanau_from_tfa, luong_from_tfa, monotonic_from_tfa

__all__ = [
    "AlignmentCrossentropy",
    "Attention",
    "AttentiveDecoder",
    "BahdanauAttention",
    "BeamSearch",
    "BidirectionalEncoder",
    "Bridge",
    "CoverageAttention",
    "DecoderState",
    "DeepOutput",
    "Ensemble",
    "FixedContext",
    "Generation",
    "GreedySearch",
    "LayerNormGRUCell",
    "LayerNormLSTMCell",
    "LocationSensitiveAttention",
    "LuongAttention",
    "Memory",
    "MonotonicAttention",
    "MultiSourceAttention",
    "PaperTraining",
    "PerGate",
    "Perplexity",
    "RNNEncoderDecoder",
    "RNNSearch",
    "ResidualCell",
    "RunCheckpoint",
    "Sampling",
    "ScheduledSampling",
    "ScoredAttention",
    "Scores",
    "Search",
    "Seq2Seq",
    "TokenAccuracy",
    "TokenCrossentropy",
    "Tokenizer",
    "TranslationDataset",
    "TranslationScore",
    "average_checkpoints",
    "bahdanau_from_tfa",
    "coverage_penalty",
    "hard_alignment",
    "luong_from_tfa",
    "monotonic_from_tfa",
    "paper_training",
    "phrase_spans",
    "plot_alignment",
    "read_alignments",
    "replace_unknowns",
    "to_pharaoh",
]
