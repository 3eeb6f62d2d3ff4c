"""What every search shares: its result, its constraints and its loop."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import keras
from keras import ops, tree

from keras_bahdanau.search.candidates import NEVER, without_ids, without_repeats
from keras_bahdanau.search.history import empty_history, write
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import BOS, PAD


class Generation(NamedTuple):
    """What a search found, best hypothesis first.

    `T` is `max_length` in tensors, whose shapes are known before the search has run: here, in
    `Decode` and in every exported graph. Where they are handed out as NumPy arrays, by `generate`
    and `Translator.translate_ids`, `T` is the longest length found. `lengths` is right for both.

    Attributes:
        tokens: `(B, K, T)` int32, `EOS` included, `PAD` after it.
        scores: `(B, K)` float32, what the search ranks by; -inf for a hypothesis that does not
            exist (a beam wider than what there is to find).
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


class Task(NamedTuple):
    """The request of a search, in the shapes that its steps read; `R = B * K`.

    Attributes:
        batch: Number of sentences `B`, an int or a scalar tensor.
        first_rows: `(B, 1)` int32, the first of each sentence's `K` rows.
        limits: `(B, 1)` int32, number of tokens at which hypotheses are cut.
        prefix: `(R, P + 1)` int32 tokens that are forced, `PAD` where none is; or `None`.
        memory_mask: `(B, Tx)` bool, or `None`.
        noise: `(R, T)` float32 in [0, 1), the numbers that step `t` draws with at `t`; or `None`.
    """

    batch: Any
    first_rows: Any
    limits: Any
    prefix: Any
    memory_mask: Any
    noise: Any


