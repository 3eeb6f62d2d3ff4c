"""Imports all classes that a saved model may contain, so that Keras finds them."""

import keras_bahdanau.initializers
import keras_bahdanau.layers
import keras_bahdanau.losses
import keras_bahdanau.metrics
import keras_bahdanau.models
import keras_bahdanau.optimizers
import keras_bahdanau.search  # noqa: F401
