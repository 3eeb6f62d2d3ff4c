"""Sampling: outputs drawn from the model's distribution."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.search.base import Search
from keras_bahdanau.search.candidates import NEVER, best_first
from keras_bahdanau.search.history import History, entries
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import EOS, PAD


class Samples(NamedTuple):
    """The outputs between two steps, `(R,)` each.

    Attributes:
        totals: float32 log-probabilities; -inf for an output that does not exist.
        lengths: int32 number of tokens.
        ended: bool, whether the output has ended.
    """

    totals: Any
    lengths: Any
    ended: Any


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class Sampling(Search):
    """Draws `n` outputs for each source, token by token.

        p'(v) ~ p(v) ^ (1 / temperature), over the `top_k` likeliest tokens, and of these over the
        fewest whose p' sum to `top_p` (nucleus sampling, arXiv 1904.09751)

    Scores and log-probabilities are those of the model, `p`; outputs come sorted by them, and
    may be equal to each other.

    Args:
        n: Number of outputs for each source.
        temperature: Above 1 flattens the distribution, below 1 sharpens it.
        top_k: Number of tokens to draw from; all if `None`.
        top_p: Share of the probability to draw from, in (0, 1].
        seed: Int below 2^31; the same draws every time. `None` for other draws at every call.
        min_length: Number of tokens, `EOS` included, before which no output ends.
        forbidden: Ids that are never drawn; as for `BeamSearch`.
        no_repeat_ngram: No sequence of this many tokens occurs twice in an output; 0 allows all.
        max_length_ratio: Tokens for each place of the memory after which outputs are cut; see
            `Search`.

    Raises:
        ValueError: If a number is out of its range.

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
        """Numbers in [0, 1) to draw with, `(batch, n, max_length)` float32: those of `seed`."""
        rng = np.random.default_rng(self.seed)
        return rng.random((batch, self.n, max_length), dtype="float32")

    def _draws(self, batch, max_length):
        shape = (batch, self.n, max_length)
        return keras.random.uniform(shape, dtype="float32", seed=self.seed)

    @property
    def size(self):
        """Number of hypotheses of a sentence."""
        return self.n

    def _first(self, batch, memory_length):
        shape = (batch * self.n,)
        return Samples(
            totals=ops.zeros(shape, dtype="float32"),
            lengths=ops.zeros(shape, dtype="int32"),
            ended=ops.zeros(shape, dtype="bool"),
        )

    def _live(self, samples):
        return ops.logical_not(samples.ended)

    def _advance(self, choices, samples, task):
        totals, lengths, ended = samples
        allowed = choices.allowed
        tokens = self._draw(allowed, choices.noise)
        if choices.forced is not None:
            held = ops.not_equal(choices.forced, PAD)
            tokens = ops.where(held, choices.forced, tokens)
            allowed = ops.where(ops.expand_dims(held, 1), choices.logits, allowed)
        picked = ops.take_along_axis(allowed, ops.expand_dims(tokens, 1), axis=1)
        log_probs = ops.squeeze(picked, 1) - ops.logsumexp(choices.logits, axis=-1)
        tokens = ops.where(ended, PAD, tokens)
        log_probs = ops.where(ended, 0.0, log_probs)
        lengths = lengths + ops.cast(ops.logical_not(ended), "int32")
        cut = ops.reshape(lengths, (-1, self.n)) >= task.limits
        ending = ops.logical_or(ops.equal(tokens, EOS), ops.reshape(cut, (-1,)))
        # An output without an allowed token does not exist: its log-probability is -inf.
        ending = ops.logical_or(ending, ops.equal(log_probs, NEVER))
        samples = Samples(totals + log_probs, lengths, ops.logical_or(ended, ending))
        return samples, tokens, None, History(tokens, log_probs, choices.weights)

    def _best(self, samples, history, stop, task):
        scores, places = best_first(ops.reshape(samples.totals, (-1, self.n)), self.n)
        return scores, task.first_rows + places

    def _along(self, samples, history, rows, stop):
        path = (ops.take(table, rows, axis=1) for table in history[:3])
        return (*path, entries(samples.lengths, rows), entries(samples.totals, rows))

    def _draw(self, logits, numbers):
        """The ids `(R,)` that `numbers` `(R,)` in [0, 1) fall on, of `logits` `(R, V)`."""
        logits = logits / self.temperature
        ids = None
        if self.top_k is not None or self.top_p < 1:
            size = logits.shape[-1]
            logits, ids = best_first(logits, size if self.top_k is None else min(self.top_k, size))
        # Keras's softmax warns of a single token, which `top_k=1` leaves.
        shares = ops.exp(logits - ops.logsumexp(logits, axis=-1, keepdims=True))
        if self.top_p < 1:
            before = ops.cumsum(shares, axis=-1) - shares
            shares = ops.where(before < self.top_p, shares, 0.0)
        ends = ops.cumsum(shares, axis=-1)
        # A little below the sum, so that rounding never leads past the last token.
        places = ops.expand_dims(numbers * (1.0 - 2.0**-22), -1) * ends[:, -1:]
        chosen = ops.sum(ops.cast(ends <= places, "int32"), axis=-1)
        if ids is None:
            return chosen
        return ops.squeeze(ops.take_along_axis(ids, ops.expand_dims(chosen, 1), axis=1), 1)
