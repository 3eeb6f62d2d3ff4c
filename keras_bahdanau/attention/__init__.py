"""Attention mechanisms, one a file, all answering the calls of `Attention`."""

from keras_bahdanau.attention.bahdanau import BahdanauAttention
from keras_bahdanau.attention.base import Attention, Memory
from keras_bahdanau.attention.fixed import FixedContext
from keras_bahdanau.attention.luong import LuongAttention
from keras_bahdanau.attention.scored import ScoredAttention

__all__ = [
    "Attention",
    "BahdanauAttention",
    "FixedContext",
    "LuongAttention",
    "Memory",
    "ScoredAttention",
]
