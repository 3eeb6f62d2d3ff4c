"""Beam search, diverse beam search and greedy search."""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bahdanau.search.base import Search, is_tensor
from keras_bahdanau.search.candidates import NEG_INF, row_starts, stable_top_k
from keras_bahdanau.search.history import History, take_flat, trace_back
from keras_bahdanau.search.required import count_missing, extend, rank_by_turns
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.search_settings import check_setting


class Beam(NamedTuple):
    """Hypotheses of a beam between two steps.

    Attributes:
        totals: `(B, K)` float32 log-probabilities of the live hypotheses; -inf for a hypothesis
            that does not exist.
        ended: `(B, K)` float32 scores of the best ended hypotheses, best first in each group; -inf
            for a hypothesis that does not exist.
    """

    totals: Any
    ended: Any


class Extensions(NamedTuple):
    """The best `W` tokens to extend each hypothesis with, `(B, K, W)` each.

    Attributes:
        ids: Int32 tokens.
        log_probs: Float32 log-probabilities of the tokens.
        totals: Float32 log-probabilities of the hypotheses; -inf if they end.
        ended_scores: Float32 scores of the hypotheses; -inf if they do not end.
        live_ranks: Float32 numbers that rank the hypotheses that do not end, best highest; -inf for
            the others.
        ranks: Float32 numbers that rank all hypotheses; -inf for those that do not exist.
    """

    ids: Any
    log_probs: Any
    totals: Any
    ended_scores: Any
    live_ranks: Any
    ranks: Any


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class BeamSearch(Search):
    """Beam search for the hypotheses with the best penalized log-probability.

        score(Y) = log p(Y) / lp(Y) + coverage_penalty * cp(Y)          (arXiv 1609.08144, Eq. 14)
        lp(Y)    = ((5 + |Y|) / 6) ^ length_penalty      or, "plain",   |Y| ^ length_penalty
        cp(Y)    = sum_j log(min(sum_i a_ij, 1))

    `|Y|` is the number of tokens, `EOS` included, plus `length_offset`. A step extends `beam_size`
    live hypotheses. A candidate that ends and is among the `beam_size` best of the step is stored
    separately, so live hypotheses cannot displace it.

    The search of a sentence stops when `beam_size` hypotheses have ended and the best of them
    leads: no live hypothesis has a better `log p / lp` so far, so none has a better score either,
    as `cp` is at most 0. It also stops when no live hypothesis can beat the `n_best` best ended
    ones. Log-probabilities only fall, so `log p / lp` at the maximum length is an upper bound for
    the score of a live hypothesis. `early_stopping` changes the first condition. "never" can find
    better scores but takes about twice as long with a length penalty of 1.

    Args:
        beam_size: Number of live hypotheses `K`, and of stored ended hypotheses.
        length_penalty: Exponent of the length; 0 ranks by log-probability, which favors short
            outputs.
        coverage_penalty: Weight of `cp`, which rewards attention to every source position.
        n_best: Number of hypotheses returned; `beam_size` if `None`.
        early_stopping: When the search of a sentence stops. "leading": when `beam_size` hypotheses
            have ended and the best of them leads; False: when `beam_size` have ended, even if all
            are cut short; True: when `n_best` have ended; "best": when `n_best` have ended and the
            best candidate of the step is one that ends, as in OpenNMT-py; "never": only when no
            live hypothesis can beat the `n_best` best.
        normalization: "gnmt" or "plain", the form of `lp`.
        length_offset: Number added to the length in `lp`; 1 counts the start token, as OpenNMT-py
            does.
        groups: Number of groups of `beam_size / groups` hypotheses (diverse beam search,
            arXiv 1610.02424). Each group is a separate beam. `diversity` is subtracted from the
            score of a token once per hypothesis of an earlier group that chose it at the same
            step. The returned scores do not include it.
        diversity: Penalty per repeated choice, in nats.
        min_length: Minimum number of tokens in an output, `EOS` included.
        forbidden: Ids that are never chosen; padding and `BOS` by default.
        no_repeat_ngram: Length of the n-grams that may not occur twice in a hypothesis; 0 for no
            limit.
        repetition_penalty: Factor of the log-probability of a repeated token; see `Search`.
        max_length_ratio: Maximum number of tokens per memory position; see `Search`.

    Raises:
        ValueError: If a number is out of range, `n_best > beam_size`, or `groups` does not divide
            `beam_size`.

    Example:

    >>> import numpy as np
    >>> log_probs = np.log([[0.1, 0.1, 0.1, 0.2, 0.5]])            # first step: token 4 is the best
    >>> def step(tokens, state):
    ...     end = np.log([[1e-9, 1e-9, 1e-9, 1.0, 1e-9]])          # later steps: EOS, id 3
    ...     rows = ops.shape(tokens)[0]
    ...     first = ops.expand_dims(tokens == 2, -1)
    ...     return ops.where(first, log_probs, end), state, ops.ones((rows, 1))
    >>> generation = BeamSearch(2)(step, (), ops.array([2]), max_length=3)
    >>> ops.convert_to_numpy(generation.tokens[0, 0]).tolist()
    [4, 3, 0]
    """

    beam_size: int = 5
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    n_best: int | None = None
    early_stopping: bool | str = "leading"
    normalization: str = "gnmt"
    groups: int = 1
    diversity: float = 0.0
    length_offset: int = 0

    def __post_init__(self):
        super().__post_init__()
        for name in (
            "beam_size",
            "length_penalty",
            "coverage_penalty",
            "diversity",
            "length_offset",
        ):
            check_setting(name, getattr(self, name))
        check_setting("groups", self.groups, high=self.beam_size)
        if self.n_best is not None:
            check_setting("n_best", self.n_best, high=self.beam_size)
        if self.beam_size % self.groups:
            raise argument_error(
                "groups", f"divide `beam_size`, {self.beam_size}", received=str(self.groups)
            )
        rules = ("leading", "best", "never")
        if type(self.early_stopping) is not bool and self.early_stopping not in rules:
            raise argument_error(
                "early_stopping",
                'be True, False, "leading", "best" or "never"',
                self.early_stopping,
            )
        if self.normalization not in ("gnmt", "plain"):
            raise argument_error("normalization", 'be "gnmt" or "plain"', self.normalization)

        object.__setattr__(
            self, "_largest_size", self.beam_size
        )  # copies with other options keep it

    _reorders = _excludes_ids = True

    @property
    def accepts_required(self):
        return self._largest_size > 1 and self.groups == 1

    _constraints: ClassVar = {**Search._constraints, "coverage_penalty": 0.0}

    def _history_shape(self, batch):
        return batch, 2 * self.beam_size  # per sentence: the live hypotheses, then the ended ones

    def _initial(self, batch, memory_length):
        # Only the first hypothesis of a group exists at the start; the others would repeat it.
        first = ops.arange(self.beam_size, dtype="int32") % self._group_size == 0
        totals = ops.cast(ops.where(first, 0.0, NEG_INF), "float32")
        return Beam(
            totals=ops.broadcast_to(totals, (batch, self.beam_size)),
            ended=ops.full((batch, self.beam_size), NEG_INF, dtype="float32"),
        )

    def _is_live(self, beam):
        return beam.totals > NEG_INF

    def _log_probs(self, logits):
        return ops.log_softmax(logits, axis=-1)

    def _choose(self, candidates, beam, task):
        log_probs, ids = self._top_tokens(candidates, task)
        length = candidates.t + 1
        ending = ops.logical_or(ids == EOS, ops.expand_dims(length >= task.inputs.limits, -1))
        if task.inputs.required is not None:
            missing = self._count_missing(ids, candidates, task)
            fits = self._fits(missing, ids, ending, candidates, task)
            log_probs = ops.where(fits, log_probs, NEG_INF)
        totals = ops.expand_dims(beam.totals, -1) + log_probs
        scores = totals / self._length_penalty(length)
        if self._may_apply("coverage_penalty"):
            scores = scores + self._coverage_rewards(candidates.past, task)
        live_ranks, ranks = ops.where(ending, NEG_INF, scores), scores
        if task.inputs.required is not None:
            num_banks = math.prod(ops.shape(task.inputs.required)[1:]) + 1
            live_ranks, ranks = (
                rank_by_turns(part, missing, self.beam_size, num_banks)
                for part in (live_ranks, ranks)
            )
        return Extensions(
            ids=ids,
            log_probs=log_probs,
            totals=ops.where(ending, NEG_INF, totals),
            ended_scores=ops.where(ending, scores, NEG_INF),
            live_ranks=live_ranks,
            ranks=ranks,
        )

    def _count_missing(self, ids, candidates, task):
        """Return how many tokens of required phrases each candidate lacks, `(B, K, W)` int32."""
        tokens = ops.reshape(ids, (-1, ids.shape[-1]))
        progress = extend(candidates.progress, task.inputs.required, tokens)
        return ops.reshape(
            count_missing(progress, task.inputs.required), (-1, self.beam_size, ids.shape[-1])
        )

    def _fits(self, missing, ids, ending, candidates, task):
        """Return whether an output can follow a candidate and contain all phrases, bool."""
        rest = ops.expand_dims(task.inputs.limits - candidates.t - 1, -1)
        fits = missing <= ops.where(ids == EOS, 0, rest)
        own = candidates.forced if candidates.prefix is None else candidates.prefix
        if own is None:
            return fits
        # The prefix may contain tokens of several phrases at once, which `missing` does not count.
        is_own = _is_prefix_token(ids, ops.reshape(own, (-1, self.beam_size)))
        return ops.logical_or(fits, ops.logical_and(is_own, ops.logical_not(ending)))

    def _advance(self, t, choice, weights, beam, task):
        # The history has 2K rows per sentence: K live hypotheses, in the order of the state, then
        # K ended ones.
        ended_rows = task.first_rows + ops.arange(self.beam_size, 2 * self.beam_size, dtype="int32")
        selection = select_hypotheses(
            choice,
            beam.ended,
            ended_rows,
            task.first_rows,
            self.beam_size,
            self.groups,
            self.diversity,
        )
        totals = take_flat(choice.totals, selection.live)
        totals = self._stop_groups(t, totals, selection, task.inputs.limits)
        rows = selection.live // choice.ids.shape[-1]
        history_rows = task.first_rows + ops.concatenate([rows, selection.ended_parents], axis=1)
        indices = ops.concatenate([selection.live, selection.ended], axis=1)
        tokens = take_flat(choice.ids, indices)
        return (
            Beam(totals, selection.ended_scores),
            ops.reshape(tokens[:, : self.beam_size], (-1,)),
            ops.reshape(rows, (-1,)),
            History(
                tokens=tokens,
                log_probs=take_flat(choice.log_probs, indices),
                weights=weights,
                parents=ops.reshape(history_rows, (-1,)),
            ),
        )

    def _top_tokens(self, candidates, task):
        """Return log-probabilities and ids `(B, K, W)` of the best `W` tokens per hypothesis.

        Ranks the logits: log-probabilities would have additional ties from rounding.
        """
        vocabulary_size = candidates.logits.shape[-1]
        # One of these tokens may be EOS and some may be forbidden. Earlier groups take fewer than K
        # of the others, so enough remain for this group.
        width = self._largest_size + 1 + len(set(self.forbidden))
        top, ids = stable_top_k(candidates.allowed, min(width, vocabulary_size))
        bars = self._bars(top, ids, candidates)
        if candidates.forced is not None:
            forced = ops.expand_dims(candidates.forced, -1)
            is_forced = forced > PAD
            ids = ops.where(is_forced, forced, ids)
            is_first = ops.arange(ids.shape[-1]) == 0
            bars = ops.where(is_forced, ops.where(is_first, 0.0, NEG_INF), bars)
        row_start = row_starts(task.batch * self.beam_size, vocabulary_size)
        log_probs = take_flat(candidates.log_probs, row_start + ids)
        log_probs = self._penalized(log_probs, ids, candidates) + bars
        shape = (-1, self.beam_size, ids.shape[-1])
        return ops.reshape(log_probs, shape), ops.reshape(ids, shape)

    def _bars(self, top, ids, candidates):
        """Return -inf for candidates that are not allowed, 0 for the others.

        Args:
            top: `(R, W)` float32 allowed logits.
            ids: `(R, W)` int32 their tokens.
            candidates: The `Candidates`.

        Returns:
            `(R, W)` float32, or 0.0 if all candidates are allowed.
        """
        bars = 0.0
        if self.forbidden:
            # An array, because Keras converts a list item by item.
            bars = np.zeros(candidates.logits.shape[-1], "float32")
            bars[list(self.forbidden)] = NEG_INF
            bars = ops.take(ops.convert_to_tensor(bars), ids)
        if self._may_apply("min_length"):
            is_early = ops.logical_and(ids == EOS, candidates.t + 1 < self.min_length)
            bars = ops.where(is_early, NEG_INF, bars)
        if candidates.prefix is not None:
            bars = ops.where(_is_prefix_token(ids, candidates.prefix), 0.0, bars)
        if candidates.allowed is not candidates.logits:
            bars = ops.where(ops.equal(top, NEG_INF), NEG_INF, bars)
        return bars

    def _stop_groups(self, t, totals, selection, limits):
        """Return `totals`, set to -inf in groups whose search is finished.

        Args:
            t: Number of the step, a scalar int32 tensor.
            totals: `(B, K)` float32 log-probabilities of live hypotheses.
            selection: The `Selection` of the step.
            limits: `(B, 1)` int32 maximum lengths.
        """
        ended = selection.ended_scores
        if self.groups > 1:
            by_group = (-1, self.groups, self._group_size)
            totals, ended = ops.reshape(totals, by_group), ops.reshape(ended, by_group)
            limits = ops.expand_dims(limits, -1)
        n, last = self._num_returned(self._group_size), ended[..., -1:]
        if is_tensor(n):
            nth = ops.take(ended, ops.reshape(n - 1, (1,)), axis=-1)
        else:
            nth = last if n is None else ended[..., n - 1 : n]
        if self.early_stopping == "best":
            best_ends = selection.best_ends
            if self.groups > 1:
                best_ends = ops.expand_dims(best_ends, -1)
            done = ops.logical_and(nth > NEG_INF, best_ends)
        elif self.early_stopping is True or (self.early_stopping is False and n is None):
            done = nth > NEG_INF
        else:
            best = ops.max(totals, axis=-1, keepdims=True)
            conditions = []
            if n is not None or self.early_stopping == "never":
                # Log-probabilities only fall, so no live hypothesis can reach a better score.
                conditions.append(nth >= best / self._length_penalty(limits))
            if self.early_stopping == "leading":
                leads = ended[..., :1] >= best / self._length_penalty(t + 1)
                conditions.append(ops.logical_and(last > NEG_INF, leads))
            elif self.early_stopping is False:
                conditions.append(last > NEG_INF)
            done = functools.reduce(ops.logical_or, conditions)
        totals = ops.where(done, NEG_INF, totals)
        return totals if self.groups == 1 else ops.reshape(totals, (-1, self.beam_size))

    def _coverage_rewards(self, past, task):
        """Return what the coverage adds to the scores, `(B, K, 1)`."""
        # The lower bound keeps the penalty of a position without attention finite.
        rewards = ops.sum(ops.log(ops.clip(past.coverage, 1e-10, 1.0)), axis=-1)
        return self.coverage_penalty * ops.reshape(rewards, (task.batch, self.beam_size, 1))

    def _length_penalty(self, lengths):
        if self.length_offset:  # adding 0 would be an operation of each step
            lengths = lengths + self.length_offset
        lengths = ops.cast(lengths, "float32")
        base = (5.0 + lengths) / 6.0 if self.normalization == "gnmt" else lengths
        return base**self.length_penalty

    def _results(self, beam, history, stop, task):
        first = 2 * task.first_rows + self.beam_size  # history row of the first ended hypothesis
        n = self._num_returned(self.beam_size)
        if self.groups == 1:
            ended = beam.ended if n is None else beam.ended[:, :n]
            return ended, first + ops.arange(self.beam_size if n is None else n, dtype="int32")
        rows = first + ops.arange(self.beam_size, dtype="int32")
        tokens, *_ = self._paths(beam, history, rows, stop)
        repeated = is_repeated(tokens, beam.ended)
        scores, indices = stable_top_k(
            ops.where(repeated, NEG_INF, beam.ended), self.beam_size if n is None else n
        )
        return scores, first + indices

    def _paths(self, beam, history, rows, stop):
        before, after = trace_back(history.parents, rows, stop)
        slots = before % (2 * self.beam_size)
        live = slots < self.beam_size
        # Attention weights have rows for live hypotheses only.
        weight_rows = before // (2 * self.beam_size) * self.beam_size + ops.minimum(
            slots, self.beam_size - 1
        )
        weights = ops.reshape(history.weights, (-1, ops.shape(history.weights)[-1]))  # (T * R, Tx)
        log_probs = ops.where(live, take_flat(history.log_probs, after), 0.0)
        return (
            ops.where(live, take_flat(history.tokens, after), PAD),
            log_probs,
            ops.take(weights, weight_rows, axis=0),
            ops.sum(ops.cast(live, "int32"), axis=0),
            ops.sum(log_probs, axis=0),
        )

    def _num_returned(self, size):
        """Return how many hypotheses are returned, an int or a tensor; `None` for all."""
        if self.n_best is None:
            return None
        if is_tensor(size):
            return ops.minimum(self.n_best, size)
        return None if self.n_best >= size else self.n_best

    def options(self):
        names = ("length_penalty", "coverage_penalty")
        beam_size = {"beam_size": self.beam_size} if self.groups == 1 else {}
        return {**beam_size, **{name: getattr(self, name) for name in names}, **super().options()}

    @classmethod
    def from_config(cls, config):
        """Return the search with the arguments in `config`; `size` is a former name."""
        names = {"size": "beam_size"}
        return super().from_config({names.get(name, name): config[name] for name in config})

    @property
    def num_hypotheses(self):
        """Number of hypotheses per sentence, `beam_size`."""
        return self.beam_size

    @property
    def _group_size(self):
        """Number of hypotheses in a group."""
        return self.beam_size if self.groups == 1 else self.beam_size // self.groups


