"""Beam search and greedy search."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.search.base import Search
from keras_bahdanau.search.candidates import NEVER, best_first
from keras_bahdanau.search.history import History, entries, trace_back
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import EOS, PAD


class Beam(NamedTuple):
    """The hypotheses between two steps.

    Attributes:
        totals: `(B, K)` float32 log-probabilities of the live hypotheses; -inf for one that does
            not exist.
        coverage: `(R, Tx)` float32 sums of their attention weights; `()` without a coverage
            penalty.
        ended: `(B, K)` float32 scores of the ended hypotheses that are kept, best first in each
            group; -inf for one that does not exist.
    """

    totals: Any
    coverage: Any
    ended: Any


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class BeamSearch(Search):
    """Beam search for the hypotheses with the best penalized log-probability.

        score(Y) = log p(Y) / lp(Y) + coverage_penalty * cp(Y)          (arXiv 1609.08144, Eq. 14)
        lp(Y)    = ((5 + |Y|) / 6) ^ length_penalty      or, "plain",   |Y| ^ length_penalty
        cp(Y)    = sum_j log(min(sum_i a_ij, 1))

    `|Y|` counts the tokens, `EOS` included. A step extends `size` live hypotheses. One that ends
    among the `size` best candidates of the step is set aside, so live hypotheses that are better
    for the moment cannot displace it.

    A sentence is done when `size` hypotheses have ended, or when no live one can beat the `n_best`
    best that have ended: log-probabilities only fall, so `log p / lp` at the longest length allowed
    bounds the score of a live one. `early_stopping` changes the first condition. "never" can find
    better scores but takes about twice as long with a length penalty of 1.

    Args:
        size: Number of live hypotheses `K`, and of ended ones that are kept.
        length_penalty: Exponent; 0 ranks by log-probability, which favours short outputs.
        coverage_penalty: Factor of `cp`, which asks that every source place be attended to.
        n_best: Number of hypotheses returned; all `size` if `None`.
        early_stopping: False: a sentence is done when `size` hypotheses have ended; True: when
            `n_best` have; "never": only when no live one can beat the `n_best` best.
        normalization: "gnmt" or "plain", the form of `lp`.
        groups: Number of groups of `size / groups` hypotheses. Each group is a separate beam.
            `diversity` is taken off a token for every hypothesis of an earlier group that chose it
            at the same step (arXiv 1610.02424). The scores returned do not include it.
        diversity: Cost of a repeated choice, in nats.
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
    early_stopping: bool | str = False
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
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(
                f'Argument `early_stopping` must be True, False or "never". Received: '
                f"{self.early_stopping!r}"
            )
        if self.normalization not in ("gnmt", "plain"):
            raise ValueError(
                f'Argument `normalization` must be "gnmt" or "plain". Received: '
                f"{self.normalization!r}"
            )

    _branches = _ranks = True

    def _tracked(self, batch):
        return batch, 2 * self.size  # the live hypotheses of a sentence, then its ended ones

    def _first(self, batch, memory_length):
        # Only the first beam of a group exists at the start; the others would repeat it.
        first = ops.arange(self.size, dtype="int32") % self._members == 0
        totals = ops.cast(ops.where(first, 0.0, NEVER), "float32")
        sums = (batch * self.size, memory_length)
        return Beam(
            totals=ops.broadcast_to(totals, (batch, self.size)),
            coverage=ops.zeros(sums, dtype="float32") if self.coverage_penalty else (),
            ended=ops.full((batch, self.size), NEVER, dtype="float32"),
        )

    def _live(self, beam):
        return beam.totals > NEVER

    def _advance(self, choices, beam, task):
        log_probs, ids = self._candidates(choices, task)  # (B, K, W)
        length, width = choices.t + 1, ids.shape[-1]
        coverage = beam.coverage + choices.weights if self.coverage_penalty else ()
        totals = ops.expand_dims(beam.totals, -1) + log_probs
        scores = self._score(totals, length, coverage, task.memory_mask)
        ending = ops.logical_or(ids == EOS, ops.expand_dims(length >= task.limits, -1))
        # A sentence has twice as many rows in the history: first the live hypotheses, as in the
        # state, then the ended ones.
        kept_rows = task.first_rows + ops.arange(self.size, 2 * self.size, dtype="int32")
        chosen = select(
            scores,
            ids,
            ending,
            beam.ended,
            kept_rows,
            task.first_rows,
            self.groups,
            self.diversity,
        )
        totals = entries(ops.where(ending, NEVER, totals), chosen.live_places)
        rows = chosen.live_places // width
        parents = ops.reshape(rows, (-1,))
        if self.coverage_penalty:
            coverage = ops.take(coverage, parents, axis=0)
        history_rows = task.first_rows + ops.concatenate([rows, chosen.ended_parents], axis=1)
        places = ops.concatenate([chosen.live_places, chosen.ended_places], axis=1)
        tokens = entries(ids, places)
        return (
            Beam(self._retire(totals, chosen.ended, task.limits), coverage, chosen.ended),
            ops.reshape(tokens[:, : self.size], (-1,)),
            parents,
            History(
                tokens=tokens,
                log_probs=entries(log_probs, places),
                weights=choices.weights,
                parents=ops.reshape(history_rows, (-1,)),
            ),
        )

    def _candidates(self, choices, task):
        """Return log-probabilities and ids `(B, K, W)` of the best `W` tokens of each hypothesis.

        The logits are ranked, because the rounding of log-probabilities makes ties.
        """
        vocabulary = choices.logits.shape[-1]
        # K tokens that go on are enough, also where earlier groups choose some of them. One ends.
        width = self.size + 1 + len(set(self.forbidden))
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
        shape = (-1, self.size, ids.shape[-1])
        return ops.reshape(log_probs, shape), ops.reshape(ids, shape)

    def _retire(self, totals, ended, limits):
        """Return `totals`, -inf in groups that are done, given the scores of ended hypotheses."""
        if self.groups > 1:
            by_group = (-1, self.groups, self._members)
            totals, ended = ops.reshape(totals, by_group), ops.reshape(ended, by_group)
            limits = ops.expand_dims(limits, -1)
        wanted = min(self.n_best or self.size, self._members)
        if self.early_stopping is True or (not self.early_stopping and wanted == self._members):
            done = ended[..., wanted - 1 : wanted] > NEVER
        else:
            # Log-probabilities only fall, so no live hypothesis can reach a better score.
            reachable = ops.max(totals, axis=-1, keepdims=True) / self._length_penalty(limits)
            done = ended[..., wanted - 1 : wanted] >= reachable
            if not self.early_stopping:
                done = ops.logical_or(done, ended[..., self._members - 1 :] > NEVER)
        totals = ops.where(done, NEVER, totals)
        return totals if self.groups == 1 else ops.reshape(totals, (-1, self.size))

    def _score(self, totals, length, coverage, memory_mask):
        """Scores of candidates `(B, K, W)` of one length from their log-probabilities."""
        scores = totals / self._length_penalty(length)
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

    def _best(self, beam, history, stop, task):
        first = 2 * task.first_rows + self.size  # of the ended hypotheses in the history
        n = self.n_best or self.size
        if self.groups == 1:
            return beam.ended[:, :n], first + ops.arange(n, dtype="int32")
        rows = first + ops.arange(self.size, dtype="int32")
        tokens, *_ = self._along(beam, history, rows, stop)
        repeated = repeats(tokens, beam.ended)
        scores, places = best_first(ops.where(repeated, NEVER, beam.ended), n)
        return scores, first + places

    def _along(self, beam, history, rows, stop):
        before, after = trace_back(history.parents, rows, stop)
        slots = before % (2 * self.size)
        live = slots < self.size
        # Attention weights have rows for live hypotheses only.
        read = before // (2 * self.size) * self.size + ops.minimum(slots, self.size - 1)
        weights = ops.reshape(history.weights, (-1, ops.shape(history.weights)[-1]))  # (T * R, Tx)
        log_probs = ops.where(live, entries(history.log_probs, after), 0.0)
        return (
            ops.where(live, entries(history.tokens, after), PAD),
            log_probs,
            ops.take(weights, read, axis=0),
            ops.sum(ops.cast(live, "int32"), axis=0),
            ops.sum(log_probs, axis=0),
        )

    @property
    def _members(self):
        """Number of hypotheses in a group."""
        return self.size // self.groups


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

    # Fixed for a beam of one: neither arguments nor part of the configuration.
    size: int = _fixed(1)
    length_penalty: float = _fixed(0.0)
    coverage_penalty: float = _fixed(0.0)
    n_best: int | None = _fixed(None)
    early_stopping: bool | str = _fixed(False)
    normalization: str = _fixed("gnmt")
    groups: int = _fixed(1)
    diversity: float = _fixed(0.0)


