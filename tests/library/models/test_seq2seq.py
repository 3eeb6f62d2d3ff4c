"""Models of an encoder and a decoder: training, saving, generation and their arguments."""

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy, copy_task
from keras import ops
from models import MODELS, SOURCE_VOCABULARY, TARGET_VOCABULARY, model_of

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    BidirectionalEncoder,
    Seq2Seq,
    TranslationDataset,
)
from keras_bahdanau.losses import TokenCrossentropy
from keras_bahdanau_runtime.ids import PAD

LENGTH = 7  # longer than any sentence of the task


BEAM = BeamSearch(3, 0.6)


INPUTS, LABELS = copy_task(rows=32)


SOURCE = INPUTS["source"][:4]


every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def trained(name):
    """Return a model after a short `fit`."""
    keras.utils.set_random_seed(0)
    model = compile_to_copy(MODELS[name]())
    model.fit(INPUTS, LABELS, epochs=4, batch_size=16, verbose=0)
    return model


@functools.cache
def translations(name):
    """Return the result of a beam of 3 for `SOURCE`."""
    return trained(name).generate(SOURCE, search=BEAM, max_length=LENGTH)


def test_dropout_is_applied_only_in_training():
    model, batch = trained("stacked_lstm"), {"source": SOURCE, "target": SOURCE}
    logits, repeated = (ops.convert_to_numpy(model(batch)) for _ in range(2))
    dropped = ops.convert_to_numpy(model(batch, training=True))
    np.testing.assert_array_equal(logits, repeated)
    assert np.abs(dropped - logits).max() > 1e-3


def with_random_padding(ids, seed):
    """The same ids in two more columns, with padding at random positions."""
    rng = np.random.default_rng(seed)
    wide = np.full((len(ids), ids.shape[1] + 2), PAD, ids.dtype)
    for row, sequence in zip(wide, ids, strict=True):
        ids_of_row = sequence[sequence != PAD]
        row[np.sort(rng.choice(len(row), len(ids_of_row), replace=False))] = ids_of_row
    return wide


@every_model
def test_padding_at_any_place_changes_no_logits_and_no_loss(name):
    model, places = trained(name), INPUTS["target"] != PAD
    inputs = {
        "source": with_random_padding(INPUTS["source"], 0),
        "target": with_random_padding(INPUTS["target"], 1),
    }
    labels = with_random_padding(LABELS, 1)
    assert ((inputs["target"] != PAD) == (labels != PAD)).all() and (labels[:, 0] == PAD).any()
    logits = model.predict(inputs, verbose=0)[labels != PAD]
    np.testing.assert_allclose(logits, model.predict(INPUTS, verbose=0)[places], 0, 1e-4)
    data = (inputs, labels), (INPUTS, LABELS)
    losses = [float(model.evaluate(*pair, verbose=0)) for pair in data]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_model_may_have_its_own_dtype_policy():
    model = compile_to_copy(MODELS["rnnsearch"](dtype="mixed_float16"))
    decoder = model.decoder
    for layer in (*model.layers, decoder.cell, decoder.attention, decoder.readout):
        assert layer.dtype_policy.name == "mixed_float16", layer.path
    assert np.isfinite(float(model.train_on_batch(INPUTS, LABELS)))


class OnlyFloat32(keras.layers.GRUCell):
    @property
    def dtype_policy(self):
        return super().dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value):
        policy = keras.dtype_policies.get(value)
        if policy.compute_dtype != "float32":
            raise NotImplementedError(policy.name)
        keras.layers.GRUCell.dtype_policy.fset(self, policy)


def test_a_layer_that_refuses_the_policy_of_training_steps_leaves_no_other_layer_in_it():
    attention = BahdanauAttention(3)
    decoder = AttentiveDecoder(OnlyFloat32(4), attention)
    encoder = keras.layers.GRU(4, return_sequences=True)
    model = Seq2Seq(9, 9, embedding_dim=4, encoder=encoder, decoder=decoder, bridge="last")
    model.training_dtype_policy = "mixed_bfloat16"
    model.compile("sgd", TokenCrossentropy())
    ids = np.array([[5, 6, 3]])
    with pytest.raises(NotImplementedError, match="mixed_bfloat16"):
        model.train_on_batch({"source": ids, "target": ids}, ids)
    assert {layer.dtype_policy.name for layer in model._flatten_layers()} == {"float32"}


def test_an_unknown_policy_of_training_steps_is_refused():
    with pytest.raises(ValueError, match=r"`training_dtype_policy` must be one of .*'float16'"):
        MODELS["rnnsearch"]().training_dtype_policy = "float16"


# --- Saving ---------------------------------------------------------------------------------------


