"""Prepare a corpus from text files of any size, in memory that does not grow with them.

The files are read twice. The first pass counts, hashes and samples pairs; the tokenizer is trained
on the sample. In the second pass, several processes encode blocks of pairs, and write each block
sorted by the random shard of every pair. Then each shard gathers its pairs from all blocks and
permutes them. Every file is written atomically, so an interrupted `prepare` continues after the
last one, and every file depends only on the texts and options.
"""

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_bahdanau.data.blocks import (
    BLOCK_PREFIX,
    Block,
    BlockRecord,
    EncodingOptions,
    Paths,
    block_name,
    check_files,
    encode_block,
    raise_no_pair,
    read_blocks,
    read_record,
)
from keras_bahdanau.data.choices import Choice, apply_choices, choose_tokenizer
from keras_bahdanau.data.corpus import (
    FORMAT,
    LAST_KIND,
    MANIFEST_FILE,
    SHARD_PREFIX,
    TOKENIZER_FILE,
    VERSION,
    Shard,
    concatenate_shards,
    shard_file,
    shard_kinds,
    shard_name,
)
from keras_bahdanau.data.filters import PairFilter
from keras_bahdanau.data.options import (
    AUTO,
    NO_NORMALIZATION,
    PrepareOptions,
    is_learned,
    join_sides,
)
from keras_bahdanau.data.text_statistics import DEFAULT_SIZE, PairStatistics
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write, claim_folder, file_sha256, fsync
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.text.parallel import UTF_8_TEXT, TextFormat, expand_paths
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

logger = logging.getLogger("keras_bahdanau_runtime")

# Options that must be left out with a `Tokenizer`.
_LEARNED = ("vocabulary_size", "joint", "sample", "normalization")
_TOKENIZER_OPTIONS = ("source_tokenizer", "target_tokenizer", *_LEARNED, "copied_words")
_Sides = tuple[Tokenizer | None, Tokenizer | None]  # `None` for a side that is learned
WORK = "work"  # folder of intermediate files inside the corpus
PLAN_FILE = "plan.json"
_BLOCK_PAIRS = 25_000  # pairs of a block, at most
_SINGLE_PROCESS_PAIRS = 100_000  # one process encodes fewer before others have started

Progress = Callable[[str, int, int | None], None]


