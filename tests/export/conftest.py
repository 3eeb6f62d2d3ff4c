"""Exports are tested under TensorFlow, which traces them in this process.

The exported search is built once in each worker, because several files read it.
"""

from pathlib import Path

import keras
import pytest
from models import SMALL, TEXTS

from keras_bahdanau import BeamSearch, RNNSearch, Sampling, Tokenizer
from keras_bahdanau_export import export

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if keras.config.backend() != "tensorflow":
        skip = pytest.mark.skip(reason="TensorFlow traces; tests/conformance exports from others.")
        for item in items:
            if item.path.is_relative_to(FOLDER):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer.train(TEXTS, ["ein Mann", "zwei Hunde", "ein Hund"], vocabulary_size=280)


@pytest.fixture(scope="session")
def model(tokenizer):
    keras.utils.set_random_seed(3)
    model = RNNSearch(tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size, **SMALL)
    model.build()
    model.tokenizer = tokenizer
    return model


@pytest.fixture(scope="session")
def artifact(model, tmp_path_factory):
    """One export that the tests share: both formats, a beam of three, the model's tokenizer."""
    path = tmp_path_factory.mktemp("export") / "artifact"
    parity = export(
        model,
        path,
        format=["onnx", "tf_saved_model"],
        search=BeamSearch(3, length_penalty=0.6),
        max_length=9,
        max_source_length=30,
        texts=TEXTS,
        stepwise=True,
    )
    return path, parity


@pytest.fixture(scope="session")
def sampling(model, tmp_path_factory):
    """A search that samples, its artifact and the parity."""
    search = Sampling(3, temperature=1.5, top_k=40, top_p=0.9, seed=7)
    path = tmp_path_factory.mktemp("sampling") / "artifact"
    return search, path, export(model, path, search=search, max_length=9, texts=TEXTS)


@pytest.fixture(scope="session")
def other_model(model):
    """The model with other weights."""
    keras.utils.set_random_seed(4)
    other = RNNSearch.from_config(model.get_config())
    other.build()
    return other