CHILD = """
    import sys
    import keras
    import numpy as np
    import keras_bahdanau

    folder, *names = sys.argv[1:]
    inputs = dict(np.load(f"{folder}/data.npz"))
    results = {}
    for name in names:
        model = keras.saving.load_model(f"{folder}/{name}.keras")
        results[f"{name} class"] = type(model).__name__
        results[f"{name} logits"] = keras.ops.convert_to_numpy(model(inputs, training=False))
        if name == "rnnsearch":
            search = keras_bahdanau.BeamSearch(3, 0.6)
            results |= model.generate(inputs["source"][:4], search, max_length=7)._asdict()
    np.savez(f"{folder}/results.npz", **results)
"""


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """Results of the saved models in a new process that imports only Keras and this package."""
    folder = tmp_path_factory.mktemp("saved")
    np.savez(folder / "data.npz", **INPUTS)
    for name in MODELS:
        trained(name).save(folder / f"{name}.keras")
    root = Path(__file__).resolve().parents[3]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), *MODELS],
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "export")])},
    )
    return dict(np.load(folder / "results.npz"))


@every_model
def test_a_saved_model_has_the_same_outputs_in_a_new_process(name, reloaded):
    model = trained(name)
    assert reloaded[f"{name} class"] == type(model).__name__
    logits = ops.convert_to_numpy(model(INPUTS, training=False))
    np.testing.assert_allclose(reloaded[f"{name} logits"], logits, rtol=1e-4, atol=1e-5)
    if name == "rnnsearch":
        for field, value in translations(name)._asdict().items():
            np.testing.assert_allclose(reloaded[field], value, rtol=1e-4, atol=1e-5)


# --- Generation -----------------------------------------------------------------------------------


@every_model
def test_padding_and_the_rest_of_the_batch_do_not_change_a_translation(name):
    batch = translations(name)
    alone = trained(name).generate(
        np.pad(SOURCE[1:2], ((0, 0), (0, 7))), search=BEAM, max_length=LENGTH
    )
    longest = alone.tokens.shape[2]
    np.testing.assert_array_equal(batch.tokens[1:2, :, :longest], alone.tokens)
    np.testing.assert_array_equal(batch.lengths[1:2], alone.lengths)
    np.testing.assert_allclose(batch.scores[1:2], alone.scores, rtol=1e-4)
    width = SOURCE.shape[1]
    np.testing.assert_allclose(
        batch.alignments[1:2, :, :longest], alone.alignments[..., :width], atol=1e-5
    )
    assert alone.alignments.shape[-1] == width + 7 and not alone.alignments[..., width:].any()


def test_generate_takes_lists_of_ids():
    rows = [[int(i) for i in row if i != PAD] for row in SOURCE]
    result = trained("rnnsearch").generate(rows, search=BEAM, max_length=LENGTH)
    for value, expected in zip(result, translations("rnnsearch"), strict=True):
        np.testing.assert_array_equal(value, expected)


BAD_SOURCES = {
    "no sentence": [],
    "no row": np.zeros((0, 4), "int32"),
    "no column": np.zeros((2, 0), "int32"),
    "one sentence, not a batch": [5, 6, 3],
    "three axes": np.ones((1, 2, 3), "int32"),
    "only padding": [[5, 3], [0, 0]],
    "padding at the left": [[0, 5, 3]],
    "padding inside": [[5, 0, 3]],
    "an empty sentence": [[5, 3], []],
    "id too large": [[5, SOURCE_VOCABULARY]],
    "id far too large": [[5, 2**40]],
    "negative id": [[5, -1]],
    "floats": np.ones((1, 3)),
    "floats in a list": [[5.5, 3.0]],
    "text": ["a man"],
    "text in a list": [["a", "man"]],
    "booleans": np.ones((1, 3), "bool"),
}


@pytest.mark.parametrize("source", BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_an_unreadable_source_is_refused(source):
    with pytest.raises(ValueError, match="`source`"):
        trained("rnnsearch").generate(source)


def test_tied_embeddings_share_one_matrix():
    model = trained("plain_gru")
    assert model.output_layer is None
    shapes = [tuple(w.shape) for w in model.trainable_weights]
    assert shapes.count((TARGET_VOCABULARY, 9)) == 1
    states = ops.convert_to_tensor(np.eye(9, dtype="float32"))
    np.testing.assert_allclose(
        ops.convert_to_numpy(model._logits(states)),
        ops.convert_to_numpy(model.target_embedding.embeddings).T,
        rtol=1e-5,
    )


@pytest.mark.parametrize(("arguments", "is_ordered"), [({}, True), ({"shuffle": True}, False)])
def test_fit_keeps_the_order_of_a_dataset_by_default(arguments, is_ordered):
    class Recording(TranslationDataset):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    read = []
    pairs = [[5, 3]] * 40
    model = compile_to_copy(MODELS["rnnsearch"]())
    model.fit(Recording(pairs, pairs, batch_size=2), verbose=0, **arguments)
    assert (read[-20:] == list(range(20))) == is_ordered


def test_fit_warns_of_classes_of_the_script_that_runs(monkeypatch, caplog):
    class Mine(BahdanauAttention):
        pass

    monkeypatch.setattr(Mine, "__module__", "__main__")
    model = model_of(BidirectionalEncoder(4), Mine(3))
    with pytest.raises(ValueError, match="compile"):  # the model is not compiled
        model.fit(INPUTS, LABELS)
    is_warned = "cannot import Mine from the script or notebook that runs" in caplog.text
    # On TensorFlow no other process traces the model.
    assert is_warned == (keras.config.backend() != "tensorflow")
