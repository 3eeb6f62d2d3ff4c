"""Command `shortlist`: learn the likely target ids of each source id from a run."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from keras_bahdanau.run_folder import best_file
from keras_bahdanau_cli.arguments import ONE_RUN, TARGET, ModelImports, argument, output_path
from keras_bahdanau_cli.tensorflow_logging import import_keras
from keras_bahdanau_cli.terminal import console, pair_sources, print_message
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import SPECIAL
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.text.parallel import TextFormat, read_parallel


@dataclass(frozen=True, kw_only=True)
class ShortlistOptions:
    """A run, the texts to learn from, and the sizes of the shortlist."""

    run: Path = argument(ONE_RUN)
    source: Path = argument(
        "Source sentences, as of training, or a file with both sides; - is standard input."
    )
    target: Path | None = argument(TARGET, None)
    output: Path = output_path("The file to write, .npz.", Path("shortlist.npz"))
    size: int = option(2048, "Number of target ids for a batch.")
    candidates: int = option(50, "Maximum number of target ids for a source id.")
    sentences: int = option(100_000, "Maximum number of pairs to align.")
    alignments: Path | None = option(
        None, "Token alignments in Pharaoh format, instead of the model's attention."
    )

    def __post_init__(self) -> None:
        check_range("size", self.size, int, 2 * len(SPECIAL))
        check_positive(candidates=self.candidates, sentences=self.sentences)


def shortlist(options: ShortlistOptions, imported: ModelImports, text_format: TextFormat) -> None:
    """Learn a vocabulary shortlist from the attention of the best model of a run.

    Example:
        keras-bahdanau shortlist run train.en train.de --output shortlist.npz
    """
    from keras_bahdanau_runtime.text.corpus import read_alignments

    run, output = options.run, options.output
    best_file(run)  # checks that it is a run
    imported.check()
    if output.is_dir():
        raise argument_error("output", "be a file", received=f"{output}, a folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    texts = read_parallel(*pair_sources(options.source, options.target), text_format)
    links = None if options.alignments is None else read_alignments(options.alignments)
    if links is not None and len(links) != len(texts[0]):
        raise argument_error(
            "alignments",
            f"have one line for each of {len(texts[0])} pairs, except pairs with a blank side",
            received=str(len(links)),
        )
    texts = [side[: options.sentences] for side in texts]
    links = links and links[: options.sentences]
    import_keras(tensorflow=False)
    from keras_bahdanau.models import Shortlist
    from keras_bahdanau.training.run import load_best

    imported.load()
    model = load_best(run)
    text_format.check_columns(model.tokenizer.has_columns)
    sources = model.tokenizer.encode_sources(texts[0])
    targets = model.tokenizer.encode_targets(texts[1], texts[0])
    size = min(options.size, model.target_vocabulary_size)
    if links is not None:
        sizes = model.source_vocabulary_size, model.target_vocabulary_size
        pairs = zip(sources, targets, links, strict=True)
        Shortlist.from_links(pairs, *sizes, size, options.candidates).save(output)
        _print_usage(output)
        return
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("aligning", total=len(sources))
        Shortlist.learned(
            model,
            sources,
            targets,
            size,
            options.candidates,
            progress=lambda done: bar.update(task, completed=done),
        ).save(output)
    _print_usage(output)


def _print_usage(output: Path) -> None:
    flag = f"--shortlist {shlex.quote(str(output))}"
    print_message(f"The shortlist is {output}. Use it with `keras-bahdanau export {flag}`.")
