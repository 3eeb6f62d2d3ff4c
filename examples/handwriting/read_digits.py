"""Reading rows of digits: a CNN feature map is the memory of an attentive decoder (1502.03044).

The digits are handwritten and come with scikit-learn. Each picture is a row of three to six of them
at random heights and distances, and the model writes the row as text. The attention weights show
the part of the picture that each digit was read from. The baseline is the same model with
mean-pooled features. The digits of the test pictures do not occur in training.

    python -m examples.handwriting.read_digits
"""

import sys

import keras
import numpy as np

from examples.common import export_and_compare, parse_options, require_margin
from examples.handwriting import rows
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
from keras_bahdanau_runtime.text.error_rates import compare, error_rates

GRID = (rows.HEIGHT // 4, rows.WIDTH // 4)  # after two convolutions with stride 2


def build(units, use_attention=True):
    """Return the training model and the reader, which share their layers.

    The training model is `(image, previous digits) -> logits`, the reader
    `image -> digits, weights`.
    """
    image = keras.Input((rows.HEIGHT, rows.WIDTH, 1), name="image")
    features = image
    for strides in (1, 2, 2, 1):
        features = keras.layers.Conv2D(units, 3, strides, "same", use_bias=False)(features)
        features = keras.layers.BatchNormalization(momentum=0.9)(features)
        features = keras.layers.Activation("relu")(features)
    positions = GRID[0] * GRID[1]
    features = keras.layers.Reshape((positions, units))(features)
    # A bias per grid cell adds the position to each feature.
    annotations = keras.layers.EinsumDense(
        "bpc,cd->bpd", (positions, units), bias_axes="pd", activation="tanh"
    )(features)
    if not use_attention:
        annotations = keras.layers.GlobalAveragePooling1D(keepdims=True)(annotations)
    attention = BahdanauAttention(units) if use_attention else FixedContext()
    embedding = keras.layers.Embedding(len(rows.TOKENS), units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), attention, DeepOutput(units))
    head = keras.layers.Dense(len(rows.TOKENS))
    previous = keras.Input((None,), dtype="int32", name="before")
    training_model = keras.Model([image, previous], head(decoder(embedding(previous), annotations)))
    decode = Decode(decoder, embedding, head, BeamSearch(3, n_best=1), rows.MAX_LENGTH)
    return training_model, keras.Model(image, decode(annotations))


def train(models, images, texts, epochs):
    """Train with teacher forcing and return the reader."""
    training_model, reader = models
    ids = rows.encode(texts)
    previous = np.concatenate([np.full((len(ids), 1), BOS), ids[:, :-1]], axis=1)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(images) // 50)
    training_model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    training_model.fit([images, previous], ids, batch_size=50, epochs=epochs, verbose=2)
    return reader


def read_errors(reader, images, texts):
    """Return the shares of wrong rows and of wrong digits in percent."""
    ids, _ = reader.predict(images, batch_size=100, verbose=0)
    outputs = [rows.decode(row) for row in ids]
    rates = error_rates(compare(outputs, [[text] for text in texts]))
    return 100 - rates["exact"], rates["ser"]


def main(arguments=None):
    """Train both models, read unseen rows, draw one and return the error rates."""
    args = parse_options("handwriting", __doc__, arguments)
    count, epochs, units = (100, 1, 8) if args.quick else (20_000, 4, 32)
    images, texts = rows.generate(count, rows.read("training"), args.training)
    digits = rows.read("validation" if args.validation else "test")
    unseen, expected = rows.generate(100 if args.quick else 1000, digits, args.unseen)
    attentive = train(build(units), images, texts, epochs)
    pooled = train(build(units, use_attention=False), images, texts, epochs)
    rates = {}
    for name, reader in [("attention", attentive), ("mean-pooled", pooled)]:
        rates[f"rows, {name}"], rates[f"digits, {name}"] = read_errors(reader, unseen, expected)
    print({name: round(rate, 2) for name, rate in rates.items()})
    longest = int(np.argmax([len(text) for text in expected]))
    image = unseen[longest]
    ids, weights = map(keras.ops.convert_to_numpy, attentive(image[None]))
    tokens = [*rows.decode(ids[0])] or ["</s>"]  # an untrained model may write nothing
    weights = weights[0, : len(tokens)].reshape(-1, *GRID)
    plot_image_alignment(weights, 1 - image, tokens, args.output / "handwriting.png", columns=4)
    attentive.save(args.output / "model.keras")
    if args.export:
        names = ["digits", "weights"]
        export_and_compare(attentive, [unseen[:100]], args.output / "artifact", names)
    require_margin(
        "wrong rows in percent",
        rates["rows, attention"],
        rates["rows, mean-pooled"],
        margin=-30,
        quick=args.quick,
    )
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
