"""Losses and metrics against the NumPy reference, with their gradients."""

import keras
import numpy as np
import pytest
from gradients import differentiate
from layer_checks import array, assert_close
from models import plain_gru
from projections import VOCABULARY, projection_by_hand, random_projection
from reference import alignment_losses, token_losses

from keras_bahdanau import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_bahdanau.losses import AlignmentCrossentropy, QuantileLoss
from keras_bahdanau_runtime.ids import PAD

LABELS = np.array([[3, 1, PAD], [2, PAD, PAD]])


class LossOf(keras.layers.Layer):
    """A loss of fixed targets as a layer, for its gradient."""

    def __init__(self, loss, targets):
        super().__init__()
        self.loss, self.targets = loss, targets

    def call(self, predictions):
        return self.loss(self.targets, predictions)


def loss_and_slope(loss, targets, predictions):
    """The loss, and its gradient with respect to the predictions."""
    layer = LossOf(loss, targets)
    layer.build(predictions.shape)
    value, (gradient,) = differentiate(layer)(predictions)
    return float(value), gradient / (2 * float(value))  # `differentiate` squares its loss


def test_the_token_loss_and_its_gradient_are_those_of_the_softmax(rng):
    logits, real = 3 * array(rng, *LABELS.shape, 5), LABELS != PAD
    loss, slope = loss_and_slope(TokenCrossentropy(label_smoothing=0.2), LABELS, logits)
    assert_close(loss, token_losses(LABELS, logits, 0.2).sum() / real.sum())
    exponentials = np.exp(logits.astype("float64"))
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    smoothed = 0.8 * np.eye(5)[LABELS] + 0.2 / 5
    assert_close(slope, (probabilities - smoothed) * real[..., None] / real.sum())


def test_the_alignment_loss_and_its_gradient_are_those_of_the_cross_entropy(rng):
    links = rng.integers(0, 3, size=(2, 3, 4))
    links[0, 1] = 0  # a word without a link does not count
    weights = rng.dirichlet(np.ones(4), size=(2, 3)).astype("float32")
    aligned = links.any(axis=-1)
    loss, slope = loss_and_slope(AlignmentCrossentropy(), links, weights)
    assert_close(loss, alignment_losses(links, weights).sum() / aligned.sum())
    shares = links / np.maximum(links.sum(axis=-1, keepdims=True), 1)
    np.testing.assert_allclose(slope, -shares / weights / aligned.sum(), rtol=1e-4, atol=1e-5)


def test_the_quantile_loss_and_its_gradient_count_values_above_and_below(rng):
    quantiles, values = np.array([0.1, 0.5, 0.8]), array(rng, 2, 4)
    predictions = array(rng, 2, 4, 3)
    loss, slope = loss_and_slope(QuantileLoss(list(quantiles)), values, predictions)
    errors = values[..., None] - predictions
    shares = np.where(errors > 0, quantiles, quantiles - 1)
    assert_close(loss, (shares * errors).mean())
    assert_close(slope, -shares / errors.size)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 1},
        {"chunk_size": 5, "label_smoothing": 0.3},
        {"chunk_size": 50, "label_smoothing": 0.3},
        {"chunk_size": 5, "label_smoothing": 0.3, "sampled": VOCABULARY},  # sampled is every id
    ],
    ids=str,
)
def test_a_loss_that_makes_its_logits_has_the_gradients_of_all_logits(options, rng):
    layer, features, arrays = random_projection(rng, **options)
    expected, gradients, _ = projection_by_hand(*arrays, options.get("label_smoothing", 0.0))
    total, slopes = differentiate(layer)(features)
    assert_close(total, expected)
    for slope, gradient in zip(slopes, gradients, strict=True):
        assert_close(slope / (2 * expected), gradient)


def test_metrics_are_over_the_real_tokens_of_all_batches(rng):
    perplexity, accuracy = Perplexity(), TokenAccuracy()
    losses, hits = [], []
    for width in (3, 2):
        labels, logits = LABELS[:, :width], array(rng, 2, width, 5)
        real = labels != PAD
        losses.append(token_losses(labels, logits, 0.0)[real])
        hits.append((logits.argmax(axis=-1) == labels)[real])
        for metric in (perplexity, accuracy):
            metric.update_state(labels, logits)
    assert_close(perplexity.result(), np.exp(np.concatenate(losses).mean()), 1e-4)
    assert_close(accuracy.result(), np.concatenate(hits).mean())


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_one_compiled_model_takes_weights_of_rows_and_of_words(rng, chunk_size):
    model = plain_gru()
    accuracy = TokenAccuracy()
    model.compile("sgd", TokenCrossentropy(chunk_size=chunk_size), weighted_metrics=[accuracy])
    labels = np.array([[4, 5, 6], [7, 8, 9]])
    inputs = {"source": labels, "target": labels}
    logits = keras.ops.convert_to_numpy(model(inputs))
    losses, hits = token_losses(labels, logits, 0.0), logits.argmax(-1) == labels
    of_words = rng.uniform(1, 2, size=labels.shape)
    for weight, targets in (
        (of_words[:, 0], labels),
        (of_words, labels),
        (of_words[:, :1], labels[..., None]),
        (of_words, labels),
    ):
        values = model.evaluate(inputs, targets, sample_weight=weight, verbose=0, return_dict=True)
        weights = np.broadcast_to(weight.reshape(2, -1), labels.shape)
        assert_close(values["loss"], (losses * weights).mean())
        assert_close(values["token_accuracy"], (hits * weights).sum() / weights.sum())
    with pytest.raises(Exception, match="`sample_weight` must"):
        model.test_on_batch(inputs, labels, sample_weight=of_words.T)
