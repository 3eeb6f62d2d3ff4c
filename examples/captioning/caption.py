"""Captions of images: a CNN's feature map is the memory of an attentive decoder (arXiv 1502.03044).

The scenes hold two coloured shapes, the captions say how they stand: "a red circle left of a blue
square". For each word the attention shows which part of the image it was read from. The baseline
is the same model with the mean of the feature map as its one place to look at.

    python -m examples.captioning.caption
"""

import sys

import keras
import numpy as np

from examples.captioning import scenes
from examples.common import export_and_compare, options, require_margin
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    DeepOutput,
    FixedContext,
    TokenCrossentropy,
)
from keras_bahdanau.plot import plot_image_alignment
from keras_bahdanau.search import Decode
from keras_bahdanau_runtime.ids import BOS

GRID = scenes.SIZE // 4  # what two strides of 2 leave


def build(units, attends=True):
    """To train, `(image, words so far) -> logits`; to use, `image -> words, weights`."""
    image = keras.Input((scenes.SIZE, scenes.SIZE, 3), name="image")
    features = image
    for strides in (2, 2, 1):
        features = keras.layers.Conv2D(units, 3, strides, "same", use_bias=False)(features)
        # Without it the decoder learns to speak before the features tell shapes apart.
        features = keras.layers.BatchNormalization(momentum=0.9)(features)
        features = keras.layers.Activation("relu")(features)
    features = keras.layers.Reshape((GRID * GRID, units))(features)
    # A bias for each place of the grid tells the decoder where a feature stands.
    annotations = keras.layers.EinsumDense(
        "bpc,cd->bpd", (GRID * GRID, units), bias_axes="pd", activation="tanh"
    )(features)
    if not attends:
        annotations = keras.layers.GlobalAveragePooling1D(keepdims=True)(annotations)
    attention = BahdanauAttention(units) if attends else FixedContext(units)
    embedding = keras.layers.Embedding(len(scenes.WORDS), units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), attention, DeepOutput(units))
    head = keras.layers.Dense(len(scenes.WORDS))
    before = keras.Input((None,), dtype="int32", name="before")
    trained = keras.Model([image, before], head(decoder(embedding(before), annotations)))
    decode = Decode(decoder, embedding, head, BeamSearch(3, n_best=1), scenes.LONGEST)
    return trained, keras.Model(image, decode(annotations))


def train(models, images, captions, epochs):
    """Trains with the right words before each; returns the model that finds its own."""
    trained, captioner = models
    words = scenes.ids(captions)
    before = np.concatenate([np.full((len(words), 1), BOS), words[:, :-1]], axis=1)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(images) // 50)
    trained.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    trained.fit([images, before], words, batch_size=50, epochs=epochs, verbose=2)
    return captioner


def exact(captioner, images, captions):
    """Share of the captions found word for word."""
    found = keras.ops.convert_to_numpy(captioner(images)[0])
    return float(np.mean([scenes.text(a) == b for a, b in zip(found, captions, strict=True)]))


def main(arguments=None):
    """Trains both, captions unseen scenes, draws one; returns the shares of exact captions."""
    args = options("captioning", __doc__, arguments)
    count, epochs, units = (100, 1, 8) if args.quick else (3000, 10, 32)
    images, captions = scenes.draw(count, args.training)
    unseen, expected = scenes.draw(100 if args.quick else 1000, args.unseen)
    attends = train(build(units), images, captions, epochs)
    pooled = train(build(units, attends=False), images, captions, epochs)
    shares = {
        "attention": exact(attends, unseen, expected),
        "mean-pooled": exact(pooled, unseen, expected),
    }
    print(shares)
    found, weights = map(keras.ops.convert_to_numpy, attends(unseen[:1]))
    words = scenes.text(found[0]).split() or ["</s>"]  # an untrained model may say nothing
    weights = weights[0, : len(words)].reshape(-1, GRID, GRID)
    plot_image_alignment(weights, unseen[0], words, args.output / "caption.png")
    attends.save(args.output / "model.keras")
    if args.export:
        names = ["caption", "weights"]
        export_and_compare(attends, [unseen[:100]], args.output / "artifact", names)
    require_margin("exact captions", *shares.values(), margin=0.3, quick=args.quick)
    return shares


if __name__ == "__main__":
    main(sys.argv[1:])
