"""Attention mechanisms and their base classes."""

from keras_bahdanau.layers.attention.bahdanau import BahdanauAttention, HistoryAttention
from keras_bahdanau.layers.attention.base import (
    Attention,
    Memory,
    ScoredAttention,
    group_rows,
    masked_softmax,
)
from keras_bahdanau.layers.attention.check import check_attention
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
    "HistoryAttention",
    "LocationSensitiveAttention",
    "LuongAttention",
    "Memory",
    "MonotonicAttention",
    "MultiSourceAttention",
    "ScoredAttention",
    "check_attention",
    "group_rows",
    "masked_softmax",
]
