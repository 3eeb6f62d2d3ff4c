"""Attentive recurrent sequence-to-sequence models for Keras 3."""

from keras_bahdanau import backend as backend  # first, because it checks that Keras is there
from keras_bahdanau import (
    callbacks,
    data,
    distribution,
    initializers,
    layers,
    losses,
    metrics,
    models,
    optimizers,
    plot,
    search,
    text,
    toolkits,
    training,
)
from keras_bahdanau.callbacks import RunCheckpoint, TranslationScore
from keras_bahdanau.data import PreparedDataset, TranslationDataset, prepare
from keras_bahdanau.layers import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
    FixedContext,
    LuongAttention,
)
from keras_bahdanau.losses import TokenCrossentropy
from keras_bahdanau.metrics import Perplexity, TokenAccuracy
from keras_bahdanau.models import Ensemble, RNNEncoderDecoder, RNNSearch, Seq2Seq
from keras_bahdanau.plot import plot_alignment
from keras_bahdanau.search import BeamSearch, GreedySearch, Sampling
from keras_bahdanau.text import Tokenizer
from keras_bahdanau.training import TrainingOptions, train
from keras_bahdanau_runtime.version import __version__ as __version__

__all__ = [
    "AttentiveDecoder",
    "BahdanauAttention",
    "BeamSearch",
    "BidirectionalEncoder",
    "Bridge",
    "DeepOutput",
    "Ensemble",
    "FixedContext",
    "GreedySearch",
    "LuongAttention",
    "Perplexity",
    "PreparedDataset",
    "RNNEncoderDecoder",
    "RNNSearch",
    "RunCheckpoint",
    "Sampling",
    "Seq2Seq",
    "TokenAccuracy",
    "TokenCrossentropy",
    "Tokenizer",
    "TrainingOptions",
    "TranslationDataset",
    "TranslationScore",
    "callbacks",
    "data",
    "distribution",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "plot",
    "plot_alignment",
    "prepare",
    "search",
    "text",
    "toolkits",
    "train",
    "training",
]
