"""Search by sampling from the model's distribution."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.search.base import Search
from keras_bahdanau.search.candidates import NEG_INF, stable_top_k
from keras_bahdanau.search.history import History, take_flat
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import EOS, PAD


class Samples(NamedTuple):
    """Outputs between two steps, `(R,)` each.

    Attributes:
        totals: Float32 log-probabilities; -inf for an output that does not exist.
        lengths: Int32 number of tokens.
        ended: Bool, whether the output has ended.
    """

    totals: Any
    lengths: Any
    ended: Any


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class Sampling(Search):
    """Sample `n` outputs per source, token by token.

        p'(v) ~ p(v) ^ (1 / temperature)

    `p'` is restricted to the `top_k` most probable tokens, then to the fewest of them whose
    probabilities sum to `top_p` (nucleus sampling, arXiv 1904.09751).

    Scores and log-probabilities are those of the model, `p`. Outputs are sorted by score and may
    occur more than once.

    Args:
        n: Number of outputs per source.
        temperature: Above 1 flattens the distribution, below 1 sharpens it.
        top_k: Number of most probable tokens to sample from; all if `None`.
        top_p: Probability mass to sample from, in (0, 1].
        seed: Int below 2^31 for the same outputs in every call; `None` for different ones.
        min_length: Minimum number of tokens in an output, `EOS` included.
        forbidden: Ids that are never chosen; padding and `BOS` by default.
        no_repeat_ngram: Length of the n-grams that may not occur twice in an output; 0 for no
            limit.
        repetition_penalty: Factor of the log-probability of a repeated token; see `Search`.
        max_length_ratio: Maximum number of tokens per memory position; see `Search`.

    Raises:
        ValueError: If a number is out of range.

    Example:

    >>> Sampling(n=2, top_k=10, seed=1).get_config()["top_k"]
    10
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self):
        super().__post_init__()
        check_range("n", self.n, int, 1)
        check_range("temperature", self.temperature, float, 0, open_low=True)
        check_range("top_p", self.top_p, float, 0, 1, open_low=True)
        if self.top_k is not None:
            check_range("top_k", self.top_k, int, 1)
        if self.seed is not None:
            check_range("seed", self.seed, int, 0, 2**31 - 1)

    def noise(self, batch, max_length):
        """Return random numbers in [0, 1) from `seed`, `(batch, n, max_length)` float32."""
        rng = np.random.default_rng(self.seed)
        return rng.random((batch, self.n, max_length), dtype="float32")

    def _random_numbers(self, batch, max_length):
        shape = (batch, self.n, max_length)
        return keras.random.uniform(shape, dtype="float32", seed=self.seed)

    @property
    def size(self):
        """Number of hypotheses per sentence."""
        return self.n

    def _initial(self, batch, memory_length):
        shape = (batch * self.n,)
        return Samples(
            totals=ops.zeros(shape, dtype="float32"),
            lengths=ops.zeros(shape, dtype="int32"),
            ended=ops.zeros(shape, dtype="bool"),
        )

    def _is_live(self, samples):
        return ops.logical_not(samples.ended)

    def _advance(self, candidates, samples, task):
        totals, lengths, ended = samples
        allowed = candidates.allowed
        tokens = self._sample(allowed, candidates.noise)
        if candidates.forced is not None:
            is_forced = ops.not_equal(candidates.forced, PAD)
            tokens = ops.where(is_forced, candidates.forced, tokens)
            allowed = ops.where(ops.expand_dims(is_forced, 1), candidates.logits, allowed)
        ids = ops.expand_dims(tokens, 1)
        logits = ops.take_along_axis(allowed, ids, axis=1)
        log_probs = ops.squeeze(logits, 1) - ops.logsumexp(candidates.logits, axis=-1)
        if candidates.forced is not None:  # taken from logits without the repetition penalty
            penalized = self._penalized(ops.expand_dims(log_probs, 1), ids, candidates)
            log_probs = ops.where(is_forced, ops.squeeze(penalized, 1), log_probs)
        tokens = ops.where(ended, PAD, tokens)
        log_probs = ops.where(ended, 0.0, log_probs)
        lengths = lengths + ops.cast(ops.logical_not(ended), "int32")
        at_limit = ops.reshape(lengths, (-1, self.n)) >= task.limits
        ending = ops.logical_or(ops.equal(tokens, EOS), ops.reshape(at_limit, (-1,)))
        # An output without an allowed token does not exist: its log-probability is -inf.
        ending = ops.logical_or(ending, ops.equal(log_probs, NEG_INF))
        samples = Samples(totals + log_probs, lengths, ops.logical_or(ended, ending))
        return samples, tokens, None, History(tokens, log_probs, candidates.weights)

    def _results(self, samples, history, stop, task):
        scores, indices = stable_top_k(ops.reshape(samples.totals, (-1, self.n)), self.n)
        return scores, task.first_rows + indices

    def _paths(self, samples, history, rows, stop):
        path = (ops.take(table, rows, axis=1) for table in history[:3])
        return (*path, take_flat(samples.lengths, rows), take_flat(samples.totals, rows))

    def _sample(self, logits, noise):
        """Sample one token per row by inverting the cumulative distribution.

        Args:
            logits: `(R, V)` float32.
            noise: `(R,)` float32 random numbers in [0, 1).

        Returns:
            `(R,)` int32 ids.
        """
        logits = logits / self.temperature
        ids = None
        if self.top_k is not None or self.top_p < 1:
            size = logits.shape[-1]
            k = size if self.top_k is None else min(self.top_k, size)
            logits, ids = stable_top_k(logits, k)
        # Not `ops.softmax`, which warns about an axis of size 1 (`top_k=1`).
        probs = ops.exp(logits - ops.logsumexp(logits, axis=-1, keepdims=True))
        if self.top_p < 1:
            before = ops.cumsum(probs, axis=-1) - probs
            probs = ops.where(before < self.top_p, probs, 0.0)
        cumulative = ops.cumsum(probs, axis=-1)
        # Slightly below the sum, so that rounding never selects an index after the last token.
        thresholds = ops.expand_dims(noise * (1.0 - 2.0**-22), -1) * cumulative[:, -1:]
        indices = ops.sum(ops.cast(cumulative <= thresholds, "int32"), axis=-1)
        if ids is None:
            return indices
        return ops.squeeze(ops.take_along_axis(ids, ops.expand_dims(indices, 1), axis=1), 1)
