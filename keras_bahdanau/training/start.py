"""Checks and preparation of a training run before Keras is imported.

with start_run(options, output, resume=False, rank=0) as texts:   # raises errors of the run
    import keras                                                  # takes seconds
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path

from keras_bahdanau.data.blocks import check_files
from keras_bahdanau.data.choices import Choice, apply_choices, choose_tokenizer
from keras_bahdanau.data.corpus import MANIFEST_FILE, PreparedCorpus
from keras_bahdanau.data.options import AUTO, TOKENIZER_OPTIONS
from keras_bahdanau.data.preparation import prepare
from keras_bahdanau.data.text_statistics import PairStatistics
from keras_bahdanau.run_folder import (
    CORPUS_FOLDER,
    DISTILLED_FOLDER,
    FOLDER_KEY,
    LAST_FILE,
    MIXED_FOLDER,
    OPTIONS_FILE,
    SEEDS_FILE,
    TEXTS_FILE,
    option_folders,
)
from keras_bahdanau.training.initial import InitialModel
from keras_bahdanau.training.options import CHOSEN_OPTIONS, TrainingOptions
from keras_bahdanau.training.rules import TextFacts, choose_training
from keras_bahdanau.user_modules import check_module, split_class
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import claim_folder, file_sha256, write_json
from keras_bahdanau_runtime.option_files import read_options
from keras_bahdanau_runtime.text.corpus import UTF_8
from keras_bahdanau_runtime.text.parallel import TextFormat, expand_paths, read_parallel
from keras_bahdanau_runtime.text.scores import bleu_metric
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.text.word_vectors import read_word_vectors

logger = logging.getLogger("keras_bahdanau")

# Errors of links to another file system, on one without links, or to the files of another user.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


@dataclass(frozen=True)
class RunTexts:
    """The texts of a run. Each property is computed once, when it is first used.

    Args:
        options: `TrainingOptions`.
        output: Folder of the run.
    """

    options: TrainingOptions
    output: Path

    @property
    def text_format(self) -> TextFormat:
        """Format of the training text; texts that `distill` wrote are UTF-8."""
        text_format = self.options.text_format
        if self.options.source.parent == self.output / DISTILLED_FOLDER:
            text_format = replace(text_format, encoding=UTF_8)
        return text_format

    @cached_property
    def sources(self) -> list[Path]:
        """Files of the sources of the training text, or the manifest of a prepared corpus."""
        options = self.options
        return expand_paths(
            [options.source / MANIFEST_FILE if options.is_prepared else options.source]
        )

    @cached_property
    def targets(self) -> list[Path] | None:
        """Files of their translations, or `None` for files with both sides."""
        return None if self.options.target is None else expand_paths([self.options.target])

    @cached_property
    def held_out_sources(self) -> list[Path]:
        """Files of the held-out sources."""
        return expand_paths(self.options.validation_source)

    @cached_property
    def held_out_targets(self) -> list[Path] | None:
        """Files of their translations, or `None` for files with both sides."""
        targets = self.options.validation_target
        return None if targets is None else expand_paths(targets)

    @cached_property
    def held_out(self) -> list[tuple[list[str], list[str]]]:
        """Sources and targets of each held-out set."""
        targets = repeat(None) if self.held_out_targets is None else self.held_out_targets
        sides = zip(self.held_out_sources, targets, strict=False)
        return [read_parallel(*files, self.options.text_format) for files in sides]

    @cached_property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each text file, by the name of its option and a number from 2 on.

        For a prepared corpus, it is the hash of the manifest, which contains those of its files. A
        corpus of `mix` that was deleted counts as the one that the run has linked. The model of
        `init` is not among the texts: a checkpoint replaces it.
        """
        links = mixed_corpora(self.options, self.output)
        mixed = [
            folder if folder.exists() else link
            for (folder, _), (link, _) in zip(self.options.mixed, links, strict=True)
        ]
        files: dict[str, Sequence[Path]] = {
            "source": self.sources,
            "target": self.targets or [],
            "validation_source": self.held_out_sources,
            "validation_target": self.held_out_targets or [],
            "mix": [folder / MANIFEST_FILE for folder in mixed],
        }
        digests = {}
        for name, paths in files.items():
            for number, path in enumerate(paths, start=1):
                digests[f"`{name}`" if number == 1 else f"`{name}` {number}"] = file_sha256(path)
        return digests


