"""Attention mechanisms, one a file, all answering the calls of `Attention`."""

from keras_bahdanau.attention.bahdanau import BahdanauAttention
from keras_bahdanau.attention.base import Attention, Memory
from keras_bahdanau.attention.coverage import CoverageAttention
from keras_bahdanau.attention.fixed import FixedContext
from keras_bahdanau.attention.location import LocationSensitiveAttention
from keras_bahdanau.attention.luong import LuongAttention
from keras_bahdanau.attention.monotonic import MonotonicAttention
from keras_bahdanau.attention.multi_source import MultiSourceAttention
from keras_bahdanau.attention.scored import ScoredAttention

__all__ = [
    "Attention",
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
