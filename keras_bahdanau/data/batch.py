"""Pairs of ids to a batch for the model: padded, the target moved by one place."""

import logging

import numpy as np

from keras_bahdanau_runtime.ids import BOS, PAD

logger = logging.getLogger("keras_bahdanau")


def make_batch(pairs, rows, source_width, target_width):
    """The batch of some pairs.

    Args:
        pairs: A `Shard` of the pairs.
        rows: Number of rows B, at least as many as pairs; those missing are `PAD` alone.
        source_width: Tx, at least the longest source.
        target_width: Ty, at least the longest target.

    Returns:
        `(inputs, labels)`: `inputs` is `{"source": (B, Tx), "target": (B, Ty)}`, `labels` is
        `(B, Ty)`, all int32; `target` is `labels` moved by one place, `BOS` first. If the pairs
        have alignments, `inputs["alignment"]` is `(B, Ty, Tx)` float32: each label's row sums to
        one over the source places aligned to it, or is zero if there are none.
    """
    lengths = np.diff(pairs.offsets)
    places = np.arange(max(source_width, target_width))
    padded = np.full((2 * rows, len(places)), PAD, "int32")
    # Sequences in turn, each from its first place: the order of the ids.
    padded[: len(lengths)][places < lengths[:, None]] = pairs.ids
    source = np.ascontiguousarray(padded[0::2, :source_width])
    labels = np.ascontiguousarray(padded[1::2, :target_width])
    target = np.full_like(labels, PAD)
    target[: len(pairs), 0] = BOS
    # What follows the last id of a row is padding in the labels, and in the target.
    target[:, 1:] = np.where(labels[:, 1:] != PAD, labels[:, :-1], PAD)
    inputs = {"source": source, "target": target}
    if pairs.aligned:
        inputs["alignment"] = _alignment(pairs, (rows, target_width, source_width))
    return inputs, labels


def _alignment(pairs, shape):
    links = np.zeros(shape, "float32")
    row = np.repeat(np.arange(len(pairs)), np.diff(pairs.starts))
    links[row, pairs.links[:, 1], pairs.links[:, 0]] = 1.0
    return links / np.maximum(links.sum(axis=-1, keepdims=True), 1.0)


def warn_of_cut(counts, pairs, max_length):
    """Says in the log how many of so many sources and targets are cut, if any is."""
    if any(counts):
        message = "Cut %d of %d sources and %d of %d targets to %d ids."
        logger.warning(message, counts[0], pairs, counts[1], pairs, max_length)