def check_run(
    texts: RunTexts, resume: bool, rank: int = 0, seeds: bool = False
) -> tuple[TrainingOptions | None, Tokenizer | None]:
    """Check a run without its training text, which may be large or not written yet.

    Args:
        texts: `RunTexts`.
        resume: As for `start_run`.
        rank: As for `start_run`.
        seeds: Whether the folder is for several runs that differ only in their seed.

    Returns:
        The options of the run to continue, `None` for a new one; and the tokenizer of `init` or of
        a file, `None` for one that is learned.

    Raises:
        ValueError, OSError, MissingDependencyError: As `start_run`.
    """
    options, output = texts.options, texts.output
    bleu_metric(options.tokenize)
    if options.attention is not None:
        check_module("attention", split_class("attention", options.attention)[0])
    if not seeds and (output / SEEDS_FILE).exists():
        raise argument_error(
            "output",
            "be the folder of one run; pass `seeds` to continue several",
            received=f"{str(output)!r}, which has a {SEEDS_FILE}",
        )
    if rank == 0:
        check_run_folder(options, output, resume, texts)
    stored = stored_options(options, output) if resume else None
    tokenizer = given_tokenizer(stored or options, output)
    check_corpora(options, tokenizer, output)
    return stored, tokenizer


def check_run_folder(options: TrainingOptions, output: Path, resume: bool, texts: RunTexts) -> None:
    """Raise a `ValueError` if the folder is in use, or its run has other options or texts."""
    if options.target is not None and options.source.is_dir():
        raise argument_error(
            "target",
            "be left out for a prepared corpus",
            received=f"{options.target!s} for {options.source}",
        )
    check_files(validation_source=texts.held_out_sources, validation_target=texts.held_out_targets)
    if options.log_dir is not None and options.log_dir.exists() and not options.log_dir.is_dir():
        raise argument_error("log_dir", "be a folder", received=f"{str(options.log_dir)!r}, a file")
    if output.exists() and not output.is_dir():
        raise argument_error("output", "be a folder", received=f"{str(output)!r}, a file")
    if not resume:
        _check_word_vectors(options)
        # A run that failed at the start, for example by its learning rate, leaves only its texts.
        leftovers = {CORPUS_FOLDER, DISTILLED_FOLDER, MIXED_FOLDER}
        if output.exists() and not leftovers >= {*os.listdir(output)}:
            raise argument_error(
                "output",
                "be a new folder, or `resume` be True to continue its run",
                received=f"{str(output)!r}, which exists",
            )
        return
    if stored_options(options, output) is not None:
        _check_hashes(texts)


def stored_options(options: TrainingOptions, output: Path) -> TrainingOptions | None:
    """Return the options that a run was started with, or `None` if it has not started.

    Args:
        options: `TrainingOptions`. Those that are chosen from the pairs may be open.
        output: Folder of the run.

    Raises:
        ValueError: The run has other options.
    """
    path = output / OPTIONS_FILE
    if not path.exists():
        if (output / LAST_FILE).exists():
            raise argument_error(
                "output",
                "be the folder of a run of `train` to continue",
                received=f"{str(output)!r}, which has a {LAST_FILE} and no {OPTIONS_FILE}",
            )
        return None  # interrupted before the options were written
    try:
        previous = TrainingOptions.from_file(path)
    except ValueError as error:
        raise argument_error(
            "output",
            "be the folder of a run of this version of keras_bahdanau",
            received=f"{str(output)!r}, whose {OPTIONS_FILE} is invalid: {error}",
        ) from error
    ignored = {"log_dir"}  # which does not affect the run
    if options.dtype_policy == "auto":
        ignored.add("dtype_policy")  # the run keeps the one that it was started with
    if options.minutes is not None:  # the run keeps the updates that it has chosen
        ignored |= {"minutes", "updates"} | ({"warmup"} if options.warmup is None else set())
    ignored |= {name for name in CHOSEN_OPTIONS if getattr(options, name) is None}
    ignored |= {"tokenizer", "source_tokenizer", "target_tokenizer"}  # compared by side
    changed = [
        f"`{side}_tokenizer` was {old!r}, is {new!r}"
        for side, old, new in zip(("source", "target"), previous.sides, options.sides, strict=True)
        if new not in (old, AUTO)
    ]
    values = previous.to_dict()
    changed += [
        f"`{name}` was {values[name]!r}, is {value!r}"
        for name, value in options.to_dict().items()
        if values[name] != value and name not in ignored
    ]
    if changed:
        raise argument_error(
            "options", f"be those of the run in {output}", received=str(", ".join(changed))
        )
    return replace(previous, log_dir=options.log_dir)


