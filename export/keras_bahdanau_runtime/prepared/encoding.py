"""A block of text to ids: the part of the work that many processes share."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.prepared.reading import Block
from keras_bahdanau_runtime.prepared.shard import Shard, from_lists, join
from keras_bahdanau_runtime.text.tokenizer import NORMALIZATIONS, Tokenizer

_MOST = 100_000  # words that are kept, about 25 MB


class WordCache:
    """Ids of texts as `Tokenizer.encode_sources` gives, in about a tenth of its time.

    A tokenizer that `Tokenizer.train` has made cuts text in front of every space that follows
    something else, whatever stands on both sides; so the ids of a text with single spaces are those
    of its words. Its Unicode form never joins a space with what stands beside it, nor ends a word
    in one. Other texts, and those of other tokenizers, are encoded whole.

    Args:
        side: `tokenizers.Tokenizer` of one language.
        encode: Encodes a list of texts by it, as `Tokenizer.encode_sources`.
    """

    def __init__(self, side: Any, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._encode = encode
        self._by_words = _form(side) in [
            _form(Tokenizer.train(["a"], ["a"], 260, normalization=normalization).source)
            for normalization in (None, *NORMALIZATIONS)
        ]
        self._known: dict[str, list[int]] = {}

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, the last of which is `EOS`."""
        if not self._by_words:
            return self._encode(texts)
        words = [text.split(" ") for text in texts]
        plain = [found == text.split() for text, found in zip(texts, words, strict=True)]
        whole = iter(
            self._encode(
                [text for text, is_plain in zip(texts, plain, strict=True) if not is_plain]
            )
        )
        self._learn({word for found, by in zip(words, plain, strict=True) if by for word in found})
        known = self._known
        return [
            [*chain.from_iterable([known[word] for word in found]), EOS] if by else next(whole)
            for found, by in zip(words, plain, strict=True)
        ]

    def _learn(self, words: set[str]) -> None:
        new = list(words.difference(self._known))
        if len(self._known) + len(new) > _MOST:
            self._known.clear()
            new = list(words)
        for word, ids in zip(new, self._encode(new), strict=True):
            self._known[word] = ids[:-1]


def _form(side: Any) -> Any:
    """All that decides how a tokenizer cuts text, but for the pieces that it has learned."""
    document = json.loads(side.to_str())
    for learned in ("vocab", "merges"):
        document["model"].pop(learned, None)
    return document


BLOCK = "block-"  # the names of a block's files begin so
_AT_ONCE = 1000  # pairs: what the library says of a sentence takes kilobytes


@dataclass(frozen=True)
class Encoding:
    """How blocks become ids; the same for all.

    Args:
        work: The folder that they are written to.
        tokenizer: The tokenizer's file.
        digest: The hash of that file, by which one in the place of another is told from it.
        dtype: Of the ids, "uint16" or "uint32".
        shards: How many shards there are to be.
        max_length: Most ids of a sequence; `None` for no limit.
        drop: Whether pairs with a longer one are left out, rather than cut.
        seed: Of the shard that each pair goes to.
    """

    work: str
    tokenizer: str
    digest: str
    dtype: str
    shards: int
    max_length: int | None
    drop: bool
    seed: int


@dataclass(frozen=True)
class BlockRecord:
    """What is known of an encoded block.

    Args:
        bounds: Where the pairs of each shard begin, and those of the last end; `shards + 1` ints.
        cut: How many pairs were cut.
        dropped: How many pairs were left out for their length.
        longest: Most ids of a source and of a target.
        tokens: Number of ids of sources and of targets.
    """

    bounds: list[int]
    cut: int
    dropped: int
    longest: list[int]
    tokens: list[int]


def block_name(number: int) -> str:
    """The name of a block's files."""
    return f"{BLOCK}{number:05d}"


def read_record(work: Path, number: int) -> BlockRecord | None:
    """What is known of a block; `None` if it is yet to be encoded."""
    path = work / f"{block_name(number)}.json"
    return BlockRecord(**json.loads(path.read_bytes())) if path.exists() else None


def encode(how: Encoding, block: Block) -> BlockRecord:
    """Writes the pairs of a block as ids, those of one shard after those of another.

    Raises:
        ValueError: If an alignment names a place that a pair does not have.
    """
    encoders = _encoders(how.tokenizer, how.digest)
    found = join(
        [
            _encode_some(encoders, block, begin, how.dtype)
            for begin in range(0, max(1, len(block.sources)), _AT_ONCE)
        ]
    )
    cut = dropped = 0
    if how.max_length is not None:
        long = (found.lengths > how.max_length).any(axis=1)
        if how.drop:
            dropped = int(long.sum())
            found = found.take(np.flatnonzero(~long))
        else:
            cut = int(long.sum())
            found = found.cut(how.max_length)
    shard = np.random.default_rng([how.seed, block.number]).integers(how.shards, size=len(found))
    found = found.take(np.argsort(shard, kind="stable"))
    bounds = np.searchsorted(np.sort(shard), np.arange(how.shards + 1))
    longest = found.lengths.max(axis=0, initial=0)
    record = BlockRecord(
        bounds.tolist(), cut, dropped, longest.tolist(), found.lengths.sum(axis=0).tolist()
    )
    work = Path(how.work)
    found.save(work, block_name(block.number))
    with written(work / f"{block_name(block.number)}.json") as path:
        path.write_text(json.dumps(asdict(record)), encoding="utf-8")
    return record


@functools.lru_cache(maxsize=1)
def _encoders(path: str, digest: str) -> tuple[WordCache, WordCache]:
    """What encodes sources and targets by the tokenizer of a file, which may have been another."""
    tokenizer = Tokenizer.load(path)
    sources = WordCache(tokenizer.source, tokenizer.encode_sources)
    if tokenizer.joint:
        return sources, sources
    return sources, WordCache(tokenizer.target, tokenizer.encode_targets)


def _encode_some(
    encoders: tuple[WordCache, WordCache], block: Block, begin: int, dtype: Any
) -> Shard:
    some = slice(begin, begin + _AT_ONCE)
    sources, targets = encoders[0](block.sources[some]), encoders[1](block.targets[some])
    links = None if block.links is None else block.links[some]
    found = from_lists(sources, targets, dtype, links)
    if found.links is not None and found.starts is not None:
        lengths = np.repeat(found.lengths, np.diff(found.starts), axis=0)
        _check_links(found.links, lengths, found.starts, block.sources[some])
    return found


def _check_links(
    links: NDArray[Any], lengths: NDArray[Any], starts: NDArray[Any], sources: Sequence[str]
) -> None:
    wrong = (links >= lengths).any(axis=1)
    if wrong.any():
        place = int(wrong.argmax())
        pair = int(np.searchsorted(starts, place, side="right")) - 1
        raise ValueError(
            "Argument `alignments` must hold places below "
            f"{tuple(lengths[place].tolist())}, the lengths in tokens of its pair. "
            f"Received: {tuple(links[place].tolist())} for {sources[pair]!r:.80}"
        )
