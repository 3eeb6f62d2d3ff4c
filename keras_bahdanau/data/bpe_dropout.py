"""BPE dropout: random segmentations of words, as a regularizer."""

import functools
import json
import zlib
from itertools import pairwise

import numpy as np

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import SPECIAL
from keras_bahdanau_runtime.text.pieces import byte_pieces
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

_SEGMENTATIONS = 16  # per word
_CACHED_WORDS = 200_000


class BPEDropout:
    """Segments words differently each time, by dropping merges at random (arXiv 1910.13267).

    At every step of the segmentation of a word, each possible merge is dropped with probability
    `p`, and the most frequent of the others is applied. If all are dropped, the segmentation ends.
    Each word has sixteen segmentations, which are functions of `seed` and the word. One of them is
    drawn for each occurrence of the word.

    Args:
        tokenizer: A `Tokenizer`.
        dropout: Probability `p`, in [0, 1). With 0 the ids do not change.
        seed: Non-negative int.

    Call arguments:
        sources: Lists of source ids, as returned by `Tokenizer.encode_source`.
        targets: Lists of target ids, as returned by `Tokenizer.encode_target`.
        rng: A NumPy generator that draws the segmentations.

    Returns:
        `(sources, targets)`: lists of ids with the same texts.

    Raises:
        ValueError: If `tokenizer` is not a `Tokenizer` with byte-pair encoding, or `dropout` or
            `seed` is out of range.

    Example:

    >>> tokenizer = Tokenizer.train(["a man on a bike"] * 2, ["ein Mann"] * 2, 300)
    >>> bpe_dropout = BPEDropout(tokenizer, dropout=0.5)
    >>> ids = tokenizer.encode_target("ein Mann")
    >>> _, [resampled] = bpe_dropout([], [ids], np.random.default_rng(0))
    >>> len(resampled) > len(ids), tokenizer.decode(resampled)
    (True, 'ein Mann')
    """

    def __init__(self, tokenizer, dropout: float = 0.1, seed: int = 0):
        if not isinstance(tokenizer, Tokenizer):
            raise argument_error("tokenizer", "be a Tokenizer", tokenizer)
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        check_range("seed", seed, int, 0)
        for spelling in tokenizer.spellings:
            if spelling.kind != "byte-level":
                raise argument_error(
                    "tokenizer",
                    "be of byte-level pieces",
                    received=f"one whose pieces are spelled as {spelling.kind}",
                )
        spellings = tokenizer.spellings
        self._source = _Segmenter(tokenizer.source, dropout, seed, spellings[0])
        self._target = self._source
        if not tokenizer.joint:
            self._target = _Segmenter(tokenizer.target, dropout, seed, spellings[1])

    def __call__(self, sources, targets, rng):
        return self._source.resample(sources, rng), self._target.resample(targets, rng)


class _Segmenter:
    """The pieces of one language, and the cached segmentations of its words."""

    def __init__(self, tokenizer, dropout, seed, spelling):
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise argument_error(
                "tokenizer",
                "be of byte pairs, whose merges can be left out",
                received=f"one of {model['type']}",
            )
        self._vocabulary, self._tokenizer = model["vocab"], tokenizer
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self._dropout, self._seed = dropout, seed
        self._bytes = byte_pieces(model["vocab"])
        # Ids that are words of their own and keep their segmentation.
        self._fixed = {*SPECIAL, *spelling.symbols(model["vocab"]).values()}
        spaced = {index for index, piece in enumerate(self._bytes) if piece.startswith(b" ")}
        self._word_starts = spaced | self._fixed
        self._create_cache()

    def _create_cache(self):
        self._analyze_cached = functools.lru_cache(_CACHED_WORDS)(self._analyze)

    def __getstate__(self):
        """Return the state without the cache, whose content can be computed again."""
        return {name: value for name, value in vars(self).items() if name != "_analyze_cached"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._create_cache()

    def resample(self, sentences, rng):
        words = [self._words(ids) for ids in sentences]
        numbers = iter(rng.integers(_SEGMENTATIONS, size=sum(map(len, words))).tolist())
        return [
            [index for word in sentence for index in self._segmentation(word, next(numbers))]
            for sentence in words
        ]

    def _words(self, ids):
        """Split ids at pieces that start with a space, and in front of special ids and symbols."""
        starts = [place for place, index in enumerate(ids) if place and index in self._word_starts]
        return [tuple(ids[a:b]) for a, b in pairwise([0, *starts, len(ids)])]

    def _segmentation(self, ids, number):
        """Return the ids of segmentation `number` of a word, which is computed when first used."""
        parts, word_seed, segmentations = self._analyze_cached(ids)
        if number not in segmentations:
            rng = np.random.default_rng([self._seed, word_seed, number])
            pieces = (
                piece
                for part in parts
                for piece in _merge_pieces(part, self._ranks, self._dropout, rng)
            )
            segmentations[number] = [self._vocabulary[piece] for piece in pieces] if parts else ids
        return segmentations[number]

    def _analyze(self, ids):
        """Return the pre-tokens of a word, its seed, and an empty dict of segmentations."""
        text = b"".join(self._bytes[index] for index in ids if index not in self._fixed)
        try:
            parts = self._tokenizer.pre_tokenizer.pre_tokenize_str(text.decode())
        except UnicodeDecodeError:  # truncated within a character
            parts = []
        return [part for part, _ in parts], zlib.crc32(text), {}


def _merge_pieces(word, ranks, dropout, rng):
    """Return the pieces of a word after merges in the order of their ranks, with dropout."""
    pieces = list(word)
    while True:
        pairs = [ranks.get(pair) for pair in pairwise(pieces)]
        is_kept = rng.random(len(pairs)) >= dropout
        merges = [(rank, i) for i, rank in enumerate(pairs) if rank is not None and is_kept[i]]
        if not merges:
            return pieces
        _, i = min(merges)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
