"""Preparation of several runs that differ only in their seed; this needs no Keras.

run/
  seeds.json   the seeds of the runs
  corpus/      the texts as written by `prepare`, unless a prepared corpus is given
  seed-0/      the run of each seed; see `run`
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from keras_bahdanau.data.choices import Choice
from keras_bahdanau.data.options import TOKENIZER_OPTIONS
from keras_bahdanau.run_folder import (
    CORPUS_FOLDER,
    LAST_FILE,
    OPTIONS_FILE,
    SEEDS_FILE,
    member_folder,
    member_runs,
)
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau.training.start import (
    RunTexts,
    check_run,
    check_run_folder,
    choose_options,
    claim_run,
    log_choices,
    prepare_texts,
)
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import write_json


class Member(NamedTuple):
    """One of several runs that differ only in their seed.

    Args:
        options: `TrainingOptions` of the run.
        folder: Its folder.
    """

    options: TrainingOptions
    folder: Path


def prepare_seeds(
    options: TrainingOptions,
    output: Path,
    seeds: int,
    resume: bool,
    on_choices: Callable[[list[Choice]], None] | None = None,
) -> list[Member]:
    """Check several runs, choose their open options, and prepare the corpus that they share.

    Args:
        options: `TrainingOptions` with the first seed.
        output: Folder of the runs.
        seeds: Number of runs.
        resume: Whether to continue the runs in the folder.
        on_choices: As for `start_run`.

    Returns:
        The runs. Each one can be started, or continued, with `start_run`.

    Raises:
        ValueError, OSError, MissingDependencyError: As `start_run` for each of the runs, or `seeds`
            is not positive, the runs have several devices, or a run in the folder is left out.
    """
    check_range("seeds", seeds, int, 1)
    if options.devices > 1:
        raise argument_error(
            "seeds", "be 1 with several `devices`; train one run at a time", received=str(seeds)
        )
    replace(options, seed=options.seed + seeds - 1)  # checks the last seed
    texts = RunTexts(options, output)
    if resume and not (output / SEEDS_FILE).exists():
        for name in (OPTIONS_FILE, LAST_FILE):
            if (output / name).exists():
                raise argument_error(
                    "seeds",
                    "be left out to continue a single run",
                    received=f"{seeds} for {str(output)!r}, which has {name}",
                )
    _, tokenizer = check_run(texts, resume, seeds=True)
    folders = {
        seed: member_folder(output, seed) for seed in range(options.seed, options.seed + seeds)
    }
    if (output / SEEDS_FILE).exists():
        left_out = [run.name for run in member_runs(output) if run not in folders.values()]
        if left_out:
            raise argument_error(
                ("seed", "seeds"),
                f"include all runs in {output}",
                received=f"{options.seed} and {seeds}, without {', '.join(left_out)}",
            )
    _ = texts.held_out  # raises the errors of these files
    chosen, choices = choose_options(texts, tokenizer)
    (on_choices or log_choices)(choices)
    with claim_run(output):
        if not options.is_prepared:
            prepare_texts(RunTexts(chosen, output), tokenizer)
            # The corpus has the tokenizer.
            defaults = {name: getattr(TrainingOptions, name) for name in TOKENIZER_OPTIONS}
            corpus = output / CORPUS_FOLDER
            chosen = replace(chosen, source=corpus, target=None, **defaults)
        members = []
        for seed, folder in folders.items():
            log_dir = None if options.log_dir is None else options.log_dir / folder.name
            member = Member(replace(chosen, seed=seed, log_dir=log_dir), folder)
            # Before the list is written: a refused call must not change the ensemble.
            check_run_folder(member.options, folder, resume, RunTexts(*member))
            members.append(member)
        write_json(output / SEEDS_FILE, list(folders))
    return members
