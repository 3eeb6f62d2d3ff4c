"""Whole training runs, and averages of their checkpoints."""

from keras_bahdanau.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
