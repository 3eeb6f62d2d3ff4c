"""Beam search and greedy search."""

from dataclasses import dataclass, field

import keras
import numpy as np
from keras import ops

from keras_bahdanau.search.base import Hypotheses, Search, ends
from keras_bahdanau.search.groups import choose_in_groups, repeats
from keras_bahdanau.search.history import History, entries, trace_back
from keras_bahdanau.search.ranking import NEVER, best_first
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import PAD


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class BeamSearch(Search):
    """Beam search that keeps the `size` best hypotheses by penalised log-probability.

        score(Y) = log p(Y) / lp(Y) + coverage_penalty * cp(Y)          (arXiv 1609.08144, Eq. 14)
        lp(Y)    = ((5 + |Y|) / 6) ^ length_penalty      or, "plain",   |Y| ^ length_penalty
        cp(Y)    = sum_j log(min(sum_i a_ij, 1))

    A hypothesis that ended keeps its place and its score; it leaves only for better ones. A
    sentence is done when no live hypothesis can still beat the worst of its `n_best` ended ones:
    log-probabilities only fall, so `log p / lp` at the longest length allowed bounds what a live
    one can reach. With `early_stopping` it is done as soon as `n_best` of the beam have ended.

    Args:
        size: Number of hypotheses `K`.
        length_penalty: Exponent; 0 ranks by log-probability, which favours short outputs.
        coverage_penalty: Factor of `cp`, which asks that every source place be attended to.
        n_best: Number of hypotheses returned; all `size` if `None`.
        early_stopping: Whether the cheaper stopping rule is used.
        normalization: "gnmt" or "plain", the form of `lp`.
        groups: Number of groups the beam is cut into; each is searched with `diversity` taken off
            a token for every hypothesis of an earlier group that chose it at the same step
            (arXiv 1610.02424). The scores returned hold no such term.
        diversity: What a repeated choice costs, in nats.
        min_length: Number of tokens, `EOS` included, before which no hypothesis ends.
        forbidden: Ids that are never chosen; padding and the start of a sentence unless told
            otherwise.
        no_repeat_ngram: No sequence of this many tokens occurs twice in a hypothesis; 0 allows all.
        max_length_ratio: Tokens for each place of the memory after which hypotheses are cut; see
            `Search`.

    Raises:
        ValueError: If a number is out of its range, `n_best > size` or `groups` does not divide
            `size`.

    Example:

    >>> import numpy as np
    >>> log_probs = np.log([[0.1, 0.1, 0.1, 0.2, 0.5]])                     # token 4 leads
    >>> def step(tokens, state):
    ...     end = np.log([[1e-9, 1e-9, 1e-9, 1.0, 1e-9]])                   # then EOS, 3
    ...     rows = ops.shape(tokens)[0]
    ...     first = ops.expand_dims(tokens == 2, -1)
    ...     return ops.where(first, log_probs, end), state, ops.ones((rows, 1))
    >>> found = BeamSearch(size=2)(step, (), ops.array([2]), max_length=3)
    >>> ops.convert_to_numpy(found.tokens[0, 0]).tolist()
    [4, 3, 0]
    """

    size: int = 5
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    n_best: int | None = None
    early_stopping: bool = False
    normalization: str = "gnmt"
    groups: int = 1
    diversity: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_range("size", self.size, int, 1)
        check_range("length_penalty", self.length_penalty, float, 0)
        check_range("coverage_penalty", self.coverage_penalty, float, 0)
        check_range("diversity", self.diversity, float, 0)
        check_range("groups", self.groups, int, 1, self.size)
        if self.n_best is not None:
            check_range("n_best", self.n_best, int, 1, self.size)
        if self.size % self.groups:
            raise ValueError(
                f"Argument `groups` must divide `size`, {self.size}. Received: {self.groups}"
            )
        if self.normalization not in ("gnmt", "plain"):
            raise ValueError(
                f'Argument `normalization` must be "gnmt" or "plain". Received: '
                f"{self.normalization!r}"
            )

    _branches = _ranks = True

    def _first(self, batch, memory_length):
        shape = (batch, self.size)
        # Only the first beam of a group exists at the start; the others would repeat it.
        first = ops.arange(self.size, dtype="int32") % (self.size // self.groups) == 0
        totals = ops.cast(ops.where(first, 0.0, NEVER), "float32")
        sums = (batch * self.size, memory_length)
        coverage = ops.zeros(sums, dtype="float32") if self.coverage_penalty else ()
        return Hypotheses(
            totals=ops.broadcast_to(totals, shape),
            lengths=ops.zeros(shape, dtype="int32"),
            finished=ops.zeros(shape, dtype="bool"),
            coverage=coverage,
        )

    def _live(self, hypotheses):
        # Of what does not exist nothing is to come.
        return ops.logical_and(ops.logical_not(hypotheses.finished), hypotheses.totals > NEVER)

    def _advance(self, choices, hypotheses, task):
        log_probs, ids = self._candidates(choices, hypotheses.finished, task)  # (B, K, W)
        width = ids.shape[-1]
        alive = ops.logical_not(hypotheses.finished)
        lengths = hypotheses.lengths + ops.cast(alive, "int32")
        coverage = hypotheses.coverage
        if self.coverage_penalty:
            coverage = coverage + ops.where(ops.reshape(alive, (-1, 1)), choices.weights, 0.0)
        totals = ops.expand_dims(hypotheses.totals, -1) + log_probs
        scores = self._score(totals, ops.expand_dims(lengths, -1), coverage, task.memory_mask)
        scores, best = self._choose(scores, ids, alive)  # best: into (K * W,)

        chosen = task.first_rows * width + best  # into (B * K * W,)
        parents = task.first_rows + best // width  # into (B * K,)
        tokens, log_probs, totals = (entries(part, chosen) for part in (ids, log_probs, totals))
        lengths, finished = (entries(part, parents) for part in (lengths, hypotheses.finished))
        finished = ops.logical_or(finished, ends(tokens, lengths, task.limits))
        totals = self._retire(totals, scores, finished, task.limits)
        parents = ops.reshape(parents, (-1,))
        if self.coverage_penalty:
            coverage = ops.take(coverage, parents, axis=0)
        return (
            Hypotheses(totals, lengths, finished, coverage),
            History(tokens, log_probs, choices.weights, parents),
        )

    def _candidates(self, choices, finished, task):
        """The best `W` continuations of every hypothesis: log-probabilities and ids `(B, K, W)`.

        An ended hypothesis has one continuation, `PAD` at no cost. The logits are ranked, not the
        log-probabilities, whose rounding makes ties.
        """
        vocabulary = choices.logits.shape[-1]
        # Of W tokens at most K are chosen by earlier groups, so that enough others remain.
        width = self.size if self.groups == 1 else self.size + self.size // self.groups
        width += len(set(self.forbidden))
        best, ids = best_first(choices.allowed, min(width, vocabulary))
        table = ops.reshape(ops.log_softmax(choices.logits, axis=-1), (-1,))
        rows = ops.arange(task.batch * self.size, dtype="int32")
        place = ops.expand_dims(rows * vocabulary, -1)  # (R, 1)
        log_probs = ops.take(table, place + ids, axis=0)
        if choices.allowed is not choices.logits:
            log_probs = ops.where(ops.equal(best, NEVER), NEVER, log_probs)
        if self.forbidden:
            barrier = np.zeros(vocabulary, "float32")  # of a list Keras looks at every item
            barrier[list(self.forbidden)] = NEVER
            log_probs = log_probs + ops.take(ops.convert_to_tensor(barrier), ids)
        first = ops.arange(ids.shape[-1]) == 0
        if choices.forced is not None:
            forced = ops.expand_dims(choices.forced, -1)
            given = ops.take(table, place + forced, axis=0)
            held = ops.not_equal(forced, PAD)
            log_probs = ops.where(held, ops.where(first, given, NEVER), log_probs)
            ids = ops.where(held, forced, ids)
        finished = ops.reshape(finished, (-1, 1))
        nothing = ops.cast(ops.where(first, 0.0, NEVER), "float32")
        log_probs = ops.where(finished, nothing, log_probs)
        ids = ops.where(finished, PAD, ids)
        shape = (-1, self.size, ids.shape[-1])
        return ops.reshape(log_probs, shape), ops.reshape(ids, shape)

    def _choose(self, scores, ids, alive):
        """Scores `(B, K)` of the next hypotheses; their places in the candidates, `(B, K * W)`."""
        if self.groups > 1:
            return choose_in_groups(scores, ids, alive, self.groups, self.diversity)
        return best_first(ops.reshape(scores, (-1, self.size * ids.shape[-1])), self.size)

    def _retire(self, totals, scores, finished, limits):
        """The totals where sentences that are done end: their live hypotheses cease to exist."""
        # Each group may hold the same hypothesis once: among so many, `n_best` differ.
        wanted = min((self.n_best or self.size) * self.groups, self.size)
        kept = ops.where(finished, scores, NEVER)
        if wanted == self.size:
            kept = ops.min(kept, axis=1)
        else:
            kept = ops.top_k(kept, wanted)[0][:, -1]
        done = kept > NEVER  # the worst of those wanted exists
        if not self.early_stopping:
            reachable = ops.where(finished, NEVER, totals / self._length_penalty(limits))
            done = ops.logical_and(done, ops.max(reachable, axis=1) <= kept)
        gone = ops.logical_and(ops.expand_dims(done, -1), ops.logical_not(finished))
        return ops.where(gone, NEVER, totals)

    def _score(self, totals, lengths, coverage, memory_mask):
        """Scores of candidates `(B, K, W)` from log-probabilities and lengths `(B, K, 1)`."""
        scores = totals / self._length_penalty(lengths)
        if not self.coverage_penalty:
            return scores
        # A place that was never attended to costs a lot, but not everything.
        places = ops.log(ops.clip(coverage, 1e-10, 1.0))
        places = ops.reshape(places, (ops.shape(totals)[0], self.size, -1))
        if memory_mask is not None:
            places = ops.where(ops.expand_dims(memory_mask, 1), places, 0.0)
        return scores + self.coverage_penalty * ops.sum(places, axis=-1, keepdims=True)

    def _length_penalty(self, lengths):
        lengths = ops.cast(lengths, "float32")
        base = (5.0 + lengths) / 6.0 if self.normalization == "gnmt" else lengths
        return base**self.length_penalty

    def _best(self, hypotheses, history, stop, task):
        totals, lengths, _, coverage = hypotheses
        totals, lengths = ops.expand_dims(totals, -1), ops.expand_dims(lengths, -1)
        scores = ops.squeeze(self._score(totals, lengths, coverage, task.memory_mask), -1)
        if self.groups > 1:
            repeated = repeats(hypotheses.lengths, scores, history, stop)
            scores = ops.where(repeated, NEVER, scores)
        return best_first(scores, self.n_best or self.size)

    def _along(self, history, rows, stop):
        before, after = trace_back(history.parents, rows, stop)
        weights = ops.reshape(history.weights, (-1, ops.shape(history.weights)[-1]))  # (T * R, Tx)
        return (
            entries(history.tokens, after),
            entries(history.log_probs, after),
            ops.take(weights, before, axis=0),
        )


def _fixed(value):
    return field(default=value, init=False, repr=False)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class GreedySearch(BeamSearch):
    """Takes the likeliest token at every step: beam search with one hypothesis.

    Args:
        min_length: Number of tokens, `EOS` included, before which the output does not end.
        forbidden: Ids that are never chosen; as for `BeamSearch`.
        no_repeat_ngram: No sequence of this many tokens occurs twice; 0 allows all.
        max_length_ratio: Tokens for each place of the memory after which the output is cut.

    Example:

    >>> GreedySearch(min_length=3)
    GreedySearch(min_length=3, forbidden=(0, 2), no_repeat_ngram=0, max_length_ratio=None)
    """

    # What a beam of one has no choice of; no argument, and in no configuration.
    size: int = _fixed(1)
    length_penalty: float = _fixed(0.0)
    coverage_penalty: float = _fixed(0.0)
    n_best: int | None = _fixed(None)
    early_stopping: bool = _fixed(False)
    normalization: str = _fixed("gnmt")
    groups: int = _fixed(1)
    diversity: float = _fixed(0.0)
