"""Models in `.keras` files, whose weights must be finite, and whose classes must be imported."""

import json
import logging
import tempfile
import zipfile

import keras
import numpy as np

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.zip_files import open_zip, read_member

logger = logging.getLogger("keras_bahdanau")

_CONFIG_FILE, _MAX_CONFIG = "config.json", 2**26  # inside a .keras file; bytes
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
        ValueError: If Keras cannot load the file, for example because a class is in a module that
            is not imported, or a weight has NaN or infinity.
        OSError: If the file cannot be read, or the folder of temporary files, into which Keras
            unpacks the file, is full.
    """
    try:
        with add_path_to_errors(tempfile.gettempdir()):
            model = keras.saving.load_model(path, compile=compile)
    except _LOADING_ERRORS as error:
        missing = _missing_classes(path, compile)
        if missing:
            module, name = missing[0]
            raise argument_error(
                argument,
                f"be a model whose classes are imported. If you trust the module, write `import "
                f"{module}` before; with a command, pass its name or file to --import, or the "
                "class to `train --attention`",
                received=f"{str(path)!r}, which has the class {name} of {module}",
            ) from error
        raise argument_error(
            argument,
            "be a model that Keras can load",
            received=f"{str(path)!r}: {type(error).__name__}: {' '.join(str(error).split()):.400}",
        ) from error
    check_finite_weights(model, argument, path)
    return model


def _missing_classes(path, compile):
    """Return module and name of the classes that a `.keras` file needs and Keras does not find."""
    try:
        with open_zip(path) as archive:
            stack = [json.loads(read_member(archive, _CONFIG_FILE, _MAX_CONFIG))]
    except (zipfile.BadZipFile, ValueError, RecursionError, OSError):
        return []  # the error of Keras says what is wrong
    missing = set()
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        if not isinstance(node, dict):
            continue
        stack += [value for key, value in node.items() if compile or key != "compile_config"]
        names = [node.get(key) for key in ("module", "class_name", "registered_name")]
        if not all(isinstance(name, str) for name in names):
            continue
        module, class_name, registered_name = names
        is_keras = module.split(".")[0] in ("keras", "builtins")
        # A stranger may have written the file, so only names go into the message.
        are_names = f"{module}.{class_name}".replace(".", "_").isidentifier()
        if (
            not is_keras
            and are_names
            and len(module + class_name) < 200
            and class_name != "function"
            and keras.saving.get_registered_object(registered_name) is None
        ):
            missing.add((module, class_name))
    return sorted(missing)


def warn_about_script_classes(model):
    """Log a warning if another process could not load a class of the model, to export it.

    On TensorFlow the export needs no other process.

    Args:
        model: A Keras model.
    """
    # A private method. The public `layers` of a model leaves out the layers inside of layers.
    classes = {type(layer) for layer in model._flatten_layers()}
    names = sorted(cls.__name__ for cls in classes if cls.__module__ == "__main__")
    if names and keras.config.backend() != "tensorflow":
        logger.warning(
            "The export of this model will be refused: on %s another process traces it, which "
            "cannot import %s from the script or notebook that runs. Move such classes to a module "
            "and import them from there.",
            keras.config.backend(),
            ", ".join(names),
        )


def check_finite_weights(model, argument, path=None, advice=""):
    """Raise a `ValueError` that names the first weight with NaN or infinity.

    Args:
        model: A Keras model.
        argument: Name of the argument, for the message.
        path: File of the weights, for the message; `None` for a model that is passed.
        advice: The end of the sentence about the mistake.
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
                f"be a model whose weights are finite numbers{advice}",
                received=f"{source}{problem} in the weight {weight.path}",
            )
