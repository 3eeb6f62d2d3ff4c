"""Imports Keras, or raises an error that says what to install."""

from keras_bahdanau_runtime.errors import KERAS_BACKENDS, missing_keras

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("keras", *KERAS_BACKENDS):
        raise
    raise missing_keras(error.name) from error
