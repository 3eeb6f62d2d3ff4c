"""Run artifacts with onnxruntime and without Keras: text in, translations out."""

import lazy_loader

from keras_bahdanau_runtime.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