def _is_prefix_token(ids, prefix):
    """Return whether candidates `(..., W)` are the token `(...)` of the prefix, `PAD` for none."""
    prefix = ops.expand_dims(prefix, -1)
    return ops.logical_and(ops.equal(ids, prefix), ops.not_equal(prefix, PAD))


def _constant(value):
    return field(default=value, init=False, repr=False)


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class GreedySearch(BeamSearch):
    """Greedy search: the most probable token at every step, a beam of size 1.

    Args:
        min_length: Minimum number of tokens in an output, `EOS` included.
        forbidden: Ids that are never chosen; padding and `BOS` by default.
        no_repeat_ngram: Length of the n-grams that may not occur twice; 0 for no limit.
        repetition_penalty: Factor of the log-probability of a repeated token; see `Search`.
        max_length_ratio: Maximum number of tokens per memory position; see `Search`.

    Example:

    >>> GreedySearch(min_length=3)
    GreedySearch(min_length=3, forbidden=(0, 2), no_repeat_ngram=0, repetition_penalty=1.0, \
max_length_ratio=None)
    """

    # Constants of a beam of size 1: neither arguments nor part of the config.
    beam_size: int = _constant(1)
    length_penalty: float = _constant(0.0)
    coverage_penalty: float = _constant(0.0)
    n_best: int | None = _constant(None)
    early_stopping: bool | str = _constant(False)
    normalization: str = _constant("gnmt")
    groups: int = _constant(1)
    diversity: float = _constant(0.0)
    length_offset: int = _constant(0)

    def options(self):
        return Search.options(self)


