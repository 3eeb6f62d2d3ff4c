"""Imports all classes that a saved model may contain.

Keras loads a class of another package only if its module has been imported. So this module is
imported with the first namespace that needs Keras, or, after `import keras_bahdanau`, with Keras.
Folders import it first, while they are empty; modules that others need import it last.
"""

import keras_bahdanau.backend  # first, because it checks that Keras is there
import keras_bahdanau.initializers
import keras_bahdanau.layers
import keras_bahdanau.losses
import keras_bahdanau.metrics
import keras_bahdanau.models
import keras_bahdanau.optimizers
import keras_bahdanau.search  # noqa: F401
