"""IBM model 1 and the reparameterized model 2 of fast_align, as word aligners in NumPy.

    p(f_i, a_i = j | e) = d(j | i, m, n) t(f_i | e_j),        e_0 = NULL

Model 1 (Brown et al. 1993) has a uniform d. Dyer, Chahuneau and Smith (2013, "A Simple, Fast, and
Effective Reparameterization of IBM Model 2") use a prior that prefers the diagonal:

    d(0 | i, m, n) = p_0,     d(j | i, m, n) = (1 - p_0) exp(-l |i/m - j/n|) / Z_i

with a sparse Dirichlet prior on t (variational Bayes). The tension l is learned by gradient ascent.
Sentences are lists of non-negative ints. Shapes: B pairs, m target positions, n source positions.
"""

from typing import NamedTuple

import numpy as np

# The defaults of fast_align.
NULL_PROBABILITY, TENSION, DIRICHLET = 0.08, 4.0, 0.01
TENSION_STEPS, TENSION_STEP_SIZE, TENSION_LIMITS = 8, 20.0, (0.1, 14.0)


class Padded(NamedTuple):
    """Sentence pairs as arrays, with NULL at source position 0."""

    source: np.ndarray  # (B, n + 1) int, word + 1; 0 for NULL and padding
    target: np.ndarray  # (B, m) int; 0 for padding
    source_mask: np.ndarray  # (B, 1, n + 1) bool, not padding
    target_mask: np.ndarray  # (B, m) bool
    distance: np.ndarray  # (B, m, n + 1) float, |i/m - j/n|, 0 for NULL


def pad_pairs(pairs):
    """Return (source, target) pairs as `Padded`. Further items of longer tuples are ignored."""
    n = np.array([len(pair[0]) for pair in pairs])[:, None]
    m = np.array([len(pair[1]) for pair in pairs])[:, None]
    source_positions, target_positions = np.arange(n.max() + 1), np.arange(1, m.max() + 1)
    source_mask, target_mask = source_positions <= n, target_positions <= m
    source = np.zeros(source_mask.shape, int)
    target = np.zeros(target_mask.shape, int)
    source[source_mask & (source_positions > 0)] = [word + 1 for pair in pairs for word in pair[0]]
    target[target_mask] = [word for pair in pairs for word in pair[1]]
    distance = abs((target_positions / m)[:, :, None] - (source_positions / n)[:, None, :])
    distance[:, :, 0] = 0.0
    return Padded(source, target, source_mask[:, None, :], target_mask, distance)


class Aligner:
    """A word aligner that links each target word to at most one source word.

    Args:
        diagonal: Whether to use fast_align's diagonal prior, or the uniform one of IBM model 1.
        iterations: Number of expectation-maximization iterations.
    """

    def __init__(self, diagonal, iterations=5):
        self.diagonal = diagonal
        self.iterations = iterations
        self.tension = TENSION

    def fit(self, pairs):
        """Learn the table t, `(source words + 1, target words)`, and return the aligner."""
        data = pad_pairs(pairs)
        shape = data.source.max() + 1, data.target.max() + 1
        self.table = np.full(shape, 1.0 / shape[1])
        cells = data.source[:, None, :] * shape[1] + data.target[:, :, None]
        for _ in range(self.iterations):
            posterior = self.posterior(data)
            counts = np.bincount(cells.ravel(), posterior.ravel(), self.table.size).reshape(shape)
            self.table = _normalize(counts, DIRICHLET if self.diagonal else 0.0)
            if self.diagonal:
                self._learn_tension(data, posterior)
        return self

    def prior(self, data):
        """Return p(a_i = j), `(B, m, n + 1)`, without regard to the words."""
        if not self.diagonal:
            scores = data.source_mask / data.source_mask.sum(-1, keepdims=True)
            return np.broadcast_to(scores, data.distance.shape)
        scores = np.exp(-self.tension * data.distance) * data.source_mask
        scores[:, :, 0] = 0.0
        scores *= (1.0 - NULL_PROBABILITY) / scores.sum(-1, keepdims=True)
        scores[:, :, 0] = NULL_PROBABILITY
        return scores

    def posterior(self, data):
        """Return p(a_i = j | f, e), `(B, m, n + 1)`; zero at padding."""
        joint = self.prior(data) * self.table[data.source[:, None, :], data.target[:, :, None]]
        joint *= data.target_mask[:, :, None]
        return joint / np.maximum(joint.sum(-1, keepdims=True), 1e-300)

    def _learn_tension(self, data, posterior):
        """Gradient ascent: the gradient is the prior's minus the posterior's mean distance."""
        words = data.target_mask.sum()
        mean_distance = (posterior * data.distance).sum() / words
        for _ in range(TENSION_STEPS):
            expected = (self.prior(data) * data.distance * data.target_mask[:, :, None]).sum()
            step = TENSION_STEP_SIZE * (expected / words - mean_distance)
            self.tension = float(np.clip(self.tension + step, *TENSION_LIMITS))

    def align(self, pairs):
        """Return a set of links (source position, target position) per pair, both from 0."""
        best = self.posterior(pad_pairs(pairs)).argmax(-1)
        return [
            {(int(best[b, i]) - 1, i) for i in range(len(pair[1])) if best[b, i]}
            for b, pair in enumerate(pairs)
        ]


def _normalize(counts, prior):
    """Return rows that sum to one, or with a Dirichlet prior their variational equivalent."""
    if not prior:
        return counts / np.maximum(counts.sum(-1, keepdims=True), 1e-300)
    counts = counts + prior
    return np.exp(_digamma(counts) - _digamma(counts.sum(-1, keepdims=True)))


def _digamma(x):
    """Digamma function: the asymptotic series at x + 6 (error below 1e-8), then the recurrence."""
    shift = sum(1.0 / (x + k) for k in range(6))
    x = x + 6.0
    square = 1.0 / x**2
    return np.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252)) - shift


def transpose_links(links):
    """Swap source and target positions of links."""
    return {(i, j) for j, i in links}


def grow_diag(forward, backward):
    """Grow the intersection by adjacent links of the union that reach an unlinked word.

    (Koehn, Och and Marcu 2003, section 4.5.)
    """
    links, union = forward & backward, forward | backward
    while True:
        sources, targets = {j for j, _ in links}, {i for _, i in links}
        for j, i in sorted(union - links):
            is_adjacent = any(max(abs(j - a), abs(i - b)) == 1 for a, b in links)
            if is_adjacent and (j not in sources or i not in targets):
                links = links | {(j, i)}
                break
        else:
            return links
