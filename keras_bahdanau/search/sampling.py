"""Sampling: outputs drawn from the model's distribution."""

from dataclasses import dataclass

import keras
import numpy as np
from keras import ops, tree

from keras_bahdanau.search.base import (
    NEVER,
    Generation,
    Search,
    best_first,
    forced_tokens,
    with_column,
    write,
)
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import EOS, PAD


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
        seed: Int; the same draws every time. `None` for other draws at every call.
        min_length: Number of tokens, `EOS` included, before which no output ends.
        forbidden: Ids that are never drawn.
        no_repeat_ngram: No sequence of this many tokens occurs twice in an output; 0 allows all.

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
            check_range("seed", self.seed, int, 0)

    def noise(self, batch, max_length):
        """Numbers in [0, 1) to draw with, `(batch, n, max_length)` float32: those of `seed`."""
        rng = np.random.default_rng(self.seed)
        return rng.random((batch, self.n, max_length), dtype="float32")

    def __call__(
        self,
        step,
        state,
        start,
        memory_length,
        max_length,
        limits=None,
        prefix=None,
        memory_mask=None,
        noise=None,
    ):
        """Draws from one start token for each row; see `Search.__call__`.

        Without `noise` the numbers come from Keras's generator.
        """
        batch = ops.shape(start)[0]
        rows = batch * self.n
        limits = ops.full((batch,), max_length, dtype="int32") if limits is None else limits
        limits = ops.repeat(limits, self.n)
        if noise is None:
            noise = keras.random.uniform((batch, self.n, max_length), seed=self.seed)
        noise = ops.reshape(noise, (rows, max_length))

        def advance(t, tokens, state, totals, lengths, finished, so_far, histories):
            logits, state, attended = step(tokens, state)
            logits = ops.cast(logits, "float32")
            allowed = self._allowed(logits, t, so_far)
            tokens = self._draw(allowed, ops.take(noise, t, axis=1))
            if prefix is not None:
                forced = ops.repeat(forced_tokens(prefix, t), self.n)
                held = ops.not_equal(forced, PAD)
                tokens = ops.where(held, forced, tokens)
                allowed = ops.where(ops.expand_dims(held, 1), logits, allowed)
            # Where nothing is allowed there is no output: its log-probability is -inf.
            picked = ops.take_along_axis(allowed, ops.expand_dims(tokens, 1), axis=1)
            log_probs = ops.squeeze(picked, 1) - ops.logsumexp(logits, axis=-1)
            tokens = ops.where(finished, PAD, tokens)
            log_probs = ops.where(finished, 0.0, log_probs)
            lengths = lengths + ops.cast(ops.logical_not(finished), "int32")
            ended = ops.logical_or(ops.equal(tokens, EOS), lengths >= limits)
            ended = ops.logical_or(ended, ops.equal(log_probs, NEVER))
            if self.no_repeat_ngram:
                so_far = with_column(so_far, t, tokens)
            made = (tokens, log_probs, ops.cast(attended, "float32"))
            histories = tuple(write(h, t, row) for h, row in zip(histories, made, strict=True))
            finished = ops.logical_or(finished, ended)
            return t + 1, tokens, state, totals + log_probs, lengths, finished, so_far, histories

        def unfinished(t, tokens, state, totals, lengths, finished, so_far, histories):
            return ops.logical_and(t < max_length, ops.logical_not(ops.all(finished)))

        _, _, _, totals, lengths, _, _, histories = ops.while_loop(
            unfinished,
            advance,
            (
                ops.convert_to_tensor(0, dtype="int32"),
                ops.repeat(ops.cast(start, "int32"), self.n, axis=0),
                tree.map_structure(lambda tensor: ops.repeat(tensor, self.n, axis=0), state),
                ops.zeros((rows,), dtype="float32"),
                ops.zeros((rows,), dtype="int32"),
                ops.zeros((rows,), dtype="bool"),
                ops.full((rows, max_length), PAD, dtype="int32") if self.no_repeat_ngram else (),
                (
                    ops.full((max_length, rows), PAD, dtype="int32"),
                    ops.zeros((max_length, rows), dtype="float32"),
                    ops.zeros((max_length, rows, memory_length), dtype="float32"),
                ),
            ),
        )
        return self._sorted(batch, totals, lengths, histories)

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

    def _sorted(self, batch, totals, lengths, histories):
        """The outputs of each source, likeliest first."""
        totals, order = best_first(ops.reshape(totals, (batch, self.n)), self.n)
        first_row = ops.expand_dims(ops.arange(batch, dtype="int32") * self.n, -1)
        rows = ops.reshape(first_row + order, (-1,))
        lengths = ops.reshape(ops.take(lengths, rows), (batch, self.n))
        tokens, log_probs, weights = (ops.take(history, rows, axis=1) for history in histories)
        max_length, _, memory_length = ops.shape(weights)
        live = ops.expand_dims(ops.arange(max_length, dtype="int32"), (0, 1))
        live = ops.expand_dims(live < ops.expand_dims(lengths, -1), -1)
        weights = ops.transpose(weights, (1, 0, 2))
        alignments = ops.reshape(weights, (batch, self.n, max_length, memory_length))
        return Generation(
            tokens=ops.reshape(ops.transpose(tokens), (batch, self.n, max_length)),
            scores=totals,
            lengths=lengths,
            alignments=ops.where(live, alignments, 0.0),
            totals=totals,
            log_probs=ops.reshape(ops.transpose(log_probs), (batch, self.n, max_length)),
        )
