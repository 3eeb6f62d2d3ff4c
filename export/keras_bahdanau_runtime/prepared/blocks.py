"""Blocks of parallel text: read from files one at a time, and encoded into ids."""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.prepared.corpus import Shard, from_lists, join
from keras_bahdanau_runtime.text.corpus import PairCheck, iterate_lines, parse_links
from keras_bahdanau_runtime.text.tokenizer import NORMALIZATIONS, Tokenizer

Links = list[tuple[int, int]]
Paths = Sequence[str | os.PathLike[str]]


@dataclass
class Block:
    """Some pairs that follow one another in the files.

    Args:
        number: Which block this is, from 0.
        sources: Source sentences.
        targets: Their translations.
        links: Their alignments, one list a pair; `None` without alignments.
        blank: How many more pairs there were, one side of which is blank.
    """

    number: int
    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    links: list[Links] | None = None
    blank: int = 0

    def digest(self) -> str:
        """The SHA-256 of all that the block holds, in hexadecimal digits."""
        found = hashlib.sha256(f"{len(self.sources)} {self.blank} {self.links or []}\n".encode())
        for texts in (self.sources, self.targets):  # no line holds a "\n"
            found.update("\n".join([*texts, ""]).encode("utf-8"))
        return found.hexdigest()


def blocks(
    sources: Paths,
    targets: Paths,
    alignments: Paths | None,
    pairs: int,
    warn: bool = True,
    forms: bool = False,
) -> Iterator[Block]:
    """Reads files whose lines translate each other, `pairs` pairs at a time.

    Args:
        sources: Files of source sentences, as `iterate_lines` takes them.
        targets: As many files of their translations, line by line.
        alignments: As many files of word alignments in Pharaoh format; `None` for none.
        pairs: Number of pairs of every block but the last, blank ones not counted.
        warn: Whether the log warns of files that cannot be right, as `read_parallel` does.
        forms: Whether it warns of lines that are not in Unicode's form NFC, too.

    Yields:
        The `Block`s. A block may span files; the last may hold no pair if lines are blank.

    Raises:
        ValueError: If files that belong together differ in their number of lines, or as
            `iterate_lines`.
    """

    def empty(number: int) -> Block:
        return Block(number, links=None if alignments is None else [])

    block = empty(0)
    for names in zip(sources, targets, alignments or repeat(None), strict=False):
        opened = [repeat("") if name is None else iterate_lines(name, warn) for name in names]
        check = PairCheck(str(names[0]), str(names[1]), forms)
        if names[2] is None:
            lines = zip_longest(*opened[:2])
        else:
            lines = zip_longest(*opened)
        for number, (source, target, *links) in enumerate(lines, start=1):
            if source is None or target is None or None in links:
                _raise_uneven(names, (source, target, *links), number)
            if not source.strip() or not target.strip():
                block.blank += 1
                continue
            if warn:
                check.add(source, target)
            block.sources.append(source)
            block.targets.append(target)
            if block.links is not None:
                block.links.append(parse_links(links[0], f"{names[2]}, line {number}"))
            if len(block.sources) == pairs:
                yield block
                block = empty(block.number + 1)
        check.warn()
    if block.sources or block.blank:
        yield block


def _raise_uneven(names: Sequence[object], lines: Sequence[str | None], number: int) -> None:
    ended = [str(name) for name, line in zip(names, lines, strict=False) if line is None]
    longer = [str(name) for name, line in zip(names, lines, strict=False) if line is not None]
    raise ValueError(
        "Files that belong together must have the same number of lines. "
        f"Received: {ended[0]} ends after line {number - 1}, {longer[0]} goes on"
    )


def check_files(**files: Paths | None) -> None:
    """Raises a `ValueError` unless there are as many files of each kind, to be read twice."""
    for name, paths in files.items():
        if isinstance(paths, str) or not (paths is None or isinstance(paths, Sequence)):
            raise ValueError(f"Argument `{name}` must be a list of paths. Received: {paths!r}")
    counts = {name: len(paths) for name, paths in files.items() if paths is not None}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        names = " and ".join(f"`{name}`" for name in counts)
        raise ValueError(
            f"Arguments {names} must hold as many files, at least one. Received: "
            + ", ".join(str(count) for count in counts.values())
        )
    for name, paths in files.items():
        for path in paths or ():
            if os.path.exists(path) and not Path(path).is_file():
                raise ValueError(
                    f"Argument `{name}` must hold plain files, which are read twice. "
                    f"Received: {str(path)!r}"
                )


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
