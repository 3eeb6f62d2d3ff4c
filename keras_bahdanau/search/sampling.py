"""Search by sampling from the model's distribution."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.search.base import Search, is_tensor
from keras_bahdanau.search.candidates import NEG_INF, row_starts, stable_top_k
from keras_bahdanau.search.history import History, take_flat
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.search_settings import check_setting


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
        temperature: Above 1 flattens the distribution, below 1 sharpens it; from 1e-6 to 1e6.
        top_k: Number of most probable tokens to sample from; all if `None`.
        top_p: Probability mass to sample from, from 1e-6 to 1.
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
        for name in ("n", "temperature", "top_p"):
            check_setting(name, getattr(self, name))
        if self.top_k is not None:
            check_setting("top_k", self.top_k, low=1)
        if self.seed is not None:
            check_setting("seed", self.seed)

    def noise(self, batch, max_length):
        """Return random numbers in [0, 1) from `seed`, `(batch, n, max_length)` float32."""
        rng = np.random.default_rng(self.seed)
        return rng.random((batch, self.n, max_length), dtype="float32")

    def _random_numbers(self, batch, max_length):
        shape = (batch, self.n, max_length)
        return keras.random.uniform(shape, dtype="float32", seed=self.seed)

    def options(self):
        names = ("temperature", "top_p")
        top_k = {"top_k": 0 if self.top_k is None else self.top_k}
        return {**{name: getattr(self, name) for name in names}, **top_k, **super().options()}

    @property
    def num_hypotheses(self):
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

    def _choose(self, candidates, samples, task):
        rows = task.batch * self.n
        tokens = self._sample(candidates.allowed, candidates.noise, rows)
        first = ops.squeeze(row_starts(rows, candidates.logits.shape[-1]), 1)
        logits = take_flat(candidates.allowed, first + tokens)
        if candidates.forced is not None:
            is_forced = ops.not_equal(candidates.forced, PAD)
            tokens = ops.where(is_forced, candidates.forced, tokens)
            logits = ops.where(is_forced, take_flat(candidates.logits, first + tokens), logits)
        log_probs = logits - ops.logsumexp(candidates.logits, axis=-1)
        if candidates.forced is not None:  # taken from logits without the repetition penalty
            ids = ops.expand_dims(tokens, 1)
            penalized = self._penalized(ops.expand_dims(log_probs, 1), ids, candidates)
            log_probs = ops.where(is_forced, ops.squeeze(penalized, 1), log_probs)
        return tokens, log_probs

    def _advance(self, t, choice, weights, samples, task):
        (tokens, log_probs), (totals, lengths, ended) = choice, samples
        tokens = ops.where(ended, PAD, tokens)
        log_probs = ops.where(ended, 0.0, log_probs)
        lengths = lengths + ops.cast(ops.logical_not(ended), "int32")
        at_limit = ops.reshape(lengths, (-1, self.n)) >= task.inputs.limits
        ending = ops.logical_or(ops.equal(tokens, EOS), ops.reshape(at_limit, (-1,)))
        # An output without an allowed token does not exist: its log-probability is -inf.
        ending = ops.logical_or(ending, ops.equal(log_probs, NEG_INF))
        samples = Samples(totals + log_probs, lengths, ops.logical_or(ended, ending))
        return samples, tokens, None, History(tokens, log_probs, weights)

    def _results(self, samples, history, stop, task):
        scores, indices = stable_top_k(ops.reshape(samples.totals, (-1, self.n)), self.n)
        return scores, task.first_rows + indices

    def _paths(self, samples, history, rows, stop):
        path = (ops.take(table, rows, axis=1) for table in history[:3])
        return (*path, take_flat(samples.lengths, rows), take_flat(samples.totals, rows))

    def _sample(self, logits, noise, rows):
        """Sample one token per row by inverting the cumulative distribution.

        Args:
            logits: `(R, V)` float32.
            noise: `(R,)` float32 random numbers in [0, 1).
            rows: `R`, an int or a scalar tensor.

        Returns:
            `(R,)` int32 ids.
        """
        logits, size = logits / self.temperature, logits.shape[-1]
        if not is_tensor(self.top_k):
            if self.top_k is None and self.top_p == 1:
                return _sampled_indices(_probabilities(logits), noise)
            return self._sample_from_best(
                logits, noise, rows, size if self.top_k is None else min(self.top_k, size)
            )
        return ops.cond(
            ops.logical_or(self.top_k > 0, self.top_p < 1),
            lambda: self._sample_from_best(
                logits, noise, rows, ops.where(self.top_k > 0, ops.minimum(self.top_k, size), size)
            ),
            lambda: _sampled_indices(_probabilities(logits), noise),
        )

    def _sample_from_best(self, logits, noise, rows, k):
        """As `_sample`, from the `k` most probable tokens."""
        logits, ids = stable_top_k(logits, k)
        probs = _probabilities(logits)
        if is_tensor(self.top_p) or self.top_p < 1:
            before = ops.cumsum(probs, axis=-1) - probs
            is_kept = before < self.top_p
            if is_tensor(self.top_p):  # the sums are not exact, and 1 keeps all tokens
                is_kept = ops.logical_or(is_kept, self.top_p >= 1)
            probs = ops.where(is_kept, probs, 0.0)
        first = ops.arange(rows, dtype="int32") * k
        return take_flat(ids, first + _sampled_indices(probs, noise))


def _probabilities(logits):
    """Return the softmax of logits `(R, n)`; `ops.softmax` warns if `n` is 1."""
    return ops.exp(logits - ops.logsumexp(logits, axis=-1, keepdims=True))


def _sampled_indices(probs, noise):
    """Return one index per row of `probs` `(R, n)`, by its sums and `noise` `(R,)`.

    The index is 0 in a row without a possible token, whose sums are NaN or 0.
    """
    cumulative = ops.cumsum(probs, axis=-1)
    # Slightly below the sum, so that rounding never selects an index after the last token.
    thresholds = ops.expand_dims(noise * (1.0 - 2.0**-22), -1) * cumulative[:, -1:]
    indices = ops.sum(ops.cast(cumulative <= thresholds, "int32"), axis=-1)
    return ops.where(cumulative[:, -1] > 0, indices, 0)