def prepare(
    sources: Paths,
    targets: Paths | None,
    output: str | os.PathLike[str],
    tokenizer: Tokenizer | str = AUTO,
    alignments: Paths | None = None,
    *,
    progress: Progress | None = None,
    on_choices: Callable[[list[Choice]], None] | None = None,
    text_format: TextFormat = UTF_8_TEXT,
    **options: Any,
) -> Path:
    """Prepare parallel text as a corpus for `PreparedDataset`.

    The same texts, options and seed give the same bytes, with any number of processes, interrupted
    or not. An interrupted call continues when it is repeated. A finished call that is repeated
    checks that texts and options are unchanged.

    Args:
        sources: Files of source sentences, one per line, plain or compressed (`.gz`, `.bz2`,
            `.xz`, `.zst`); without `targets`, files with both sides: tab-separated text, `.csv`,
            `.jsonl`, `.parquet` or `.tmx`. See `TextFormat`. A path may be a pattern such as
            "part*.tsv", for all matching files, sorted by name.
        targets: As many files of their translations, line by line; `None` if `sources` have both
            sides. Pairs with a blank side are dropped, and their number is logged. Files that look
            wrong, and lines that are not in Unicode form NFC, are logged as warnings.
        output: Folder of the corpus, new or of an interrupted call.
        tokenizer: A `Tokenizer`, or see `PrepareOptions`. With a `Tokenizer`, leave out
            `source_tokenizer`, `target_tokenizer`, `vocabulary_size`, `joint`, `sample`,
            `normalization` and `copied_words`.
        alignments: As many files of word alignments in Pharaoh format, whose positions count the
            tokens of `tokenizer`; `None` for none.
        progress: Called repeatedly as `progress(stage, finished pairs, all pairs or None)`.
        on_choices: Called with the `Choice` of each option of a tokenizer to learn, before the
            corpus is written, unless all of them are given.
        text_format: `TextFormat` of the files: columns, encoding, and what to do with bad lines.
        **options: Other fields of `PrepareOptions`.

    Returns:
        The folder, a `Path`.

    Raises:
        ValueError: An argument is out of range or not applicable, files that belong together have
            different numbers of lines, a line is not UTF-8 or does not have both sides, a file is
            damaged, there is no pair, the texts change while they are read, the folder has other
            options or texts, or another process uses it.
        MissingDependencyError: The package that reads `.parquet` or `.zst` is not installed.
        OSError: The disk is full, or a process was killed. Repeat the call to continue.

    Example:

    ```python
    if __name__ == "__main__":  # other processes import this file
        prepare(["part1.en.gz", "part2.en.gz"], ["part1.de.gz", "part2.de.gz"], "corpus")
        prepare(["pairs.tsv"], None, "filtered", filter=["length=1:500", "duplicate"])
    ```
    """
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else None
    if loaded is None:
        options["tokenizer"] = tokenizer
    checked = PrepareOptions(**options)
    PairFilter(checked.filter)  # raises its errors
    sides = checked.load_sides() if loaded is None else (loaded, loaded)
    if sides[0] is not None:
        text_format.check_columns(sides[0].has_columns)
    sources, targets, alignments = map(_expanded, (sources, targets, alignments))
    check_files(sources=sources, targets=targets, alignments=alignments)
    if alignments is not None and None in sides:
        raise argument_error(
            "tokenizer", "be given with `alignments`, whose positions count tokens", received="None"
        )
    if None not in sides:
        _check_defaults(checked, ("sample",) if loaded is None else _TOKENIZER_OPTIONS)
    if None in sides and checked.is_open:
        statistics = PairStatistics.read(sources, targets, text_format, checked.filter)
        choices = choose_tokenizer(checked, statistics)
        if on_choices is not None:
            on_choices(choices)
        checked = apply_choices(checked, choices)
    learned = _learned(checked) if None in sides else dict.fromkeys(_LEARNED)
    normalizations = {
        learned["normalization"] if side is None else side.normalization for side in sides
    }
    job = _Job(
        output=Path(output),
        files=(sources, targets, alignments),
        options={
            **learned,
            "shard_pairs": checked.shard_pairs,
            "max_length": checked.max_length,
            "too_long": checked.too_long,
            "seed": checked.seed,
            "filter": list(checked.filter) or None,
        },
        text_format=text_format,
        is_normalized=None not in normalizations,
        processes=checked.processes,
        progress=progress or (lambda stage, done, total: None),
    )
    with _claim(job.output):
        if (job.output / MANIFEST_FILE).exists():
            job.check_finished(sides)
        else:
            plan = job.plan(sides)
            records = job.encode(plan)
            job.finish(plan, records)
        remove_work(job.output)
    return job.output


