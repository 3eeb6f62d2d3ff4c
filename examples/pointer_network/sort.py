"""A pointer network that sorts: the decoder's attention weights are the answer (arXiv 1506.03134).

At every step the weights say where in the input the next larger number stands. They have as many
places as there are numbers, so the network takes lists of any length; the baseline, the same
encoder and decoder with a softmax over ten places, cannot even be asked about longer ones.

    python -m examples.pointer_network.sort
"""

import sys

import keras
import numpy as np
from keras import ops

from examples.common import export_and_compare, options, require_margin
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DeepOutput,
    plot_alignment,
)

NOTHING = -100  # stands in the places after a list's end
LONGEST = 10


def draw(count, shortest, longest, seed):
    """Lists of different numbers in [-5, 5), `(B, N, 1)`, and where each next larger one stands."""
    rng = np.random.default_rng(seed)
    numbers = np.full((count, longest, 1), NOTHING, "float32")
    order = np.full((count, longest), NOTHING, "int32")
    for row in range(count):
        n = rng.integers(shortest, longest + 1)
        numbers[row, :n, 0] = rng.choice(50, n, replace=False) / 5 - 5
        order[row, :n] = numbers[row, :n, 0].argsort()
    return numbers, order


def build(units, pointer):
    """Numbers `(B, N, 1)` to logits of the places `(B, N, N)`; `(B, N, LONGEST)` by a softmax."""
    numbers = keras.Input((None, 1), name="numbers")
    known = keras.layers.Masking(NOTHING)(numbers)
    annotations = BidirectionalEncoder(units)(known)
    readout = None if pointer else DeepOutput(units)
    decoder = AttentiveDecoder(keras.layers.GRUCell(units), BahdanauAttention(units), readout)
    # The decoder has nothing to read but its context: the number that it has just pointed at.
    outputs, logits = decoder(ops.zeros_like(numbers), annotations, return_attention_logits=True)
    return keras.Model(numbers, logits if pointer else keras.layers.Dense(LONGEST)(outputs))


def train(model, numbers, order, epochs):
    steps = epochs * len(numbers) // 100
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=NOTHING)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), loss)
    model.fit(numbers, order, batch_size=100, epochs=epochs, verbose=2)
    return model


def exact(model, numbers, order):
    """Share of the lists that come out sorted, every place of them."""
    found = model.predict(numbers, verbose=0).argmax(-1)
    return float(((found == order) | (order == NOTHING)).all(axis=1).mean())


def main(arguments=None):
    """Trains both, compares them on unseen lists, draws one; returns the shares sorted."""
    args = options("pointer_network", __doc__, arguments)
    count, epochs, units = (200, 1, 8) if args.quick else (20_000, 8, 64)
    numbers, order = draw(count, 5, LONGEST, args.training)
    unseen, expected = draw(max(count // 10, 10), 5, LONGEST, args.unseen)
    pointer = train(build(units, pointer=True), numbers, order, epochs)
    softmax = train(build(units, pointer=False), numbers, order, epochs)
    shares = {
        "pointer": exact(pointer, unseen, expected),
        "softmax": exact(softmax, unseen, expected),
        "pointer, 12 numbers": exact(pointer, *draw(len(unseen), 12, 12, args.unseen)),
    }
    print(shares)
    pointing = keras.Model(pointer.inputs, keras.layers.Softmax(name="weights")(pointer.output))
    shown = int(np.argmax((expected != NOTHING).sum(axis=1)))
    weights = pointing.predict(unseen[shown : shown + 1], verbose=0)[0]
    names = [f"{number:.1f}" for number in unseen[shown, :, 0] if number != NOTHING]
    plot_alignment(
        weights[: len(names), : len(names)],
        names,
        [names[place] for place in expected[shown] if place != NOTHING],
        args.output / "pointer.png",
        title="where each next number stands",
    )
    pointing.save(args.output / "model.keras")
    if args.export:
        # Where two places are nearly as likely, what is in the last bits grows from step to step.
        export_and_compare(pointing, [unseen], args.output / "artifact", ["order"], tolerance=1e-2)
    require_margin(
        "lists sorted", shares["pointer"], shares["softmax"], margin=0.05, quick=args.quick
    )
    return shares


if __name__ == "__main__":
    main(sys.argv[1:])
