"""Attention mechanisms and their base classes."""

from keras_bahdanau.layers.attention.bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention.base import Attention, Memory, ScoredAttention
from keras_bahdanau.layers.attention.coverage import CoverageAttention
from keras_bahdanau.layers.attention.fixed import FixedContext
from keras_bahdanau.layers.attention.location import LocationSensitiveAttention
from keras_bahdanau.layers.attention.luong import LuongAttention
from keras_bahdanau.layers.attention.monotonic import MonotonicAttention
from keras_bahdanau.layers.attention.multi_source import MultiSourceAttention
from keras_bahdanau.layers.attention.pooling import AttentionPooling

__all__ = [
    "Attention",
    "AttentionPooling",
    "BahdanauAttention",
    "CoverageAttention",
    "FixedContext",
    "LocationSensitiveAttention",
    "LuongAttention",
    "Memory",
    "MonotonicAttention",
    "MultiSourceAttention",
    "ScoredAttention",
]
