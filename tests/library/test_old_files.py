"""Files of an earlier version still load. The README in tests/files says how they were made."""

import gzip
import json
from pathlib import Path

import keras
import pytest

import keras_bahdanau  # noqa: F401 - registers its classes
from keras_bahdanau.training import TrainingOptions, load_best
from keras_bahdanau_runtime import Translator

FILES = Path(__file__).resolve().parents[1] / "files"
SENTENCES = ["red cat", "one", "two dog eats", "bird sees blue", "green runs three red"]
CONFIGS = json.loads(gzip.decompress((FILES / "configs.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def model():
    return keras.saving.load_model(FILES / "run" / "best.keras")


def test_an_old_model_copies_its_source(model):
    translations = model.translate(SENTENCES, max_length=20)
    assert [translation.text for translation in translations] == SENTENCES


def test_an_old_model_has_its_optimizer_and_loss(model):
    assert int(model.optimizer.iterations) == 3948
    assert type(model.optimizer._learning_rate).__name__ == "WarmupSchedule"
    assert type(model.loss).__name__ == "TokenCrossentropy"


def test_the_best_model_of_an_old_run_copies_its_source():
    translations = load_best(FILES / "run").translate(SENTENCES, max_length=20)
    assert [translation.text for translation in translations] == SENTENCES


def test_options_of_an_old_run_are_read():
    options = TrainingOptions.from_file(FILES / "run" / "options.json")
    assert (options.units, options.epochs, options.learning_rate) == (10, 30, 0.02)
    assert options.validation_source == (Path("dev.txt"),)


def test_an_old_artifact_copies_its_source():
    translator = Translator(FILES / "artifact")
    translations = translator.translate(SENTENCES)
    assert [translation.text for translation in translations] == SENTENCES
    assert "".join(translator.stream(SENTENCES[-1])) == SENTENCES[-1]


@pytest.mark.parametrize("config", CONFIGS, ids=[config["class_name"] for config in CONFIGS])
def test_an_old_config_is_read(config):
    loaded = keras.saving.deserialize_keras_object(config)
    assert type(loaded).__name__ == config["class_name"]
