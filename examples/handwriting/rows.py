"""Rows of handwritten digits: pictures of scikit-learn's digits, side by side at random heights."""

from typing import NamedTuple

import numpy as np

HEIGHT, WIDTH = 16, 64
SIDE = 8  # pixels of a digit
MIN_DIGITS, MAX_DIGITS = 3, 6
TOKENS = ["<pad>", "<unk>", "<s>", "</s>", *"0123456789"]
MAX_LENGTH = MAX_DIGITS + 1  # digits and the end token
# In the order of the file, not shuffled: neighbors seem to be from the same writer.
PARTS = {"training": slice(0, 1197), "validation": slice(1197, 1497), "test": slice(1497, 1797)}


class Digits(NamedTuple):
    """Pictures of digits.

    Attributes:
        pictures: `(N, 8, 8)` float32 in [0, 1].
        labels: `(N,)` int, 0 to 9.
    """

    pictures: np.ndarray
    labels: np.ndarray


def read(part):
    """Return the `Digits` of a part of scikit-learn's data: "training", "validation" or "test"."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits().images, load_digits().target
    return Digits((pictures[PARTS[part]] / 16).astype("float32"), labels[PARTS[part]])


def generate(count, digits, seed):
    """Return pictures of rows `(B, HEIGHT, WIDTH, 1)` and a list of `B` texts of 3 to 6 digits."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, HEIGHT, WIDTH, 1), "float32")
    texts = []
    for row in rows:
        chosen = rng.integers(len(digits.labels), size=rng.integers(MIN_DIGITS, MAX_DIGITS + 1))
        left = rng.integers(0, 5)
        for index in chosen:
            top = rng.integers(0, HEIGHT - SIDE + 1)
            row[top : top + SIDE, left : left + SIDE, 0] = digits.pictures[index]
            left += SIDE + rng.integers(0, 3)
        texts.append("".join(map(str, digits.labels[chosen])))
    return rows, texts


def encode(texts):
    """Return texts as ids `(B, MAX_LENGTH)`, each with an end token and padded with 0."""
    ids = np.zeros((len(texts), MAX_LENGTH), "int32")
    for row, text in zip(ids, texts, strict=True):
        row[: len(text) + 1] = [TOKENS.index(token) for token in [*text, "</s>"]]
    return ids


def decode(ids):
    """Return the text of a row of ids."""
    return "".join(TOKENS[i] for i in ids if i > 3)
