"""Searches over tables of logits, and their expected results in plain Python and float64."""

import functools
from collections import Counter
from typing import NamedTuple

import keras
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from keras import ops, tree

from keras_bahdanau.search import Generation
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

# JAX compiles a search once for all examples. Other backends run each example step by step.
FEW = settings(max_examples=12 if keras.config.backend() == "jax" else 4)


class Task(NamedTuple):
    """Inputs of a search, NumPy arrays with `B` rows."""

    table: np.ndarray  # (B, T, V, V): the logits after a token at a step
    weights: np.ndarray | None = (
        None  # (B, T, V, Tx): the weights of that step; `None` to encode the history
    )
    limits: np.ndarray | None = None  # (B,)
    prefix: np.ndarray | None = None  # (B, P)
    suppressed: np.ndarray | None = None  # (B, n) or (1, n)
    required: np.ndarray | None = None  # (B, P, L) or (1, P, L)
    memory_mask: np.ndarray | None = None  # (B, Tx)
    noise: np.ndarray | None = None  # (B, n, T)
    completion_table: np.ndarray | None = None  # (B, V) or (1, V)

    def rows(self, order):
        """The task of some sentences, in that order."""
        return Task(*(None if part is None else part[order] for part in self))


def random_tables(batch=1, vocabulary=5, steps=4):
    """Logits without ties, so that there is one right order of hypotheses."""
    return st.builds(
        lambda seed, scale: (
            scale * np.random.default_rng(seed).normal(size=(batch, steps, vocabulary, vocabulary))
        ).astype("float32"),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0.3, 1.0, 4.0]),
    )


def coverage_task(seed, batch=1, steps=3, places=4):
    """A task whose weights sum to 1 and whose last places are padding."""
    rng = np.random.default_rng(seed)
    mask = np.arange(places) < rng.integers(1, places + 1, size=(batch, 1))
    weights = rng.exponential(size=(batch, steps, 5, places)) * mask[:, None, None]
    weights /= weights.sum(axis=-1, keepdims=True)
    table = 2 * rng.normal(size=(batch, steps, 5, 5))
    return Task(table.astype("float32"), weights.astype("float32"), memory_mask=mask)


def constrained_task(seed, vocabulary=4, steps=4):
    """Two sentences with different limits and prefixes; some prefixes end with `EOS`."""
    rng = np.random.default_rng(seed)
    limits = rng.integers(1, steps + 1, size=2)
    prefix = np.full((2, 3), PAD)
    for row, limit in zip(prefix, limits, strict=True):
        length = rng.integers(0, min(3, limit) + 1)
        row[:length] = rng.choice([1, 2], size=length)
        if length and rng.random() < 0.3:
            row[length - 1] = EOS
    table = 2 * rng.normal(size=(2, steps, vocabulary, vocabulary))
    return Task(
        table.astype("float32"), limits=limits.astype("int32"), prefix=prefix.astype("int32")
    )


def completion_task(seed):
    """Two sentences whose prefixes of up to 3 tokens may also end with other tokens."""
    task = constrained_task(seed, vocabulary=6)
    rng = np.random.default_rng(seed + 1)
    prefix = np.where(task.prefix == EOS, 5, task.prefix)
    prefix = np.where(prefix == BOS, 4, prefix)
    completions = np.zeros((2, 6), "int32")
    for b, row in enumerate(prefix):
        for token in (1, 4, 5):
            places = [at for at in range((row != PAD).sum()) if row[at] != token]
            completions[b, token] = rng.choice([0, *(at + 1 for at in places)])
    return task._replace(prefix=prefix, completion_table=completions)