class Selection(NamedTuple):
    """The hypotheses of a beam after a step.

    Attributes:
        live_places: `(B, K)` int32, the candidates that are live next, of all `(B * K * W,)`. Where
            too few of them go on, others fill the places.
        ended: `(B, K)` float32 scores of the ended hypotheses that are kept, best first in each
            group; -inf for one that does not exist.
        ended_places: `(B, K)` int32, the candidates that they are, if they have just ended.
        ended_parents: `(B, K)` int32, the rows that they continue: of `(B * K,)` if they have just
            ended, else the `kept_rows`.
    """

    live_places: Any
    ended: Any
    ended_places: Any
    ended_parents: Any


def select(scores, ids, ending, kept, kept_rows, first_rows, groups, diversity):
    """Select the next hypotheses of a beam from candidates.

    The best candidates that do not end are live next. A candidate that ends is kept if it is among
    the best of all candidates, as many as the group has hypotheses, and its score is among the best
    of those kept.

    Args:
        scores: `(B, K, W)` float32, of the candidates.
        ids: `(B, K, W)` int32, their tokens.
        ending: `(B, K, W)` bool, whether a candidate ends.
        kept: `(B, K)` float32 scores of the ended hypotheses so far, best first in each group.
        kept_rows: `(B, K)` int32, their rows.
        first_rows: `(B, 1)` int32, `K` times the number of the sentence.
        groups: Number of groups, which divides `K`.
        diversity: Cost of a token for each hypothesis of an earlier group that chose it.

    Returns:
        A `Selection`, whose scores do not include that cost.
    """
    size, width = scores.shape[1:]
    members = size // groups
    going = ops.where(ending, NEVER, scores)
    ended_scores = ops.where(ending, scores, NEVER)
    selected, tokens = [], []  # of the groups so far
    for group in range(groups):

        def own(tensor, group=group):
            rows = slice(group * members, (group + 1) * members)
            return tensor if groups == 1 else tensor[:, rows]

        cost = 0.0
        for earlier in tokens:
            same = ops.equal(own(ids)[..., None], earlier[:, None, None, :])
            cost = cost + diversity * ops.sum(ops.cast(same, "float32"), axis=-1)
        ranked = (own(part) - cost if tokens else own(part) for part in (going, scores))
        (live, live_places), (_, places) = (
            best_first(ops.reshape(part, (-1, members * width)), members) for part in ranked
        )
        first = first_rows * width + group * members * width
        live_places, places = first + live_places, first + places
        best = entries(ended_scores, places)
        ended, order = best_first(ops.concatenate([own(kept), best], axis=1), members)
        order = order + (first_rows // size) * (2 * members)  # into (B * 2 * members,)
        parents = ops.concatenate([own(kept_rows), places // width], axis=1)
        ended_places = entries(ops.concatenate([places, places], axis=1), order)
        selected.append(Selection(live_places, ended, ended_places, entries(parents, order)))
        if len(selected) < groups:
            exists = ops.concatenate([live > NEVER, best > NEVER], axis=1)
            taken = entries(ids, ops.concatenate([live_places, places], axis=1))
            tokens.append(ops.where(exists, taken, -1))
    if groups == 1:
        return selected[0]
    return Selection(*(ops.concatenate(parts, axis=1) for parts in zip(*selected, strict=True)))


def repeats(tokens, scores):
    """Whether a hypothesis repeats an earlier one, `(B, K)` bool.

    Args:
        tokens: `(T, B, K)` int32, padded with `PAD`.
        scores: `(B, K)` float32; -inf for a hypothesis that does not exist.
    """
    same = ops.all(ops.equal(ops.expand_dims(tokens, 3), ops.expand_dims(tokens, 2)), axis=0)
    same = ops.logical_and(same, ops.expand_dims(scores > NEVER, 1))
    ids = ops.arange(tokens.shape[2], dtype="int32")
    earlier = ops.expand_dims(ids, 1) > ops.expand_dims(ids, 0)
    return ops.any(ops.logical_and(same, earlier), axis=2)
