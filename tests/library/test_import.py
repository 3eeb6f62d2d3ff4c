"""Imports of `keras_bahdanau` with and without Keras, and the registration of its classes."""

import importlib.util
import os
import subprocess
import sys

import keras
import pytest

LIGHT = """
import keras_bahdanau
from keras_bahdanau import TrainingOptions, Translator, prepare, plot_alignment
from keras_bahdanau.data import PreparedCorpus, TextFormat
"""
COUNT = """
import keras
print(*sorted(name for name in keras.saving.get_custom_objects() if name.startswith("keras_ba")))
"""
# The backend that is imported in half the time of the others.
FASTEST = {"KERAS_BACKEND": "numpy"}


def output_of(code: str, **variables: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_options_corpora_and_the_runtime_are_imported_without_keras():
    code = f"{LIGHT}import sys\nprint({{'keras', 'torch', 'tensorflow', 'jax'}} & {{*sys.modules}})"
    assert output_of(code).strip() == "set()"


@pytest.mark.parametrize(
    "statement",
    [
        "import keras_bahdanau",
        "import keras, keras_bahdanau",
        "from keras_bahdanau.data import PreparedDataset",
    ],
)
def test_classes_of_saved_models_are_registered_with_keras(statement):
    names = output_of(statement + COUNT, **FASTEST).split()
    for name in ("RNNSearch", "BahdanauAttention", "BeamSearch", "TokenAccuracy", "PerGate"):
        assert f"keras_bahdanau>{name}" in names


def test_a_module_that_brings_keras_is_executed_once():
    code = """
import keras_bahdanau.initializers as module
from keras_bahdanau.layers.attention import bahdanau
import keras
print(keras.saving.get_registered_object("keras_bahdanau>PerGate") is module.PerGate)
print(module.__spec__.origin == module.__file__)
"""
    assert output_of(code, **FASTEST).split() == ["True", "True"]


@pytest.mark.parametrize(
    "statement",
    [
        "keras_bahdanau.RNNSearch",
        "keras_bahdanau.data.PreparedDataset",
        "import keras_bahdanau.layers",
    ],
)
def test_the_first_name_that_needs_keras_says_what_to_install(statement):
    code = f"""
import sys
sys.modules["keras"] = None
import keras_bahdanau, keras_bahdanau.data
try:
    {statement}
except ImportError as error:
    print(error)
"""
    assert 'pip install "keras-bahdanau[tensorflow]"' in output_of(code)


def test_the_command_train_imports_tensorflow_only_as_the_backend():
    code = """
import importlib.util, sys
from keras_bahdanau_cli.tensorflow_logging import import_keras_for_training
import_keras_for_training()
import keras
keras.utils.set_random_seed(1)
keras.saving.serialize_keras_object(keras.layers.Dense(1))
print("tensorflow" in sys.modules, importlib.util.find_spec("tensorflow") is not None)
"""
    is_installed = importlib.util.find_spec("tensorflow") is not None
    assert output_of(code).split() == [
        str(keras.config.backend() == "tensorflow"), str(is_installed)
    ]  # fmt: skip
