"""Attention mechanisms, encoders, decoders and cells."""

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
from keras_bahdanau.layers.bridge import Bridge, StateBridge
from keras_bahdanau.layers.cells import LayerNormGRUCell, LayerNormLSTMCell, ResidualCell
from keras_bahdanau.layers.closed_loop import ClosedLoop
from keras_bahdanau.layers.copying import PointerGenerator
from keras_bahdanau.layers.decoder import AttentiveDecoder, DecoderState
from keras_bahdanau.layers.encoder import BidirectionalEncoder
from keras_bahdanau.layers.normalization import WindowNormalization
from keras_bahdanau.layers.readout import DeepOutput
from keras_bahdanau.layers.scheduled_sampling import ScheduledSampling

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
]
