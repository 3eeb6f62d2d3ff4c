"""Saved models keep frozen layers, quantized weights and LoRA."""

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy, copy_task
from keras import ops
from models import MODELS

from keras_bahdanau.layers import ScheduledSampling

INPUTS, LABELS = copy_task(rows=32)


@pytest.mark.parametrize("name", MODELS)
def test_config_round_trip(name):
    model = MODELS[name]()
    copy = type(model).from_config(model.get_config())
    assert copy.get_config() == model.get_config()
    copy.build()
    model.build()
    assert [w.shape for w in copy.weights] == [w.shape for w in model.weights]


@pytest.mark.parametrize("name", ["rnnsearch", "rnnencdec"])
def test_a_config_keeps_the_arguments_that_seq2seq_defines(name):
    sampling = ScheduledSampling("linear", k=0.9, slope=0.001)
    model = MODELS[name](scheduled_sampling=sampling, guided_alignment=0.25, source_embedding_dim=5)
    copy = type(model).from_config(model.get_config())
    assert copy.get_config() == model.get_config()
    assert copy.scheduled_sampling.get_config() == sampling.get_config()
    assert (copy.guided_alignment, copy.source_embedding_dim) == (0.25, 5)


@pytest.mark.parametrize("name", ["rnnsearch", "stacked_lstm"])
def test_a_loaded_model_has_the_frozen_layers_of_the_saved_one(name, tmp_path):
    model = compile_to_copy(MODELS[name]())
    model.source_embedding.trainable = False
    model.encoder.forward_layers[0].trainable = False
    model.decoder.trainable = False
    model.decoder.readout.trainable = True
    model.train_on_batch(INPUTS, LABELS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    trainable = [weight.name for weight in model.weights if weight.trainable]
    assert [weight.name for weight in loaded.weights if weight.trainable] == trainable
    frozen = loaded.source_embedding, loaded.encoder.forward_layers[0], loaded.decoder
    assert not any(layer.trainable for layer in frozen)
    assert int(loaded.optimizer.iterations) == 1
    loaded.decoder.trainable = True
    assert all(weight.trainable for weight in loaded.decoder.weights)


def test_a_config_without_recorded_layer_settings_is_accepted():
    for name in ("rnnsearch", "stacked_lstm"):
        config = MODELS[name]().get_config()
        assert config.pop("layer_settings") == []
        assert len(type(MODELS[name]()).from_config(config)._own_layers()) >= 3


def save_and_load(model, path, atol=0.0):
    """Return the loaded model, after checking that it has the logits of the saved one."""
    model.save(path)
    loaded = keras.saving.load_model(path)
    logits = (ops.convert_to_numpy(each(INPUTS, training=False)) for each in (model, loaded))
    np.testing.assert_allclose(*logits, rtol=0, atol=atol)
    return loaded


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # in Keras's own tied layer, on torch
@pytest.mark.parametrize(
    ("name", "mode"), [("copying", "int8"), ("plain_gru", "int8"), ("plain_gru", "int4")]
)
def test_a_quantized_model_is_saved(name, mode, tmp_path):
    model = MODELS[name]()
    model.build()
    model.quantize(mode)
    loaded = save_and_load(model, tmp_path / "model.keras")
    assert [weight.dtype for weight in loaded.weights] == [weight.dtype for weight in model.weights]


def test_a_model_with_lora_is_saved(tmp_path):
    model = MODELS["rnnsearch"]()
    model.build()
    model.source_embedding.enable_lora(2)
    model.output_layer.enable_lora(3)
    loaded = save_and_load(model, tmp_path / "model.keras", atol=1e-6)
    names = [[weight.name for weight in each.trainable_weights] for each in (model, loaded)]
    assert names[0] == names[1] and "lora_embeddings_a" in names[0]
    assert loaded.output_layer.lora_rank == 3
