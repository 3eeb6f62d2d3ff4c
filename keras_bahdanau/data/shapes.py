"""The few shapes that batches have: rectangles that hold all pairs with little padding."""

from dataclasses import dataclass

import numpy as np

from keras_bahdanau_runtime.text.batches import round_up

_SIDES = 128  # distinct lengths of a side that are looked at; longer tails are rounded up


@dataclass(frozen=True)
class Shapes:
    """Shapes of batches, from the cheapest to the dearest.

    Args:
        sides: `(shapes, 2)` int64, `Tx` and `Ty` of each; every pair fits into one.
        rows: `(shapes,)` int64, number of rows of each.
    """

    sides: np.ndarray
    rows: np.ndarray

    def __post_init__(self):
        grid = [np.unique(self.sides[:, axis]) for axis in (0, 1)]
        corners = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1)  # (x, y, 2)
        fits = (self.sides >= corners[:, :, None]).all(axis=-1)  # (x, y, shapes)
        # The first that fits is the cheapest; a corner that none holds has no pairs.
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_table", fits.argmax(axis=-1).astype("uint16"))

    def of(self, lengths):
        """The shape of each pair, `(pairs,)` uint16, by its lengths `(pairs, 2)`."""
        places = [np.searchsorted(self._grid[axis], lengths[:, axis]) for axis in (0, 1)]
        return self._table[tuple(places)]

    def larger(self):
        """For each shape the cheapest other one that holds it, or -1; `(shapes,)`."""
        holds = (self.sides[None] >= self.sides[:, None]).all(axis=-1)
        holds &= np.arange(len(self.sides))[None] > np.arange(len(self.sides))[:, None]
        return np.where(holds.any(axis=1), holds.argmax(axis=1), -1)


def choose_sides(lengths, counts, most, bucket=1, padding=0.0):
    """Chooses rectangles so that pairs, each in the cheapest that holds it, need little padding.

    The cost of a pair is `Tx + Ty` of its rectangle. Every length pair begins with one of its own;
    then the two whose union adds the least padding become one, again and again, until there are few
    enough, and from then on as long as no more than `padding` of all places is padding.

    Args:
        lengths: `(n, 2)` ints, distinct lengths of source and target.
        counts: `(n,)` ints, how many pairs have them.
        most: Largest number of rectangles.
        bucket: The sides are multiples of this.
        padding: Share of the places in [0, 1).

    Returns:
        `(shapes, 2)` int64, from the cheapest to the dearest.
    """
    sides = np.stack(
        [_rounded(round_up(lengths[:, axis], bucket), counts) for axis in (0, 1)], axis=1
    )
    sides, places = np.unique(sides, axis=0, return_inverse=True)
    weights = np.bincount(places.ravel(), counts)
    tokens = (lengths.sum(axis=1) * counts).sum()
    merged = _merged(sides.astype("float64"), weights, most, tokens / (1 - padding))
    merged = merged.astype("int64")
    return merged[np.lexsort((merged[:, 1], merged.sum(axis=1)))]


def _rounded(lengths, counts):
    """The lengths, rounded up to a few of them that split the pairs into equal parts."""
    known, places = np.unique(lengths, return_inverse=True)
    if len(known) <= _SIDES:
        return lengths
    mass = np.cumsum(np.bincount(places, counts))
    kept = np.searchsorted(mass, mass[-1] * np.arange(1, _SIDES + 1) / _SIDES)
    kept = np.unique(known[np.minimum(kept, len(known) - 1)])
    return kept[np.searchsorted(kept, lengths)]


def _merged(sides, weights, most, places):
    """Unites rectangles, the cheapest union first: to `most`, and while all are within `places`."""
    # Column by column: a sum over an axis of two takes most of the time otherwise.
    across, down = sides.T.copy()
    around = across + down

    def union_costs(one):
        union = np.maximum(across, across[one]) + np.maximum(down, down[one])
        cost = weights * (union - around) + weights[one] * (union - around[one])
        cost[one] = np.inf
        cost[gone] = np.inf
        return cost

    def look(one):
        cost = union_costs(one)
        partner[one] = cost.argmin()
        best[one] = cost[partner[one]]
        return cost

    gone = np.zeros(len(sides), bool)
    best, partner = np.full(len(sides), np.inf), np.zeros(len(sides), int)
    for one in range(len(sides)):
        look(one)
    filled = (weights * around).sum()
    for count in range(len(sides), 1, -1):
        one = best.argmin()
        if count <= most and filled + best[one] > places:
            break
        filled += best[one]
        other = partner[one]
        across[one], down[one] = max(across[one], across[other]), max(down[one], down[other])
        around[one] = across[one] + down[one]
        weights[one] += weights[other]
        gone[other], best[other] = True, np.inf
        for stale in np.flatnonzero(~gone & ((partner == one) | (partner == other))):
            look(stale)
        cost = look(one)
        closer = ~gone & (cost < best)
        best[closer], partner[closer] = cost[closer], one
    return np.stack([across, down], axis=1)[~gone]