@dataclass
class _Plan:
    """Result of the first pass: the digest of every block, and counts."""

    digests: list[str] = field(default_factory=list)
    pairs: int = 0
    blank: int = 0
    bad: int = 0
    filtered: dict[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> int:
        """Number of all pairs in the files, including skipped ones."""
        return self.pairs + self.blank + self.bad + sum(self.filtered.values())

    @property
    def text(self) -> str:
        """SHA-256 of the digests of all blocks."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()


@dataclass
class _Job:
    """Files and options of a call of `prepare`, and its steps."""

    output: Path
    files: tuple[Paths, Paths | None, Paths | None]
    options: dict[str, Any]
    text_format: TextFormat
    is_normalized: bool
    processes: int | None
    progress: Progress

    @property
    def work(self) -> Path:
        return self.output / WORK

    @property
    def aligned(self) -> bool:
        return self.files[2] is not None

    def blocks(self, warn: bool) -> Iterator[Block]:
        return read_blocks(
            *self.files,
            pairs=_BLOCK_PAIRS,
            warn=warn,
            check_unicode=not self.is_normalized,
            text_format=self.text_format,
            rules=self.options["filter"] or (),
        )

    def plan(self, sides: _Sides) -> _Plan:
        """Run the first pass and write the tokenizer, or read the plan of an interrupted call."""
        path = self.work / PLAN_FILE
        if path.exists():
            document = json.loads(path.read_bytes())
            self._check_options(document.pop("version"), document.pop("options"), sides)
            return _Plan(**document)
        plan, sample = self._scan(self.options["sample"] if None in sides else 0)
        if not plan.pairs:
            raise_no_pair(bool(plan.filtered), plan.bad)
        if None in sides:
            self.progress("training the tokenizer", len(sample), None)
            learned = self._learn(sample)
        source, target = (learned if side is None else side for side in sides)
        tokenizer = join_sides(source, target, self.options.get("copied_words", 0))
        self.work.mkdir(exist_ok=True)  # first: it marks the folder as that of `prepare`
        tokenizer.save(self.output / TOKENIZER_FILE)
        _write_json(path, {"version": VERSION, "options": self._all_options(), **vars(plan)})
        return plan

    def _learn(self, sample: list[tuple[str, str]]) -> Tokenizer:
        """Return the tokenizer of the sides that are learned; the other side is not used."""
        kind = self.options.get("kind", "bpe")
        kinds = (kind, kind) if isinstance(kind, str) else kind
        source_kind, target_kind = (side or kinds[0] or kinds[1] for side in kinds)
        return Tokenizer.train(
            [source for source, _ in sample],
            [target for _, target in sample],
            self.options["vocabulary_size"],
            self.options["joint"],
            normalization=self.options["normalization"],
            kind=(source_kind, target_kind),
            has_columns=self.text_format.joins_columns,
            copied_words=self.options.get("copied_words", 0),
        )

    def _scan(self, sample_size: int) -> tuple[_Plan, list[tuple[str, str]]]:
        """Read all files once; return the plan and a uniform random sample of pairs."""
        plan, sample = _Plan(), list[tuple[str, str]]()
        rng = random.Random(self.options["seed"])
        for block in self.blocks(warn=True):
            plan.digests.append(block.digest())
            plan.blank += block.blank
            plan.bad += block.bad
            for rule, count in block.filtered.items():
                plan.filtered[rule] = plan.filtered.get(rule, 0) + count
            for pair in zip(block.sources, block.targets, strict=True) if sample_size else ():
                if len(sample) < sample_size:
                    sample.append(pair)
                elif (index := int(rng.random() * (plan.pairs + 1))) < sample_size:
                    sample[index] = pair
                plan.pairs += 1
            if not sample_size:
                plan.pairs += len(block.sources)
            self.progress("reading", plan.pairs, None)
        return plan, sample

    def encode(self, plan: _Plan) -> list[BlockRecord]:
        """Run the second pass: encode the blocks that are not encoded yet."""
        records = [read_record(self.work, number) for number in range(len(plan.digests))]
        tokenizer = Tokenizer.load(self.output / TOKENIZER_FILE)
        pieces = max(tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
        options = EncodingOptions(
            work=str(self.work),
            tokenizer=str(self.output / TOKENIZER_FILE),
            digest=file_sha256(self.output / TOKENIZER_FILE),
            dtype="uint16" if pieces <= 2**16 else "uint32",
            shards=max(1, -(-plan.pairs // self.options["shard_pairs"])),
            max_length=self.options["max_length"],
            drop=self.options["too_long"] == "drop",
            seed=self.options["seed"],
        )
        missing = [number for number, record in enumerate(records) if record is None]
        tasks = ((options, block) for block in self._reread(plan) if records[block.number] is None)
        new_records = ordered_map(encode_block, tasks, self._processes(plan))
        done = sum(record.pairs for record in records if record is not None)
        for number, record in zip(missing, new_records, strict=True):
            records[number] = record
            done += record.pairs
            self.progress("encoding", done, plan.pairs)
        return [record for record in records if record is not None]

    def _reread(self, plan: _Plan) -> Iterator[Block]:
        """Read the blocks again; raise a `ValueError` if they differ from the first pass."""
        number, pairs = -1, 0
        for number, block in enumerate(self.blocks(warn=False)):
            if number >= len(plan.digests) or block.digest() != plan.digests[number]:
                self._raise_changed_texts(pairs)
            pairs += len(block.sources)
            yield block
        if number + 1 < len(plan.digests):
            self._raise_changed_texts(pairs)

    def finish(self, plan: _Plan, records: list[BlockRecord]) -> None:
        """Write each shard from all blocks, and then the manifest, which completes the corpus."""
        bounds = np.array([record.bounds for record in records])  # (blocks, shards + 1)
        sizes = np.diff(bounds).sum(axis=0).tolist()
        dropped = sum(record.dropped for record in records)
        if not sum(sizes):
            raise argument_error(
                "max_length",
                "leave at least one pair",
                received=f"{self.options['max_length']}, and all {dropped} pairs are longer",
            )
        seed = self.options["seed"]
        tasks = [
            (self.output, number, bounds[:, number : number + 2], self.aligned, seed)
            for number in range(len(sizes))
        ]
        files = {TOKENIZER_FILE: file_record(self.output / TOKENIZER_FILE)}
        done = 0
        for size, record in zip(
            sizes, ordered_map(write_shard, tasks, self._processes(plan)), strict=True
        ):
            files.update(record)
            done += size
            self.progress("shuffling", done, sum(sizes))
        cut = sum(record.cut for record in records)
        rules = self.options["filter"] or ()
        fsync(self.output)
        _write_json(
            self.output / MANIFEST_FILE,
            {
                "format": FORMAT,
                "version": VERSION,
                "options": self._all_options(),
                "text": plan.text,
                "blank": plan.blank,
                "bad": plan.bad,
                "filtered": {rule: plan.filtered.get(rule, 0) for rule in rules},
                "cut": cut,
                "dropped": dropped,
                "aligned": self.aligned,
                "tokens": np.sum([record.tokens for record in records], axis=0).tolist(),
                "longest": np.max([record.longest for record in records], axis=0).tolist(),
                "shards": sizes,
                "files": files,
            },
        )
        for count, message in (
            (plan.blank, "Dropped %d of %d pairs: one side is blank."),
            (plan.bad, "Dropped %d of %d pairs: the line lacks a side or has another encoding."),
            (dropped, "Dropped %d of %d pairs: one side is longer than max_length."),
            (cut, "Cut %d of %d pairs: one side is longer than max_length."),
        ):
            if count:
                logger.warning(message, count, plan.lines)

    def check_finished(self, sides: _Sides) -> None:
        """Raise a `ValueError` unless this call would write the same corpus."""
        manifest = json.loads((self.output / MANIFEST_FILE).read_bytes())
        self._check_options(manifest.get("version"), manifest.get("options"), sides)
        if self._scan(0)[0].text != manifest.get("text"):
            self._raise_changed_texts(None)

    def _all_options(self) -> dict[str, Any]:
        return {**self.options, "alignments": self.aligned}

    def _processes(self, plan: _Plan) -> int:
        if self.processes is not None:
            return self.processes
        return available_cores() if plan.pairs >= _SINGLE_PROCESS_PAIRS else 1

    def _check_options(self, version: Any, previous: Any, sides: _Sides) -> None:
        if version != VERSION:
            raise argument_error(
                "output",
                f"be a new folder, or of version {VERSION}",
                received=f"{str(self.output)!r}, of version {version!r}",
            )
        options = self._all_options()
        changed = [
            f"`{name}` was {previous.get(name)!r}, is {options.get(name)!r}"
            for name in {**options, **previous}
            if previous.get(name) != options.get(name)
        ]
        if sides != (None, None):
            saved = Tokenizer.load(self.output / TOKENIZER_FILE)
            source, target = (saved if side is None else side for side in sides)
            if saved != join_sides(source, target, saved.copied_words):
                changed.append("`tokenizer` is a different one")
        if changed:
            raise argument_error(
                "output",
                "be a new folder, or one that was written with the same options",
                received=f"{str(self.output)!r}, but {', '.join(changed)}",
            )

    def _raise_changed_texts(self, pairs: int | None) -> None:
        where = "" if pairs is None else f", after pair {pairs}"
        raise argument_error(
            ("sources", "targets"),
            f"contain the texts that the corpus in {self.output} was started with",
            received=f"other texts{where}; they have changed",
        )


def _expanded(paths: Any) -> Any:
    """Replace patterns by files; `check_files` reports what is not a list of paths."""
    is_list = isinstance(paths, Sequence) and not isinstance(paths, str)
    return expand_paths(paths) if is_list else paths


def _learned(options: PrepareOptions) -> dict[str, Any]:
    """Return the options of pieces to learn, as the manifest records them."""
    normalization = options.normalization
    learned: dict[str, Any] = {
        "vocabulary_size": options.vocabulary_size or DEFAULT_SIZE,
        "joint": bool(options.joint),
        "sample": options.sample,
        "normalization": None if normalization == NO_NORMALIZATION else normalization,
    }
    source, target = (side if is_learned(side) else None for side in options.sides)
    if source != target:
        learned["kind"] = [source, target]
    elif source != "bpe":  # corpora of earlier versions have no such option
        learned["kind"] = source
    if options.copied_words:  # nor this one
        learned["copied_words"] = options.copied_words
    return learned


def _check_defaults(options: PrepareOptions, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(options, name)
        if value != getattr(PrepareOptions, name):
            raise argument_error(
                name, "be left out with a `tokenizer`, which is not trained", value
            )


@contextlib.contextmanager
def _claim(output: Path) -> Iterator[None]:
    """Lock the folder; raise a `ValueError` if it contains other files."""
    with claim_folder(output, "prepares"):
        if not may_prepare_in(output):
            raise argument_error(
                "output",
                "be a new folder, or that of an interrupted call",
                received=f"{str(output)!r}, which contains other files",
            )
        yield


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with atomic_write(path) as writing:
        writing.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def write_shard(output: Path, number: int, bounds: Any, aligned: bool, seed: int) -> dict[str, Any]:
    """Write the pairs of a shard from all blocks in random order, unless the shard exists.

    Args:
        output: Folder of the corpus.
        number: Index of the shard.
        bounds: Where its pairs begin and end in each block, ints `(blocks, 2)`.
        aligned: Whether there are alignments.
        seed: Seed of the order.

    Returns:
        Size and hash of each file, by its name.
    """
    name = shard_name(number)
    if not (output / shard_file(name, LAST_KIND)).exists():
        # No variable refers to the blocks, so that their memory maps are closed here.
        shard = concatenate_shards(
            [
                Shard.load(output / WORK, block_name(block), aligned).slice(begin, end)
                for block, (begin, end) in enumerate(bounds)
            ]
        )
        rng = np.random.default_rng([seed, 1, number])
        shard.take(rng.permutation(len(shard))).save(output, name)
    names = [shard_file(name, kind) for kind in shard_kinds(aligned)]
    return {name: file_record(output / name) for name in names}


def file_record(path: Path) -> dict[str, Any]:
    """Return size and hash of a file for the manifest."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def may_prepare_in(output: Path) -> bool:
    """Return whether a folder is empty, a corpus, or that of an interrupted call."""
    names = {path.name for path in output.iterdir() if not path.name.startswith(".")}
    if MANIFEST_FILE in names:
        try:
            return bool(json.loads((output / MANIFEST_FILE).read_bytes())["format"] == FORMAT)
        except (ValueError, KeyError, TypeError):
            return False
    work = output / WORK
    if names and not (work.is_dir() and all(map(_is_own_file, work.iterdir()))):
        return False
    return all(name in (WORK, TOKENIZER_FILE) or name.startswith(SHARD_PREFIX) for name in names)


def remove_work(output: Path) -> None:
    """Remove the intermediate files and their folder, but no files of others."""
    work = output / WORK
    if work.is_dir():
        for path in filter(_is_own_file, work.iterdir()):
            path.unlink()
        with contextlib.suppress(OSError):  # it contains other files
            work.rmdir()


def _is_own_file(path: Path) -> bool:
    """Return whether `prepare` wrote a file; hidden files are those of `atomic_write`."""
    return path.is_file() and (path.name == PLAN_FILE or path.name.startswith((BLOCK_PREFIX, ".")))


def ordered_map(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], processes: int
) -> Iterator[Any]:
    """Call `function(*task)` for each task in several processes.

    Args:
        function: A module's function. The processes import its module, and everything that the
            main script imports outside of `if __name__ == "__main__"`.
        tasks: Arguments; read lazily, at most two more than there are processes in advance.
        processes: Number of processes; 1 for only this one.

    Yields:
        The results, in the order of the tasks.

    Raises:
        ChildProcessError: A process was killed.
    """
    if processes == 1:
        for task in tasks:
            yield function(*task)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = ProcessPoolExecutor(processes, context, initializer=_start_worker)
    futures: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            futures.append(pool.submit(function, *task))
            if len(futures) == processes + 2:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A worker process has died: it was killed for lack of memory, or the main script does "
            'its work outside of `if __name__ == "__main__"`. Repeat the call to continue.'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Initialize a worker process, which has one thread and exits with its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it, too, and stops workers
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
