"""From text files of any size to a prepared corpus, in memory that does not grow with them.

The files are read twice. The first pass counts, hashes and samples: the tokenizer is learned from
the sample. The second encodes blocks of pairs, in many processes, each into files of its own,
sorted by the shard that every pair goes to at random. Then each shard gathers its pairs from all
blocks and permutes them. Every file appears whole or not at all, so an interrupted `prepare` goes
on behind the last; and every file is a function of the texts and options alone.
"""

import contextlib
import hashlib
import inspect
import json
import logging
import multiprocessing
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.files import claimed, flush, written
from keras_bahdanau_runtime.prepared.blocks import (
    BLOCK,
    Block,
    BlockRecord,
    Encoding,
    Paths,
    block_name,
    blocks,
    check_files,
    encode,
    read_record,
)
from keras_bahdanau_runtime.prepared.corpus import (
    FORMAT,
    LAST,
    MANIFEST_FILE,
    SHARD,
    TOKENIZER_FILE,
    VERSION,
    Shard,
    file_name,
    files_of,
    hash_of,
    join,
    shard_name,
)
from keras_bahdanau_runtime.session import cores
from keras_bahdanau_runtime.text.tokenizer import (
    MOST_PIECES,
    SMALLEST_VOCABULARY,
    Tokenizer,
    check_normalization,
)

logger = logging.getLogger("keras_bahdanau_runtime")

TOO_LONG = ("cut", "drop")
WORK = "work"  # the folder of unfinished files, inside of the corpus
PLAN_FILE = "plan.json"
_BLOCK_PAIRS = 25_000  # pairs that are encoded at once
_FEW = 100_000  # pairs that one process encodes sooner than others have started

Progress = Callable[[str, int, int | None], None]


