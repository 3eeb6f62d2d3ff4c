"""Command `distill`: train a student on the translations of a teacher."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.run_folder import DISTILLED_FOLDER
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau_cli.arguments import argument
from keras_bahdanau_cli.exit_status import INTERRUPTED
from keras_bahdanau_cli.flags import Values, Without
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.progress_bar import ProgressBar
from keras_bahdanau_cli.tensorflow_logging import check_keras
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_cli.train import NewRun, check_attention, train_run
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """A teacher, and the sentences that it translates for its student."""

    teacher: str = argument(
        "Folder of the teacher's artifact (from export), or hf://USER/NAME[@REVISION]."
    )
    sources: list[Path] = argument(
        "Files of source sentences, or, with --pairs, files with both sides; plain or compressed."
    )
    pairs: bool = option(
        False,
        "Each file has both sides: tab-separated text, .csv, .jsonl, .parquet or .tmx. Its "
        "translations are used only with --n-best.",
        flags="--pairs",
        panel="Data",
    )
    reference: tuple[Path, ...] = option(
        (),
        "Human translations, one file for each of the sources: train on the one of the teacher's "
        "translations that is closest to them by sentence BLEU.",
        panel="Data",
    )
    n_best: int | None = option(
        None,
        "With --reference: translations to choose from; the teacher's beam by default. With "
        "--pairs: use the translations in the files as references, too.",
        panel="Data",
    )


def distill(
    teaching: Teaching,
    run: NewRun,
    # The source and the target are the distilled texts.
    values: Annotated[Values[TrainingOptions], Without(("source", "target"))],
) -> None:
    r"""Translate sources with a teacher, and train a student on these translations.

    The translations are kept in OUTPUT/distilled, for more students with `train`. The other flags
    are those of `train` and apply to the student.

    Example:
        keras-bahdanau distill artifact train.en --validation-source dev.en \
            --validation-target dev.de --units 192 --output student
    """
    from keras_bahdanau.training.start import (
        RunTexts,
        check_corpora,
        check_run_folder,
        given_tokenizer,
    )
    from keras_bahdanau_runtime.bulk.distillation import (
        SOURCE_FILE,
        TARGET_FILE,
        check_texts,
        distill_texts,
    )
    from keras_bahdanau_runtime.session import available_cores
    from keras_bahdanau_runtime.text.scores import bleu_metric
    from keras_bahdanau_runtime.translator import Translator

    sources, pairs = teaching.sources, teaching.pairs
    output, resume = run.output, run.resume
    folder = output / DISTILLED_FOLDER
    texts = {"source": folder / SOURCE_FILE, "target": folder / TARGET_FILE}
    options = TrainingOptions.from_values({**values, **texts})
    rank, processes = launched_rank()
    if processes > 1:
        raise argument_error(
            "teacher",
            "be used in one process",
            received=(
                f"rank {rank} of {processes}; distill once, and train on the files in {folder} "
                "with `train`"
            ),
        )
    check_keras()
    references = list(teaching.reference)
    check_texts(sources, references, teaching.n_best, options.text_format, pairs)
    if folder.exists() and not resume:
        raise argument_error(
            "output",
            "be a new folder, or `resume` be True to continue its run",
            received=f"{str(output)!r}, which exists",
        )
    # The errors of `train_run` that do not depend on the translations, which may take hours.
    check_attention(options)
    bleu_metric(options.tokenize)
    run_texts = RunTexts(options, output)
    check_run_folder(options, output, resume, run_texts)
    check_corpora(options, given_tokenizer(options, output), output)
    _ = run_texts.held_out  # raises the errors of these files
    translator = Translator(artifact_folder(teaching.teacher), parallel_batches=available_cores())
    try:
        with ProgressBar() as progress:
            distill_texts(
                translator,
                sources,
                folder,
                references,
                teaching.n_best,
                options.tokenize,
                progress=progress,
                on_failed=lambda path, row, reason: print_message(
                    f"{path}, {'pair' if pairs else 'line'} {row}: {reason}"
                ),
                text_format=options.text_format,
                pairs=pairs,
            )
    except KeyboardInterrupt:
        print_message(f"Interrupted. Run the same command with --resume to continue in {output}.")
        sys.exit(INTERRUPTED)
    del translator  # frees its memory before the training
    train_run(options, output, resume)
