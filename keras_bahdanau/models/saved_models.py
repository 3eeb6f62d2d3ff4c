"""Models in `.keras` files, whose weights must be finite."""

import tempfile
import zipfile

import keras
import numpy as np

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import add_path_to_errors

# Errors of Keras, h5py and constructors for a damaged file, or one with unknown classes.
_LOADING_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    zipfile.BadZipFile,
)


def load_saved_model(path, argument, compile=False):
    """Load a model with `keras.saving.load_model`, and check its weights.

    Args:
        path: The `.keras` file.
        argument: Name of the argument with the file, for messages.
        compile: Whether to compile the model as before it was saved.

    Raises:
        ValueError: If Keras cannot load the file, or a weight has NaN or infinity.
        OSError: If the file cannot be read, or the folder of temporary files, into which Keras
            unpacks the file, is full.
    """
    try:
        with add_path_to_errors(tempfile.gettempdir()):
            model = keras.saving.load_model(path, compile=compile)
    except _LOADING_ERRORS as error:
        raise argument_error(
            argument,
            "be a model that Keras can load",
            received=f"{str(path)!r}: {type(error).__name__}: {' '.join(str(error).split()):.400}",
        ) from error
    check_finite_weights(model, argument, path)
    return model


def check_finite_weights(model, argument, path=None):
    """Raise a `ValueError` that names the first weight with NaN or infinity.

    Args:
        model: A Keras model.
        argument: Name of the argument, for the message.
        path: File of the weights, for the message; `None` for a model that is passed.
    """
    for weight in model.weights:
        if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(weight.dtype)):
            continue
        array = np.asarray(keras.ops.convert_to_numpy(weight), "float32")
        if not np.isfinite(array).all():
            problem = "NaN" if np.isnan(array).any() else "infinity"
            source = "" if path is None else f"{str(path)!r}, which has "
            raise argument_error(
                argument,
                "be a model whose weights are finite numbers",
                received=f"{source}{problem} in the weight {weight.path}",
            )