class Selection(NamedTuple):
    """Hypotheses selected from the candidates of a step.

    Attributes:
        live: `(B, K)` int32, indices of the next live hypotheses among all `B * K * W` candidates.
            If too few candidates continue, arbitrary ones fill the rest.
        ended_scores: `(B, K)` float32 scores of the best ended hypotheses, best first in each
            group; -inf for a hypothesis that does not exist.
        ended: `(B, K)` int32, candidate indices of the hypotheses that ended in this step;
            arbitrary for those that ended earlier.
        ended_parents: `(B, K)` int32, the rows that the ended hypotheses continue: one of the
            `B * K` live rows if they ended in this step, else their row in `ended_rows`.
        best_ends: `(B, groups)` bool, whether the best candidate of a group ends.
    """

    live: Any
    ended_scores: Any
    ended: Any
    ended_parents: Any
    best_ends: Any


def select_hypotheses(extensions, ended_scores, ended_rows, first_rows, size, groups, diversity):
    """Select the next hypotheses of a beam from candidates, group by group.

    The best candidates that continue become the live hypotheses. A candidate that ends is stored
    if it is among the best candidates of its group, as many as the group has hypotheses, and its
    score is among the best ended scores of the group.

    Args:
        extensions: The candidates, `Extensions` `(B, K, W)`.
        ended_scores: `(B, K)` float32 scores of the hypotheses that ended in earlier steps, best
            first in each group.
        ended_rows: `(B, K)` int32 rows of these hypotheses.
        first_rows: `(B, 1)` int32, `K` times the number of the sentence.
        size: Number of hypotheses `K`.
        groups: Number of groups, a divisor of `K`.
        diversity: Penalty of a token per hypothesis of an earlier group that chose it.

    Returns:
        A `Selection`. Its ended scores do not include the diversity penalty.
    """
    width, members = extensions.ids.shape[-1], size if groups == 1 else size // groups
    selections, chosen_tokens = [], []  # one entry per group
    for group in range(groups):

        def in_group(tensor, group=group):
            rows = slice(group * members, (group + 1) * members)
            return tensor if groups == 1 else tensor[:, rows]

        penalty = 0.0
        for tokens in chosen_tokens:
            same = ops.equal(in_group(extensions.ids)[..., None], tokens[:, None, None, :])
            penalty = penalty + diversity * ops.sum(ops.cast(same, "float32"), axis=-1)
        ranks = (
            in_group(part) - penalty if chosen_tokens else in_group(part)
            for part in (extensions.live_ranks, extensions.ranks)
        )
        (top_live_ranks, live), (_, top) = (
            stable_top_k(ops.reshape(part, (-1, members * width)), members) for part in ranks
        )
        first = first_rows * width
        if group:
            first = first + group * members * width
        live, top = first + live, first + top
        top_ended_scores = take_flat(extensions.ended_scores, top)
        group_scores, order = stable_top_k(
            ops.concatenate([in_group(ended_scores), top_ended_scores], axis=1), members
        )
        first = 2 * first_rows if groups == 1 else (first_rows // size) * (2 * members)
        order = first + order  # into (B * 2 * members,)
        parents = ops.concatenate([in_group(ended_rows), top // width], axis=1)
        ended = take_flat(ops.concatenate([top, top], axis=1), order)
        parents = take_flat(parents, order)
        best_ends = top_ended_scores[:, :1] > NEG_INF
        selections.append(Selection(live, group_scores, ended, parents, best_ends))
        if len(selections) < groups:
            exists = ops.concatenate([top_live_ranks > NEG_INF, top_ended_scores > NEG_INF], 1)
            tokens = take_flat(extensions.ids, ops.concatenate([live, top], axis=1))
            chosen_tokens.append(ops.where(exists, tokens, -1))
    if groups == 1:
        return selections[0]
    return Selection(*(ops.concatenate(parts, axis=1) for parts in zip(*selections, strict=True)))


def is_repeated(tokens, scores):
    """Return whether a hypothesis repeats an earlier one of its sentence, `(B, K)` bool.

    Args:
        tokens: `(T, B, K)` int32, padded with `PAD`.
        scores: `(B, K)` float32; -inf for a hypothesis that does not exist.
    """
    same = ops.all(ops.equal(ops.expand_dims(tokens, 3), ops.expand_dims(tokens, 2)), axis=0)
    same = ops.logical_and(same, ops.expand_dims(scores > NEG_INF, 1))
    ids = ops.arange(tokens.shape[2], dtype="int32")
    earlier = ops.expand_dims(ids, 1) > ops.expand_dims(ids, 0)
    return ops.any(ops.logical_and(same, earlier), axis=2)
