"""Blocks of parallel text: read from files one at a time, and encoded into ids."""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau.data.corpus import Shard, concatenate_shards, shard_from_lists
from keras_bahdanau.data.filters import PairFilter
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.text.corpus import iterate_lines, parse_links
from keras_bahdanau_runtime.text.parallel import (
    UTF_8_TEXT,
    PairCheck,
    TextFormat,
    iterate_pairs,
    raise_uneven,
    side_names,
)
from keras_bahdanau_runtime.text.tokenizer import NORMALIZATIONS, Tokenizer

Links = list[tuple[int, int]]
_PairEncoder = Callable[[list[str], list[str]], tuple[list[list[int]], list[list[int]]]]
Paths = Sequence[str | os.PathLike[str]]

BLOCK_PREFIX = "block-"  # of the names of a block's files
_MAX_WORDS = 100_000  # cached words, about 25 MB
_MAX_CACHED = 2000  # characters of a text whose words are cached
# Pairs and characters encoded at once: the encodings need a hundred bytes per character.
_ENCODE_PAIRS, _ENCODE_CHARACTERS = 1000, 2**21
_BLOCK_CHARACTERS = 2**26  # from which on a block has fewer pairs


@dataclass
class Block:
    """Consecutive pairs of sentences.

    Args:
        number: Index of the block, from 0.
        sources: Source sentences.
        targets: Their translations.
        links: Their alignments, one list per pair; `None` without alignments.
        blank: Number of skipped pairs with a blank side.
        bad: Number of skipped bad lines; see `TextFormat`.
        filtered: Number of pairs that each rule dropped, by rule.
    """

    number: int
    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    links: list[Links] | None = None
    blank: int = 0
    bad: int = 0
    filtered: Counter[str] = field(default_factory=Counter)

    def digest(self) -> str:
        """Return the SHA-256 of the block's contents in hexadecimal digits."""
        contents = f"{len(self.sources)} {self.blank} {self.links or []}\n"
        if self.bad or self.filtered:  # otherwise the digest is that of earlier versions
            contents = f"{self.bad} {sorted(self.filtered.items())} {contents}"
        digest = hashlib.sha256(contents.encode())
        for texts in (self.sources, self.targets):  # no line contains a "\n"
            digest.update("\n".join([*texts, ""]).encode("utf-8"))
        return digest.hexdigest()


def read_blocks(
    sources: Paths,
    targets: Paths | None,
    alignments: Paths | None,
    pairs: int,
    warn: bool = True,
    check_unicode: bool = False,
    text_format: TextFormat = UTF_8_TEXT,
    rules: Sequence[str] = (),
) -> Iterator[Block]:
    """Read parallel files `pairs` pairs at a time.

    Args:
        sources: Files of source sentences; without `targets`, files with both sides. See
            `iterate_pairs`.
        targets: As many files of their translations, line by line.
        alignments: As many files of word alignments in Pharaoh format; `None` for none. There is
            one line for each pair, also for those that are skipped.
        pairs: Number of pairs of every block but the last, without the skipped ones. A block of
            very long texts has fewer.
        warn: Whether to log warnings about files that look wrong, as `read_parallel` does.
        check_unicode: Whether to warn also about lines that are not in Unicode form NFC.
        text_format: `TextFormat` of the files.
        rules: Rules of a `PairFilter`, which skips pairs.

    Yields:
        `Block`s. A block may span files. The last one may have no pairs, only skipped lines.

    Raises:
        ValueError: Files that belong together have different numbers of lines; or as
            `iterate_pairs`.
    """

    def new_block(number: int) -> Block:
        return Block(number, links=None if alignments is None else [])

    block, characters = new_block(0), 0
    joins_columns = text_format.joins_columns
    pair_filter = PairFilter(rules, joins_columns)
    for source_file, target_file, link_file in zip(
        sources, targets or repeat(None), alignments or repeat(None), strict=False
    ):
        check = PairCheck(*side_names(source_file, target_file), check_unicode, joins_columns)
        lines: Iterator[Any] = iterate_pairs(source_file, target_file, text_format, warn)
        if link_file is None:
            rows: Iterator[Any] = zip(lines, repeat(""), strict=False)
        else:
            rows = zip_longest(lines, iterate_lines(link_file, warn))
        for row, (pair, links) in enumerate(rows, start=1):
            if pair is None or links is None:
                raise_uneven((source_file, link_file), (pair, links), row)
            _, source, target = pair
            if source is None:
                block.bad += 1
                continue
            if not source.strip() or not target.strip():
                block.blank += 1
                continue
            if rules and (rule := pair_filter.broken_rule(source, target)) is not None:
                block.filtered[rule] += 1
                continue
            if warn:
                check.add(source, target)
            block.sources.append(source)
            block.targets.append(target)
            if block.links is not None:
                block.links.append(parse_links(links, f"{link_file}, line {row}"))
            characters += len(source) + len(target) + len(links)
            if len(block.sources) == pairs or characters > _BLOCK_CHARACTERS:
                yield block
                block, characters = new_block(block.number + 1), 0
        check.warn()
    if block.sources or block.blank or block.bad or block.filtered:
        yield block


