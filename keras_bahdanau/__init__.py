"""Attentive recurrent sequence-to-sequence models for Keras 3."""

import lazy_loader

from keras_bahdanau.backend import import_with_keras
from keras_bahdanau_runtime.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
import_with_keras()
