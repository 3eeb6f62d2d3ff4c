"""What every search shares: its result, its constraints, and the histories it keeps.

A search knows no model. It calls `step(tokens, state) -> (logits, state, weights)`:

    tokens   (R,) int32, the last token of every hypothesis; R = B * K
    state    a structure of tensors with R rows
    logits   (R, V); log-probabilities will do too, the search normalises what it ranks
    weights  (R, Tx) float32 attention weights
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import EOS, PAD

NEVER = float("-inf")


class Generation(NamedTuple):
    """What a search found, best hypothesis first.

    Attributes:
        tokens: `(B, K, T)` int32, `EOS` included, `PAD` after it.
        scores: `(B, K)` float32, what the search ranks by; -inf for a hypothesis that does not
            exist (a beam wider than what there is to find).
        lengths: `(B, K)` int32 number of tokens, `EOS` included.
        alignments: `(B, K, T, Tx)` float32 attention weights; zero after the length.
        totals: `(B, K)` float32 log-probability of the whole hypothesis.
        log_probs: `(B, K, T)` float32 log-probability of each token; zero after the length.
    """

    tokens: Any
    scores: Any
    lengths: Any
    alignments: Any
    totals: Any
    log_probs: Any


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base of the searches: what a hypothesis may not hold.

    Constraints say what may be chosen; log-probabilities stay those of the model.

    Args:
        min_length: Number of tokens, `EOS` included, before which no hypothesis ends.
        forbidden: Ids that are never chosen, such as `(PAD, UNK, BOS)`.
        no_repeat_ngram: No sequence of this many tokens occurs twice in a hypothesis; 0 allows all.

    Raises:
        ValueError: If a number is negative or no int.
    """

    min_length: int = 0
    forbidden: tuple[int, ...] = ()
    no_repeat_ngram: int = 0

    def __post_init__(self):
        object.__setattr__(self, "forbidden", tuple(self.forbidden))  # a list, from a saved config
        for name in ("min_length", "no_repeat_ngram"):
            check_range(name, getattr(self, name), int, 0)
        for token in self.forbidden:
            check_range("forbidden", token, int, 0)

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
        """Searches from one start token for each row.

        Args:
            step: The step function, see the description of `keras_bahdanau.search.base`.
            state: Structure of tensors with `B` rows.
            start: `(B,)` int32 first tokens, usually `BOS`.
            memory_length: `Tx`, the width of the weights; an int or a scalar tensor.
            max_length: Number of tokens `T` after which every hypothesis is cut, an int.
            limits: `(B,)` int32, from 1 to `max_length`: where each sentence's hypotheses are
                cut; `max_length` for all if `None`.
            prefix: `(B, P)` int32 tokens that every hypothesis starts with, padded with `PAD` at
                the right; or `None`.
            memory_mask: `(B, Tx)` bool, the source places that a coverage penalty asks for; all
                if `None`.
            noise: What `self.noise` gave, for a search that draws; or `None`.

        Returns:
            A `Generation` of tensors.
        """
        raise NotImplementedError

    def noise(self, batch, max_length):
        """Random numbers for a search that draws; `None` for one that does not."""
        return None

    def _allowed(self, logits, t, tokens):
        """`(R, V)` logits to rank, -inf where step `t` may not go; `tokens` `(R, T)` so far."""
        size = logits.shape[-1]
        if self.forbidden or self.min_length:
            ids = ops.arange(size, dtype="int32")
            barred = ops.zeros((size,), dtype="bool")
            for token in self.forbidden:
                barred = ops.logical_or(barred, ids == token)
            if self.min_length:
                early = ops.logical_and(ids == EOS, t + 1 < self.min_length)
                barred = ops.logical_or(barred, early)
            logits = ops.where(barred, NEVER, logits)
        if self.no_repeat_ngram:
            logits = _without_repeats(logits, t, tokens, self.no_repeat_ngram)
        return logits

    def get_config(self):
        """The arguments, for Keras's serialisation and the artifact's manifest."""
        return asdict(self)

    @classmethod
    def from_config(cls, config):
        """The search that `get_config` described."""
        return cls(**config)


def _without_repeats(logits, t, tokens, n):
    """Bars what would complete an n-gram that stands in `tokens[:, :t]` already."""
    rows, length = ops.shape(tokens)[0], ops.shape(tokens)[1]
    places = ops.arange(length, dtype="int32")
    completes = ops.broadcast_to(places < t, (rows, length))  # would repeat the token at a place
    for back in range(1, n):
        # The token `back` before the place must be the one `back` before the next token.
        shifted = ops.roll(tokens, back, axis=1)
        last = ops.take(tokens, ops.maximum(t - back, 0), axis=1)
        same = ops.logical_and(ops.equal(shifted, ops.expand_dims(last, 1)), places >= back)
        completes = ops.logical_and(completes, ops.logical_and(same, t >= back))
    # What completes nothing writes into a column of its own.
    size = logits.shape[-1]
    columns = ops.where(completes, tokens, size)
    row = ops.broadcast_to(ops.expand_dims(ops.arange(rows, dtype="int32"), 1), (rows, length))
    indices = ops.reshape(ops.stack([row, columns], axis=-1), (-1, 2))
    padded = ops.concatenate([logits, ops.zeros((rows, 1), dtype=logits.dtype)], axis=1)
    barred = ops.full((rows * length,), NEVER, dtype=logits.dtype)
    return ops.scatter_update(padded, indices, barred)[:, :size]


def forced_tokens(prefix, t):
    """The token `(B,)` that `prefix` `(B, P)` forces at step `t`; `PAD` where it forces none."""
    none = ops.full((ops.shape(prefix)[0], 1), PAD, dtype="int32")
    padded = ops.concatenate([ops.cast(prefix, "int32"), none], axis=1)
    return ops.take(padded, ops.minimum(t, ops.shape(prefix)[1]), axis=1)


def write(history, t, row):
    """`history` `(T, ...)` with `row` written at step `t`."""
    return ops.scatter_update(history, ops.reshape(t, (1, 1)), ops.expand_dims(row, 0))


def with_column(tokens, t, column):
    """`tokens` `(R, T)` with `column` `(R,)` written at step `t`."""
    here = ops.expand_dims(ops.arange(tokens.shape[1], dtype="int32") == t, 0)
    return ops.where(here, ops.expand_dims(column, 1), tokens)


def best_first(values, k):
    """The `k` largest of the last axis and their places, int32; of equals the first comes first.

    TensorFlow and JAX promise this order; `torch.topk` promises none, so on torch a stable sort
    decides wherever two of the values found are equal.
    """
    if keras.config.backend() != "torch":
        found, places = ops.top_k(values, k)
        return found, ops.cast(places, "int32")
    # One value more than asked for shows whether the last one wanted is tied, too.
    found, places = ops.top_k(values, min(k + 1, values.shape[-1]))
    if bool(ops.any(found[..., 1:] == found[..., :-1])):
        places = ops.argsort(-values, axis=-1)
        found = ops.take_along_axis(values, places[..., :k], axis=-1)
    return found[..., :k], ops.cast(places[..., :k], "int32")
