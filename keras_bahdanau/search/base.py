"""Base class of the searches: the loop over a step function, its inputs and its result."""

import copy
import functools
import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops, tree

from keras_bahdanau.search.candidates import (
    NEG_INF,
    allow_completions,
    forbid_ids,
    is_repeated_token,
    penalize_repeated_tokens,
    set_tokens,
)
from keras_bahdanau.search.history import empty_history, write_step
from keras_bahdanau.search.past import Past, add_step, completes_ngram, follows_prefix
from keras_bahdanau.search.required import progress_of, rank_next_tokens_first
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.search_settings import JSON_KEYS, RANGES, check_setting

logger = logging.getLogger("keras_bahdanau")


class Generation(NamedTuple):
    """Outputs of a search, best hypothesis first.

    `T` is `max_length` where the results are tensors: in a call of a search, in `Decode` and in
    exported graphs. In the NumPy arrays of `generate` and `Translator.translate_ids`, `T` is the
    length of the longest output.

    Attributes:
        tokens: `(B, K, T)` int32, `EOS` included, followed by `PAD`.
        scores: `(B, K)` float32, the ranking criterion of the search; -inf for a hypothesis that
            does not exist, because the beam is larger than the number of possible outputs.
        lengths: `(B, K)` int32 number of tokens, `EOS` included; 0 for a hypothesis that does not
            exist.
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


class SearchInputs(NamedTuple):
    """Optional tensors of a call of a search, with the shapes of `Search.__call__`."""

    limits: Any = None
    prefix: Any = None
    completion_table: Any = None
    suppressed: Any = None
    required: Any = None
    memory_mask: Any = None
    noise: Any = None


class Task(NamedTuple):
    """Arguments of a search in the shapes that its steps read; `R = B * K`.

    Attributes:
        batch: Number of sentences `B`, an int or a scalar tensor.
        first_rows: `(B, 1)` int32, the first of the `K` rows of each sentence.
        inputs: `SearchInputs` with limits `(B, 1)`; prefix `(R, T)`; suppressed tokens `(R, n)`;
            required phrases `(R, P, L)`, all int32; and noise `(R, T)`. The others have the shapes
            of the call.
        switches: `Switch`es for constraints whose settings are tensors.
    """

    batch: Any
    first_rows: Any
    inputs: Any
    switches: Any


class Switch(NamedTuple):
    """Constraints that a step computes only if one of them applies.

    Attributes:
        applies: Scalar bool tensor.
        settings: The settings of a search without these constraints, a dict.
        inputs: Names of the `SearchInputs` that are `None` without them.
    """

    applies: Any
    settings: Any
    inputs: Any


class Candidates(NamedTuple):
    """Candidate tokens for one step.

    Attributes:
        t: Number of the step, a scalar int32 tensor; 0 for the first.
        logits: `(R, V)` float32 logits of the model.
        log_probs: `(R, V)` float32 log-softmax of the logits, or `None` if the search needs single
            ones only.
        allowed: `(R, V)` float32, the same logits, lower where a token is repeated, -inf where a
            constraint forbids it, and above all others for the next token of a required phrase.
        past: The `Past` of the hypotheses, or `()`.
        progress: Their `Progress` in the required phrases, or `None`.
        forced: `(R,)` int32 tokens of the prefix, `PAD` where there is a choice; or `None`.
        prefix: `(R,)` int32 tokens of the prefix, which `forbidden` does not exclude, also where
            there is a choice; `PAD` after the prefix. `None` without completions.
        noise: `(R,)` float32 random numbers in [0, 1), or `None`.
    """

    t: Any
    logits: Any
    log_probs: Any
    allowed: Any
    past: Any
    progress: Any
    forced: Any
    prefix: Any
    noise: Any


# Shapes and dtypes of the `SearchInputs` but the noise.
_INPUTS = (
    ("limits", "batch", "ints"),
    ("prefix", "batch|1 positions", "ints"),
    ("completion_table", "batch|1 vocabulary", "ints"),
    ("suppressed", "batch|1 tokens", "ints"),
    ("required", "batch|1 phrases positions", "ints"),
    ("memory_mask", "batch memory_length", "bool"),
)
# Constraints in groups of increasing cost. A step computes a group only if a constraint of this or
# a later group applies. All others are in a group before these.
_GROUPS = (
    ("no_repeat_ngram", "suppressed"),
    ("repetition_penalty",),
    ("completion_table", "required"),
)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base class of searches over a step function.

    A search does not depend on a model. It calls `step(tokens, state) -> (logits, state, weights)`:

        tokens   (R,) int32, the last token of every hypothesis: `start` before the first step,
                 PAD after a hypothesis has ended; R = B * K, sentence after sentence
        state    nest of tensors with R rows, `()` for none; the search repeats it K times and
                 reorders its rows; `step` must return the same structure, shapes and dtypes
        logits   (R, V) float logits or log-probabilities; the search normalizes them
        weights  (R, Tx) float attention weights; `ops.zeros((R, 1))` without attention

    Tensors that no step changes, such as a memory of `B` rows, belong into the closure of `step`.
    Constraints limit the choice of tokens but do not change their log-probabilities. Only
    `repetition_penalty` changes them.

    A subclass defines the number of hypotheses per sentence (`num_hypotheses`), their values before
    the first step (`_initial`), which tokens can extend them (`_choose`), how a step extends them
    (`_advance`), which of them are live (`_is_live`) and which are returned (`_results` and
    `_paths`).

    In an exported search, settings are tensors: inputs of the graph (`with_settings`).

    Args:
        min_length: Minimum number of tokens in an output, `EOS` included.
        forbidden: Ids that are never chosen; padding and `BOS` by default, which must not occur in
            an output. `(0, 1, 2)` also forbids the unknown token.
        no_repeat_ngram: Length of the n-grams that may not occur twice in a hypothesis; 0 for no
            limit.
        repetition_penalty: Factor, at least 1, of the log-probability of a token that is already in
            the hypothesis (arXiv 1909.05858, section 4.1). It counts in the score. The
            probabilities are not normalized again.
        max_length_ratio: Maximum number of tokens per memory position (source token), in addition
            to `max_length`; `None` for no limit. With 2.5 a source of 4 tokens, `EOS` included,
            gets outputs of at most 10 tokens.

    Raises:
        ValueError: If a number is out of range or not an int, or `forbidden` is not a tuple. A call
            also raises it if `step` does not return these three values.

    Example:

    >>> def count(tokens, number):                        # generates 4, 5, 6, ...
    ...     logits = 9.0 * ops.one_hot(number, 8)
    ...     return logits, number + 1, ops.zeros((ops.shape(tokens)[0], 1))
    >>> start, number = ops.array([BOS, BOS]), ops.array([4, 6])
    >>> generation = GreedySearch()(count, number, start, max_length=2)
    >>> ops.convert_to_numpy(generation.tokens[:, 0]).tolist()
    [[4, 5], [6, 7]]
    """

    min_length: int = 0
    forbidden: tuple[int, ...] = (PAD, BOS)
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    max_length_ratio: float | None = None

    def __post_init__(self):
        if not isinstance(self.forbidden, Iterable):
            raise argument_error("forbidden", "be a tuple of ids", self.forbidden)
        object.__setattr__(self, "forbidden", tuple(self.forbidden))  # a list in saved configs
        for field in fields(self):
            if isinstance(getattr(self, field.name), float):  # a NumPy number looks like a tensor
                object.__setattr__(self, field.name, float(getattr(self, field.name)))
        for name in ("min_length", "no_repeat_ngram", "repetition_penalty"):
            check_setting(name, getattr(self, name))
        if self.max_length_ratio is not None:
            check_setting("max_length_ratio", self.max_length_ratio)
        for token in self.forbidden:
            check_setting("forbidden", token)

    # Settings that limit the choice of tokens, and their values that do not.
    _constraints: ClassVar[dict[str, float]] = {
        "min_length": 0,
        "no_repeat_ngram": 0,
        "repetition_penalty": 1.0,
    }

    # Whether `_choose` excludes forbidden ids and an early `EOS` itself. A search that ranks tokens
    # can take a few more of them, which is faster than a pass over the vocabulary.
    _excludes_ids = False

    def __call__(
        self,
        step,
        state,
        start,
        *,
        max_length,
        memory_length=None,
        limits=None,
        prefix=None,
        completion_table=None,
        suppressed=None,
        required=None,
        memory_mask=None,
        noise=None,
    ):
        """Search from one start token per row.

        Args:
            step: The step function, see `Search`.
            state: Nest of tensors with `B` rows.
            start: `(B,)` int32 first tokens, usually `BOS`.
            max_length: Maximum number of tokens `T`, an int.
            memory_length: `Tx`, the width of the weights, an int or a scalar tensor. If `None`, it
                is the width of the weights that an additional step from `start` returns.
            limits: `(B,)` int32 maximum number of tokens of each sentence, from 1 to `max_length`;
                `max_length` if `None`.
            prefix: `(B, P)` or `(1, P)` int32 tokens that every hypothesis starts with, padded with
                `PAD` at the right; or `None`.
            completion_table: `(B, V)` or `(1, V)` int32, a number for each token of the vocabulary;
                or `None`. A token with the number `i + 1` may end the prefix at position `i`: a
                hypothesis that has the tokens of the prefix before `i` may have this token there
                instead of the rest of the prefix. 0 is for all other tokens.
            suppressed: `(B, n)` or `(1, n)` int32 tokens that are never chosen for a sentence,
                unless its prefix contains them. Padded with `PAD`, which suppresses nothing; or
                `None`.
            required: `(B, P, L)` or `(1, P, L)` int32 phrases that every output of a sentence
                contains, for a beam of at least 2 in one group; or `None`. Padded with `PAD` at the
                right; a phrase of only `PAD` requires nothing. A phrase that does not fit in the
                limit, or has a token of `forbidden`, leaves no output. The other constraints do not
                apply to the next token of a phrase.
            memory_mask: `(B, Tx)` bool, source positions that a coverage penalty counts; all if
                `None`.
            noise: Random numbers from `self.noise` for a search that samples; from Keras's random
                generator if `None`.

        Returns:
            A `Generation` of tensors.

        Raises:
            ValueError: If `step` does not return the values that `Search` describes, `max_length`
                is not a positive int, a forbidden id is outside of the vocabulary, the search does
                not accept `required`, or a shape or dtype is not as above.
        """
        check_setting("max_length", max_length)
        inputs = SearchInputs(
            limits, prefix, completion_table, suppressed, required, memory_mask, noise
        )
        start = checked_start(start, state, inputs, (self.num_hypotheses, max_length))
        if required is not None:
            check_accepts_required(self)

        def repeat(tensor):
            return ops.repeat(tensor, self.num_hypotheses, axis=0)

        batch, step = ops.shape(start)[0], checked_step(step, memory_length)
        tokens, state = repeat(start), tree.map_structure(repeat, state)
        if memory_length is None:
            *_, weights = step(tokens, state)
            memory_length = ops.shape(weights)[1]
        hypotheses = self._initial(batch, memory_length)
        if self.max_length_ratio is not None:
            if memory_mask is None:
                lengths = ops.broadcast_to(memory_length, (batch,))
            else:
                lengths = ops.sum(ops.cast(memory_mask, "int32"), axis=1)
            limits = self.limit_lengths(max_length if limits is None else limits, lengths)
            inputs = inputs._replace(limits=limits)
        task = self._task(batch, max_length, inputs)
        past = self._initial_past(task, batch * self.num_hypotheses, max_length, memory_length)
        history = empty_history(
            max_length,
            batch * self.num_hypotheses,
            memory_length,
            self._history_shape(batch),
            self._reorders,
        )
        last = self._loop(step, task, max_length, tokens, past, state, hypotheses, history)
        return self._collect(task, *last)

    def limit_lengths(self, limits, lengths):
        """Return the smaller of `limits` and `max_length_ratio` times the source length.

        Args:
            limits: Int or int32 tensor that broadcasts to `(B,)`, maximum numbers of tokens.
            lengths: `(B,)` int32 number of source tokens.

        Returns:
            `(B,)` int32; `limits` itself without a `max_length_ratio`.
        """
        if self.max_length_ratio is None:
            return limits
        bounds = ops.floor(self.max_length_ratio * ops.cast(lengths, "float32"))
        return ops.minimum(limits, ops.maximum(ops.cast(bounds, "int32"), 1))

    def _task(self, batch, max_length, inputs):
        """Return the `Task` for the `SearchInputs` of a call."""
        if inputs.limits is None:
            limits = ops.full((batch, 1), max_length, dtype="int32")
        else:
            limits = ops.reshape(inputs.limits, (batch, 1))
        switches = self._switches(inputs)
        table, prefix = inputs.completion_table, inputs.prefix
        if table is not None:
            table = ops.cast(table, "int32")
        if prefix is not None:
            padding = ops.full((ops.shape(prefix)[0], max_length), PAD, dtype="int32")
            prefix = ops.concatenate([ops.cast(prefix, "int32"), padding], axis=1)[:, :max_length]
        prefix, suppressed, required = (
            ids if ids is None else _for_all_hypotheses(ids, batch, self.num_hypotheses)
            for ids in (prefix, inputs.suppressed, inputs.required)
        )
        noise = inputs.noise
        noise = self._random_numbers(batch, max_length) if noise is None else noise
        if noise is not None:
            noise = ops.reshape(noise, (batch * self.num_hypotheses, max_length))
        return Task(
            batch=batch,
            first_rows=ops.expand_dims(ops.arange(batch, dtype="int32") * self.num_hypotheses, -1),
            inputs=SearchInputs(
                limits, prefix, table, suppressed, required, inputs.memory_mask, noise
            ),
            switches=switches,
        )

    def _switches(self, inputs):
        """Return `Switch`es: for all constraints, and for groups of them; `()` for numbers only."""
        settings = {name: getattr(self, name) for name in self._constraints}
        if not any(map(is_tensor, settings.values())):
            return ()
        applies = {
            name: ops.greater(value, self._constraints[name]) for name, value in settings.items()
        }
        applies |= {
            name: ops.any(ops.greater(getattr(inputs, name), PAD))
            for name in ("prefix", "completion_table", "suppressed", "required")
            if getattr(inputs, name) is not None
        }
        # Each switch is also for the constraints of the following ones.
        groups = tuple(applies), *(sum(_GROUPS[i:], ()) for i in range(len(_GROUPS)))
        switches = []
        for group in groups:
            names = [name for name in group if name in applies]
            if names:
                switch = functools.reduce(ops.logical_or, [applies[name] for name in names])
                neutral = {name: self._constraints[name] for name in names if name in settings}
                tensors = [name for name in names if name not in settings]
                switches.append(Switch(switch, neutral, tensors))
        return tuple(switches)

    def _initial_past(self, task, rows, max_length, memory_length):
        """Return the `Past` before the first step, or `()` if no constraint needs one."""
        needed = self._needed_past(task)
        if not any(needed.values()):
            return ()
        return Past(
            ops.full((rows, max_length), PAD, dtype="int32") if needed["tokens"] else (),
            self._initial_coverage(task, memory_length) if needed["coverage"] else (),
            ops.arange(rows, dtype="int32") if self._reorders else (),
        )

    def _initial_coverage(self, task, memory_length):
        """Return the coverage before the first step, `(R, Tx)`."""
        coverage = ops.zeros((task.batch, memory_length), dtype="float32")
        if task.inputs.memory_mask is not None:
            coverage = ops.where(task.inputs.memory_mask, coverage, 1.0)
        return ops.repeat(coverage, self.num_hypotheses, axis=0)

    def _needed_past(self, task):
        """Return which parts of a `Past` the constraints may need, a dict of bools."""
        settings = ("no_repeat_ngram", "repetition_penalty")
        inputs = (task.inputs.completion_table, task.inputs.required)
        return {
            "tokens": any(map(self._may_apply, settings)) or any(i is not None for i in inputs),
            "coverage": self._may_apply("coverage_penalty"),
        }

    def _past_at(self, task, t, tokens, past, weights):
        """Return the `Past` at step `t`, of which only what may be needed is kept up to date."""
        names = [name for name, needed in self._needed_past(task).items() if needed]
        if not names:
            return past
        part = Past(parents=past.parents, **{name: getattr(past, name) for name in names})
        part = add_step(part, t, tokens, weights)
        return past._replace(**{name: getattr(part, name) for name in names})

    def _may_apply(self, name):
        """Return whether a constraint applies, or may apply because its setting is a tensor."""
        value = getattr(self, name, None)
        return is_tensor(value) or value != self._constraints.get(name)

    def _loop(self, step, task, max_length, tokens, past, state, hypotheses, history):
        """Run steps until no hypothesis is live.

        Returns:
            The number of steps that were run, the last hypotheses, and the history.
        """
        rows = task.batch * self.num_hypotheses

        def advance(t, tokens, past, state, hypotheses, history):
            logits, state, weights = step(tokens, state)
            logits, weights = ops.cast(logits, "float32"), ops.cast(weights, "float32")
            log_probs = self._log_probs(logits)
            choice, past = self._choice(
                task, t, tokens, past, logits, log_probs, weights, hypotheses
            )
            hypotheses, tokens, parents, record = self._advance(
                t, choice, weights, hypotheses, task
            )
            # An exported graph cannot infer the number of rows of the results of a condition. It
            # would compute the sizes of the state in every step.
            tokens = ops.reshape(tokens, (rows,))
            if parents is not None:
                parents = ops.reshape(parents, (rows,))
                state = tree.map_structure(lambda tensor: ops.take(tensor, parents, axis=0), state)
                past = past._replace(parents=parents) if past else past
            return t + 1, tokens, past, state, hypotheses, write_step(history, t, record)

        def has_live(t, tokens, past, state, hypotheses, history):
            return ops.logical_and(t < max_length, ops.any(self._is_live(hypotheses)))

        zero = ops.convert_to_tensor(0, dtype="int32")
        stop, _, _, _, hypotheses, history = ops.while_loop(
            has_live, advance, (zero, tokens, past, state, hypotheses, history)
        )
        return stop, hypotheses, history

    def _choice(self, task, t, tokens, past, logits, log_probs, weights, hypotheses):
        """Return the choice of tokens at step `t` and the `Past` there."""
        if task.switches:
            (applies, settings, names), *switches = task.switches
            rest = t, tokens, past, logits, log_probs, weights, hypotheses
            free = self.with_settings(**settings)
            free_inputs = task.inputs._replace(**dict.fromkeys(names))
            return ops.cond(
                applies,
                lambda: self._choice(task._replace(switches=switches), *rest),
                lambda: free._choice(task._replace(inputs=free_inputs, switches=()), *rest),
            )
        past = self._past_at(task, t, tokens, past, weights)
        candidates = self._candidates(task, t, past, logits, log_probs)
        # A condition would copy the parents, which this step replaces.
        past = past._replace(parents=()) if past else past
        return self._choose(candidates, hypotheses, task), past

    def _candidates(self, task, t, past, logits, log_probs):
        """Return the `Candidates` of step `t`."""
        if logits.shape[-1] is not None:
            check_search(self, logits.shape[-1])
        inputs = task.inputs
        allowed = penalized = logits
        rows = task.batch * self.num_hypotheses
        unused = PAD if PAD in self.forbidden else None
        if self._may_apply("repetition_penalty"):
            if log_probs is None:
                log_probs = ops.log_softmax(logits, axis=-1)
            allowed = penalized = penalize_repeated_tokens(
                logits, log_probs, t, past.tokens, self.repetition_penalty, rows, unused
            )
        if not self._excludes_ids and (self.forbidden or self._may_apply("min_length")):
            allowed = forbid_ids(allowed, t, self.forbidden, self.min_length)
        barred = self._barred_tokens(task, t, past)
        if barred:
            allowed = set_tokens(allowed, barred, rows, unused)
        progress = None
        if inputs.required is not None:
            progress = progress_of(past.tokens, t, inputs.required)
            allowed = rank_next_tokens_first(allowed, progress, inputs.required, rows, unused)
        forced, prefix = inputs.prefix, None
        if forced is not None:
            forced = ops.take(forced, t, axis=1)
        if inputs.completion_table is not None:
            follows = follows_prefix(past, t, inputs.prefix)
            forced = prefix = ops.where(follows, forced, PAD)
            is_completion = ops.equal(inputs.completion_table, t + 1)
            allowed, forced = allow_completions(
                penalized, allowed, forced, is_completion, self.num_hypotheses
            )
        return Candidates(
            t=t,
            logits=logits,
            log_probs=log_probs,
            allowed=allowed,
            past=past,
            progress=progress,
            forced=forced,
            prefix=prefix,
            noise=None if inputs.noise is None else ops.take(inputs.noise, t, axis=1),
        )

    def _barred_tokens(self, task, t, past):
        """Return the tokens that are barred from step `t`, as for `set_tokens`."""
        barred = []
        if self._may_apply("no_repeat_ngram"):
            completes = completes_ngram(past.tokens, t, self.no_repeat_ngram)
            barred.append((past.tokens, completes, NEG_INF))
        suppressed = task.inputs.suppressed
        if suppressed is not None:
            barred.append((suppressed, ops.not_equal(suppressed, PAD), NEG_INF))
        return barred

    def _collect(self, task, stop, hypotheses, history):
        """Return the `Generation` of the best hypotheses."""
        scores, rows = self._results(hypotheses, history, stop, task)
        tokens, log_probs, weights, lengths, totals = self._paths(hypotheses, history, rows, stop)
        exists = scores > NEG_INF
        lengths = ops.where(exists, lengths, 0)
        steps = ops.expand_dims(ops.arange(ops.shape(tokens)[0], dtype="int32"), (0, 1))
        live = steps < ops.expand_dims(lengths, -1)
        alignments = ops.transpose(weights, (1, 2, 0, 3))
        return Generation(
            tokens=ops.where(live, ops.transpose(tokens, (1, 2, 0)), PAD),
            scores=scores,
            lengths=lengths,
            alignments=ops.where(ops.expand_dims(live, -1), alignments, 0.0),
            totals=ops.where(exists, totals, NEG_INF),
            log_probs=ops.where(live, ops.transpose(log_probs, (1, 2, 0)), 0.0),
        )

    def _penalized(self, log_probs, ids, candidates):
        """Return log-probabilities `(R, n)` of `ids` `(R, n)` after the repetition penalty."""
        if not self._may_apply("repetition_penalty"):
            return log_probs
        repeated = is_repeated_token(ids, candidates.t, candidates.past.tokens)
        return ops.where(repeated, self.repetition_penalty * log_probs, log_probs)

    # --- Defined by subclasses --------------------------------------------------------------------

    _reorders = False  # whether a hypothesis can continue one of another row
    accepts_required = False  # whether a call accepts `required`

    def _history_shape(self, batch):
        """Return the shape of the hypotheses in the history."""
        return (batch * self.num_hypotheses,)

    def _initial(self, batch, memory_length):
        """Return the hypotheses before the first step, a nest of tensors."""
        raise NotImplementedError

    def _log_probs(self, logits):
        """Return all log-probabilities `(R, V)` if a step needs many of them, else `None`."""
        return None

    def _choose(self, candidates, hypotheses, task):
        """Return the tokens that extend the hypotheses, a nest of tensors for `_advance`."""
        raise NotImplementedError

    def _advance(self, t, choice, weights, hypotheses, task):
        """Extend the hypotheses by one token.

        Args:
            t: Number of the step, a scalar int32 tensor.
            choice: The result of `_choose`.
            weights: `(R, Tx)` float32 attention weights.
            hypotheses: The hypotheses before the step.
            task: The `Task`.

        Returns:
            The next hypotheses; the tokens `(R,)` int32 that the next step reads; the row `(R,)`
            int32 that each hypothesis continues, or `None` for its own; and the `History` of this
            step.
        """
        raise NotImplementedError

    def _is_live(self, hypotheses):
        """Return whether each hypothesis can be extended, bool."""
        raise NotImplementedError

    def _results(self, hypotheses, history, stop, task):
        """Return scores `(B, n)` of the results, best first, and their history rows `(B, n)`."""
        raise NotImplementedError

    def _paths(self, hypotheses, history, rows, stop):
        """Return the paths of hypotheses, given their history rows `(B, n)` after the last step.

        Returns:
            Tokens and log-probabilities `(T, B, n)`, weights `(T, B, n, Tx)`, lengths and total
            log-probabilities `(B, n)`.
        """
        raise NotImplementedError

    def _random_numbers(self, batch, max_length):
        """Return random numbers like `noise`, for a batch size that may be a tensor."""
        return None

    def noise(self, batch, max_length):
        """Return the random numbers of a search that samples, or `None`."""
        return None

    def options(self):
        """Return the settings that can be inputs of an exported search, by the input's name."""
        names = ("min_length", "no_repeat_ngram", "repetition_penalty")
        return {name: getattr(self, name) for name in names}

    def with_settings(self, **settings):
        """Return a copy with other settings, unchecked, which may be tensors.

        Args:
            **settings: Values of fields: numbers, or scalar int32 and float32 tensors for the
                settings in `options`.
        """
        search = copy.copy(self)
        for name, value in settings.items():
            object.__setattr__(search, name, value)
        return search

    def get_config(self):
        """Return the arguments, for Keras's serialization and the manifest of an artifact."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    @classmethod
    def from_config(cls, config):
        """Return the search with the arguments in `config`.

        A number outside of its range, which an earlier version saved, is kept with a warning.
        """
        outside = {}
        for name, value in config.items():
            if name in RANGES and isinstance(value, int | float) and math.isfinite(value):
                nearest = min(max(value, RANGES[name].low), RANGES[name].high)
                if nearest != value:
                    outside[name] = nearest
        search = cls(**config | outside)
        for name in outside:
            object.__setattr__(search, name, config[name])
            logger.warning(
                "The saved setting `%s` of a %s is outside of today's range: %s. Its scores may "
                "not be finite.",
                name,
                cls.__name__,
                config[name],
            )
        return search


def is_tensor(value):
    """Return whether a setting of a search is a tensor and not a number."""
    return hasattr(value, "shape")


def _for_all_hypotheses(ids, batch, size):
    """Return ids `(B, ...)` or `(1, ...)` as `(B * size, ...)` int32."""
    shape = ops.shape(ids)[1:]
    ids = ops.expand_dims(ops.cast(ids, "int32"), 1)
    return ops.reshape(ops.broadcast_to(ids, (batch, size, *shape)), (batch * size, *shape))


def search_classes(base=Search):
    """Return all imported subclasses of `base` by name, those of other packages included."""
    classes = {}
    for subclass in base.__subclasses__():
        classes |= {subclass.__name__: subclass, **search_classes(subclass)}
    return classes


def search_document(search, max_length):
    """Return the settings of a search as JSON values, as in the manifest of an artifact.

    Args:
        search: A `Search`.
        max_length: Int, the largest number of output tokens; `None` if it differs between texts.
    """
    config = {JSON_KEYS.get(name, name): value for name, value in search.get_config().items()}
    document = {"class": type(search).__name__, **config, "max_length": max_length}
    return json.loads(json.dumps(document))  # tuples become lists


def check_is_search(search):
    """Raise a `ValueError` unless `search` is a `Search`."""
    if not isinstance(search, Search):
        raise argument_error("search", "be a search, such as BeamSearch(5)", search)


def check_search(search, vocabulary_size):
    """Raise a `ValueError` unless `search` is a `Search` whose forbidden ids are ids."""
    check_is_search(search)
    outside = [token for token in search.forbidden if token >= vocabulary_size]
    if outside:
        raise argument_error(
            "search", f"forbid ids in [0, {vocabulary_size})", received=str(outside[0])
        )


def check_accepts_required(search):
    """Raise a `ValueError` unless `search` is a beam of at least two without diverse groups."""
    if not search.accepts_required:
        raise ValueError(
            "Argument `required` needs a BeamSearch of one group with a size of at least 2. "
            f"Received: {search!r:.80}"
        )


def checked_start(start, state, inputs, noise_shape):
    """Check the tensor arguments of a search, and return `start` as an int32 tensor.

    Args:
        start: `(B,)` ints.
        state: Nest of tensors with `B` rows.
        inputs: `SearchInputs`.
        noise_shape: Number of hypotheses per sentence and number of steps.

    Raises:
        ValueError: If an argument has another shape or dtype, or a completion table has no prefix.
    """
    start = ops.convert_to_tensor(start)
    check_shape("start", start, "batch", "ints")
    rows = start.shape[0]
    for part in tree.flatten(state):
        if not getattr(part, "shape", ()) or not _shapes_match(part.shape[:1], (rows,)):
            raise argument_error(
                "state",
                f"contain tensors of {rows} rows, like `start`",
                received=str(_describe(part)),
            )
    for name, pattern, kind in _INPUTS:
        if getattr(inputs, name) is not None:
            check_shape(name, getattr(inputs, name), pattern, kind, batch=rows)
    if inputs.completion_table is not None and inputs.prefix is None:
        raise argument_error("completion_table", "be used with a `prefix`", received="no prefix")
    if inputs.noise is not None:
        hypotheses, steps = noise_shape
        axes = {"batch": rows, "hypotheses": hypotheses, "steps": steps}
        check_shape("noise", inputs.noise, " ".join(axes), **axes)
    return ops.cast(start, "int32")


def checked_step(step, memory_length=None):
    """Wrap a step function so that it raises a `ValueError` unless its results are valid.

    State and shapes are compared in the first call only.
    """
    compared = False

    def checked(tokens, state):
        nonlocal compared
        results = step(tokens, state)
        if not isinstance(results, (tuple, list)) or len(results) != 3:
            kind = type(results).__name__
            count = f" of {len(results)}" if isinstance(results, (tuple, list)) else ""
            raise argument_error(
                "step",
                "return (logits, state, weights); without attention return ops.zeros((rows, "
                "1)) as the weights",
                received=f"{kind}{count}",
            )
        logits, after, weights = results
        shapes = [getattr(part, "shape", None) for part in (logits, weights)]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            raise argument_error(
                "step",
                "return logits (rows, vocabulary) and weights (rows, memory length)",
                received=f"shapes {shapes[0]} and {shapes[1]}",
            )
        if not compared:
            _check_rows(tokens, shapes)
            if isinstance(memory_length, int) and not _shapes_match(
                shapes[1], (None, memory_length)
            ):
                raise argument_error(
                    "step",
                    f"return weights of width `memory_length`, {memory_length}",
                    received=f"shape {tuple(shapes[1])}",
                )
            _check_state(state, after)
            compared = True
        return logits, after, weights

    return checked


def _check_rows(tokens, shapes):
    rows = tokens.shape[0]
    if not all(_shapes_match(shape[:1], (rows,)) for shape in shapes):
        raise argument_error(
            "step",
            f"return logits and weights with {rows} rows, like its tokens",
            received=f"shapes {tuple(shapes[0])} and {tuple(shapes[1])}",
        )


def _check_state(before, after):
    """Raise a `ValueError` unless a step keeps the structure, shapes and dtypes of its state."""
    try:
        tree.assert_same_structure(before, after)
        same = all(map(_same_kind, tree.flatten(before), tree.flatten(after)))
    except (TypeError, ValueError):
        same = False
    if not same:
        expected, received = (tree.map_structure(_describe, state) for state in (before, after))
        raise argument_error(
            "step",
            f"return the state with the structure, shapes and dtypes of its input, {expected}",
            received=str(received),
        )


def _same_kind(first, second):
    return (
        hasattr(second, "shape")
        and _shapes_match(first.shape, second.shape)
        and _dtype(first) == _dtype(second)
    )


def _shapes_match(shape, expected):
    """Return whether two shapes are equal; `None` matches any size."""
    return len(shape) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, expected, strict=True)
    )


def _dtype(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


def _describe(value):
    if hasattr(value, "shape"):
        return f"{_dtype(value)} {tuple(value.shape)}"
    return repr(value)
