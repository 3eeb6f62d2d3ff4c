"""Long sentence pairs made by joining short ones from Multi30k.

The sentences of Multi30k have about 13 words and at most 43. This module shuffles them and
concatenates consecutive pairs, source with source and target with target, until the source has the
required length.
"""

import logging
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bahdanau_runtime.text.parallel import read_parallel

logger = logging.getLogger("paper")

SOURCE, TARGET = "en", "fr"
# Lower-cased, normalized and tokenized, as published in the folder `tok` of Multi30k.
FILES = {
    "train": ["train.lc.norm.tok"],
    "validation": ["val.lc.norm.tok"],
    "test": ["test_2016_flickr.lc.norm.tok", "test_2017_flickr.lc.norm.tok"],
}


class Pair(NamedTuple):
    """A text and its translation, with single spaces between words."""

    source: str
    target: str

    @property
    def length(self):
        """Number of source words."""
        return len(self.source.split())


class Bucket(NamedTuple):
    """Lengths in (low, high]."""

    low: int
    high: float

    def __contains__(self, length):
        return self.low < length <= self.high

    @property
    def label(self):
        """Name in tables and figures: 10-20 means 11 to 20 words."""
        return f"{self.low}+" if math.isinf(self.high) else f"{self.low}-{self.high}"


# The buckets of Figure 2. The last one has no upper bound, so every sentence has a bucket.
BUCKETS = [*(Bucket(low, low + 10) for low in range(0, 60, 10)), Bucket(60, math.inf)]


def find_files(data):
    """Return the text files of a data folder.

    Args:
        data: Folder with `tok/train.lc.norm.tok.en` and so on, plain or `.gz`.

    Returns:
        Dict with "train", "validation" and "test": lists of (source path, target path).

    Raises:
        ValueError: If files are missing. The message names all of them.
    """
    files, missing = {}, []
    for part, names in FILES.items():
        files[part] = []
        for name in names:
            paths = [_plain_or_gz(Path(data, "tok", f"{name}.{end}")) for end in (SOURCE, TARGET)]
            missing += [f"tok/{path.name}" for path in paths if not path.exists()]
            files[part].append(tuple(paths))
    if missing:
        raise ValueError(
            "Argument `data` must be a folder with the tokenized files of Multi30k, plain or "
            f"as .gz. Received: {str(data)!r}, without {', '.join(missing)}"
        )
    return files


def _plain_or_gz(path):
    compressed = path.with_name(f"{path.name}.gz")
    return compressed if compressed.exists() else path


def read_pairs(files):
    """Return the pairs of all (source path, target path) files, in order."""
    pairs = []
    for source_path, target_path in files:
        sources, targets = read_parallel(source_path, target_path)
        pairs += [
            Pair(" ".join(source.split()), " ".join(target.split()))
            for source, target in zip(sources, targets, strict=True)
        ]
    return pairs


def join_pairs(pairs, bucket, rng, target_limit=math.inf):
    """Shuffle the pairs and join consecutive ones to the source lengths of a bucket.

    Pairs are joined until their source is longer than `bucket.low`, and dropped if it is then
    longer than `bucket.high`. No pair occurs in two joined ones.

    Args:
        pairs: List of `Pair`.
        bucket: Source lengths.
        rng: NumPy generator.
        target_limit: Maximum number of target words.

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


def make_training_pairs(pairs, limit, count, seed):
    """Return pairs with at most `limit` words per side, equally many per bucket of ten words.

    Args:
        pairs: List of `Pair`.
        limit: Maximum number of words, 30 or 50.
        count: Number of pairs. The text is shuffled and joined again as often as needed.
        seed: Seed of the shuffling.

    Returns:
        A list of `Pair`.

    Raises:
        ValueError: If `count` is not a multiple of the number of buckets, or no pairs can be joined
            to the lengths of a bucket.
    """
    rng = np.random.default_rng([seed, limit])
    buckets = [bucket for bucket in BUCKETS if bucket.high <= limit]
    if count < 1 or count % len(buckets):
        raise ValueError(
            f"Argument `count` must be a positive multiple of {len(buckets)}, the number of "
            f"buckets. Received: {count}"
        )
    text = []
    for bucket in buckets:
        required = len(text) + count // len(buckets)
        while len(text) < required:
            more = list(join_pairs(pairs, bucket, rng, limit))
            if not more:
                raise ValueError(
                    "Argument `pairs` must contain sentences that can be joined to "
                    f"{bucket.label} words. Received: {len(pairs)} pairs that cannot"
                )
            text += more[: required - len(text)]
    return text


def make_test_pairs(pairs, count, seed):
    """Return pairs of all lengths, at most `count` per bucket.

    No original pair occurs twice in one bucket. If the text does not suffice for a bucket, it has
    fewer pairs or none, and a warning is logged.

    Args:
        pairs: List of `Pair`.
        count: Maximum number of pairs per bucket.
        seed: Seed of the shuffling.

    Returns:
        A list of `Pair`, sorted by bucket.
    """
    rng = np.random.default_rng(seed)
    text = []
    for bucket in BUCKETS:
        joined = list(join_pairs(pairs, bucket, rng))[:count]
        if len(joined) < count:
            logger.warning("%d of %d sentences of %s words.", len(joined), count, bucket.label)
        text += joined
    return text
