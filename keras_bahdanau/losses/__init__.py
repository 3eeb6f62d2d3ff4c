"""Losses over target tokens and attention weights."""

from keras_bahdanau.layers.attention.coverage import coverage_loss
from keras_bahdanau.losses.crossentropy import AlignmentCrossentropy, TokenCrossentropy

__all__ = [
    "AlignmentCrossentropy",
    "TokenCrossentropy",
    "coverage_loss",
]