def raise_no_pair(is_filtered: bool, bad: int) -> NoReturn:
    """Raise the error for texts without a pair.

    Args:
        is_filtered: Whether rules have dropped pairs.
        bad: Number of skipped bad lines.
    """
    rest = " that `filter` keeps" if is_filtered else ""
    rest += f", and {bad} bad lines" if bad else ""
    raise argument_error(
        ("sources", "targets"),
        "contain a pair of sentences",
        received=f"none without a blank side{rest}",
    )


def check_files(**files: Paths | None) -> None:
    """Raise a `ValueError` unless all kinds have the same number of files, which are plain files.

    The files are read twice, so they must not be pipes.
    """
    for name, paths in files.items():
        if isinstance(paths, str) or not (paths is None or isinstance(paths, Sequence)):
            raise argument_error(name, "be a list of paths", paths)
    counts = {name: len(paths) for name, paths in files.items() if paths is not None}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        names = " and ".join(f"`{name}`" for name in counts)
        raise ValueError(
            f"Arguments {names} must have the same number of files, at least one. Received: "
            + ", ".join(str(count) for count in counts.values())
        )
    for name, paths in files.items():
        for path in paths or ():
            if str(path) == "-" or (os.path.exists(path) and not Path(path).is_file()):
                raise argument_error(name, "contain plain files, which are read twice", str(path))


class WordCache:
    """Encoder like `Tokenizer.encode_sources` that takes about a tenth of its time.

    A tokenizer made by `Tokenizer.train` splits text before every space that follows another
    character. So the ids of a text with single spaces are those of its words. The tokenizer's
    Unicode form never joins a space with its neighbors, and no word ends with a space in it. Other
    texts, and texts of other tokenizers, are encoded as a whole.

    Args:
        side: `tokenizers.Tokenizer` of one language.
        encode: Encodes a list of texts with it, as `Tokenizer.encode_sources`.
    """

    def __init__(self, side: Any, encode_block: Callable[[list[str]], list[list[int]]]) -> None:
        self._encode = encode_block
        self._splits_words = _splitting_rules(side) in [
            _splitting_rules(
                Tokenizer.train(["a"], ["a"], 260, form != "nfd", normalization=form).source
            )
            for form in (None, *NORMALIZATIONS)
        ]
        self._ids_by_word: dict[str, list[int]] = {}

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, the last of which is `EOS`."""
        if not self._splits_words:
            return self._encode(texts)
        split = [text.split(" ") for text in texts]
        has_single_spaces = [
            len(text) <= _MAX_CACHED and words == text.split()
            for text, words in zip(texts, split, strict=True)
        ]
        whole = iter(
            self._encode(
                [
                    text
                    for text, is_single in zip(texts, has_single_spaces, strict=True)
                    if not is_single
                ]
            )
        )
        pairs = list(zip(split, has_single_spaces, strict=True))
        self._add_words({word for words, is_single in pairs if is_single for word in words})
        ids = self._ids_by_word
        return [
            [*chain.from_iterable([ids[word] for word in words]), EOS] if is_single else next(whole)
            for words, is_single in pairs
        ]

    def _add_words(self, words: set[str]) -> None:
        new = list(words.difference(self._ids_by_word))
        if len(self._ids_by_word) + len(new) > _MAX_WORDS:
            self._ids_by_word.clear()
            new = list(words)
        for word, ids in zip(new, self._encode(new), strict=True):
            self._ids_by_word[word] = ids[:-1]


def _splitting_rules(side: Any) -> Any:
    """Return the JSON of a tokenizer without its learned pieces."""
    document = json.loads(side.to_str())
    for learned in ("vocab", "merges"):
        document["model"].pop(learned, None)
    return document


@dataclass(frozen=True)
class EncodingOptions:
    """Options for encoding blocks into ids, the same for all blocks.

    Args:
        work: Folder to write to.
        tokenizer: File of the tokenizer.
        digest: Hash of that file, so that a changed file is loaded again.
        dtype: Type of the ids, "uint16" or "uint32".
        shards: Number of shards.
        max_length: Largest number of ids of a sequence; `None` for no limit.
        drop: Whether pairs with a longer sequence are dropped instead of cut.
        seed: Seed of the random shard of each pair.
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
    """Counts of an encoded block.

    Args:
        bounds: Where the pairs of each shard begin, and the end of the last; `shards + 1` ints.
        cut: Number of pairs that were cut.
        dropped: Number of pairs that were dropped for their length.
        longest: Largest number of ids of a source and of a target.
        tokens: Number of ids of sources and of targets.
    """

    bounds: list[int]
    cut: int
    dropped: int
    longest: list[int]
    tokens: list[int]

    @property
    def pairs(self) -> int:
        """Number of pairs of the block, including dropped ones."""
        return self.bounds[-1] + self.dropped