class Choices(NamedTuple):
    """Candidate tokens for one step.

    Attributes:
        t: Number of the step, a scalar int32 tensor; 0 for the first.
        logits: `(R, V)` float32, those of the model.
        allowed: `(R, V)` float32, the same, -inf where a constraint bars a token.
        weights: `(R, Tx)` float32 attention weights.
        forced: `(R,)` int32, the token that the prefix asks for, `PAD` where it asks for none; or
            `None`.
        noise: `(R,)` float32 numbers in [0, 1), or `None`.
    """

    t: Any
    logits: Any
    allowed: Any
    weights: Any
    forced: Any
    noise: Any


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base of the searches: the loop over a step function, and what a hypothesis may not hold.

    A search knows no model. It calls `step(tokens, state) -> (logits, state, weights)`, a function
    of tensors:

        tokens   (R,) int32, the last token of every hypothesis: the `start` before the first step,
                 PAD after a hypothesis has ended; R = B * K, sentence after sentence
        state    a nest of tensors with R rows, `()` for none, which the search repeats K times,
                 hands on and reorders; it comes back in the structure, shapes and dtypes it had
        logits   (R, V) float; log-probabilities will do too, the search normalises what it ranks
        weights  (R, Tx) float attention weights; `ops.zeros((R, 1))` where there is no attention

    What a step reads and no step changes, such as a memory of `B` rows, it closes over.
    Constraints say what may be chosen; log-probabilities stay those of the model.

    The loop is written here once. A subclass defines how many hypotheses a sentence has (`size`),
    their values before the first step (`_first`), how a step extends them (`_advance`), which are
    live (`_live`) and which are returned (`_best`).

    Args:
        min_length: Number of tokens, `EOS` included, before which no hypothesis ends.
        forbidden: Ids that are never chosen; padding and the start of a sentence unless told
            otherwise, which no output may hold. `(0, 1, 2)` forbids the unknown word, too.
        no_repeat_ngram: No sequence of this many tokens occurs twice in a hypothesis; 0 allows all.
        max_length_ratio: Tokens for each place of the memory, such as a source token, at which
            hypotheses are cut if `max_length` does not cut them before; `None` for no such limit.
            With 2.5 a source of 4 tokens, `EOS` included, has outputs of at most 10.

    Raises:
        ValueError: If a number is negative or no int, or `forbidden` is no tuple; and by a call, if
            the step does not return these three values.

    Example:

    >>> def count(tokens, number):                                # says 4, 5, 6 and so on
    ...     logits = 9.0 * ops.one_hot(number, 8)
    ...     return logits, number + 1, ops.zeros((ops.shape(tokens)[0], 1))
    >>> start, number = ops.array([BOS, BOS]), ops.array([4, 6])
    >>> found = GreedySearch()(count, number, start, max_length=2)
    >>> ops.convert_to_numpy(found.tokens[:, 0]).tolist()
    [[4, 5], [6, 7]]
    """

    min_length: int = 0
    forbidden: tuple[int, ...] = (PAD, BOS)
    no_repeat_ngram: int = 0
    max_length_ratio: float | None = None

    def __post_init__(self):
        if not isinstance(self.forbidden, Iterable):
            raise ValueError(
                f"Argument `forbidden` must be a tuple of ids. Received: {self.forbidden!r}"
            )
        object.__setattr__(self, "forbidden", tuple(self.forbidden))  # a list, from a saved config
        for name in ("min_length", "no_repeat_ngram"):
            check_range(name, getattr(self, name), int, 0)
        if self.max_length_ratio is not None:
            check_range("max_length_ratio", self.max_length_ratio, float, 0, open_low=True)
        for token in self.forbidden:
            check_range("forbidden", token, int, 0)

    # Whether the search ranks tokens: it then asks for some more and leaves forbidden ones out,
    # which spares a pass over the vocabulary.
    _ranks = False

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
        memory_mask=None,
        noise=None,
    ):
        """Searches from one start token for each row.

        Args:
            step: The step function, see `Search`.
            state: Nest of tensors with `B` rows.
            start: `(B,)` int32 first tokens, usually `BOS`.
            max_length: Number of tokens `T` after which every hypothesis is cut, an int.
            memory_length: `Tx`, the width of the weights; an int or a scalar tensor. Where it is
                not given, the weights of a step from `start` tell it: one step more, unless their
                shape says it without being computed.
            limits: `(B,)` int32, from 1 to `max_length`: where each sentence's hypotheses are
                cut; `max_length` for all if `None`.
            prefix: `(B, P)` int32 tokens that every hypothesis starts with, padded with `PAD` at
                the right; or `None`.
            memory_mask: `(B, Tx)` bool, the source places that a coverage penalty asks for; all
                if `None`.
            noise: What `self.noise` gave, for a search that draws; numbers of Keras's generator
                if `None`.

        Returns:
            A `Generation` of tensors.

        Raises:
            ValueError: If the step does not return what `Search` says, `max_length` is no int of at
                least 1, an id is forbidden that the logits do not have, or something is of
                another shape.
        """
        check_range("max_length", max_length, int, 1)
        drawn = self.size, max_length
        start = checked_start(start, state, limits, prefix, memory_mask, noise, drawn)

        def repeat(tensor):
            return ops.repeat(tensor, self.size, axis=0)

        batch, step = ops.shape(start)[0], checked_step(step, memory_length)
        tokens, state = repeat(start), tree.map_structure(repeat, state)
        if memory_length is None:
            *_, weights = step(tokens, state)
            memory_length = ops.shape(weights)[1]
        hypotheses = self._first(batch, memory_length)
        if self.max_length_ratio is not None:
            if memory_mask is None:
                places = ops.broadcast_to(memory_length, (batch,))
            else:
                places = ops.sum(ops.cast(memory_mask, "int32"), axis=1)
            limits = self.limited(max_length if limits is None else limits, places)
        task = self._task(batch, max_length, limits, prefix, memory_mask, noise)
        history = empty_history(
            max_length, batch * self.size, memory_length, self._tracked(batch), self._branches
        )
        last = self._loop(step, task, max_length, tokens, state, hypotheses, history)
        return self._collect(task, *last)

    def limited(self, limits, places):
        """`limits`, int32, or less where `max_length_ratio` times so many `places` `(B,)` is."""
        if self.max_length_ratio is None:
            return limits
        most = ops.cast(ops.floor(self.max_length_ratio * ops.cast(places, "float32")), "int32")
        return ops.minimum(limits, ops.maximum(most, 1))

    def _task(self, batch, max_length, limits, prefix, memory_mask, noise):
        """The `Task` for the arguments of `__call__`."""
        if limits is None:
            limits = ops.full((batch, 1), max_length, dtype="int32")
        else:
            limits = ops.reshape(limits, (batch, 1))
        if prefix is not None:
            none = ops.full((batch, 1), PAD, dtype="int32")
            prefix = ops.concatenate([ops.cast(prefix, "int32"), none], axis=1)
            prefix = ops.repeat(prefix, self.size, axis=0)
        noise = self._draws(batch, max_length) if noise is None else noise
        if noise is not None:
            noise = ops.reshape(noise, (batch * self.size, max_length))
        return Task(
            batch=batch,
            first_rows=ops.expand_dims(ops.arange(batch, dtype="int32") * self.size, -1),
            limits=limits,
            prefix=prefix,
            memory_mask=memory_mask,
            noise=noise,
        )

    def _loop(self, step, task, max_length, tokens, state, hypotheses, history):
        """Steps until all have ended: their number, the last hypotheses, the whole history."""

        def advance(t, tokens, so_far, state, hypotheses, history):
            logits, state, weights = step(tokens, state)
            choices = self._choices(task, t, so_far, logits, weights)
            hypotheses, tokens, parents, made = self._advance(choices, hypotheses, task)
            if parents is not None:
                state, so_far = tree.map_structure(
                    lambda tensor: ops.take(tensor, parents, axis=0), (state, so_far)
                )
            if self.no_repeat_ngram:
                here = ops.expand_dims(ops.arange(max_length, dtype="int32") == t, 0)
                so_far = ops.where(here, ops.expand_dims(tokens, 1), so_far)
            return t + 1, tokens, so_far, state, hypotheses, write(history, t, made)

        def unfinished(t, tokens, so_far, state, hypotheses, history):
            return ops.logical_and(t < max_length, ops.any(self._live(hypotheses)))

        # Tokens so far, (R, T), are kept only where n-grams are watched.
        so_far, rows = (), task.batch * self.size
        if self.no_repeat_ngram:
            so_far = ops.full((rows, max_length), PAD, dtype="int32")
        zero = ops.convert_to_tensor(0, dtype="int32")
        stop, _, _, _, hypotheses, history = ops.while_loop(
            unfinished, advance, (zero, tokens, so_far, state, hypotheses, history)
        )
        return stop, hypotheses, history

    def _choices(self, task, t, so_far, logits, weights):
        """What step `t` may choose from; tokens `so_far` `(R, T)`."""
        if logits.shape[-1] is not None:
            check_search(self, logits.shape[-1])
        logits = allowed = ops.cast(logits, "float32")
        forbidden = () if self._ranks else self.forbidden
        if forbidden or self.min_length:
            allowed = without_ids(allowed, t, forbidden, self.min_length)
        if self.no_repeat_ngram:
            allowed = without_repeats(allowed, t, so_far, self.no_repeat_ngram)
        forced = task.prefix
        if forced is not None:
            forced = ops.take(forced, ops.minimum(t, ops.shape(forced)[1] - 1), axis=1)
        return Choices(
            t=t,
            logits=logits,
            allowed=allowed,
            weights=ops.cast(weights, "float32"),
            forced=forced,
            noise=None if task.noise is None else ops.take(task.noise, t, axis=1),
        )

    def _collect(self, task, stop, hypotheses, history):
        """The `Generation` of the best hypotheses, with their histories."""
        scores, rows = self._best(hypotheses, history, stop, task)
        tokens, log_probs, weights, lengths, totals = self._along(hypotheses, history, rows, stop)
        exists = scores > NEVER
        lengths = ops.where(exists, lengths, 0)
        steps = ops.expand_dims(ops.arange(ops.shape(tokens)[0], dtype="int32"), (0, 1))
        live = steps < ops.expand_dims(lengths, -1)
        alignments = ops.transpose(weights, (1, 2, 0, 3))
        return Generation(
            tokens=ops.where(live, ops.transpose(tokens, (1, 2, 0)), PAD),
            scores=scores,
            lengths=lengths,
            alignments=ops.where(ops.expand_dims(live, -1), alignments, 0.0),
            totals=ops.where(exists, totals, NEVER),
            log_probs=ops.where(live, ops.transpose(log_probs, (1, 2, 0)), 0.0),
        )

    # Defined by each kind of search.

    _branches = False  # whether a hypothesis can continue one of another row

    def _tracked(self, batch):
        """Shape of the hypotheses that the history keeps."""
        return (batch * self.size,)

    def _first(self, batch, memory_length):
        """The hypotheses before the first step, a nest of tensors."""
        raise NotImplementedError

    def _advance(self, choices, hypotheses, task):
        """One step.

        Returns:
            The next hypotheses; the tokens `(R,)` int32 that the next step reads; the row `(R,)`
            int32 that each continues, or `None` for its own; and the `History` of this step.
        """
        raise NotImplementedError

    def _live(self, hypotheses):
        """Whether a hypothesis can be extended, bool."""
        raise NotImplementedError

    def _best(self, hypotheses, history, stop, task):
        """Scores `(B, n)` of the results, best first, and their rows `(B, n)` in the history."""
        raise NotImplementedError

    def _along(self, hypotheses, history, rows, stop):
        """The path of the hypotheses in `rows` `(B, n)` of the history after the last step.

        Returns:
            Tokens and log-probabilities `(T, B, n)`, weights `(T, B, n, Tx)`, lengths and total
            log-probabilities `(B, n)`.
        """
        raise NotImplementedError

    def _draws(self, batch, max_length):
        """As `noise`, for a batch whose size may be a tensor."""
        return None

    def noise(self, batch, max_length):
        """Random numbers for a search that draws; `None` for one that does not."""
        return None

    def get_config(self):
        """The arguments, for Keras's serialisation and the artifact's manifest."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    @classmethod
    def from_config(cls, config):
        """The search that `get_config` described."""
        return cls(**config)