def _check_word_vectors(options: TrainingOptions) -> None:
    """Raise a `ValueError` unless the word vectors have the width of the embeddings."""
    if options.embedding_dim is not None:  # with `init` there are no word vectors
        for path in options.word_vectors.values():
            read_word_vectors(path, options.embedding_dim)


def _check_hashes(texts: RunTexts) -> None:
    """Raise a `ValueError` if the texts have changed since the start of the run."""
    path = texts.output / TEXTS_FILE
    if not path.exists():
        logger.warning("%s is missing, so changed texts are not detected.", path)
        return
    previous, current = read_options(path), texts.hashes
    previous.pop(FOLDER_KEY, None)  # the texts may have been moved
    names = [*current, *(name for name in previous if name not in current)]
    changed = [name for name in names if previous.get(name) != current.get(name)]
    if changed:
        raise argument_error(
            "options",
            "name the texts that the run was started with",
            received=f"{', '.join(changed)}, which changed since then",
        )


def record_texts(texts: RunTexts) -> None:
    """Write the hashes of the texts of a run, and the folder in which it is trained."""
    write_json(texts.output / TEXTS_FILE, {**texts.hashes, FOLDER_KEY: str(Path.cwd())})


def read_held_out(run: Path) -> tuple[list[str], list[str]]:
    """Return the sources and targets of the first held-out set of a run that was trained.

    Args:
        run: Folder of the run.

    Raises:
        FileNotFoundError: A file is missing in the folder in which the run was trained, and in the
            current one.
        ValueError: The options or a file are damaged.
    """
    options = TrainingOptions.from_file(run / OPTIONS_FILE)
    names = [options.validation_source[0], *(options.validation_target or ())[:1]]
    missing = []
    for folder in option_folders(run):
        paths = [folder / name for name in names]
        try:
            source, *targets = (expand_paths([path])[0] for path in paths)
        except ValueError:  # a pattern that matches nothing
            missing += paths
            continue
        absent = [path for path in (source, *targets) if not path.exists()]
        if not absent:
            return read_parallel(source, targets[0] if targets else None, options.text_format)
        missing += absent
    raise FileNotFoundError(", ".join(map(str, missing)))


@contextlib.contextmanager
def claim_run(output: Path) -> Iterator[None]:
    """Create and lock the run's folder during the block; remove it if it is still empty.

    Temporary files of a killed process are removed.
    """
    with claim_folder(output, "trains in"):
        for path in output.glob(".*.writing.*"):
            path.unlink()
        yield


