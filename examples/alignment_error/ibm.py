"""IBM model 1 and the reparameterised model 2 of fast_align, as word aligners, with NumPy.

    p(f_i, a_i = j | e) = d(j | i, m, n) t(f_i | e_j),        e_0 = NULL

Model 1 (Brown et al. 1993) has a uniform d. Dyer, Chahuneau and Smith (2013, "A Simple, Fast, and
Effective Reparameterization of IBM Model 2") prefer the diagonal:

    d(0 | i, m, n) = p_0,     d(j | i, m, n) = (1 - p_0) exp(-l |i/m - j/n|) / Z_i

with t under a sparse Dirichlet prior (variational Bayes) and l, the tension, learnt by gradient
steps. Sentences are lists of ints from 0. B pairs, m places of the target, n of the source.
"""

from typing import NamedTuple

import numpy as np

# fast_align's own settings.
NULL_PROBABILITY, TENSION, DIRICHLET = 0.08, 4.0, 0.01
TENSION_STEPS, TENSION_STEP_SIZE, TENSION_LIMITS = 8, 20.0, (0.1, 14.0)


class Padded(NamedTuple):
    """Sentence pairs as arrays; NULL stands at source place 0."""

    source: np.ndarray  # (B, n + 1) int, word + 1; 0 for NULL and padding
    target: np.ndarray  # (B, m) int; 0 for padding
    source_real: np.ndarray  # (B, 1, n + 1) bool, not padding
    target_real: np.ndarray  # (B, m) bool
    distance: np.ndarray  # (B, m, n + 1) float, |i/m - j/n|, 0 for NULL


def padded(pairs):
    """`Padded` of (source, target) sentences, and so for `pair[0]`, `pair[1]` of longer tuples."""
    n = np.array([len(pair[0]) for pair in pairs])[:, None]
    m = np.array([len(pair[1]) for pair in pairs])[:, None]
    source_places, target_places = np.arange(n.max() + 1), np.arange(1, m.max() + 1)
    source_real, target_real = source_places <= n, target_places <= m
    source = np.zeros(source_real.shape, int)
    target = np.zeros(target_real.shape, int)
    source[source_real & (source_places > 0)] = [word + 1 for pair in pairs for word in pair[0]]
    target[target_real] = [word for pair in pairs for word in pair[1]]
    distance = abs((target_places / m)[:, :, None] - (source_places / n)[:, None, :])
    distance[:, :, 0] = 0.0
    return Padded(source, target, source_real[:, None, :], target_real, distance)


class Aligner:
    """A word aligner of one direction: each target word to a source word or to none.

    Args:
        diagonal: Whether to prefer the diagonal (fast_align); otherwise this is IBM model 1.
        iterations: Number of rounds of expectation maximisation; 5 is fast_align's default.
    """

    def __init__(self, diagonal, iterations=5):
        self.diagonal = diagonal
        self.iterations = iterations
        self.tension = TENSION

    def fit(self, pairs):
        """Learns the table t, `(source words + 1, target words)`; returns the aligner itself."""
        data = padded(pairs)
        shape = data.source.max() + 1, data.target.max() + 1
        self.table = np.full(shape, 1.0 / shape[1])
        cells = data.source[:, None, :] * shape[1] + data.target[:, :, None]
        for _ in range(self.iterations):
            posterior = self.posterior(data)
            counts = np.bincount(cells.ravel(), posterior.ravel(), self.table.size).reshape(shape)
            self.table = _normalised(counts, DIRICHLET if self.diagonal else 0.0)
            if self.diagonal:
                self._learn_tension(data, posterior)
        return self

    def prior(self, data):
        """`(B, m, n + 1)` probabilities of the places before the words are seen."""
        if not self.diagonal:
            scores = data.source_real / data.source_real.sum(-1, keepdims=True)
            return np.broadcast_to(scores, data.distance.shape)
        scores = np.exp(-self.tension * data.distance) * data.source_real
        scores[:, :, 0] = 0.0
        scores *= (1.0 - NULL_PROBABILITY) / scores.sum(-1, keepdims=True)
        scores[:, :, 0] = NULL_PROBABILITY
        return scores

    def posterior(self, data):
        """`(B, m, n + 1)` probabilities of the places given the words; zero at padding."""
        joint = self.prior(data) * self.table[data.source[:, None, :], data.target[:, :, None]]
        joint *= data.target_real[:, :, None]
        return joint / np.maximum(joint.sum(-1, keepdims=True), 1e-300)

    def _learn_tension(self, data, posterior):
        """Gradient ascent on the likelihood: the mean distance seen against that expected."""
        words = data.target_real.sum()
        seen = (posterior * data.distance).sum() / words
        for _ in range(TENSION_STEPS):
            expected = (self.prior(data) * data.distance * data.target_real[:, :, None]).sum()
            step = TENSION_STEP_SIZE * (expected / words - seen)
            self.tension = float(np.clip(self.tension + step, *TENSION_LIMITS))

    def align(self, pairs):
        """A set of links (source place, target place) for each pair, both from 0."""
        best = self.posterior(padded(pairs)).argmax(-1)
        return [
            {(int(best[b, i]) - 1, i) for i in range(len(pair[1])) if best[b, i]}
            for b, pair in enumerate(pairs)
        ]


def _normalised(counts, prior):
    """Rows that sum to one; with a Dirichlet prior, the geometric mean of such rows instead."""
    if not prior:
        return counts / np.maximum(counts.sum(-1, keepdims=True), 1e-300)
    counts = counts + prior
    return np.exp(_digamma(counts) - _digamma(counts.sum(-1, keepdims=True)))


def _digamma(x):
    """Its asymptotic series, six steps up the recurrence where that is exact to 1e-8."""
    shift = sum(1.0 / (x + k) for k in range(6))
    x = x + 6.0
    square = 1.0 / x**2
    return np.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252)) - shift


def turned(links):
    """Links from target to source, for an aligner of the other direction."""
    return {(i, j) for j, i in links}


def grow_diag(forward, backward):
    """The intersection, grown by links of the union that touch it and reach an unlinked word.

    (Koehn, Och and Marcu 2003, section 4.5.)
    """
    links, union = forward & backward, forward | backward
    while True:
        sources, targets = {j for j, _ in links}, {i for _, i in links}
        for j, i in sorted(union - links):
            touches = any(max(abs(j - a), abs(i - b)) == 1 for a, b in links)
            if touches and (j not in sources or i not in targets):
                links = links | {(j, i)}
                break
        else:
            return links
