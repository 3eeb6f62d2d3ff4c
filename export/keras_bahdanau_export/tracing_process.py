"""A short-lived TensorFlow process that traces the models of other backends.

It reads a request from its standard input, loads the model from a `.keras` file, and writes the
graphs and, as JSON, their signatures.
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
from keras_bahdanau_export.jobs import job_for
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_export.serialized import lacking_elsewhere, serialized_parts
from keras_bahdanau_runtime.errors import ArtifactError
from keras_bahdanau_runtime.signature import SHORTLIST_FILE

logger = logging.getLogger("keras_bahdanau_export")

# Options that JSON can hold. The tokenizer and the texts are for the comparison, which follows.
_PLAIN = [
    option.name
    for option in fields(ExportOptions)
    if option.name not in ("search", "tokenizer", "texts", "references", "shortlist")
]


def write_elsewhere(job, folder):
    """Traces a model on JAX or torch, and writes its graphs, in a TensorFlow process.

    Args:
        job: A `Job`.
        folder: The folder to write into.

    Returns:
        What `Job.write` returns.

    Raises:
        ValueError: If the model holds what no other process can load.
        ArtifactError: If the process failed; the message holds the end of what it said.
    """
    options = job.options
    _check_parts(job.model, options.imports)
    logger.info("The model runs on %s: a TensorFlow process traces it.", keras.config.backend())
    with tempfile.TemporaryDirectory() as scratch:
        saved, answer = Path(scratch) / "model.keras", Path(scratch) / "signatures.json"
        job.model.save(saved)
        request = {
            "model": str(saved),
            "answer": str(answer),
            "folder": str(folder),
            "search": keras.saving.serialize_keras_object(job.search),
            "shortlist": None if options.shortlist is None else str(folder / SHORTLIST_FILE),
            "options": {name: getattr(options, name) for name in _PLAIN},
            "imports": [*options.imports, *_modules_of_parts(job.model)],
            "path": sys.path,  # with the folder of the script that runs
        }
        finished = subprocess.run(
            [sys.executable, "-m", "keras_bahdanau_export.tracing_process"],
            input=json.dumps(request),
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode:
            raise ArtifactError(
                "The TensorFlow process that traces the model failed. If it could not find a class "
                "of yours, register it with keras.saving.register_keras_serializable() and name "
                "its module in imports=[...] (--import on the command line).\n"
                f"{finished.stderr[-4000:]}"
            )
        return json.loads(answer.read_text(encoding="utf-8"))


def _check_parts(model, imports):
    """Raises a `ValueError` that names the classes and functions that another process lacks."""
    lacking = lacking_elsewhere(model, imports)
    if lacking:
        raise ValueError(
            "Argument `model` must hold only classes and functions that the TensorFlow process "
            "which traces it can import: write them in a module of their own, not in the script or "
            "notebook that runs, each under @keras.saving.register_keras_serializable(), and "
            "import them from there. (With KERAS_BACKEND=tensorflow no process is needed.) "
            f"Received: {', '.join(lacking)}"
        )


def _modules_of_parts(model):
    """The modules, other than Keras's and ours, that a process has to import to load the model."""
    known = ("keras", "keras_bahdanau", "builtins", "__main__")
    named = {part.get("module") for part in serialized_parts(model)}
    named = (module for module in named if isinstance(module, str))
    return sorted(module for module in named if module.split(".")[0] not in known)


def _main():
    request = json.load(sys.stdin)
    sys.path += [place for place in request["path"] if place not in sys.path]
    for module in request["imports"]:
        importlib.import_module(module)
    options = ExportOptions(
        search=keras.saving.deserialize_keras_object(request["search"]),
        shortlist=None if request["shortlist"] is None else Shortlist.load(request["shortlist"]),
        **request["options"],
    )
    job = job_for(keras.saving.load_model(request["model"], compile=False), options)
    signatures = job.write(job.functions(), Path(request["folder"]))
    Path(request["answer"]).write_text(json.dumps(signatures), encoding="utf-8")


if __name__ == "__main__":
    _main()