@contextlib.contextmanager
def start_run(
    options: TrainingOptions,
    output: Path,
    resume: bool,
    rank: int,
    on_choices: Callable[[list[Choice]], None] | None = None,
) -> Iterator[RunTexts]:
    """Check a run, and lock its folder during the block.

    For a run on one device, the texts are also prepared here, so that an invalid line is reported
    early. With several devices, they are prepared after the processes have connected.

    Args:
        options: `TrainingOptions`.
        output: Folder of the run.
        resume: bool. Whether to continue the run in the folder.
        rank: int. Rank of this process among those that train together. Only rank 0 writes.
        on_choices: Called in rank 0 with the `Choice`s of a new run; they are logged if `None`.

    Yields:
        The `RunTexts`, whose held-out texts are read. Their options are those of the run, without
        open ones.

    Raises:
        ValueError: As `train`.
        OSError: A text is missing, or the disk is full.
        MissingDependencyError: sacrebleu is not installed.
    """
    texts = RunTexts(options, output)
    stored, tokenizer = check_run(texts, resume, rank)
    if stored is None:
        stored, choices = choose_options(texts, tokenizer)
        if options.embedding_dim is None:
            _check_word_vectors(stored)
        if rank == 0:
            (on_choices or log_choices)(choices)
    options = stored
    texts = RunTexts(options, output)
    _ = texts.held_out  # raises the errors of these files
    with claim_run(output) if rank == 0 else contextlib.nullcontext():
        if rank == 0 and not (output / LAST_FILE).exists():
            _link_mixed(options, output)
        if rank == 0 and options.devices == 1:
            prepare_texts(texts, tokenizer)
        yield texts


def explain_run(options: TrainingOptions) -> list[Choice]:
    """Return the choices of a new run with these options, without starting it.

    Raises:
        ValueError: As `start_run`, for mistakes in the training text and its options.
        OSError: A text is missing.
    """
    nowhere = Path("explained")  # not used: a new run reads nothing from its folder
    return choose_options(RunTexts(options, nowhere), given_tokenizer(options, nowhere))[1]


def log_choices(choices: Sequence[Choice]) -> None:
    """Log the value and the reason of each choice."""
    for choice in choices:
        logger.info("%s: %s (%s)", choice.option, choice.text, choice.reason)


def choose_options(
    texts: RunTexts, tokenizer: Tokenizer | None
) -> tuple[TrainingOptions, list[Choice]]:
    """Choose the open options of a run.

    Args:
        texts: `RunTexts`.
        tokenizer: That of `init` or of a file, or `None`.

    Returns:
        The options without open ones, and the choices.
    """
    options, choices = texts.options, list[Choice]()
    if options.is_prepared:
        corpus = PreparedCorpus(options.source)
        tokens = (corpus.source_tokens + corpus.tokens) / corpus.pairs
        longest = max(corpus.manifest["longest"])
        facts = TextFacts(corpus.pairs, corpus.tokenizer.kinds[1], tokens, longest)
    else:
        check_files(sources=texts.sources, targets=texts.targets)
        statistics = PairStatistics.read(texts.sources, texts.targets, texts.text_format)
        if tokenizer is None:
            choices = choose_tokenizer(options, statistics)
            options = apply_choices(options, choices)
            kinds = tuple(
                side if loaded is None else loaded.kinds[number]
                for number, (side, loaded) in enumerate(
                    zip(options.sides, options.load_sides(), strict=True)
                )
            )
        else:
            kinds = tokenizer.kinds
        tokens = statistics.source.length(kinds[0]) + statistics.target.length(kinds[1])
        longest = max(statistics.source.longest(kinds[0]), statistics.target.longest(kinds[1]))
        copied = statistics.copied if kinds == ("characters", "characters") else None
        pairs, is_complete = statistics.pairs, statistics.is_complete
        facts = TextFacts(pairs, kinds[1], tokens, longest, is_complete, copied)
    choices += choose_training(options, facts)
    return apply_choices(options, choices), choices


def prepare_texts(texts: RunTexts, tokenizer: Tokenizer | None = None) -> None:
    """Prepare the text files of a run in its folder, unless the source is a prepared corpus.

    Args:
        texts: `RunTexts`.
        tokenizer: That of `init` or a file; `None` to read it.
    """
    options, output = texts.options, texts.output
    if not options.is_prepared:
        tokenizer = tokenizer or given_tokenizer(options, output)
        learned = {name: getattr(options, name) for name in TOKENIZER_OPTIONS}
        prepare(
            texts.sources,
            texts.targets,
            output / CORPUS_FOLDER,
            seed=options.seed,
            text_format=texts.text_format,
            **(learned if tokenizer is None else {"tokenizer": tokenizer}),
        )


