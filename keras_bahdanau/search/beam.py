"""Beam search and greedy search."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
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
        forbidden: Ids that are never chosen, such as `(PAD, UNK, BOS)`.
        no_repeat_ngram: No sequence of this many tokens occurs twice in a hypothesis; 0 allows all.

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
    >>> found = BeamSearch(size=2)(step, (), ops.array([2]), memory_length=1, max_length=3)
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
        """Searches from one start token for each row; see `Search.__call__`."""
        size, batch = self.size, ops.shape(start)[0]
        rows = batch * size
        row = ops.expand_dims(ops.arange(batch, dtype="int32"), -1)  # (B, 1)
        beams = ops.broadcast_to(ops.arange(size, dtype="int32"), (batch, size))
        limits = ops.full((batch,), max_length, dtype="int32") if limits is None else limits
        limits = ops.expand_dims(limits, -1)

        def advance(t, tokens, state, beam, histories):
            logits, state, attended = step(tokens, state)
            attended = ops.cast(attended, "float32")
            forced = None if prefix is None else ops.repeat(forced_tokens(prefix, t), size)
            log_probs, ids = self._candidates(logits, t, beam, forced, rows)
            shape = (batch, size, ids.shape[-1])
            log_probs, ids = ops.reshape(log_probs, shape), ops.reshape(ids, shape)
            alive = ops.logical_not(beam.finished)
            lengths = beam.lengths + ops.cast(alive, "int32")
            coverage = beam.coverage
            if self.coverage_penalty:
                new = ops.where(ops.reshape(alive, (-1, 1)), attended, 0.0)
                coverage = coverage + new
            totals = ops.expand_dims(beam.totals, -1) + log_probs
            ranks = self._score(totals, ops.expand_dims(lengths, -1), coverage, memory_mask)
            ranks, best = self._choose(ranks, ids, alive)  # best: into (K * W,)

            parent = best // ids.shape[-1]
            origin = row * size + parent  # into (B * K,)
            chosen = row * (size * ids.shape[-1]) + best  # into (B * K * W,)
            origins = ops.reshape(origin, (-1,))

            def follow(tensor):
                return ops.take(tensor, origins, axis=0)

            def inherit(tensor):
                return ops.take(ops.reshape(tensor, (-1,)), origin, axis=0)

            def pick(tensor):
                return ops.take(ops.reshape(tensor, (-1,)), chosen, axis=0)

            tokens, lengths = pick(ids), inherit(lengths)
            ended = ops.logical_or(ops.equal(tokens, EOS), lengths >= limits)
            finished = ops.logical_or(inherit(beam.finished), ended)
            totals, ranks = self._retire(pick(totals), ranks, finished, limits)
            so_far = beam.tokens
            if self.no_repeat_ngram:
                so_far = with_column(follow(so_far), t, ops.reshape(tokens, (-1,)))
            if self.coverage_penalty:
                coverage = follow(coverage)
            made = (tokens, parent, pick(log_probs), attended)
            return (
                t + 1,
                ops.reshape(tokens, (-1,)),
                tree.map_structure(follow, state),
                _Beam(totals, lengths, finished, ranks, so_far, coverage),
                tuple(write(*pair) for pair in zip(histories, (t,) * 4, made, strict=True)),
            )

        def unfinished(t, tokens, state, beam, histories):
            # A hypothesis at -inf does not exist: nothing is to come of it.
            live = ops.logical_and(ops.logical_not(beam.finished), beam.totals > NEVER)
            return ops.logical_and(t < max_length, ops.any(live))

        # Only the first beam of a group exists at the start; the others would repeat it.
        existing = beams % (size // self.groups) == 0
        totals = ops.where(existing, 0.0, NEVER)
        beam = _Beam(
            totals=totals,
            lengths=ops.zeros((batch, size), dtype="int32"),
            finished=ops.zeros((batch, size), dtype="bool"),
            scores=totals,
            tokens=ops.full((rows, max_length), PAD, dtype="int32") if self.no_repeat_ngram else (),
            coverage=ops.zeros((rows, memory_length)) if self.coverage_penalty else (),
        )
        histories = (
            ops.full((max_length, batch, size), PAD, dtype="int32"),
            ops.zeros((max_length, batch, size), dtype="int32"),
            ops.zeros((max_length, batch, size), dtype="float32"),
            ops.zeros((max_length, rows, memory_length), dtype="float32"),
        )
        t, _, _, beam, histories = ops.while_loop(
            unfinished,
            advance,
            (
                ops.convert_to_tensor(0, dtype="int32"),
                ops.repeat(ops.cast(start, "int32"), size, axis=0),
                tree.map_structure(lambda tensor: ops.repeat(tensor, size, axis=0), state),
                beam,
                histories,
            ),
        )
        return self._collect(t, beam, histories)

    def _candidates(self, logits, t, beam, forced, rows):
        """The best `W` continuations of every hypothesis: log-probabilities and ids `(R, W)`.

        An ended hypothesis has one continuation, `PAD` at no cost. The logits are ranked, not the
        log-probabilities, whose rounding makes ties.
        """
        logits, vocabulary = ops.cast(logits, "float32"), logits.shape[-1]
        # Of W tokens at most K are chosen by earlier groups, so that enough others remain.
        width = self.size if self.groups == 1 else self.size + self.size // self.groups
        ranked = self._allowed(logits, t, beam.tokens)
        best, ids = best_first(ranked, min(width, vocabulary))
        table = ops.reshape(ops.log_softmax(logits, axis=-1), (-1,))
        place = ops.expand_dims(ops.arange(rows, dtype="int32") * vocabulary, -1)  # (R, 1)
        log_probs = ops.take(table, place + ids, axis=0)
        if ranked is not logits:
            log_probs = ops.where(ops.equal(best, NEVER), NEVER, log_probs)
        first = ops.arange(ids.shape[-1]) == 0
        if forced is not None:
            forced = ops.expand_dims(forced, -1)
            given = ops.take(table, place + forced, axis=0)
            held = ops.not_equal(forced, PAD)
            log_probs = ops.where(held, ops.where(first, given, NEVER), log_probs)
            ids = ops.where(held, forced, ids)
        finished = ops.reshape(beam.finished, (-1, 1))
        log_probs = ops.where(finished, ops.where(first, 0.0, NEVER), log_probs)
        return log_probs, ops.where(finished, PAD, ids)

    def _choose(self, ranks, ids, alive):
        """Ranks `(B, K)` of the next hypotheses and their places in the candidates `(B, K * W)`."""
        batch, (_, size, width) = ops.shape(ranks)[0], ranks.shape
        together = ops.reshape(ranks, (batch, size * width))
        if self.groups == 1:
            return best_first(together, size)
        members = size // self.groups
        # An ended hypothesis chooses no token: -1 is nobody's repetition.
        ids = ops.where(ops.expand_dims(alive, -1), ids, -1)
        chosen = []
        for group in range(self.groups):
            rows = slice(group * members, (group + 1) * members)
            part = ranks[:, rows]
            for earlier in chosen:  # (B, members) tokens of an earlier group
                same = ops.equal(ids[:, rows, :, None], earlier[1][:, None, None, :])
                same = ops.logical_and(same, ids[:, rows, :, None] >= 0)
                part = part - self.diversity * ops.sum(ops.cast(same, "float32"), axis=-1)
            _, places = best_first(ops.reshape(part, (batch, members * width)), members)
            tokens = ops.take_along_axis(
                ops.reshape(ids[:, rows], (batch, members * width)), places, axis=1
            )
            chosen.append((places + group * members * width, tokens))
        places = ops.concatenate([places for places, _ in chosen], axis=1)
        return ops.take_along_axis(together, places, axis=1), places

    def _retire(self, totals, scores, finished, limits):
        """Ends the sentences that are done: their live hypotheses cease to exist."""
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
        return ops.where(gone, NEVER, totals), ops.where(gone, NEVER, scores)

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

    def _without_duplicates(self, stop, beam, histories):
        """The scores `(B, K)`, -inf where an earlier group found the same hypothesis."""
        beams = ops.broadcast_to(ops.arange(self.size, dtype="int32"), ops.shape(beam.scores))
        tokens, _, _ = _trace_back(stop, histories, beams)
        same = ops.all(ops.equal(ops.expand_dims(tokens, 3), ops.expand_dims(tokens, 2)), axis=0)
        lengths = beam.lengths
        same = ops.logical_and(same, ops.expand_dims(lengths, 2) == ops.expand_dims(lengths, 1))
        exists = ops.expand_dims(beam.scores > NEVER, 1)  # what is missing repeats nothing
        ids = ops.arange(self.size, dtype="int32")
        earlier = ops.expand_dims(ids, 1) > ops.expand_dims(ids, 0)
        repeats = ops.any(ops.logical_and(ops.logical_and(same, exists), earlier), axis=2)
        return ops.where(repeats, NEVER, beam.scores)

    def _collect(self, stop, beam, histories):
        """The `n_best` hypotheses of the last beam, best first, with their histories."""
        max_length = histories[0].shape[0]
        scores = beam.scores
        if self.groups > 1:
            scores = self._without_duplicates(stop, beam, histories)
        scores, beams = best_first(scores, self.n_best or self.size)
        tokens, log_probs, origins = _trace_back(stop, histories, beams)
        rows, memory_length = ops.shape(histories[3])[1:]
        # One table of all steps' weights, of which each hypothesis takes its rows.
        weights = ops.reshape(histories[3], (max_length * rows, memory_length))
        step_row = ops.reshape(ops.arange(max_length, dtype="int32") * rows, (-1, 1, 1))
        alignments = ops.take(weights, step_row + origins, axis=0)  # (T, B, n_best, Tx)
        lengths = ops.take_along_axis(beam.lengths, beams, axis=1)
        live = ops.expand_dims(ops.arange(max_length, dtype="int32"), (0, 1))
        live = live < ops.expand_dims(lengths, -1)
        return Generation(
            tokens=ops.transpose(tokens, (1, 2, 0)),
            scores=scores,
            lengths=lengths,
            alignments=ops.where(
                ops.expand_dims(live, -1), ops.transpose(alignments, (1, 2, 0, 3)), 0.0
            ),
            totals=ops.where(
                scores > NEVER, ops.take_along_axis(beam.totals, beams, axis=1), NEVER
            ),
            log_probs=ops.where(live, ops.transpose(log_probs, (1, 2, 0)), 0.0),
        )


@keras.saving.register_keras_serializable(package="keras_bahdanau")
@dataclass(frozen=True)
class GreedySearch(BeamSearch):
    """Takes the likeliest token at every step: beam search with one hypothesis.

    Args:
        min_length: Number of tokens, `EOS` included, before which the output does not end.
        forbidden: Ids that are never chosen.
        no_repeat_ngram: No sequence of this many tokens occurs twice; 0 allows all.

    Example:

    >>> GreedySearch(min_length=3)
    GreedySearch(min_length=3, forbidden=(), no_repeat_ngram=0)
    """

    def __init__(self, *, min_length=0, forbidden=(), no_repeat_ngram=0):
        super().__init__(
            size=1,
            length_penalty=0.0,
            min_length=min_length,
            forbidden=forbidden,
            no_repeat_ngram=no_repeat_ngram,
        )

    def __repr__(self):
        arguments = (f"{name}={value!r}" for name, value in self.get_config().items())
        return f"GreedySearch({', '.join(arguments)})"

    def get_config(self):
        """The constraints."""
        names = ("min_length", "forbidden", "no_repeat_ngram")
        return {name: getattr(self, name) for name in names}


class _Beam(NamedTuple):
    """The hypotheses of a beam, `(B, K)` each."""

    totals: Any  # float32 log-probabilities
    lengths: Any  # int32
    finished: Any  # bool
    scores: Any  # float32
    tokens: Any  # (B * K, T) int32 so far, where n-grams are watched; else ()
    coverage: Any  # (B * K, Tx) float32, where coverage counts; else ()


def _trace_back(stop, histories, beams):
    """Follows the back-pointers from the last step to the first.

    The pointers of all steps are composed at once, of two, four, eight... steps at a time: a loop
    over the steps would wait for each of them.

    Returns tokens and log-probabilities `(T, B, n)` of the hypotheses that end in `beams`
    `(B, n)`, and for each of their steps the row of `(B * K,)` it was computed in.
    """
    steps, (batch, size) = histories[0].shape[0], ops.shape(histories[0])[1:]
    rows = batch * size
    step = ops.expand_dims(ops.arange(steps, dtype="int32"), -1)  # (T, 1)
    own = ops.expand_dims(ops.arange(rows, dtype="int32"), 0)  # (1, R)
    parents = ops.reshape(histories[1], (steps, rows)) + own // size * size
    parents = ops.where(step < stop, parents, own)  # (T, R), the row before each step

    def at(table, row, step=step):
        return ops.take(ops.reshape(table, (-1,)), step * rows + row, axis=0)

    # Row `r` after the last of `span` steps that follow step `t` was row `back[t, r]` after it.
    back, span = ops.concatenate([parents[1:], own], axis=0), 1
    while span < steps - 1:
        later = ops.concatenate([back[span:], ops.broadcast_to(own, (span, rows))], axis=0)
        back, span = at(back, later), 2 * span
    step = ops.expand_dims(step, -1)  # (T, 1, 1)
    first = ops.expand_dims(ops.arange(batch, dtype="int32") * size, -1)  # (B, 1)
    row = at(back, first + beams, step)  # (T, B, n)
    return at(histories[0], row, step), at(histories[2], row, step), at(parents, row, step)
