"""Attention mechanisms, encoders, decoders and cells."""

from keras_bahdanau.layers.attention import (
    Attention,
    AttentionPooling,
    BahdanauAttention,
    CoverageAttention,
    FixedContext,
    HistoryAttention,
    LocationSensitiveAttention,
    LuongAttention,
    Memory,
    MonotonicAttention,
    MultiSourceAttention,
    ScoredAttention,
    check_attention,
    group_rows,
    masked_softmax,
)
from keras_bahdanau.layers.bridge import Bridge, StateBridge
from keras_bahdanau.layers.cells import LayerNormGRUCell, LayerNormLSTMCell, ResidualCell
from keras_bahdanau.layers.closed_loop import ClosedLoop
from keras_bahdanau.layers.copying import PointerGenerator
from keras_bahdanau.layers.decoder import AttentiveDecoder, DecoderState
from keras_bahdanau.layers.encoder import BidirectionalEncoder
from keras_bahdanau.layers.normalization import WindowNormalization
from keras_bahdanau.layers.readout import DeepOutput
from keras_bahdanau.layers.scheduled_sampling import ScheduledSampling
from keras_bahdanau.layers.sequences import register_named_tuple

__all__ = [
    "Attention",
    "AttentionPooling",
    "AttentiveDecoder",
    "BahdanauAttention",
    "BidirectionalEncoder",
    "Bridge",
    "ClosedLoop",
    "CoverageAttention",
    "DecoderState",
    "DeepOutput",
    "FixedContext",
    "HistoryAttention",
    "LayerNormGRUCell",
    "LayerNormLSTMCell",
    "LocationSensitiveAttention",
    "LuongAttention",
    "Memory",
    "MonotonicAttention",
    "MultiSourceAttention",
    "PointerGenerator",
    "ResidualCell",
    "ScheduledSampling",
    "ScoredAttention",
    "StateBridge",
    "WindowNormalization",
    "check_attention",
    "group_rows",
    "masked_softmax",
    "register_named_tuple",
]
