"""What a message asks for: attention pools its words, and its weights say which words decide.

Every message tells of things that others did and asks for one thing itself, with the same words;
only those around the request tell which is meant. The baseline is the same model with the mean over
the words in the place of attention.

    python -m examples.classification.classify
"""

import sys

import keras
import numpy as np

from examples.classification import messages
from examples.common import export_and_compare, options, require_margin
from keras_bahdanau.layers import AttentionPooling

COLUMNS = 8  # of the words in the picture


def build(units, attends=True):
    """Ids `(B, Tx)` to logits of the intents `(B, I)`; where it attends, weights `(B, Tx)`, too."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    real = ids != 0
    embedded = keras.layers.Embedding(len(messages.WORDS), units)(ids)
    # Over a recurrent layer the weights might point beside the words; see `AttentionPooling`.
    seen = keras.layers.Conv1D(units, 3, padding="same", activation="relu")(embedded)
    head = keras.layers.Dense(len(messages.INTENTS), name="intents")
    if not attends:
        return keras.Model(ids, head(keras.layers.GlobalAveragePooling1D()(seen, mask=real)))
    pooled, weights = AttentionPooling(units)(seen, mask=real, return_attention_scores=True)
    return keras.Model(ids, [head(pooled), weights])


def train(model, ids, intents, epochs):
    classifier = keras.Model(model.inputs, keras.tree.flatten(model.outputs)[0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(3e-3), loss)
    classifier.fit(ids, intents, batch_size=50, epochs=epochs, verbose=2)
    return model


def accuracy(logits, intents):
    return float((logits.argmax(-1) == intents).mean())


def on_request(weights, spans):
    """Share of the messages whose largest weight is on a word of their request."""
    places = weights.argmax(-1)
    return float(np.mean([a <= place <= b for place, (a, b) in zip(places, spans, strict=True)]))


def draw_picture(texts, weights, titles, path):
    """The words of some messages, each on a ground as dark as its weight."""
    from matplotlib.figure import Figure

    lines = [-(-len(words) // COLUMNS) for words in texts]
    height = 0.3 * sum(lines) + 0.5 * len(lines)
    figure = Figure(figsize=(8, height), dpi=100, layout="constrained")
    panels = figure.subplots(len(lines), height_ratios=lines, squeeze=False)[:, 0]
    for axes, words, row, title, count in zip(panels, texts, weights, titles, lines, strict=True):
        shades = np.zeros(count * COLUMNS)
        shades[: len(words)] = row[: len(words)]
        axes.imshow(shades.reshape(count, -1), cmap="Blues", vmin=0, vmax=1.5, aspect="auto")
        for place, word in enumerate(words):
            axes.text(place % COLUMNS, place // COLUMNS, word, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, loc="left")
    figure.savefig(path)


def main(arguments=None):
    """Trains both, compares them on unseen messages, draws one; returns the accuracies."""
    args = options("classification", __doc__, arguments)
    count, epochs, units = (100, 2, 8) if args.quick else (250, 160, 32)
    ids, intents, _ = messages.draw(count, args.training)
    unseen, expected, spans = messages.draw(100 if args.quick else 2000, args.unseen)
    attends = train(build(units), ids, intents, epochs)
    mean = train(build(units, attends=False), ids, intents, epochs)
    logits, weights = attends.predict(unseen, verbose=0)
    figures = {
        "attention": accuracy(logits, expected),
        "mean": accuracy(mean.predict(unseen, verbose=0), expected),
        "largest weight in the request": on_request(weights, spans),
    }
    print(figures)
    shown = [messages.text(row) for row in unseen[:2]]
    titles = [f"asks to {list(messages.INTENTS)[row.argmax()]}" for row in logits[:2]]
    draw_picture(shown, weights[:2], titles, args.output / "classification.png")
    attends.save(args.output / "model.keras")
    if args.export:
        names = ["intents", "weights"]
        export_and_compare(attends, [unseen], args.output / "artifact", names)
    require_margin("accuracy", figures["attention"], figures["mean"], 0.15, args.quick)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
