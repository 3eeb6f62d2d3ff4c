"""Attentive recurrent sequence-to-sequence models for Keras 3."""

from keras_bahdanau import backend as backend
from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.dataset import TranslationDataset
from keras_bahdanau.data.prepared_dataset import PreparedDataset
from keras_bahdanau.initializers import PerGate
from keras_bahdanau.layers.attention import (
    Attention,
    AttentionPooling,
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
from keras_bahdanau.layers.attention.coverage import coverage_penalty
from keras_bahdanau.layers.attention.tfa import (
    bahdanau_from_tfa,
    luong_from_tfa,
    monotonic_from_tfa,
)
from keras_bahdanau.layers.bridge import Bridge
from keras_bahdanau.layers.cells import LayerNormGRUCell, LayerNormLSTMCell, ResidualCell
from keras_bahdanau.layers.closed_loop import ClosedLoop
from keras_bahdanau.layers.decoder import AttentiveDecoder, DecoderState
from keras_bahdanau.layers.encoder import BidirectionalEncoder
from keras_bahdanau.layers.readout import DeepOutput
from keras_bahdanau.layers.scheduled_sampling import ScheduledSampling
from keras_bahdanau.losses.crossentropy import AlignmentCrossentropy, TokenCrossentropy
from keras_bahdanau.models.ensemble import Ensemble
from keras_bahdanau.models.generation import Scores
from keras_bahdanau.models.rnn_search import (
    PaperTraining,
    RNNEncoderDecoder,
    RNNSearch,
    paper_training,
)
from keras_bahdanau.models.seq2seq import Seq2Seq
from keras_bahdanau.models.shortlist import Shortlist
from keras_bahdanau.search import BeamSearch, Decode, Generation, GreedySearch, Sampling, Search
from keras_bahdanau.training.alignment_images import AlignmentImages
from keras_bahdanau.training.averaging import average_checkpoints, running_mean
from keras_bahdanau.training.callbacks import (
    HeldOutLoss,
    ResumableEpochs,
    RunCheckpoint,
    TranslationScore,
)
from keras_bahdanau.training.devices import average_gradients, shared_by
from keras_bahdanau.training.length_penalty import length_penalty_scores
from keras_bahdanau.training.metrics import Perplexity, TokenAccuracy
from keras_bahdanau.training.progress import ProgressDisplay
from keras_bahdanau.training.run import train
from keras_bahdanau.training.scalars import TensorBoardScalars
from keras_bahdanau.training.schedules import WarmupSchedule
from keras_bahdanau_runtime.pictures.page import alignment_page
from keras_bahdanau_runtime.pictures.plots import (
    plot_alignment,
    plot_alignments,
    plot_image_alignment,
)
from keras_bahdanau_runtime.pictures.words import word_alignment
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare
from keras_bahdanau_runtime.runs.options import TrainingOptions
from keras_bahdanau_runtime.text.alignment import (
    hard_alignment,
    phrase_spans,
    replace_unknowns,
    to_pharaoh,
)
from keras_bahdanau_runtime.text.corpus import read_alignments
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

__all__ = [
    "AlignmentCrossentropy",
    "AlignmentImages",
    "Attention",
    "AttentionPooling",
    "AttentiveDecoder",
    "BPEDropout",
    "BahdanauAttention",
    "BeamSearch",
    "BidirectionalEncoder",
    "Bridge",
    "ClosedLoop",
    "CoverageAttention",
    "Decode",
    "DecoderState",
    "DeepOutput",
    "Ensemble",
    "FixedContext",
    "Generation",
    "GreedySearch",
    "HeldOutLoss",
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
    "PreparedCorpus",
    "PreparedDataset",
    "ProgressDisplay",
    "RNNEncoderDecoder",
    "RNNSearch",
    "ResidualCell",
    "ResumableEpochs",
    "RunCheckpoint",
    "Sampling",
    "ScheduledSampling",
    "ScoredAttention",
    "Scores",
    "Search",
    "Seq2Seq",
    "Shortlist",
    "TensorBoardScalars",
    "TokenAccuracy",
    "TokenCrossentropy",
    "Tokenizer",
    "TrainingOptions",
    "TranslationDataset",
    "TranslationScore",
    "WarmupSchedule",
    "alignment_page",
    "average_checkpoints",
    "average_gradients",
    "bahdanau_from_tfa",
    "coverage_penalty",
    "hard_alignment",
    "length_penalty_scores",
    "luong_from_tfa",
    "monotonic_from_tfa",
    "paper_training",
    "phrase_spans",
    "plot_alignment",
    "plot_alignments",
    "plot_image_alignment",
    "prepare",
    "read_alignments",
    "replace_unknowns",
    "running_mean",
    "shared_by",
    "to_pharaoh",
    "train",
    "word_alignment",
]
