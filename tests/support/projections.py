"""The total loss of a projection onto a vocabulary, as a layer and by hand."""

import keras
import numpy as np
from keras import ops
from layer_checks import array

from keras_bahdanau.losses.projection import Projection

VOCABULARY = 13  # differs from every other width


def projection_by_hand(features, kernel, bias, labels, weight, smoothing, ids=None, shares=None):
    """The total loss and its gradients with respect to features, kernel and bias, in float64.

    With `ids` the softmax is over these ids only, each with weight `1 / shares`.
    """
    ids = np.arange(len(bias)) if ids is None else ids
    counts = np.zeros(len(bias))
    counts[ids] = 1.0 if shares is None else 1.0 / shares
    logits = (features.astype("float64") @ kernel + bias).reshape(-1, len(bias))
    exponentials = np.exp(logits) * counts
    sums = exponentials.sum(axis=-1, keepdims=True)
    targets = (1 - smoothing) * np.eye(len(bias))[labels.ravel()] + smoothing / len(bias)
    weight = weight.reshape(-1, 1)
    total = (weight * (np.log(sums) - (targets * logits).sum(-1, keepdims=True))).sum()
    slope = weight * (exponentials / sums - targets)
    flat = features.reshape(-1, features.shape[-1])
    gradients = [(slope @ kernel.T).reshape(features.shape), flat.T @ slope, slope.sum(axis=0)]
    log_probs = np.take_along_axis(logits - np.log(sums), labels.reshape(-1, 1), -1)
    return total, gradients, log_probs.reshape(labels.shape)


class ProjectionTotal(keras.layers.Layer):
    """A layer with the weights of a projection; its output is `scale` times the total loss."""

    def __init__(self, labels, weight, dtype=None, scale=1.0, **options):
        super().__init__(dtype=dtype)
        self.scale = scale
        self.labels, self.weighed, self.options = labels, weight, options
        self.seeds = keras.random.SeedGenerator(5)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], VOCABULARY), name="kernel")
        self.bias = self.add_weight(shape=(VOCABULARY,), name="bias")

    def call(self, features):
        projection = Projection(
            features,
            self.kernel.value,
            self.bias.value,
            self.seeds,
            training=True,
            needs_correct=False,
        )
        weight = ops.convert_to_tensor(self.weighed)
        return self.scale * projection.total(self.labels, weight, **self.options)


def random_projection(rng, **options):
    """Return a layer with random weights, its input, and the arguments of `projection_by_hand`."""
    labels = rng.integers(0, 5, size=(3, 7)).astype("int32")
    weight = rng.uniform(size=labels.shape).astype("float32")
    layer = ProjectionTotal(labels, weight, **options)
    features, kernel, bias = (
        array(rng, *shape) for shape in ((3, 7, 4), (4, VOCABULARY), (VOCABULARY,))
    )
    layer.build(features.shape)
    layer.set_weights([kernel, bias])
    return layer, features, (features, kernel, bias, labels, weight)
