"""Command `distill`: train a student on the translations of a teacher."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.run_folder import DISTILLED_FOLDER
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau.training.start import RunTexts, check_run_folder
from keras_bahdanau_cli.arguments import (
    TrainingConfig,
    explicit_values,
    with_flags_of,
)
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.progress_bar import ProgressBar
from keras_bahdanau_cli.tensorflow_logging import check_keras
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_cli.train import train_run
from keras_bahdanau_runtime.bulk.distillation import (
    SOURCE_FILE,
    TARGET_FILE,
    check_texts,
    distill_texts,
)
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.translator import Translator


@with_flags_of(TrainingOptions, exclude=("source", "target"))  # the distilled texts
def distill(
    context: typer.Context,
    teacher: Annotated[
        str,
        typer.Argument(
            help="Folder of the teacher's artifact (from export), or hf://USER/NAME[@REVISION]."
        ),
    ],
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Files of source sentences, or, with --pairs, files with both sides; plain or "
            "compressed."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the student's run.")],
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Each file has both sides: tab-separated text, .csv, .jsonl, .parquet or .tmx. "
            "Its translations are used only with --n-best.",
            rich_help_panel="Data",
        ),
    ] = False,
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            help="Human translations, one file for each of the sources: train on the one of the "
            "teacher's translations that is closest to them by sentence BLEU.",
            rich_help_panel="Data",
        ),
    ] = None,
    n_best: Annotated[
        int | None,
        typer.Option(
            help="With --reference: translations to choose from; the teacher's beam by default. "
            "With --pairs: use the translations in the files as references, too.",
            rich_help_panel="Data",
        ),
    ] = None,
    config: TrainingConfig = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    **flags: Any,
) -> None:
    r"""Translate sources with a teacher, and train a student on these translations.

    The translations are kept in OUTPUT/distilled, for more students with `train`. The other flags
    are those of `train` and apply to the student.

    Example:
        keras-bahdanau distill artifact train.en --validation-source dev.en \
            --validation-target dev.de --units 192 --output student
    """
    folder = output / DISTILLED_FOLDER
    texts = {"source": folder / SOURCE_FILE, "target": folder / TARGET_FILE}
    options = TrainingOptions.from_values({**explicit_values(context, flags), **texts})
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
    references = reference or []
    check_texts(sources, references, n_best, options.text_format, pairs)
    if folder.exists() and not resume:
        raise argument_error(
            "output",
            "be a new folder, or `resume` be True to continue its run",
            received=f"{str(output)!r}, which exists",
        )
    check_run_folder(options, output, resume, RunTexts(options, output))
    translator = Translator(artifact_folder(teacher), parallel_batches=available_cores())
    try:
        with ProgressBar() as progress:
            distill_texts(
                translator,
                sources,
                folder,
                references,
                n_best,
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
        raise typer.Exit(130) from None
    del translator  # frees its memory before the training
    train_run(options, output, resume)
