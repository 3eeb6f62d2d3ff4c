"""A pointer network that sorts: the decoder's attention weights are the output (arXiv 1506.03134).

At every step the weights are a distribution over the input positions, with its mode at the next
larger number. There is one weight per number, so the network accepts lists of any length. The
baseline, the same encoder and decoder with a softmax over ten positions, accepts ten at most. The
lists are generated.

    python -m examples.pointer_network.sort
"""

import sys

import keras
import numpy as np
from keras import ops

from examples.common import export_and_compare, parse_options, require_margin
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DeepOutput,
    plot_alignment,
)

PADDING = -100
MAX_LENGTH = 10


def generate(count, shortest, longest, seed):
    """Return lists of distinct numbers in [-5, 5), `(B, N, 1)`, and their order `(B, N)`."""
    rng = np.random.default_rng(seed)
    numbers = np.full((count, longest, 1), PADDING, "float32")
    order = np.full((count, longest), PADDING, "int32")
    for row in range(count):
        n = rng.integers(shortest, longest + 1)
        numbers[row, :n, 0] = rng.choice(50, n, replace=False) / 5 - 5
        order[row, :n] = numbers[row, :n, 0].argsort()
    return numbers, order


def build(units, pointer):
    """Return a model of numbers `(B, N, 1)` to logits of positions.

    With `pointer` these are attention logits `(B, N, N)`, otherwise the logits
    `(B, N, MAX_LENGTH)` of a softmax layer.
    """
    numbers = keras.Input((None, 1), name="numbers")
    masked = keras.layers.Masking(PADDING)(numbers)
    annotations = BidirectionalEncoder(units)(masked)
    readout = None if pointer else DeepOutput(units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), BahdanauAttention(units), readout)
    # The decoder inputs are zeros: the context already contains the number it pointed at last.
    outputs, logits = decoder(ops.zeros_like(numbers), annotations, return_attention_logits=True)
    return keras.Model(numbers, logits if pointer else keras.layers.Dense(MAX_LENGTH)(outputs))


def train(model, numbers, order, epochs):
    steps = epochs * len(numbers) // 100
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), loss)
    model.fit(numbers, order, batch_size=100, epochs=epochs, verbose=2)
    return model


def exact_match_rate(model, numbers, order):
    """Return the fraction of lists whose positions are all correct."""
    predicted = model.predict(numbers, verbose=0).argmax(-1)
    return float(((predicted == order) | (order == PADDING)).all(axis=1).mean())


def main(arguments=None):
    """Train both models, compare them on unseen lists, draw one and return the match rates."""
    args = parse_options("pointer_network", __doc__, arguments)
    count, epochs, units = (200, 1, 8) if args.quick else (20_000, 8, 64)
    numbers, order = generate(count, 5, MAX_LENGTH, args.training)
    unseen, expected = generate(max(count // 10, 10), 5, MAX_LENGTH, args.unseen)
    pointer = train(build(units, pointer=True), numbers, order, epochs)
    softmax = train(build(units, pointer=False), numbers, order, epochs)
    rates = {
        "pointer": exact_match_rate(pointer, unseen, expected),
        "softmax": exact_match_rate(softmax, unseen, expected),
        "pointer, 12 numbers": exact_match_rate(
            pointer, *generate(len(unseen), 12, 12, args.unseen)
        ),
    }
    print(rates)
    with_softmax = keras.layers.Softmax(name="weights")(pointer.output)
    weights_model = keras.Model(pointer.inputs, with_softmax)
    longest = int(np.argmax((expected != PADDING).sum(axis=1)))
    weights = weights_model.predict(unseen[longest : longest + 1], verbose=0)[0]
    names = [f"{number:.1f}" for number in unseen[longest, :, 0] if number != PADDING]
    plot_alignment(
        weights[: len(names), : len(names)],
        names,
        [names[position] for position in expected[longest] if position != PADDING],
        args.output / "pointer.png",
        title="position of each next number",
    )
    weights_model.save(args.output / "model.keras")
    if args.export:
        # Where two positions are almost equally likely, rounding errors grow from step to step.
        export_and_compare(
            weights_model, [unseen], args.output / "artifact", ["order"], tolerance=1e-2
        )
    require_margin(
        "lists sorted", rates["pointer"], rates["softmax"], margin=0.05, quick=args.quick
    )
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
