"""Losses and metrics of a Seq2Seq: guided alignment, penalties, and what `compile` refuses."""

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy, copy_task
from keras import ops
from models import TARGET_VOCABULARY, VOCABULARIES, log_softmax, model_of, teacher_forced

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    FixedContext,
    Seq2Seq,
    TokenCrossentropy,
    TranslationDataset,
)
from keras_bahdanau.layers import CoverageAttention
from keras_bahdanau_runtime.ids import PAD

INPUTS, LABELS = copy_task(rows=32)
GUIDE_SHAPE = (*LABELS.shape, INPUTS["source"].shape[1])


def guided_model(attention, factor=1.0):
    """Return a model that compiles quickly and has a guided-alignment loss."""
    keras.utils.set_random_seed(0)
    return Seq2Seq(
        *VOCABULARIES,
        embedding_dim=8,
        encoder=keras.layers.Conv1D(12, 3, padding="same"),
        decoder=AttentiveDecoder(keras.layers.GRUCell(12), attention),
        bridge="mean",
        guided_alignment=factor,
    )


def test_guided_alignment_adds_a_loss_that_training_lowers():
    model = compile_to_copy(guided_model(BahdanauAttention(9)))
    # Each target word is aligned to the source word at its position.
    guide = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]
    guided = {**INPUTS, "alignment": guide}

    def entropy():
        _, weights = teacher_forced(model, INPUTS["source"], LABELS[:, None])
        aligned = np.diagonal(weights[:, 0], axis1=1, axis2=2)[LABELS != PAD]
        return -np.log(aligned.astype("float64")).mean()

    tokens = model.evaluate(INPUTS, LABELS, batch_size=len(LABELS), verbose=0)
    before = entropy()
    losses = model.fit(guided, LABELS, epochs=16, batch_size=len(LABELS), verbose=0)
    np.testing.assert_allclose(losses.history["loss"][0], tokens + before, rtol=1e-4)
    assert entropy() < 0.9 * before


def test_guided_alignment_does_not_apply_to_a_fixed_context():
    """Its weights are 1 at one position and 0 elsewhere: the loss would be 69 nats per word."""
    model = compile_to_copy(guided_model(FixedContext()))
    guide = np.full(GUIDE_SHAPE, 0.2, "float32")
    guided = model.evaluate({**INPUTS, "alignment": guide}, LABELS, verbose=0)
    assert guided == model.evaluate(INPUTS, LABELS, verbose=0)


class Penalized(BahdanauAttention):
    """Attention whose penalty is a given tensor."""

    has_penalty = True
    loss = 0.0

    def penalty(self, weights, query_mask):
        return ops.convert_to_tensor(self.loss)


def test_a_penalty_is_counted_even_if_its_id_is_that_of_an_earlier_loss():
    """A tensor may be at the memory address of a deleted one and so have its `id`."""
    attention = Penalized(4)
    model = guided_model(attention)
    model.build()

    def losses(inputs):
        weights = model.trainable_variables, model.non_trainable_variables
        return model.stateless_call(*weights, inputs, return_losses=True)[2]

    guided = {**INPUTS, "alignment": np.zeros(GUIDE_SHAPE, "float32")}
    before = losses(guided)
    assert len(before) == 2
    for attention.loss in before:
        assert len(losses(INPUTS)) == 1
        assert len(losses(guided)) == 2


@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[..., None]], ids=["ids", "a last axis"])
def test_class_weights_of_rows_are_refused(method, labels):
    """Keras makes one weight for each row, by the position of its largest id."""
    model = compile_to_copy(guided_model(BahdanauAttention(4)))
    message = (
        r"`class_weight` .* write TokenCrossentropy\(class_weight=.* `sample_weight`.*{3: 5.0}"
    )
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(INPUTS, labels, class_weight={3: 5.0})


SPARSE = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        "crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        SPARSE(),
        keras.losses.CategoricalCrossentropy(),
    ],
    ids=["function name", "class name", "by shape", "function", "instance", "one-hot"],
)
def test_a_loss_of_probabilities_is_refused(loss, method):
    model = guided_model(BahdanauAttention(4))
    model.compile("sgd", loss)
    message = r"`loss` of `compile` must read logits, .*TokenCrossentropy\(\), .*from_logits=True"
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(INPUTS, LABELS)


def test_a_metric_of_probabilities_is_refused():
    model, metrics = guided_model(BahdanauAttention(4)), ["accuracy", SPARSE.__name__]
    model.compile("sgd", TokenCrossentropy(), metrics=metrics)
    with pytest.raises(ValueError, match="`metrics` of `compile` must read logits"):
        model.evaluate(INPUTS, LABELS, verbose=0)


def test_a_loss_of_logits_from_keras_counts_every_position():
    model = guided_model(BahdanauAttention(4))
    model.compile("sgd", SPARSE(from_logits=True))
    log_probs = log_softmax(model(INPUTS))
    expected = -np.take_along_axis(log_probs, LABELS[..., None], axis=-1).mean()
    loss = model.evaluate(INPUTS, LABELS, verbose=0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_predict_needs_batches_of_one_target_width():
    model = guided_model(BahdanauAttention(4))
    sources, targets = [[5, 3], [6, 3]], [[7, 3], [7, 8, 9, 3]]
    two_widths, one_width = (TranslationDataset(sources, targets, 1, bucket) for bucket in (2, 4))
    with pytest.raises(ValueError, match=r"`x` of `predict` .*predict_on_batch.* \[2, 4\]"):
        model.predict(two_widths, verbose=0)
    assert model.predict(one_width, verbose=0).shape == (2, 4, TARGET_VOCABULARY)


def penalty_of(model, inputs):
    """Return the loss that a training call adds."""
    model(inputs, training=True)
    return ops.convert_to_numpy(model.losses[0]).item()


def test_padding_of_the_target_adds_no_coverage_loss():
    model = model_of(BidirectionalEncoder(4), CoverageAttention(6, coverage_loss_weight=1.0))
    padded = {**INPUTS, "target": np.pad(INPUTS["target"], [(0, 0), (0, 5)])}
    loss = penalty_of(model, INPUTS)
    assert penalty_of(model, padded) == pytest.approx(loss, rel=1e-5) and loss > 0


def test_guided_alignment_is_the_factor_of_its_loss():
    inputs = {**INPUTS, "alignment": np.ones(GUIDE_SHAPE, "float32")}
    model, scaled = (guided_model(BahdanauAttention(6), factor) for factor in (1.0, 2.5))
    expected = 2.5 * penalty_of(model, inputs)
    scaled.build()
    scaled.set_weights(model.get_weights())
    assert penalty_of(scaled, inputs) == pytest.approx(expected, rel=1e-5)
