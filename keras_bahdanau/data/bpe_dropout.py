"""BPE dropout: words cut into other pieces each time, as a regulariser."""

import functools
import json
import zlib
from itertools import pairwise

import numpy as np

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import SPECIAL
from keras_bahdanau_runtime.text.tokenizer import Tokenizer, byte_pieces

_DRAWS = 16  # ways to cut a word, one of which is taken each time
_WORDS = 200_000  # of which these are kept


class BPEDropout:
    """Words cut anew each time, by merges that are left out at random (arXiv 1910.13267).

    At every step of cutting a word, each merge that could be made is left out with probability `p`,
    and the most frequent of the others is made; where all are left out, the word stays as it is.
    There are sixteen cuts of every word, functions of `seed` and the word; each time that the word
    comes, one of them is taken.

    Args:
        tokenizer: A `Tokenizer`.
        dropout: `p`, in [0, 1). With 0 the ids stay as they are.
        seed: Non-negative int.

    Call arguments:
        sources: Lists of source ids, as `Tokenizer.encode_source` gives.
        targets: Lists of target ids, likewise.
        rng: A NumPy generator, which takes the cuts.

    Returns:
        `(sources, targets)`: lists of ids that spell the same texts.

    Raises:
        ValueError: If `tokenizer` is none or not of byte pairs, or `dropout` or `seed` is out of
            range.

    Example:

    >>> tokenizer = Tokenizer.train(["a man on a bike"] * 2, ["ein Mann"] * 2, 300)
    >>> cut = BPEDropout(tokenizer, dropout=0.5)
    >>> ids = tokenizer.encode_target("ein Mann")
    >>> _, [other] = cut([], [ids], np.random.default_rng(0))
    >>> len(other) > len(ids), tokenizer.decode(other)
    (True, 'ein Mann')
    """

    def __init__(self, tokenizer, dropout: float = 0.1, seed: int = 0):
        if not isinstance(tokenizer, Tokenizer):
            raise ValueError(f"Argument `tokenizer` must be a Tokenizer. Received: {tokenizer!r}")
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        check_range("seed", seed, int, 0)
        self._source = _Side(tokenizer.source, dropout, seed)
        self._target = self._source
        if not tokenizer.joint:
            self._target = _Side(tokenizer.target, dropout, seed)

    def __call__(self, sources, targets, rng):
        return self._source.cut(sources, rng), self._target.cut(targets, rng)


class _Side:
    """The pieces of one language, and the ways to cut the words that have come."""

    def __init__(self, tokenizer, dropout, seed):
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise ValueError(
                "Argument `tokenizer` must be of byte pairs, whose merges can be left out. "
                f"Received: one of {model['type']}"
            )
        self._vocabulary, self._tokenizer = model["vocab"], tokenizer
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self._dropout, self._seed = dropout, seed
        self._bytes = byte_pieces(model["vocab"])
        spaced = {index for index, piece in enumerate(self._bytes) if piece.startswith(b" ")}
        self._begins = spaced.union(SPECIAL)
        self._remember()

    def _remember(self):
        self._known = functools.lru_cache(_WORDS)(self._split)

    def __getstate__(self):
        """All but what was drawn, which is the same when it is drawn again."""
        return {name: value for name, value in vars(self).items() if name != "_known"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._remember()

    def cut(self, sentences, rng):
        words = [self._words(ids) for ids in sentences]
        chosen = iter(rng.integers(_DRAWS, size=sum(map(len, words))).tolist())
        return [
            [index for word in each for index in self._way(word, next(chosen))] for each in words
        ]

    def _words(self, ids):
        """The ids in runs: what a space begins, and specials by themselves."""
        places = [place for place, index in enumerate(ids) if place and index in self._begins]
        return [tuple(ids[a:b]) for a, b in pairwise([0, *places, len(ids)])]

    def _way(self, ids, number):
        """One of the ways to cut a word, drawn when it is first taken."""
        parts, seed, drawn = self._known(ids)
        if number not in drawn:
            rng = np.random.default_rng([self._seed, seed, number])
            pieces = (
                piece for part in parts for piece in _cut(part, self._ranks, self._dropout, rng)
            )
            drawn[number] = [self._vocabulary[piece] for piece in pieces] if parts else ids
        return drawn[number]

    def _split(self, ids):
        """What a word's merges are made within, a seed that is the word's own, and no cuts yet."""
        text = b"".join(self._bytes[index] for index in ids if index not in SPECIAL)
        try:
            parts = self._tokenizer.pre_tokenizer.pre_tokenize_str(text.decode())
        except UnicodeDecodeError:  # cut in the middle of a character
            parts = []
        return [part for part, _ in parts], zlib.crc32(text), {}


def _cut(word, ranks, dropout, rng):
    """The pieces of a word after merges in the order of their ranks, some of them left out."""
    pieces = list(word)
    while True:
        pairs = [ranks.get(pair) for pair in pairwise(pieces)]
        left = rng.random(len(pairs)) >= dropout
        made = [(rank, i) for i, rank in enumerate(pairs) if rank is not None and left[i]]
        if not made:
            return pieces
        _, i = min(made)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
