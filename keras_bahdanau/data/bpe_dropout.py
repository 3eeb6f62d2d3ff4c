"""BPE dropout: words cut into other pieces each epoch, as a regulariser."""

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from keras_bahdanau_runtime.checks import check_range, checked_texts

_DRAWS = 16  # ways to cut a word that are drawn once, and chosen from in each epoch


class BPEDropout:
    """Texts cut anew each epoch, by merges that are left out at random (arXiv 1910.13267).

    At every step of cutting a word, each merge that could be made is left out with probability `p`,
    and the most frequent of the others is made; where all are left out, the word stays as it is.
    Sixteen cuts of every word are drawn once, and each epoch chooses among them for each place
    where the word stands: a function of `seed` and the epoch.

    Args:
        tokenizer: A `Tokenizer`.
        sources: Source sentences, list of str.
        targets: Target sentences, list of str.
        dropout: `p`, in [0, 1). With 0 the ids are those of the tokenizer.
        seed: Non-negative int.

    Call arguments:
        epoch: Non-negative int.

    Returns:
        `(sources, targets)`: lists of ids for each sentence, `EOS` last; see `TranslationDataset`.

    Raises:
        ValueError: If `dropout` or `seed` is out of range, or there is anything but text.

    Example:

    >>> tokenizer = Tokenizer.train(["a man on a bike"] * 2, ["ein Mann"] * 2, 300)
    >>> cut = BPEDropout(tokenizer, ["a man"], ["ein Mann"], dropout=0.0)
    >>> cut(epoch=0)[0] == [tokenizer.encode_source("a man")]
    True
    """

    def __init__(
        self,
        tokenizer,
        sources: Sequence[str],
        targets: Sequence[str],
        dropout: float = 0.1,
        seed: int = 0,
    ):
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        check_range("seed", seed, int, 0)
        self.seed = seed
        given = (tokenizer.source, "sources", sources), (tokenizer.target, "targets", targets)
        self._sides = [
            _Side(side, checked_texts(name, texts), dropout, np.random.default_rng([seed, place]))
            for place, (side, name, texts) in enumerate(given)
        ]

    def __call__(self, epoch: int):
        rng = np.random.default_rng([self.seed, epoch])
        return tuple(side.cut(rng) for side in self._sides)


class _Side:
    """The texts of one language as words, and the ways to cut each word."""

    def __init__(self, tokenizer, texts, dropout, rng):
        model = json.loads(tokenizer.to_str())["model"]
        ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        places, self._words = {}, []
        for text in texts:
            text = tokenizer.normalizer.normalize_str(text)
            words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
            self._words.append([places.setdefault(word, len(places)) for word in words])
        self._cuts = []
        for word in places:
            cuts = [_cut(word, ranks, dropout, rng) for _ in range(_DRAWS)]
            self._cuts.append([[model["vocab"][piece] for piece in pieces] for pieces in cuts])
        self._end = tokenizer.encode("").ids

    def cut(self, rng):
        chosen = iter(rng.integers(_DRAWS, size=sum(map(len, self._words))).tolist())
        return [
            [piece for word in words for piece in self._cuts[word][next(chosen)]] + self._end
            for words in self._words
        ]


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
