"""Intent classification with attention pooling, whose weights show the decisive words.

The data is generated: every message mentions several actions but requests only one of them, and
only the words around the request tell which. The baseline is the same model with mean pooling.

    python -m examples.classification.classify
"""

import sys

import keras
import numpy as np

from examples.classification import messages
from examples.common import export_and_compare, parse_options, require_margin
from keras_bahdanau.layers import AttentionPooling
from keras_bahdanau_runtime.pictures.style import saved_figure

COLUMNS = 8  # words per line of the picture


def build(units, use_attention=True):
    """Return a model of ids `(B, Tx)` to intent logits `(B, I)`.

    With attention, the model also returns the weights `(B, Tx)`.
    """
    ids = keras.Input((None,), dtype="int32", name="ids")
    mask = ids != 0
    embedded = keras.layers.Embedding(len(messages.WORDS), units)(ids)
    # Over recurrent states the weights may point next to the decisive word; see `AttentionPooling`.
    features = keras.layers.Conv1D(units, 3, padding="same", activation="relu")(embedded)
    head = keras.layers.Dense(len(messages.INTENTS), name="intents")
    if not use_attention:
        return keras.Model(ids, head(keras.layers.GlobalAveragePooling1D()(features, mask=mask)))
    pooled, weights = AttentionPooling(units)(features, mask=mask, return_attention_scores=True)
    return keras.Model(ids, [head(pooled), weights])


def train(model, ids, intents, epochs):
    classifier = keras.Model(model.inputs, keras.tree.flatten(model.outputs)[0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(3e-3), loss)
    classifier.fit(ids, intents, batch_size=50, epochs=epochs, verbose=2)
    return model


def accuracy(logits, intents):
    return float((logits.argmax(-1) == intents).mean())


def request_focus(weights, spans):
    """Return the fraction of messages whose largest weight is on a word of the request."""
    positions = weights.argmax(-1)
    return float(
        np.mean(
            [
                first <= position <= last
                for position, (first, last) in zip(positions, spans, strict=True)
            ]
        )
    )


def draw_picture(texts, weights, titles, path):
    """Draw the words of messages with backgrounds as dark as their weights."""
    line_counts = [-(-len(words) // COLUMNS) for words in texts]
    height = 0.3 * sum(line_counts) + 0.5 * len(line_counts)
    with saved_figure(path, 8, height) as figure:
        panels = figure.subplots(len(line_counts), height_ratios=line_counts, squeeze=False)[:, 0]
        for axes, words, row, title, count in zip(
            panels, texts, weights, titles, line_counts, strict=True
        ):
            shades = np.zeros(count * COLUMNS)
            shades[: len(words)] = row[: len(words)]
            axes.imshow(shades.reshape(count, -1), cmap="Blues", vmin=0, vmax=2, aspect="auto")
            for position, word in enumerate(words):
                axes.text(position % COLUMNS, position // COLUMNS, word, ha="center", va="center")
            axes.set(xticks=[], yticks=[])
            axes.set_title(title, loc="left")


def main(arguments=None):
    """Train both models, compare them on unseen messages, draw two and return the accuracies."""
    args = parse_options("classification", __doc__, arguments)
    count, epochs, units = (100, 2, 8) if args.quick else (250, 160, 32)
    ids, intents, _ = messages.generate(count, args.training)
    unseen, expected, spans = messages.generate(100 if args.quick else 2000, args.unseen)
    attentive = train(build(units), ids, intents, epochs)
    pooled = train(build(units, use_attention=False), ids, intents, epochs)
    logits, weights = attentive.predict(unseen, verbose=0)
    figures = {
        "attention": accuracy(logits, expected),
        "mean": accuracy(pooled.predict(unseen, verbose=0), expected),
        "largest weight in the request": request_focus(weights, spans),
    }
    print(figures)
    texts = [messages.decode(row) for row in unseen[:2]]
    titles = [f"asks to {list(messages.INTENTS)[row.argmax()]}" for row in logits[:2]]
    draw_picture(texts, weights[:2], titles, args.output / "classification.png")
    attentive.save(args.output / "model.keras")
    if args.export:
        names = ["intents", "weights"]
        export_and_compare(attentive, [unseen], args.output / "artifact", names)
    require_margin("accuracy", figures["attention"], figures["mean"], 0.15, args.quick)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