def block_name(number: int) -> str:
    """Return the common part of the names of a block's files."""
    return f"{BLOCK_PREFIX}{number:05d}"


def read_record(work: Path, number: int) -> BlockRecord | None:
    """Read the record of a block, or return `None` if the block is not encoded yet."""
    path = work / f"{block_name(number)}.json"
    return BlockRecord(**json.loads(path.read_bytes())) if path.exists() else None


def encode_block(options: EncodingOptions, block: Block) -> BlockRecord:
    """Encode the pairs of a block and write them sorted by shard.

    Raises:
        ValueError: An alignment has a position outside its pair.
    """
    encode = _load_encoder(options.tokenizer, options.digest)
    pairs = concatenate_shards(
        [_encode_pairs(encode, block, rows, options.dtype) for rows in _encode_rows(block)]
    )
    cut = dropped = 0
    if options.max_length is not None:
        is_long = (pairs.lengths > options.max_length).any(axis=1)
        if options.drop:
            dropped = int(is_long.sum())
            pairs = pairs.take(np.flatnonzero(~is_long))
        else:
            cut = int(is_long.sum())
            pairs = pairs.truncate(options.max_length)
    rng = np.random.default_rng([options.seed, block.number])
    shards = rng.integers(options.shards, size=len(pairs))  # the shard of each pair
    pairs = pairs.take(np.argsort(shards, kind="stable"))
    bounds = np.searchsorted(np.sort(shards), np.arange(options.shards + 1))
    longest = pairs.lengths.max(axis=0, initial=0)
    record = BlockRecord(
        bounds.tolist(), cut, dropped, longest.tolist(), pairs.lengths.sum(axis=0).tolist()
    )
    work = Path(options.work)
    pairs.save(work, block_name(block.number))
    with atomic_write(work / f"{block_name(block.number)}.json") as path:
        path.write_text(json.dumps(asdict(record)), encoding="utf-8")
    return record


@functools.lru_cache(maxsize=1)
def _load_encoder(path: str, digest: str) -> _PairEncoder:
    """Return a function from sources and targets to their ids.

    Args:
        path: File of the tokenizer.
        digest: Hash of that file, a part of the cache's key.
    """
    tokenizer = Tokenizer.load(path)
    if tokenizer.copied_words:  # the ids of targets depend on the sources, and words are not split
        return lambda sources, targets: (
            tokenizer.encode_sources(sources),
            tokenizer.encode_targets(targets, sources),
        )
    encode_sources = encode_targets = WordCache(tokenizer.source, tokenizer.encode_sources)
    if not tokenizer.joint or tokenizer.has_columns:
        encode_targets = WordCache(tokenizer.target, tokenizer.encode_targets)
    return lambda sources, targets: (encode_sources(sources), encode_targets(targets))


def _encode_rows(block: Block) -> Iterator[slice]:
    """Yield the pairs that are encoded at once, at least one slice."""
    begin = characters = 0
    for end, (source, target) in enumerate(zip(block.sources, block.targets, strict=True)):
        characters += len(source) + len(target)
        if end > begin and (end - begin == _ENCODE_PAIRS or characters > _ENCODE_CHARACTERS):
            yield slice(begin, end)
            begin, characters = end, len(source) + len(target)
    yield slice(begin, len(block.sources))


def _encode_pairs(encode: _PairEncoder, block: Block, rows: slice, dtype: Any) -> Shard:
    sources, targets = encode(block.sources[rows], block.targets[rows])
    links = None if block.links is None else block.links[rows]
    pairs = shard_from_lists(sources, targets, dtype, links)
    if pairs.links is not None and pairs.starts is not None:
        lengths = np.repeat(pairs.lengths, np.diff(pairs.starts), axis=0)
        _check_links(pairs.links, lengths, pairs.starts, block.sources[rows])
    return pairs


def _check_links(
    links: NDArray[Any], lengths: NDArray[Any], starts: NDArray[Any], sources: Sequence[str]
) -> None:
    is_outside = (links >= lengths).any(axis=1)
    if is_outside.any():
        link = int(is_outside.argmax())
        pair = int(np.searchsorted(starts, link, side="right")) - 1
        raise argument_error(
            "alignments",
            f"have positions below {tuple(lengths[link].tolist())}, the lengths in tokens of "
            "the pair",
            received=f"{tuple(links[link].tolist())} for {sources[pair]!r:.80}",
        )
