"""Losses over target tokens, and the logits that they compute in chunks or for a sample."""

from keras_bahdanau.losses.crossentropy import AlignmentCrossentropy, TokenCrossentropy

__all__ = ["AlignmentCrossentropy", "TokenCrossentropy"]
