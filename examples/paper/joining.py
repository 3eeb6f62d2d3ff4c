"""Text of every length out of short sentences: pairs of Multi30k, joined.

The sentences of Multi30k have some 13 words and at most 40. Longer ones are made here: consecutive
pairs of the shuffled text are joined, 2, 3, 4 or more of them, source with source and target with
target, until the source is as long as is wanted.
"""

import logging
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bahdanau_runtime.text.corpus import read_parallel

logger = logging.getLogger("paper")

SOURCE, TARGET = "en", "fr"
# Lower-cased, normalised and tokenised, as Multi30k's authors publish them in `tok`.
FILES = {
    "train": ["train.lc.norm.tok"],
    "validation": ["val.lc.norm.tok"],
    "test": ["test_2016_flickr.lc.norm.tok", "test_2017_flickr.lc.norm.tok"],
}


class Pair(NamedTuple):
    """A text and its translation, words with one space between them."""

    source: str
    target: str

    @property
    def length(self):
        """Number of source words, by which everything here is sorted."""
        return len(self.source.split())


class Bucket(NamedTuple):
    """Lengths above `low` and up to `high`."""

    low: int
    high: float

    def __contains__(self, length):
        return self.low < length <= self.high

    @property
    def label(self):
        """Its name in tables and pictures: 10-20 holds 11 to 20 words."""
        return f"{self.low}+" if math.isinf(self.high) else f"{self.low}-{self.high}"


# Those of the paper's Figure 2. The last one has no end, so no sentence is longer than all of them.
BUCKETS = [*(Bucket(low, low + 10) for low in range(0, 60, 10)), Bucket(60, math.inf)]


def find_files(data):
    """The text files of a data folder.

    Args:
        data: Folder with `tok/train.lc.norm.tok.en` and so on, plain or with `.gz` at the end.

    Returns:
        Mapping of "train", "validation" and "test" to lists of (source path, target path).

    Raises:
        ValueError: If files are missing; all of them are named.
    """
    found, missing = {}, []
    for part, names in FILES.items():
        found[part] = []
        for name in names:
            paths = [_plain_or_gz(Path(data, "tok", f"{name}.{end}")) for end in (SOURCE, TARGET)]
            missing += [f"tok/{path.name}" for path in paths if not path.exists()]
            found[part].append(tuple(paths))
    if missing:
        raise ValueError(
            "Argument `data` must be a folder that holds the tokenised files of Multi30k, plain or "
            f"as .gz. Received: {str(data)!r}, without {', '.join(missing)}"
        )
    return found


def _plain_or_gz(path):
    compressed = path.with_name(f"{path.name}.gz")
    return compressed if compressed.exists() else path


def read_pairs(files):
    """The pairs of (source path, target path) files, one after another."""
    pairs = []
    for source_path, target_path in files:
        sources, targets = read_parallel(source_path, target_path)
        pairs += [
            Pair(" ".join(source.split()), " ".join(target.split()))
            for source, target in zip(sources, targets, strict=True)
        ]
    return pairs


def joined(pairs, bucket, rng, target_limit=math.inf):
    """Walks once through the shuffled pairs and joins consecutive ones.

    Pairs are joined until their source is longer than `bucket.low`. What is then longer than
    `bucket.high` is left out, so no pair is in two of the texts.

    Args:
        pairs: List of `Pair`.
        bucket: The wanted source lengths.
        rng: NumPy generator.
        target_limit: Most words of a target.

    Yields:
        A `Pair` with a source length in `bucket`.
    """
    parts, length = [], 0
    for index in rng.permutation(len(pairs)):
        parts.append(pairs[index])
        length += pairs[index].length
        if length <= bucket.low:
            continue
        target = " ".join(part.target for part in parts)
        if length in bucket and len(target.split()) <= target_limit:
            yield Pair(" ".join(part.source for part in parts), target)
        parts, length = [], 0


def training_text(pairs, limit, count, seed):
    """Pairs of at most `limit` words on either side, equally many in each bucket of ten words.

    Args:
        pairs: List of `Pair`.
        limit: 30 or 50, as in the names of the paper's models.
        count: Number of pairs to make. The shuffled text is gone through as often as that needs.
        seed: Randomness of the order.

    Returns:
        A list of `Pair`.

    Raises:
        ValueError: If `count` is no multiple of the number of buckets, or no pairs can be joined to
            the length of one of them.
    """
    rng = np.random.default_rng([seed, limit])
    buckets = [bucket for bucket in BUCKETS if bucket.high <= limit]
    if count < 1 or count % len(buckets):
        raise ValueError(
            f"Argument `count` must be a positive multiple of {len(buckets)}, the number of "
            f"buckets. Received: {count}"
        )
    made = []
    for bucket in buckets:
        wanted = len(made) + count // len(buckets)
        while len(made) < wanted:
            more = list(joined(pairs, bucket, rng, limit))
            if not more:
                raise ValueError(
                    "Argument `pairs` must hold sentences that can be joined to "
                    f"{bucket.label} words. Received: {len(pairs)} pairs that cannot"
                )
            made += more[: wanted - len(made)]
    return made


def test_text(pairs, count, seed):
    """Pairs of all lengths, at most `count` in each bucket, no original pair twice in one bucket.

    A bucket that the text cannot fill gets fewer, with a warning in the log; it may stay empty.

    Args:
        pairs: List of `Pair`.
        count: Most pairs in each bucket.
        seed: Randomness of the order.

    Returns:
        A list of `Pair`, by bucket.
    """
    rng = np.random.default_rng(seed)
    made = []
    for bucket in BUCKETS:
        found = list(joined(pairs, bucket, rng))[:count]
        if len(found) < count:
            logger.warning("%d of %d sentences of %s words.", len(found), count, bucket.label)
        made += found
    return made