def given_tokenizer(options: TrainingOptions, output: Path) -> Tokenizer | None:
    """Return the tokenizer of `init` or of a file, or `None` to learn one.

    If the tokenizer of only one side is a file, it is `None`, too. A run with a checkpoint reads
    its own, so `init` and the file may have been changed or deleted.
    """
    if options.init is None and options.learns:
        return None
    checkpoint = output / LAST_FILE
    if checkpoint.exists():
        return InitialModel.read(checkpoint).tokenizer
    tokenizer = options.load_tokenizer()
    if options.init is None:
        return tokenizer
    model = InitialModel.read(options.init)
    model.check_architecture(options)
    return model.choose_tokenizer(tokenizer)


def mixed_corpora(options: TrainingOptions, output: Path) -> list[tuple[Path, float]]:
    """Return the folder of each corpus of `mix`, and its share.

    The folder is the one in which the run has linked the files of the corpus, if there is one.
    """
    corpora = []
    for number, (folder, share) in enumerate(options.mixed, start=1):
        link = output / MIXED_FOLDER / str(number)
        corpora.append((link if (link / MANIFEST_FILE).exists() else folder, share))
    return corpora


def _link_mixed(options: TrainingOptions, output: Path) -> None:
    """Link the files of the mixed corpora into the run, so that it can do without their folders.

    Corpora that cannot be linked, such as those on another file system, stay where they are.
    """
    mixed = output / MIXED_FOLDER
    if mixed.exists():  # of a start that failed
        shutil.rmtree(mixed)
    for number, (folder, _) in enumerate(options.mixed, start=1):
        link = mixed / str(number)
        link.mkdir(parents=True)
        try:
            for name in (*PreparedCorpus(folder).manifest["files"], MANIFEST_FILE):
                os.link(folder / name, link / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.rmtree(link)
            logger.warning(
                "Keep the folder %s until the run is finished: its files cannot be linked (%s).",
                folder,
                error.strerror,
            )


def check_corpora(options: TrainingOptions, tokenizer: Tokenizer | None, output: Path) -> None:
    """Raise a `ValueError` unless the prepared corpora are complete and fit the tokenizer.

    Args:
        options: `TrainingOptions`.
        tokenizer: The tokenizer of `init` or of a file, or `None`.
        output: Folder of the run. If it has a checkpoint, its links to the mixed corpora are used.
    """
    is_resumed = (output / LAST_FILE).exists()
    mixed = mixed_corpora(options, output) if is_resumed else options.mixed
    if options.is_prepared:
        corpus = PreparedCorpus(options.source)
        if corpus.aligned and options.bpe_dropout:
            raise argument_error(
                "bpe_dropout",
                "be 0 for a corpus with alignments, whose positions it changes",
                received=str(options.bpe_dropout),
            )
        if tokenizer is not None and tokenizer != corpus.tokenizer:
            raise argument_error(
                "source",
                "be a corpus with the tokenizer of `init`",
                received=(
                    f"{str(options.source)!r}, which has another one; prepare it with the option "
                    "`tokenizer`, or pass text files"
                ),
            )
        tokenizer = corpus.tokenizer
    if tokenizer is not None:
        options.text_format.check_columns(tokenizer.has_columns)
    for folder, _ in mixed:
        if not (folder / MANIFEST_FILE).is_file():
            raise argument_error(
                "mix",
                "have corpora that `prepare` has finished; a run that was imported has none, so "
                "prepare text with its tokenizer.json",
                received=f"{str(folder)!r}, which has no {MANIFEST_FILE}",
            )
        if tokenizer is None:
            raise argument_error(
                "mix",
                "be left out for text files whose tokenizer is learned, because the corpora "
                "must have the same one; pass `init`, a tokenizer file or a prepared corpus",
                received=str(list(options.mix)),
            )
        if PreparedCorpus(folder).tokenizer != tokenizer:
            raise argument_error(
                "mix",
                "have corpora with the tokenizer of the run",
                received=(
                    f"{str(folder)!r}, which has another one; prepare it with the option "
                    "`tokenizer`"
                ),
            )
