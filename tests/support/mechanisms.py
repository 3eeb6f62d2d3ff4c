"""The table of attention mechanisms with their references, for tests of every mechanism."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import reference
from layer_checks import array, randomize, right_mask

from keras_bahdanau import BahdanauAttention, FixedContext, LuongAttention
from keras_bahdanau.layers import (
    Attention,
    CoverageAttention,
    LocationSensitiveAttention,
    MonotonicAttention,
)

# All widths differ, so a test fails if two axes are swapped. Two heads divide D and U.
B, TQ, TX, N, D, U = 3, 2, 5, 4, 6, 8
LENGTHS = [5, 2, 0]
MASK = right_mask(LENGTHS, TX)


# The positions that each query may read: some, all, none, and only one that `MASK` drops.
MASK_BY_QUERY = np.array(
    [
        [[False, True, False, True, False], [True, True, True, True, True]],
        [[False, False, False, False, False], [False, True, True, False, False]],
        [[True, False, False, False, False], [False, False, True, True, True]],
    ]
)


class Mechanism(NamedTuple):
    """A factory of a mechanism, and its equations for all queries of one source."""

    make: Callable[[], Attention]
    attend: Callable  # (weights, queries (Tq, N), values (Tx, D), mask (Tx,)) -> contexts, weights
    width: int = D


def fixed(weights, queries, values, mask, width=None):
    context, alignment = reference.fixed_context(values, mask, width)
    return np.array([context] * len(queries)), np.array([alignment] * len(queries))


def additive(*args):
    return reference.head_scores(*args)[0]


def general(*args):
    return reference.luong_scores(*args, score="general")


MECHANISMS = {
    "bahdanau": Mechanism(lambda: BahdanauAttention(U), reference.bahdanau),
    "bahdanau_bias": Mechanism(lambda: BahdanauAttention(U, use_bias=True), reference.bahdanau),
    "bahdanau_normalized": Mechanism(
        lambda: BahdanauAttention(U, normalize=True), reference.bahdanau
    ),
    "bahdanau_heads": Mechanism(
        lambda: BahdanauAttention(U, num_heads=2),
        lambda *args: reference.bahdanau(*args, heads=2),
    ),
    "bahdanau_heads_normalized": Mechanism(
        lambda: BahdanauAttention(U, num_heads=2, normalize=True),
        lambda *args: reference.bahdanau(*args, heads=2),
    ),
    "bahdanau_sparsemax": Mechanism(
        lambda: BahdanauAttention(U, normalizer="sparsemax"),
        lambda *args: reference.bahdanau(*args, normalizer=reference.sparsemax),
    ),
    "bahdanau_chunks": Mechanism(lambda: BahdanauAttention(U, chunk_size=1), reference.bahdanau),
    "luong_general": Mechanism(
        lambda: LuongAttention("general"), lambda *args: reference.luong(*args, score="general")
    ),
    "luong_concat": Mechanism(
        lambda: LuongAttention("concat", units=U, scale="learned", chunk_size=1),
        lambda *args: reference.luong(*args, score="concat"),
    ),
    "location": Mechanism(
        lambda: LocationSensitiveAttention(U, filters=3, kernel_size=3), reference.location
    ),
    "location_last": Mechanism(
        lambda: LocationSensitiveAttention(U, filters=3, kernel_size=4, cumulative=False),
        reference.location,
    ),
    "location_heads": Mechanism(
        lambda: LocationSensitiveAttention(U, filters=3, kernel_size=3, num_heads=2),
        lambda *args: reference.location(*args, heads=2),
    ),
    "coverage": Mechanism(lambda: CoverageAttention(U), reference.coverage),
    "coverage_fertility": Mechanism(
        lambda: CoverageAttention(U, fertility=2.0),
        lambda *args: reference.coverage(*args, fertility=2.0),
    ),
    "monotonic": Mechanism(
        lambda: MonotonicAttention(BahdanauAttention(U), score_bias=-1.0, mode="soft"),
        lambda *args: reference.monotonic(*args, additive),
    ),
    "monotonic_hard": Mechanism(
        lambda: MonotonicAttention(LuongAttention()),
        lambda *args: reference.monotonic(*args, general, hard=True),
    ),
    "fixed": Mechanism(FixedContext, fixed),
    "fixed_narrow": Mechanism(
        lambda: FixedContext(width=2), lambda *args: fixed(*args, width=2), width=2
    ),
}


def random_attention(name, rng):
    """The mechanism, built, with random weights."""
    attention = MECHANISMS[name].make()
    attention.build((B, TQ, N), (B, TX, D))
    return randomize(attention, rng)


def random_inputs(rng, queries=TQ):
    """Random queries and values."""
    return array(rng, B, queries, N), array(rng, B, TX, D)


def expected_call(name, weights, query, values, mask):
    """Contexts `(B, Tq, D)` and weights `(B, [H,] Tq, Tx)` in float64."""
    attend = MECHANISMS[name].attend
    arrays = [np.asarray(part, "float64") for part in (query, values)]
    rows = [attend(weights, q, v, m) for q, v, m in zip(*arrays, mask, strict=True)]
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def expected_by_query(name, weights, query, values, masks):
    """`expected_call` with a mask of positions for each query, `(B, Tq, Tx)`."""
    calls = [
        expected_call(name, weights, query[:, i : i + 1], values, masks[:, i])
        for i in range(query.shape[1])
    ]
    contexts, alignments = zip(*calls, strict=True)
    return np.concatenate(contexts, axis=1), np.concatenate(alignments, axis=-2)