def prepare(
    sources: Paths,
    targets: Paths,
    output: str | os.PathLike[str],
    tokenizer: Tokenizer | None = None,
    alignments: Paths | None = None,
    vocabulary_size: int = 8000,
    joint: bool = True,
    sample: int = 100_000,
    normalization: str | None = None,
    shard_pairs: int = 250_000,
    max_length: int | None = None,
    too_long: str = "cut",
    seed: int = 0,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """CorpusMixer parallel text into a corpus for `PreparedDataset`.

    The same texts, options and seed give the same bytes, with any number of processes, interrupted
    or not. A call that was interrupted goes on where it was when it is made again; one that has
    ended checks that texts and options are still the same.

    Args:
        sources: Files of source sentences, one a line, UTF-8, plain or `.gz`.
        targets: As many files of their translations, line by line. Pairs with a blank side are left
            out; a warning in the log says how many. Others warn of files that cannot be right and
            of lines that are not in Unicode's form NFC.
        output: The corpus's folder, new or of an interrupted call.
        tokenizer: A `Tokenizer`; `None` to learn one.
        alignments: As many files of word alignments in Pharaoh format, whose places count the
            tokens of `tokenizer`; `None` for none.
        vocabulary_size: See `Tokenizer.train`; likewise `joint` and `normalization`. To be left
            out, as is `sample`, with a `tokenizer`.
        joint: Whether both languages share a vocabulary.
        sample: Number of pairs, drawn at random, that the tokenizer is learned from.
        normalization: "nfc" or "nfkc": the Unicode form that the tokenizer brings all text into.
        shard_pairs: Number of pairs of a shard, about.
        max_length: Most ids of a source or a target; `None` for no limit.
        too_long: Whether longer ones are "cut", the last id stays the last, or their pairs "drop".
            A warning in the log says how many.
        seed: Non-negative int, of the sample and the order.
        processes: How many processes encode. `None` for one for each core, or for this one alone
            where there are fewer than 100,000 pairs.
        progress: Called now and then as `progress(stage, pairs done, pairs of all or None)`.

    Returns:
        The folder, a `Path`.

    Raises:
        ValueError: If an argument is out of range or of no use, files that belong together differ
            in their number of lines, a line is not UTF-8, there is no pair, the texts change while
            they are read, the folder is of other options or texts, or another process is at work in
            it.
        OSError: If the disk is full, or a process was killed. The same call then goes on.

    Example:

    ```python
    if __name__ == "__main__":  # more processes run this file once more
        prepare(["part1.en.gz", "part2.en.gz"], ["part1.de.gz", "part2.de.gz"], "corpus")
    ```
    """
    _check_arguments(vocabulary_size, sample, shard_pairs, max_length, too_long, seed, processes)
    check_normalization(normalization)
    check_files(sources=sources, targets=targets, alignments=alignments)
    if alignments is not None and tokenizer is None:
        raise ValueError(
            "Argument `tokenizer` must be given with `alignments`, which count its tokens. "
            "Received: None"
        )
    learned = {
        "vocabulary_size": vocabulary_size,
        "joint": joint,
        "sample": sample,
        "normalization": normalization,
    }
    if tokenizer is not None:
        _check_left_out(learned)
    options = {
        **(learned if tokenizer is None else dict.fromkeys(learned)),
        "shard_pairs": shard_pairs,
        "max_length": max_length,
        "too_long": too_long,
        "seed": seed,
    }
    job = _Job(
        output=Path(output),
        files=(sources, targets, alignments),
        options=options,
        normalized=(normalization if tokenizer is None else tokenizer.normalization) is not None,
        processes=processes,
        progress=progress or (lambda stage, done, total: None),
    )
    with _claimed(job.output):
        if (job.output / MANIFEST_FILE).exists():
            job.check_finished(tokenizer)
        else:
            plan = job.plan(tokenizer)
            records = job.encode(plan)
            job.finish(plan, records)
        remove_work(job.output)
    return job.output


@dataclass
class _Plan:
    """What the first pass has found: the digest of every block, and counts."""

    digests: list[str] = field(default_factory=list)
    pairs: int = 0
    blank: int = 0

    @property
    def text(self) -> str:
        """The digest of all blocks."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()


@dataclass
class _Job:
    """One call of `prepare`: its files and options, and the steps of its work."""

    output: Path
    files: tuple[Paths, Paths, Paths | None]
    options: dict[str, Any]
    normalized: bool
    processes: int | None
    progress: Progress

    @property
    def work(self) -> Path:
        return self.output / WORK

    @property
    def aligned(self) -> bool:
        return self.files[2] is not None

    def blocks(self, warn: bool) -> Iterator[Block]:
        return blocks(*self.files, pairs=_BLOCK_PAIRS, warn=warn, forms=not self.normalized)

    def plan(self, tokenizer: Tokenizer | None) -> _Plan:
        """The first pass, or what an interrupted call has found; the tokenizer stands by then."""
        path = self.work / PLAN_FILE
        if path.exists():
            before = json.loads(path.read_bytes())
            self._check_options(before.pop("version"), before.pop("options"), tokenizer)
            return _Plan(**before)
        plan, sample = self._survey(0 if tokenizer else self.options["sample"])
        if not plan.pairs:
            raise ValueError(
                "Arguments `sources` and `targets` must hold a pair of sentences. Received: none "
                "without a blank side"
            )
        if tokenizer is None:
            self.progress("learning the tokenizer", len(sample), None)
            tokenizer = Tokenizer.train(
                [source for source, _ in sample],
                [target for _, target in sample],
                self.options["vocabulary_size"],
                self.options["joint"],
                normalization=self.options["normalization"],
            )
        self.work.mkdir(exist_ok=True)  # before all else: by it the folder is known again
        tokenizer.save(self.output / TOKENIZER_FILE)
        _write_json(path, {"version": VERSION, "options": self._described(), **vars(plan)})
        return plan

    def _survey(self, most: int) -> tuple[_Plan, list[tuple[str, str]]]:
        """Reads everything once; keeps `most` pairs, each as likely as any other."""
        plan, sample = _Plan(), list[tuple[str, str]]()
        rng = random.Random(self.options["seed"])
        for block in self.blocks(warn=True):
            plan.digests.append(block.digest())
            plan.blank += block.blank
            for pair in zip(block.sources, block.targets, strict=True) if most else ():
                if len(sample) < most:
                    sample.append(pair)
                elif (place := int(rng.random() * (plan.pairs + 1))) < most:
                    sample[place] = pair
                plan.pairs += 1
            if not most:
                plan.pairs += len(block.sources)
            self.progress("reading", plan.pairs, None)
        return plan, sample

    def encode(self, plan: _Plan) -> list[BlockRecord]:
        """The second pass: blocks that are not there yet become ids."""
        found = [read_record(self.work, number) for number in range(len(plan.digests))]
        tokenizer = Tokenizer.load(self.output / TOKENIZER_FILE)
        pieces = max(tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
        how = Encoding(
            work=str(self.work),
            tokenizer=str(self.output / TOKENIZER_FILE),
            digest=hash_of(self.output / TOKENIZER_FILE),
            dtype="uint16" if pieces <= 2**16 else "uint32",
            shards=max(1, -(-plan.pairs // self.options["shard_pairs"])),
            max_length=self.options["max_length"],
            drop=self.options["too_long"] == "drop",
            seed=self.options["seed"],
        )
        missing = [number for number, record in enumerate(found) if record is None]
        tasks = ((how, block) for block in self._again(plan) if found[block.number] is None)
        records = each(encode, tasks, self._processes(plan))
        done = plan.pairs - min(plan.pairs, len(missing) * _BLOCK_PAIRS)
        for number, record in zip(missing, records, strict=True):
            found[number] = record
            done = min(plan.pairs, done + _BLOCK_PAIRS)
            self.progress("encoding", done, plan.pairs)
        return [record for record in found if record is not None]

    def _again(self, plan: _Plan) -> Iterator[Block]:
        """The blocks once more, as long as they are those of the first pass."""
        number = -1
        for number, block in enumerate(self.blocks(warn=False)):
            if number >= len(plan.digests) or block.digest() != plan.digests[number]:
                self._refuse_texts(number)
            yield block
        if number + 1 < len(plan.digests):
            self._refuse_texts(number + 1)

    def finish(self, plan: _Plan, records: list[BlockRecord]) -> None:
        """Gathers each shard from all blocks; the manifest, which comes last, makes it a corpus."""
        bounds = np.array([record.bounds for record in records])  # (blocks, shards + 1)
        sizes = np.diff(bounds).sum(axis=0).tolist()
        dropped = sum(record.dropped for record in records)
        if not sum(sizes):
            raise ValueError(
                "Argument `max_length` must leave a pair. "
                f"Received: {self.options['max_length']}, and all {dropped} pairs are longer"
            )
        seed = self.options["seed"]
        tasks = [
            (self.output, number, bounds[:, number : number + 2], self.aligned, seed)
            for number in range(len(sizes))
        ]
        files = {TOKENIZER_FILE: record_of(self.output / TOKENIZER_FILE)}
        done = 0
        for size, record in zip(sizes, each(gather, tasks, self._processes(plan)), strict=True):
            files.update(record)
            done += size
            self.progress("shuffling", done, sum(sizes))
        cut = sum(record.cut for record in records)
        flush(self.output)
        _write_json(
            self.output / MANIFEST_FILE,
            {
                "format": FORMAT,
                "version": VERSION,
                "options": self._described(),
                "text": plan.text,
                "blank": plan.blank,
                "cut": cut,
                "dropped": dropped,
                "aligned": self.aligned,
                "tokens": np.sum([record.tokens for record in records], axis=0).tolist(),
                "longest": np.max([record.longest for record in records], axis=0).tolist(),
                "shards": sizes,
                "files": files,
            },
        )
        for count, what in (
            (plan.blank, "Dropped %d of %d pairs: one side is blank."),
            (dropped, "Dropped %d of %d pairs: one side is longer than max_length."),
            (cut, "Cut %d of %d pairs: one side is longer than max_length."),
        ):
            if count:
                logger.warning(what, count, plan.pairs + plan.blank)

    def check_finished(self, tokenizer: Tokenizer | None) -> None:
        """Refuses a finished corpus unless this call would make the same."""
        manifest = json.loads((self.output / MANIFEST_FILE).read_bytes())
        self._check_options(manifest.get("version"), manifest.get("options"), tokenizer)
        if self._survey(0)[0].text != manifest.get("text"):
            self._refuse_texts(None)

    def _described(self) -> dict[str, Any]:
        return {**self.options, "alignments": self.aligned}

    def _processes(self, plan: _Plan) -> int:
        if self.processes is not None:
            return self.processes
        return cores() if plan.pairs >= _FEW else 1

    def _check_options(self, version: Any, before: Any, tokenizer: Tokenizer | None) -> None:
        if version != VERSION:
            raise ValueError(
                f"Argument `output` must be a new folder, or of version {VERSION}. "
                f"Received: {str(self.output)!r}, of version {version!r}"
            )
        changed = [
            f"`{name}` was {before.get(name)!r}, is {value!r}"
            for name, value in self._described().items()
            if before.get(name) != value
        ]
        if tokenizer is not None and tokenizer != Tokenizer.load(self.output / TOKENIZER_FILE):
            changed.append("`tokenizer` is another")
        if changed:
            raise ValueError(
                "Argument `output` must be a new folder, or be given the options that it was made "
                f"with. Received: {str(self.output)!r}, but {', '.join(changed)}"
            )

    def _refuse_texts(self, block: int | None) -> None:
        where = "" if block is None else f", after pair {block * _BLOCK_PAIRS}"
        raise ValueError(
            "Arguments `sources` and `targets` must name the texts that the corpus in "
            f"{self.output} was begun with. Received: others{where}; they have changed"
        )


def _check_arguments(
    vocabulary_size: Any,
    sample: Any,
    shard_pairs: Any,
    max_length: Any,
    too_long: Any,
    seed: Any,
    processes: Any,
) -> None:
    check_range("vocabulary_size", vocabulary_size, int, SMALLEST_VOCABULARY, MOST_PIECES)
    check_range("sample", sample, int, 1)
    check_range("shard_pairs", shard_pairs, int, 1)
    check_range("seed", seed, int, 0)
    if max_length is not None:
        check_range("max_length", max_length, int, 2)
    if processes is not None:
        check_range("processes", processes, int, 1)
    if too_long not in TOO_LONG:
        raise ValueError(f"Argument `too_long` must be one of {TOO_LONG}. Received: {too_long!r}")


def _check_left_out(learned: dict[str, Any]) -> None:
    parameters = inspect.signature(prepare).parameters
    for name, value in learned.items():
        if value != parameters[name].default:
            raise ValueError(
                f"Argument `{name}` must be left out with a `tokenizer`, which is not learned. "
                f"Received: {value!r}"
            )


@contextlib.contextmanager
def _claimed(output: Path) -> Iterator[None]:
    """Claims the folder, unless it holds something else."""
    with claimed(output, "prepares"):
        if not may_become_corpus(output):
            raise ValueError(
                "Argument `output` must be a new folder, or of an interrupted call. "
                f"Received: {str(output)!r}, which holds something else"
            )
        yield


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with written(path) as writing:
        writing.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def gather(output: Path, number: int, bounds: Any, aligned: bool, seed: int) -> dict[str, Any]:
    """Writes a shard, unless it is there: its pairs of all blocks, in an order drawn at random.

    Args:
        output: The corpus's folder.
        number: The shard's.
        bounds: Where its pairs begin and end in each block, ints `(blocks, 2)`.
        aligned: Whether there are alignments.
        seed: Of the order.

    Returns:
        Size and hash of each file, by its name.
    """
    name = shard_name(number)
    if not (output / file_name(name, LAST)).exists():
        # The maps of the blocks are let go as soon as they are joined.
        shard = join(
            [
                Shard.load(output / WORK, block_name(block), aligned).part(begin, end)
                for block, (begin, end) in enumerate(bounds)
            ]
        )
        rng = np.random.default_rng([seed, 1, number])
        shard.take(rng.permutation(len(shard))).save(output, name)
    names = [file_name(name, kind) for kind in files_of(aligned)]
    return {name: record_of(output / name) for name in names}


def record_of(path: Path) -> dict[str, Any]:
    """Size and hash of a file, as the manifest has them."""
    return {"bytes": path.stat().st_size, "sha256": hash_of(path)}


def may_become_corpus(output: Path) -> bool:
    """Whether a folder holds nothing, a corpus, or what an interrupted call has left of one."""
    names = {path.name for path in output.iterdir() if not path.name.startswith(".")}
    if MANIFEST_FILE in names:
        try:
            return bool(json.loads((output / MANIFEST_FILE).read_bytes())["format"] == FORMAT)
        except (ValueError, KeyError, TypeError):
            return False
    work = output / WORK
    if names and not (work.is_dir() and all(map(_is_ours, work.iterdir()))):
        return False
    return all(name in (WORK, TOKENIZER_FILE) or name.startswith(SHARD) for name in names)


def remove_work(output: Path) -> None:
    """Removes the folder with what was written into it, and leaves what anybody else did."""
    work = output / WORK
    if work.is_dir():
        for path in filter(_is_ours, work.iterdir()):
            path.unlink()
        with contextlib.suppress(OSError):  # it holds something else
            work.rmdir()


def _is_ours(path: Path) -> bool:
    """Whether a file of the folder is one of `prepare`; hidden ones are those of `written`."""
    return path.is_file() and (path.name == PLAN_FILE or path.name.startswith((BLOCK, ".")))


def each(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], processes: int
) -> Iterator[Any]:
    """Calls `function(*task)` for each task.

    Args:
        function: A function of a module; processes import that module, and whatever the script that
            was started imports outside of `if __name__ == "__main__"`.
        tasks: Taken one by one, two more than there are processes in advance.
        processes: How many processes share the work; 1 for none but this one.

    Yields:
        The results, in the order of the tasks.

    Raises:
        ChildProcessError: If a process was killed.
    """
    if processes == 1:
        for task in tasks:
            yield function(*task)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = ProcessPoolExecutor(processes, context, initializer=_begin)
    waiting: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(function, *task))
            if len(waiting) == processes + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process that shared the work has died: killed for lack of memory, or started by a "
            'script that does its work outside of `if __name__ == "__main__"`. The same call goes '
            "on where it was."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Makes a process one of many: no threads of the library's, no life after its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