def known_searches(kind=Search):
    """Every search that is imported, by its name: those of this package and anybody else's."""
    found = {}
    for one in kind.__subclasses__():
        found |= {one.__name__: one, **known_searches(one)}
    return found


def check_kind(search):
    """Raises a `ValueError` unless this is a `Search`."""
    if not isinstance(search, Search):
        raise ValueError(
            f"Argument `search` must be a search, such as BeamSearch(5). Received: {search!r}"
        )


def check_search(search, vocabulary_size):
    """Raises a `ValueError` unless this is a `Search` that forbids no id but those there are."""
    check_kind(search)
    outside = [token for token in search.forbidden if token >= vocabulary_size]
    if outside:
        raise ValueError(
            f"Argument `search` must forbid ids in [0, {vocabulary_size}). Received: {outside[0]}"
        )


def checked_start(start, state, limits, prefix, memory_mask, noise, drawn):
    """The first tokens as an int32 tensor, after a look at what comes with them.

    Args:
        start: `(B,)` ints.
        state: Nest of tensors with `B` rows.
        limits: `(B,)` ints, or `None`.
        prefix: `(B, P)` ints, or `None`.
        memory_mask: `(B, Tx)` bool, or `None`.
        noise: Numbers `(B, *drawn)`, or `None`.
        drawn: Hypotheses of a sentence and number of steps.

    Raises:
        ValueError: If one of them has another shape or dtype.
    """
    start = ops.convert_to_tensor(start)
    if len(start.shape) != 1 or "int" not in _dtype(start):
        raise ValueError(
            f"Argument `start` must be ints of shape (batch,). Received: {_told(start)}"
        )
    rows = start.shape[0]
    for part in tree.flatten(state):
        if not getattr(part, "shape", ()) or not _fits(part.shape[:1], (rows,)):
            raise ValueError(
                f"Argument `state` must hold tensors of {rows} rows, as `start` has. "
                f"Received: {_told(part)}"
            )
    for name, given, shape in (
        ("limits", limits, (rows,)),
        ("prefix", prefix, (rows, None)),
    ):
        if given is not None and not (
            _fits(getattr(given, "shape", ()), shape) and "int" in _dtype(given)
        ):
            raise ValueError(
                f"Argument `{name}` must be ints of shape {shape}. Received: {_told(given)}"
            )
    if memory_mask is not None and not (
        _fits(getattr(memory_mask, "shape", ()), (rows, None)) and _dtype(memory_mask) == "bool"
    ):
        raise ValueError(
            f"Argument `memory_mask` must be bool of shape ({rows}, memory length), True = keep. "
            f"Received: {_told(memory_mask)}"
        )
    if noise is not None and not _fits(getattr(noise, "shape", ()), (rows, *drawn)):
        raise ValueError(
            f"Argument `noise` must be of shape {(rows, *drawn)}. Received: {_told(noise)}"
        )
    return ops.cast(start, "int32")


