"""What the callers of a search give it: ids, prefixes and limits, checked and padded."""

import numpy as np
from keras import ops

from keras_bahdanau.layers.parts import check_dense
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.text.batches import pad

# Lengths are padded to multiples of this before generation, so that few shapes are compiled.
LENGTH_BUCKET = 8


def checked_ids(name, ids, size):
    """Ids `(B, T)` int32 out of an array or a list of lists, padded at the right.

    Args:
        name: What the caller calls them, for the message.
        ids: `(B, T)` int array padded at the right with 0, or a list of lists of ids.
        size: Number of ids that there are.

    Raises:
        ValueError: If they are not integers, are outside the vocabulary, or hold padding
            elsewhere than at the right.

    Example:

    >>> checked_ids("source", [[5, 6], [7]], size=10).tolist()
    [[5, 6], [7, 0]]
    """
    check_dense("a search", **{name: ids})
    if isinstance(ids, (list, tuple)):
        if all(np.ndim(row) == 1 for row in ids):
            width = max(map(len, ids), default=0)
            ids = [[*row, *[PAD] * (width - len(row))] for row in ids]
        ids = np.asarray(ids)  # which keeps what is no int32 for the checks below
    ids = ops.convert_to_numpy(ids)
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            f"Argument `{name}` must be (batch, time) with at least one sentence of at least "
            f"one id. Received: shape {ids.shape}"
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"Argument `{name}` must hold integers. Received: {ids.dtype}")
    outside = ids[(ids < 0) | (ids >= size)]
    if outside.size:
        raise ValueError(
            f"Argument `{name}` must hold ids in [0, {size}). Received: {int(outside[0])}"
        )
    gaps = np.argwhere((ids[:, :-1] == PAD) & (ids[:, 1:] != PAD))
    if gaps.size:
        raise ValueError(
            f"Argument `{name}` must be padded ({PAD}) at the right only. "
            f"Received: row {gaps[0, 0]}, {ids[gaps[0, 0]]}"
        )
    return ids.astype("int32")


def checked_outputs(name, ids, size):
    """As `checked_ids`, of outputs: `EOS` comes last, or not at all.

    Raises:
        ValueError: As `checked_ids`; or if an output goes on after `EOS`.
    """
    ids = checked_ids(name, ids, size)
    on = np.argwhere((ids[:, :-1] == EOS) & (ids[:, 1:] != PAD))
    if on.size:
        raise ValueError(
            f"Argument `{name}` must hold nothing after the end of an output, {EOS}. "
            f"Received: row {on[0, 0]}, {ids[on[0, 0]]}"
        )
    return ids


def checked_prefix(prefix, size, limits):
    """Prefixes `(B, P)` int32, padded to a bucket.

    Args:
        prefix: As for `checked_outputs`, one for each of `limits`.
        size: Number of ids that there are.
        limits: `(B,)` int array, the longest that each prefix may be.

    Raises:
        ValueError: As `checked_outputs`; or if a prefix is too long, or there is not one for each.
    """
    prefix = checked_outputs("prefix", prefix, size)
    if len(prefix) != len(limits):
        raise ValueError(
            f"Argument `prefix` must hold one prefix for each of {len(limits)} sources. "
            f"Received: {len(prefix)}"
        )
    lengths = (prefix != PAD).sum(axis=1)
    over = np.flatnonzero(lengths > limits)
    if over.size:
        raise ValueError(
            f"Argument `prefix` must be no longer than outputs may be, {limits[over[0]]} by "
            f"`max_length` and the search. Received: {lengths[over[0]]} ids in row {over[0]}"
        )
    return pad(prefix.tolist(), bucket=LENGTH_BUCKET)


def checked_limits(max_length, lengths):
    """`(B,)` int32 limits of the outputs, and the number of steps that a search makes room for."""
    given = max_length(lengths) if callable(max_length) else max_length
    limits = np.asarray(given)
    wrong = limits.dtype.kind not in "iu" or limits.ndim > 1 or (limits < 1).any()
    if wrong or limits.shape not in ((), lengths.shape):
        raise ValueError(
            "Argument `max_length` must be a positive integer, one for each source, or a function "
            f"that gives them. Received: {given!r}"
        )
    # A number is the room itself; others share the room of their bucket.
    room = int(limits) if not limits.ndim else -(-int(limits.max()) // LENGTH_BUCKET)
    room = room * LENGTH_BUCKET if limits.ndim else room
    return np.broadcast_to(limits, lengths.shape).astype("int32"), room
