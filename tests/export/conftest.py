"""Exports are tested under TensorFlow, which traces them in this process.

Several files read the exported searches, which one worker writes for all.
"""

import json
import os
from pathlib import Path

import keras
import pytest
from models import SMALL, TEXTS

from keras_bahdanau import BeamSearch, RNNSearch, Sampling, Tokenizer
from keras_bahdanau_export import ModelCard, export
from keras_bahdanau_export.parity import Parity

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if keras.config.backend() != "tensorflow":
        skip = pytest.mark.skip(reason="TensorFlow traces; tests/conformance exports from others.")
        for item in items:
            if item.path.is_relative_to(FOLDER):
                item.add_marker(skip)


@pytest.fixture
def eager_models():
    """Run `generate` without tracing, which takes twice as long as a small search.

    Tests that search once with each setting use it. `tests/conformance` runs traced searches.
    """
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


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


def export_once(tmp_path_factory, name, model, **options):
    """Export a model, or find the export of another worker; return the path and the parity."""
    folder = tmp_path_factory.mktemp(name)
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = tmp_path_factory.getbasetemp().parent / f"shared-{name}"  # of all workers
    else:
        shared = folder.with_name(f"shared-{name}")
    if not shared.exists():
        parity = export(model, folder / "artifact", **options)
        (folder / "parity.json").write_text(json.dumps(parity.to_json()))
        try:
            folder.rename(shared)
        except OSError:  # another worker has just written it
            shared = folder
    return shared / "artifact", Parity(**json.loads((shared / "parity.json").read_text()))


@pytest.fixture(scope="session")
def artifact(model, tmp_path_factory):
    """One export that the tests share: both formats, a beam of three, the model's tokenizer."""
    return export_once(
        tmp_path_factory,
        "artifact",
        model,
        format=["onnx", "tf_saved_model"],
        search=BeamSearch(3, length_penalty=0.6),
        max_length=9,
        max_source_length=30,
        texts=TEXTS,
        stepwise=True,
        model_card=ModelCard(license="mit"),
    )


@pytest.fixture(scope="session")
def sampling(model, tmp_path_factory):
    """A search that samples, its artifact and the parity."""
    search = Sampling(3, temperature=1.5, top_k=40, top_p=0.9, seed=7)
    options = {"search": search, "max_length": 9, "texts": TEXTS}
    return search, *export_once(tmp_path_factory, "sampling", model, **options)


@pytest.fixture(scope="session")
def other_model(model):
    """The model with other weights."""
    keras.utils.set_random_seed(4)
    other = RNNSearch.from_config(model.get_config())
    other.build()
    return other