def run(search, task, max_length):
    """Run a search whose logits are `table[b, t, last]`, in sentence `b` at step `t` after `last`.

    Without `weights`, the weights of a step encode its history: the tokens so far as a number in
    base V, the number of the sentence, and the step counted from 1.
    """
    batch, steps, vocabulary, _ = task.table.shape

    def step(tokens, state):
        row, t, path = state
        path = path * vocabulary + tokens
        place = (row * steps + t) * vocabulary + tokens
        logits = ops.take(ops.reshape(task.table, (-1, vocabulary)), place, axis=0)
        if task.weights is None:
            attended = ops.cast(ops.stack([path, row, t + 1], axis=-1), "float32")
        else:
            table = ops.reshape(task.weights, (-1, task.weights.shape[-1]))
            attended = ops.take(table, place, axis=0)
        return logits, (row, t + 1, path), attended

    zeros = ops.zeros((batch,), dtype="int32")
    width = 3 if task.weights is None else task.weights.shape[-1]
    extra = {name: part for name, part in task._asdict().items() if part is not None}
    extra = {name: part for name, part in extra.items() if name not in ("table", "weights")}
    return search(
        step,
        (ops.arange(batch, dtype="int32"), zeros, zeros),
        ops.full((batch,), BOS, dtype="int32"),
        memory_length=width,
        max_length=max_length,
        **extra,
    )


@functools.cache
def compiled(search, max_length):
    if keras.config.backend() == "jax":
        import jax

        return jax.jit(lambda task: run(search, task, max_length))
    return lambda task: run(
        search, tree.map_structure(ops.convert_to_tensor, task, none_is_leaf=False), max_length
    )


def find(search, task, max_length=None):
    """A `Generation` of NumPy arrays; `task` may be the table alone."""
    task = task if isinstance(task, Task) else Task(np.asarray(task))
    result = compiled(search, max_length or task.table.shape[1])(task)
    return Generation(*tree.map_structure(ops.convert_to_numpy, tuple(result)))


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


