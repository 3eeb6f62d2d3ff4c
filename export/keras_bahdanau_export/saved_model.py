"""Writes the SavedModel: TensorFlow functions as signatures that need neither Keras nor us."""

import tensorflow as tf


def write_saved_model(model, folder, functions):
    """Writes a SavedModel that loads without this package.

    Args:
        model: The Keras model whose variables the functions use, on the TensorFlow backend.
        folder: The folder to make.
        functions: `tf.function`s by signature name; the first is the one that is served by default.
    """
    module = tf.Module()
    signatures = {name: function.get_concrete_function() for name, function in functions.items()}
    for name, function in functions.items():
        setattr(module, name, function)
    # A SavedModel keeps the variables that hang on the module.
    module.variables_ = [v.value for v in model.variables]
    default = {"serving_default": next(iter(signatures.values()))}
    tf.saved_model.save(module, str(folder), signatures={**signatures, **default})