def checked_step(step, memory_length=None):
    """A step function that raises a `ValueError` unless it returns what `Search` says.

    State and shapes are compared at the first call, as later ones do the same.
    """
    compared = False

    def checked(tokens, state):
        nonlocal compared
        found = step(tokens, state)
        if not isinstance(found, (tuple, list)) or len(found) != 3:
            kind = type(found).__name__
            count = f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
            raise ValueError(
                "Argument `step` must return (logits, state, weights); the weights of what has no "
                f"attention are ops.zeros((rows, 1)). Received: {kind}{count}"
            )
        logits, after, weights = found
        shapes = [getattr(part, "shape", None) for part in (logits, weights)]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            raise ValueError(
                "Argument `step` must return logits (rows, vocabulary) and weights "
                f"(rows, memory length). Received: shapes {shapes[0]} and {shapes[1]}"
            )
        if not compared:
            _compare_rows(tokens, shapes)
            if isinstance(memory_length, int) and not _fits(shapes[1], (None, memory_length)):
                raise ValueError(
                    f"Argument `step` must return weights of as many places as `memory_length`, "
                    f"{memory_length}. Received: shape {tuple(shapes[1])}"
                )
            _compare_states(state, after)
            compared = True
        return logits, after, weights

    return checked


def _compare_rows(tokens, shapes):
    rows = tokens.shape[0]
    if not all(_fits(shape[:1], (rows,)) for shape in shapes):
        raise ValueError(
            f"Argument `step` must return logits and weights of as many rows as tokens, {rows}. "
            f"Received: shapes {tuple(shapes[0])} and {tuple(shapes[1])}"
        )


def _compare_states(before, after):
    """Raises a `ValueError` unless a state came back in the structure, shapes and dtypes it had."""
    try:
        tree.assert_same_structure(before, after)
        same = all(map(_alike, tree.flatten(before), tree.flatten(after)))
    except (TypeError, ValueError):
        same = False
    if not same:
        told = [tree.map_structure(_told, state) for state in (before, after)]
        raise ValueError(
            "Argument `step` must return the state in the structure, shapes and dtypes that it "
            f"had, {told[0]}. Received: {told[1]}"
        )


def _alike(one, other):
    return (
        hasattr(other, "shape") and _fits(one.shape, other.shape) and _dtype(one) == _dtype(other)
    )


def _fits(shape, expected):
    """Whether two shapes are the same, as far as they are known."""
    return len(shape) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, expected, strict=True)
    )


def _dtype(part):
    return keras.backend.standardize_dtype(part.dtype)


def _told(part):
    return f"{_dtype(part)} {tuple(part.shape)}" if hasattr(part, "shape") else repr(part)
