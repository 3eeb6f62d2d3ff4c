"""Search for the best output: greedy and beam, over any step function.

A search knows no model. It calls `step(tokens, state) -> (logits, state, weights)`:

    tokens   (B * K,) int32, the last token of every hypothesis
    state    a structure of tensors with B * K rows
    logits   (B * K, V); log-probabilities will do too, the search normalises what it ranks
    weights  (B * K, Tx) float32 attention weights
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import keras
from keras import ops, tree

from keras_bahdanau.ids import EOS, PAD

_NEVER = float("-inf")


class Generation(NamedTuple):
    """What a search found, best hypothesis first.

    Attributes:
        tokens: `(B, K, T)` int32, `EOS` included, `PAD` after it.
        scores: `(B, K)` float32, the log-probability divided by the length penalty; -inf for a
            hypothesis that does not exist (a beam wider than what there is to find).
        lengths: `(B, K)` int32 number of tokens, `EOS` included.
        alignments: `(B, K, T, Tx)` float32 attention weights; zero after the length.
    """

    tokens: Any
    scores: Any
    lengths: Any
    alignments: Any


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class BeamSearch:
    """Beam search that keeps the `size` best hypotheses by penalised log-probability.

        score(Y) = log p(Y) / ((5 + |Y|) / 6) ** length_penalty    (Wu et al. 2016, Eq. 14)

    A hypothesis that ended keeps its place and its score; it leaves only for better ones. The
    search stops when every kept hypothesis has ended, or at `max_length` tokens.

    Args:
        size: Number of hypotheses `K`.
        length_penalty: Exponent; 0 ranks by log-probability, which favours short outputs.

    Raises:
        ValueError: If `size` is not a positive integer.

    Example:

    >>> import numpy as np
    >>> log_probs = np.log([[0.1, 0.1, 0.1, 0.2, 0.5]])                     # token 4 leads
    >>> def step(tokens, state):
    ...     end = np.log([[1e-9, 1e-9, 1e-9, 1.0, 1e-9]])                   # then EOS, 3
    ...     rows = ops.shape(tokens)[0]
    ...     first = ops.expand_dims(tokens == 2, -1)
    ...     return ops.where(first, log_probs, end), state, ops.ones((rows, 1))
    >>> found = BeamSearch(size=2)(step, (), ops.array([2]), memory_length=1, max_length=3)
    >>> ops.convert_to_numpy(found.tokens[0, 0]).tolist()
    [4, 3, 0]
    """

    size: int = 5
    length_penalty: float = 1.0

    def __post_init__(self):
        if not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"Argument `size` must be a positive integer. Received: {self.size!r}")

    def __call__(self, step, state, start, memory_length, max_length):
        """Searches from one start token for each row.

        Args:
            step: The step function, see the module's description.
            state: Structure of tensors with `B` rows.
            start: `(B,)` int32 first tokens, usually `BOS`.
            memory_length: `Tx`, the width of the weights; an int or a scalar tensor.
            max_length: Number of tokens `T` after which every hypothesis is cut, an int.

        Returns:
            A `Generation` of tensors.
        """
        size = self.size
        batch = ops.shape(start)[0]
        rows = batch * size
        first_row = ops.expand_dims(ops.arange(batch, dtype="int32") * size, -1)  # (B, 1)
        beams = ops.broadcast_to(ops.arange(size, dtype="int32"), (batch, size))

        def advance(t, tokens, state, scores, lengths, finished, history, parents, weights):
            logits, state, attended = step(tokens, state)
            log_probs, ids = self._candidates(logits, ops.reshape(finished, (-1, 1)))
            width = ids.shape[-1]
            totals = ops.reshape(ops.reshape(scores, (-1, 1)) + log_probs, (batch, size * width))
            counts = lengths + ops.cast(ops.logical_not(finished), "int32")
            penalties = ops.reshape(ops.repeat(self._penalty(counts), width, axis=1), (batch, -1))
            _, best = ops.top_k(totals / penalties, size)
            best = ops.cast(best, "int32")

            places = ops.reshape(first_row * width + best, (-1,))  # into (B * K * width,)
            parent = best // width
            origin = ops.reshape(first_row + parent, (-1,))  # into (B * K,)
            tokens = ops.take(ops.reshape(ids, (-1,)), places)
            scores = ops.reshape(ops.take(ops.reshape(totals, (-1,)), places), (batch, size))
            lengths = ops.reshape(ops.take(ops.reshape(counts, (-1,)), origin), (batch, size))
            finished = ops.take(ops.reshape(finished, (-1,)), origin)
            finished = ops.reshape(ops.logical_or(finished, ops.equal(tokens, EOS)), (batch, size))
            state = tree.map_structure(lambda tensor: ops.take(tensor, origin, axis=0), state)
            history = _write(history, t, ops.reshape(tokens, (batch, size)))
            parents = _write(parents, t, parent)
            weights = _write(weights, t, ops.cast(attended, "float32"))
            return t + 1, tokens, state, scores, lengths, finished, history, parents, weights

        def unfinished(t, tokens, state, scores, lengths, finished, *histories):
            # A hypothesis at -inf does not exist: nothing is to come of it.
            over = ops.logical_or(finished, ops.equal(scores, _NEVER))
            return ops.logical_and(t < max_length, ops.logical_not(ops.all(over)))

        t, *_, scores, lengths, _, history, parents, weights = ops.while_loop(
            unfinished,
            advance,
            (
                ops.convert_to_tensor(0, dtype="int32"),
                ops.repeat(ops.cast(start, "int32"), size, axis=0),
                tree.map_structure(lambda tensor: ops.repeat(tensor, size, axis=0), state),
                # Only the first beam exists at the start; the others would repeat it.
                ops.where(beams == 0, 0.0, _NEVER),
                ops.zeros((batch, size), dtype="int32"),
                ops.zeros((batch, size), dtype="bool"),
                ops.full((max_length, batch, size), PAD, dtype="int32"),
                ops.zeros((max_length, batch, size), dtype="int32"),
                ops.zeros((max_length, rows, memory_length), dtype="float32"),
            ),
        )
        tokens, origins = _trace_back(t, history, parents, beams, first_row)
        flat_weights = ops.reshape(weights, (max_length * rows, memory_length))
        step_row = ops.reshape(ops.arange(max_length, dtype="int32") * rows, (-1, 1, 1))
        alignments = ops.take(flat_weights, step_row + origins, axis=0)  # (T, B, K, Tx)
        steps = ops.reshape(ops.arange(max_length, dtype="int32"), (1, 1, -1))
        live = steps < ops.expand_dims(lengths, -1)
        return Generation(
            tokens=ops.transpose(tokens, (1, 2, 0)),
            scores=scores / self._penalty(lengths),
            lengths=lengths,
            alignments=ops.transpose(alignments, (1, 2, 0, 3))
            * ops.expand_dims(ops.cast(live, "float32"), -1),
        )

    def _candidates(self, logits, finished):
        """The `min(K, V)` best continuations of every hypothesis: log-probabilities and ids.

        An ended hypothesis has one continuation, `PAD` at no cost. Ranking before normalising
        spares a pass over `(B * K, V)`.
        """
        logits = ops.cast(logits, "float32")
        best, ids = ops.top_k(logits, min(self.size, logits.shape[-1]))
        log_probs = best - ops.logsumexp(logits, axis=-1, keepdims=True)
        only = ops.where(ops.arange(ids.shape[-1]) == 0, 0.0, _NEVER)
        log_probs = ops.where(finished, ops.cast(only, "float32"), log_probs)
        return log_probs, ops.where(finished, PAD, ops.cast(ids, "int32"))

    def _penalty(self, lengths):
        return ((5.0 + ops.cast(lengths, "float32")) / 6.0) ** self.length_penalty

    def get_config(self):
        """The arguments, for Keras's serialisation and the artifact's manifest."""
        return asdict(self)

    @classmethod
    def from_config(cls, config):
        """The search that `get_config` described."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class GreedySearch(BeamSearch):
    """Takes the likeliest token at every step: beam search with one hypothesis.

    Example:

    >>> GreedySearch()
    GreedySearch()
    """

    def __init__(self):
        super().__init__(size=1, length_penalty=0.0)

    def __repr__(self):
        return "GreedySearch()"

    def get_config(self):
        """No arguments."""
        return {}


def _write(history, t, row):
    """`history` `(T, ...)` with `row` written at step `t`."""
    return ops.scatter_update(history, ops.reshape(t, (1, 1)), ops.expand_dims(row, 0))


def _trace_back(stop, history, parents, beams, first_row):
    """Follows the back-pointers from the last step to the first.

    Returns the tokens `(T, B, K)` of every final hypothesis, and for each of them the row of
    `(B * K,)` it was computed in.
    """

    def back(t, beams, tokens, origins):
        rows = ops.reshape(first_row + beams, (-1,))
        shape = ops.shape(beams)
        row_tokens = ops.reshape(ops.take(ops.reshape(ops.take(history, t, 0), (-1,)), rows), shape)
        parent = ops.reshape(ops.take(ops.reshape(ops.take(parents, t, 0), (-1,)), rows), shape)
        tokens = _write(tokens, t, row_tokens)
        return t - 1, parent, tokens, _write(origins, t, first_row + parent)

    _, _, tokens, origins = ops.while_loop(
        lambda t, *_: t >= 0,
        back,
        (stop - 1, beams, ops.zeros_like(history), ops.zeros_like(parents)),
    )
    return tokens, origins
