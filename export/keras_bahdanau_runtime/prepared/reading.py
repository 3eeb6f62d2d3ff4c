"""Parallel text files as a stream of blocks of pairs: no more than a block is ever in memory."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from pathlib import Path

from keras_bahdanau_runtime.text.corpus import iterate_lines, parse_links
from keras_bahdanau_runtime.text.pairs import PairCheck

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
