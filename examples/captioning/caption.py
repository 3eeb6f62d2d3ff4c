"""Image captions: a CNN feature map is the memory of an attentive decoder (arXiv 1502.03044).

Each scene has two colored shapes, and its caption describes their relative position: "a red circle
left of a blue square". The attention weights show which part of the image each word came from. The
baseline is the same model with mean-pooled features.

    python -m examples.captioning.caption
"""

import sys

import keras
import numpy as np

from examples.captioning import scenes
from examples.common import export_and_compare, parse_options, require_margin
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

GRID = scenes.SIZE // 4  # after two convolutions with stride 2


def build(units, use_attention=True):
    """Return the training model and the captioning model, which share their layers.

    The training model is `(image, previous words) -> logits`, the captioning model
    `image -> words, weights`.
    """
    image = keras.Input((scenes.SIZE, scenes.SIZE, 3), name="image")
    features = image
    for strides in (2, 2, 1):
        features = keras.layers.Conv2D(units, 3, strides, "same", use_bias=False)(features)
        # Without it the decoder learns a language model before the features separate the shapes.
        features = keras.layers.BatchNormalization(momentum=0.9)(features)
        features = keras.layers.Activation("relu")(features)
    features = keras.layers.Reshape((GRID * GRID, units))(features)
    # A bias per grid cell adds the position to each feature.
    annotations = keras.layers.EinsumDense(
        "bpc,cd->bpd", (GRID * GRID, units), bias_axes="pd", activation="tanh"
    )(features)
    if not use_attention:
        annotations = keras.layers.GlobalAveragePooling1D(keepdims=True)(annotations)
    attention = BahdanauAttention(units) if use_attention else FixedContext(units)
    embedding = keras.layers.Embedding(len(scenes.WORDS), units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), attention, DeepOutput(units))
    head = keras.layers.Dense(len(scenes.WORDS))
    previous = keras.Input((None,), dtype="int32", name="before")
    training_model = keras.Model([image, previous], head(decoder(embedding(previous), annotations)))
    decode = Decode(decoder, embedding, head, BeamSearch(3, n_best=1), scenes.MAX_LENGTH)
    return training_model, keras.Model(image, decode(annotations))


def train(models, images, captions, epochs):
    """Train with teacher forcing and return the captioning model."""
    training_model, captioner = models
    ids = scenes.encode(captions)
    previous = np.concatenate([np.full((len(ids), 1), BOS), ids[:, :-1]], axis=1)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(images) // 50)
    training_model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    training_model.fit([images, previous], ids, batch_size=50, epochs=epochs, verbose=2)
    return captioner


def exact_match_rate(captioner, images, captions):
    """Return the fraction of captions that are equal to the reference."""
    ids = keras.ops.convert_to_numpy(captioner(images)[0])
    return float(np.mean([scenes.decode(a) == b for a, b in zip(ids, captions, strict=True)]))


def main(arguments=None):
    """Train both models, caption unseen scenes, draw one and return the exact match rates."""
    args = parse_options("captioning", __doc__, arguments)
    count, epochs, units = (100, 1, 8) if args.quick else (3000, 10, 32)
    images, captions = scenes.generate(count, args.training)
    unseen, expected = scenes.generate(100 if args.quick else 1000, args.unseen)
    attentive = train(build(units), images, captions, epochs)
    pooled = train(build(units, use_attention=False), images, captions, epochs)
    rates = {
        "attention": exact_match_rate(attentive, unseen, expected),
        "mean-pooled": exact_match_rate(pooled, unseen, expected),
    }
    print(rates)
    ids, weights = map(keras.ops.convert_to_numpy, attentive(unseen[:1]))
    words = scenes.decode(ids[0]).split() or ["</s>"]  # an untrained model may write nothing
    weights = weights[0, : len(words)].reshape(-1, GRID, GRID)
    plot_image_alignment(weights, unseen[0], words, args.output / "caption.png")
    attentive.save(args.output / "model.keras")
    if args.export:
        names = ["caption", "weights"]
        export_and_compare(attentive, [unseen[:100]], args.output / "artifact", names)
    require_margin("exact captions", *rates.values(), margin=0.3, quick=args.quick)
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
