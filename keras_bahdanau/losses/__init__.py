"""Losses of target tokens, attention weights and quantiles."""

from keras_bahdanau.layers.attention.coverage import coverage_loss
from keras_bahdanau.losses.crossentropy import AlignmentCrossentropy, TokenCrossentropy
from keras_bahdanau.losses.quantile import QuantileLoss

__all__ = [
    "AlignmentCrossentropy",
    "QuantileLoss",
    "TokenCrossentropy",
    "coverage_loss",
]
