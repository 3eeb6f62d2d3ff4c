"""Export from JAX and PyTorch, where a process of TensorFlow traces the saved model."""

import importlib

import keras
import numpy as np
import pytest

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, BeamSearch, Seq2Seq, Tokenizer
from keras_bahdanau_export import ModelCard, export
from keras_bahdanau_runtime import Translator

pytestmark = pytest.mark.skipif(
    keras.config.backend() == "tensorflow",
    reason="TensorFlow traces its own models: tests/export",
)

OWN_LAYER = """
import keras

@keras.saving.register_keras_serializable(package="own")
class OwnEncoder(keras.layers.Conv1D):
    pass
"""


def test_a_model_with_a_layer_of_the_users_module_is_exported_in_float32(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(OWN_LAYER)
    monkeypatch.syspath_prepend(tmp_path)
    texts = ["a man on a bike", "two dogs run", "a dog on a bike"]
    tokenizer = Tokenizer.train(texts, ["ein Mann", "zwei Hunde"], vocabulary_size=270)

    def model(dtype):
        return Seq2Seq(
            tokenizer.source_vocabulary_size,
            tokenizer.target_vocabulary_size,
            5,
            importlib.import_module("own_layers").OwnEncoder(6, 3, padding="same"),
            AttentiveDecoder(keras.layers.GRUCell(6), BahdanauAttention(4)),
            bridge="mean",
            tokenizer=tokenizer,
            dtype=dtype,
        )

    plain, mixed = model("float32"), model("mixed_bfloat16")
    for each in (plain, mixed):
        each.build()
    mixed.set_weights(plain.get_weights())
    search = BeamSearch(3, length_penalty=0.6)
    parity = export(
        mixed, tmp_path / "a", search=search, max_length=9, texts=texts,
        calibrate=[(text, text) for text in texts], model_card=ModelCard(license="mit"),
    )  # fmt: skip
    assert parity.backend == keras.config.backend()
    assert parity.equal + parity.ties == parity.sentences
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"model.onnx", "score.onnx", "tokenizer.json", "README.md"} <= files
    translations = Translator(tmp_path / "a").translate(texts, n_best=3)
    expected = plain.translate(texts, search, max_length=9, n_best=3)
    for ours, theirs in zip(translations, expected, strict=True):
        assert [h.text for h in ours] == [h.text for h in theirs]
        # In bfloat16 they would agree to three digits.
        np.testing.assert_allclose([h.score for h in ours], [h.score for h in theirs], rtol=1e-5)