class Sentence:
    """One row of a task: which tokens a search allows, and the score of each output."""

    def __init__(self, search, task, b=0):
        task = task if isinstance(task, Task) else Task(np.asarray(task))
        self.search = search
        with np.errstate(invalid="ignore"):
            self.log_probs = log_softmax(task.table[b])
        self.weights = None if task.weights is None else task.weights[b].astype("float64")
        self.limit = len(self.log_probs) if task.limits is None else int(task.limits[b])
        self.mask = True if task.memory_mask is None else task.memory_mask[b]
        if search.max_length_ratio is not None:
            width = 3 if task.weights is None else task.weights.shape[-1]
            places = np.sum(np.broadcast_to(self.mask, width))
            self.limit = min(self.limit, max(1, int(search.max_length_ratio * places)))
        suppressed = np.zeros((1, 1)) if task.suppressed is None else task.suppressed
        self.suppressed = set(suppressed[b if len(suppressed) > 1 else 0].tolist()) - {PAD}
        required = np.zeros((1, 1, 1)) if task.required is None else task.required
        phrases = required[b if len(required) > 1 else 0].astype(int).tolist()
        self.required = [tuple(v for v in phrase if v != PAD) for phrase in phrases if any(phrase)]
        self.prefix = [] if task.prefix is None else [v for v in task.prefix[b] if v != PAD]
        completions = np.zeros((1, 1)) if task.completion_table is None else task.completion_table
        row = completions[b if len(completions) > 1 else 0].astype(int)
        self.completion_table = {(at - 1, v) for v, at in enumerate(row.tolist()) if at}

    def token_log_probs(self, tokens):
        return np.array([self.next_log_probs(tokens[:t])[v] for t, v in enumerate(tokens)])

    def next_log_probs(self, tokens):
        """The log-probabilities after `tokens`, with the repetition penalty, `(V,)`."""
        row = self.log_probs[len(tokens), (BOS, *tokens)[-1]].copy()
        repeated = list(set(tokens))
        row[repeated] *= self.search.repetition_penalty
        return row

    def total(self, tokens):
        return self.token_log_probs(tokens).sum()

    def alignment(self, tokens):
        return np.array([self.weights[t, u] for t, u in enumerate((BOS, *tokens[:-1]))])

    def score_so_far(self, tokens):
        """`log p / lp`, also of a hypothesis that has not ended."""
        search, length = self.search, len(tokens) + self.search.length_offset
        base = length if search.normalization == "plain" else (5 + length) / 6
        return self.total(tokens) / base**search.length_penalty

    def score(self, tokens):
        """The score as the docstring of `BeamSearch` defines it."""
        search, score = self.search, self.score_so_far(tokens)
        if search.coverage_penalty:
            coverage = self.alignment(tokens).sum(axis=0).clip(1e-10, 1)
            score += search.coverage_penalty * (np.log(coverage) * self.mask).sum()
        return score

    def ended(self, tokens):
        return tokens[-1:] == (EOS,) or len(tokens) >= self.limit

    def started(self, tokens):
        """Each required phrase that is not in `tokens`, and how many of its tokens end them."""
        return [
            (phrase, max(n for n in range(len(phrase)) if tokens[len(tokens) - n :] == phrase[:n]))
            for phrase in self.required
            if not any(
                tokens[i : i + len(phrase)] == phrase for i in range(len(tokens) - len(phrase) + 1)
            )
        ]

    def missing(self, tokens):
        """The number of tokens that suffices to contain all required phrases."""
        started = self.started(tokens)
        return sum(len(phrase) for phrase, _ in started) - max((n for _, n in started), default=0)

    def fits(self, tokens):
        """Whether an output that starts with `tokens` can contain all required phrases."""
        if self.ended(tokens):
            return not self.missing(tokens)
        is_in_prefix = list(tokens) == self.prefix[: len(tokens)]
        return is_in_prefix or self.missing(tokens) <= self.limit - len(tokens)

    def continuations(self, tokens):
        """The tokens that may come next, ascending."""
        t, search = len(tokens), self.search
        is_forced = t < len(self.prefix) and list(tokens) == self.prefix[:t]
        following = {phrase[n] for phrase, n in self.started(tokens)}
        n = search.no_repeat_ngram
        grams = {tokens[i : i + n] for i in range(t - n + 1)} if n else set()
        allowed = [
            v
            for v in range(self.log_probs.shape[-1])
            if v in following
            or not (
                v in search.forbidden
                or (v == EOS and t + 1 < search.min_length)
                or v in self.suppressed
                or (n and (*tokens, v)[-n:] in grams)
                or self.log_probs[t, (BOS, *tokens)[-1], v] == -np.inf
            )
        ]
        if not is_forced:
            return allowed
        return sorted(
            {int(self.prefix[t]), *(v for v in allowed if (t, v) in self.completion_table)}
        )

    def every_output(self):
        """All outputs that are allowed: ended, or as long as the limit."""
        live, outputs = [()], []
        while live:
            grown = [(*tokens, v) for tokens in live for v in self.continuations(tokens)]
            grown = [tokens for tokens in grown if self.fits(tokens)]
            outputs += [tokens for tokens in grown if self.ended(tokens)]
            live = [tokens for tokens in grown if not self.ended(tokens)]
        return outputs

    def by_turns(self, ranked):
        """The best hypothesis of each number of missing tokens, then the second best, and so on."""
        ranks, turns = Counter(), []
        for tokens in ranked:
            missing = self.missing(tokens)
            turns.append((ranks[missing], missing, tokens))
            ranks[missing] += 1
        return [tokens for *_, tokens in sorted(turns, key=lambda turn: turn[:2])]

    def beam(self):
        """The `n_best` outputs of a beam in plain Python, which stops when `size` have ended.

        It does not stop when no better output is possible. Equal results show that stopping there
        changes nothing.

        The candidates are all tokens. With required phrases, the search has as many candidates only
        if the vocabulary is not larger than the beam and three tokens more.

        Ties: the extension of the better hypothesis comes first, then the likelier token, then the
        lower id, because sorting is stable.
        """
        search, members = self.search, self.search.beam_size // self.search.groups
        live, ended = ([[()] for _ in range(search.groups)], [[] for _ in range(search.groups)])
        for _ in range(self.limit):
            chosen = Counter()  # by earlier groups
            for group in range(search.groups):
                grown = []
                for tokens in live[group]:
                    row = self.next_log_probs(tokens)
                    for v in sorted(self.continuations(tokens), key=lambda v: -row[v]):
                        score = self.score((*tokens, v)) - search.diversity * chosen[v]
                        if self.fits((*tokens, v)):
                            grown.append((score, (*tokens, v)))
                grown = [tokens for _, tokens in sorted(grown, key=lambda pair: -pair[0])]
                continued = [tokens for tokens in grown if not self.ended(tokens)]
                live[group] = self.by_turns(continued)[:members]
                ending = [tokens for tokens in self.by_turns(grown)[:members] if self.ended(tokens)]
                chosen.update(tokens[-1] for tokens in live[group] + ending)
                ended[group] = sorted(ended[group] + ending, key=lambda tokens: -self.score(tokens))
                ended[group] = ended[group][:members]
                if search.early_stopping == "best":
                    is_done = self.ended(self.by_turns(grown)[0]) if grown else True
                    is_done = is_done and len(ended[group]) >= (search.n_best or members)
                else:
                    is_done = len(ended[group]) >= members and search.early_stopping != "never"
                    if search.early_stopping == "leading" and is_done and live[group]:
                        best = max(self.score_so_far(tokens) for tokens in live[group])
                        is_done = self.score(ended[group][0]) >= best
                if is_done:
                    live[group] = []
        outputs = dict.fromkeys(tokens for group in ended for tokens in group)  # no duplicates
        return sorted(outputs, key=lambda tokens: -self.score(tokens))[
            : search.n_best or search.num_hypotheses
        ]


