"""Losses that make the logits themselves, against those that are given them."""

import keras
import numpy as np
import pytest
from copying import copy_task
from layer_checks import SOME_POLICIES, assert_close

from keras_bahdanau import (
    Perplexity,
    RNNSearch,
    ScheduledSampling,
    TokenAccuracy,
    TokenCrossentropy,
)
from keras_bahdanau_runtime.ids import PAD

SIZES = {"units": 6, "embedding_dim": 5, "attention_units": 4, "maxout_units": 5}
VOCABULARY = 12
INPUTS, LABELS = copy_task(rows=6)
PLACES = LABELS.size
ALIGNMENT = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]
WEIGHTS = np.linspace(0.1, 2.0, PLACES, dtype="float32").reshape(LABELS.shape)
MODELS = {
    "plain": {},
    "tied": {"tie_embeddings": True},
    "dropout": {"dropout": 0.3},
    "scheduled": {"scheduled_sampling": None},
}


def model_with(loss, metrics=True, **options):
    """A model whose steps move its weights by exactly the gradient."""
    keras.utils.set_random_seed(0)
    if "scheduled_sampling" in options:
        options["scheduled_sampling"] = ScheduledSampling("constant", k=0.5, seed=3)
    model = RNNSearch(14, VOCABULARY, **SIZES, initializer=None, **options)
    model.build()
    # As a new model has it, a bias of zeros would hide much.
    if not options.get("tie_embeddings"):
        model.output_layer.bias.assign(np.linspace(-1, 1, VOCABULARY))
    chosen = [TokenAccuracy(), Perplexity()]
    model.compile(
        keras.optimizers.SGD(1.0),
        loss,
        metrics=chosen[:1] if metrics else None,
        weighted_metrics=chosen[1:] if metrics else None,
    )
    return model


def step_of(loss, inputs=INPUTS, labels=LABELS, sample_weight=WEIGHTS, metrics=True, **options):
    """The logs of a training step, those of a test step, the weights after both."""
    model = model_with(loss, metrics, **options)
    logs = model.train_on_batch(inputs, labels, sample_weight, return_dict=True)
    model.reset_metrics()
    judged = model.test_on_batch(inputs, labels, sample_weight, return_dict=True)
    return logs, judged, [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def assert_same(found, expected, **tolerance):
    for logs, others in zip(found[:2], expected[:2], strict=True):
        assert logs.keys() == others.keys()
        for name, value in logs.items():
            np.testing.assert_allclose(float(value), float(others[name]), err_msg=name, **tolerance)
    for weight, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(weight, other, **tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_change_neither_loss_nor_gradients_nor_metrics(name):
    inputs = {**INPUTS, "alignment": ALIGNMENT}
    found, expected = (
        step_of(TokenCrossentropy(0.1, chunk=chunk), inputs, **MODELS[name]) for chunk in (4, None)
    )
    assert set(found[0]) == {"loss", "token_accuracy", "perplexity"}
    assert_same(found, expected, rtol=1e-4, atol=1e-5)
