"""A short-lived TensorFlow process that traces the models of other backends.

The process reads a request as JSON from standard input, loads the model from a `.keras` file, and
writes the graphs and a JSON file with their signatures.
"""

import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import keras

from keras_bahdanau.models.shortlist import Shortlist
from keras_bahdanau_export.garbage_collection import frozen_garbage_collection
from keras_bahdanau_export.model_config import config_dicts, unloadable_objects
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.trace import trace_and_write
from keras_bahdanau_runtime.errors import ArtifactError, UnsupportedModelError, argument_error
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.signature import SHORTLIST_FILE

logger = logging.getLogger("keras_bahdanau_export")

# Options that are not sent as JSON: search and shortlist are sent in another form, and the process
# does not need the others.
_OTHER_OPTIONS = (
    *("search", "shortlist"),
    *("tokenizer", "texts", "references", "calibrate", "model_card"),
)
_JSON_OPTIONS = [
    option.name for option in fields(ExportOptions) if option.name not in _OTHER_OPTIONS
]


# Exit statuses of the process after an `OSError` and an `UnsupportedModelError`, which are on
# standard output.
_OS_ERROR, _UNSUPPORTED_MODEL = 74, 75


def trace_in_subprocess(model, options, folder):
    """Trace a model on JAX or torch in a TensorFlow process, which writes the graphs.

    Args:
        model: A built Keras model.
        options: `ExportOptions` with a search if the model generates. A shortlist must already be
            saved in `folder`.
        folder: The `Path` to write into.

    Returns:
        The signatures of the ONNX files as plain dicts, by file name.

    Raises:
        ValueError: If the model contains a class or function that another process cannot load.
        OSError: If the process cannot write a file, for example on a full disk.
        UnsupportedModelError: If the process raised it.
        ArtifactError: If the process failed otherwise; the message contains the end of its standard
            error.
    """
    check_loadable(model, options.imports)
    logger.info("The model runs on %s: a TensorFlow process traces it.", keras.config.backend())
    with tempfile.TemporaryDirectory() as scratch:
        model_file, response = Path(scratch) / "model.keras", Path(scratch) / "signatures.json"
        with add_path_to_errors(model_file):
            model.save(model_file)
        request = {
            "model": str(model_file),
            "response": str(response),
            "folder": str(folder),
            "search": keras.saving.serialize_keras_object(options.search),
            "shortlist": None if options.shortlist is None else str(folder / SHORTLIST_FILE),
            "options": {name: getattr(options, name) for name in _JSON_OPTIONS},
            "imports": [*options.imports, *_custom_modules(model)],
            "path": sys.path,  # includes the folder of the running script
        }
        finished = subprocess.run(
            [sys.executable, "-m", "keras_bahdanau_export.tracing_process"],
            input=json.dumps(request),
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode == _OS_ERROR:  # a full disk, for example
            raise OSError(*json.loads(finished.stdout.splitlines()[-1]))
        if finished.returncode == _UNSUPPORTED_MODEL:
            raise UnsupportedModelError(json.loads(finished.stdout.splitlines()[-1]))
        if finished.returncode:
            raise ArtifactError(
                "The TensorFlow process that traces the model failed. If it could not find one of "
                "your classes, register it with keras.saving.register_keras_serializable() and "
                "name its module in imports=[...] (--import on the command line).\n"
                f"{finished.stderr[-4000:]}"
            )
        return json.loads(response.read_text(encoding="utf-8"))


def check_loadable(model, imports):
    """Raise a `ValueError` that names classes and functions that another process cannot load.

    Args:
        model: A Keras model.
        imports: Names of modules that the process imports first.
    """
    unloadable = unloadable_objects(model, imports)
    if unloadable:
        raise argument_error(
            "model",
            "contain only classes and functions that the TensorFlow process which traces it can "
            "import. Define them in a module, not in the script or notebook that runs, each under "
            "@keras.saving.register_keras_serializable(), and import them from there. With "
            "KERAS_BACKEND=tensorflow no process is needed",
            received=", ".join(unloadable),
        )


def _custom_modules(model):
    """Return the modules, other than Keras's and ours, that a process imports to load the model."""
    loaded = ("keras", "keras_bahdanau", "builtins", "__main__")
    modules = {config.get("module") for config in config_dicts(model)}
    modules = (module for module in modules if isinstance(module, str))
    return sorted(module for module in modules if module.split(".")[0] not in loaded)


@frozen_garbage_collection()
def _main():
    request = json.load(sys.stdin)
    sys.path += [entry for entry in request["path"] if entry not in sys.path]
    for module in request["imports"]:
        importlib.import_module(module)
    options = ExportOptions(
        search=keras.saving.deserialize_keras_object(request["search"]),
        shortlist=None if request["shortlist"] is None else Shortlist.load(request["shortlist"]),
        **request["options"],
    )
    model = keras.saving.load_model(request["model"], compile=False)
    signatures = trace_and_write(model, options, Path(request["folder"]))
    Path(request["response"]).write_text(json.dumps(signatures), encoding="utf-8")


if __name__ == "__main__":
    try:
        _main()
    except OSError as os_error:
        if os_error.errno is None:  # not of the system
            raise
        print(json.dumps([os_error.errno, os_error.strerror, os_error.filename]))
        sys.exit(_OS_ERROR)
    except UnsupportedModelError as unsupported:
        print(json.dumps(str(unsupported)))
        sys.exit(_UNSUPPORTED_MODEL)