def outputs_of(result, row=0):
    """The hypotheses that exist, as tuples of tokens."""
    return [
        tuple(tokens[:length].tolist())
        for tokens, length, score in zip(
            result.tokens[row], result.lengths[row], result.scores[row], strict=True
        )
        if score > -np.inf
    ]


def check(result, task, search):
    """Check scores, order, padding and alignments of the result of any search."""
    task = task if isinstance(task, Task) else Task(np.asarray(task))
    batch, steps, vocabulary, _ = task.table.shape
    size = result.scores.shape[1]
    assert result.tokens.shape == (batch, size, steps) and result.tokens.dtype == np.int32
    assert result.lengths.shape == (batch, size) and result.lengths.dtype == np.int32
    assert result.scores.dtype == result.totals.dtype == result.log_probs.dtype == np.float32
    assert not any(np.isnan(part).any() for part in result)
    for b in range(batch):
        sentence, outputs = Sentence(search, task, b), outputs_of(result, b)
        # Hypotheses that do not exist come last.
        assert (result.scores[b, : len(outputs)] > -np.inf).all()
        assert (np.diff(result.scores[b, : len(outputs)]) <= 0).all()
        for k, tokens in enumerate(outputs):
            n, near = len(tokens), {"rtol": 1e-4, "atol": 1e-4}
            assert sentence.ended(tokens) and EOS not in tokens[:-1]
            assert (result.tokens[b, k, n:] == PAD).all() and not result.log_probs[b, k, n:].any()
            expected = sentence.token_log_probs(tokens)
            np.testing.assert_allclose(result.log_probs[b, k, :n], expected, **near)
            np.testing.assert_allclose(result.totals[b, k], expected.sum(), **near)
            np.testing.assert_allclose(
                result.totals[b, k], result.log_probs[b, k].sum(), rtol=1e-5, atol=1e-5
            )
            if hasattr(search, "length_penalty"):
                np.testing.assert_allclose(result.scores[b, k], sentence.score(tokens), **near)
            else:
                assert result.scores[b, k] == result.totals[b, k]
            if task.weights is None:
                path, rows = 0, []
                for t, token in enumerate((BOS, *tokens[:-1])):
                    path = path * vocabulary + token
                    rows.append([float(path), float(b), t + 1.0])
                assert result.alignments[b, k, :n].tolist() == rows
            else:
                np.testing.assert_allclose(result.alignments[b, k, :n], sentence.alignment(tokens))
            assert not result.alignments[b, k, n:].any()


def check_beam(search, task, max_length=None):
    """Check a beam against the beam in plain Python, and that no output is repeated."""
    task = task if isinstance(task, Task) else Task(np.asarray(task))
    result = find(search, task, max_length)
    check(result, task, search)
    for b in range(len(task.table)):
        outputs = outputs_of(result, b)
        assert len(outputs) == len(set(outputs))
        assert outputs == Sentence(search, task, b).beam()
    return result
