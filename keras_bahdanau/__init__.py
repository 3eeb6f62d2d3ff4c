"""Attentive recurrent sequence-to-sequence models for Keras 3."""

from keras_bahdanau.lazy_names import lazy_names, register_with_keras
from keras_bahdanau_runtime.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
register_with_keras()
