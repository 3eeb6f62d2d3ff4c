"""Command `import`: a trained model of another toolkit as a run, for the other commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bahdanau.run_folder import BEST_FILE
from keras_bahdanau_cli.arguments import argument, check_file, output_path
from keras_bahdanau_cli.tensorflow_logging import check_keras, import_keras
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_folder
from keras_bahdanau_runtime.manifest import is_run
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.signature import TOKENIZER_FILE

# The files that each toolkit needs, for messages.
_TOOLKITS = {
    "joeynmt": "the folder of a run",
    "opennmt": "a checkpoint",
    "fairseq": "a checkpoint and one or two dictionaries",
}
# The figures are those of docs/guides/int8-and-shortlists.md.
_INT8_NOTE = (
    "The export in int8 is about a third as large, and lost less than 0.1 BLEU on Multi30k. With "
    "--source and --reference, export measures the loss of this model."
)


def _tokenizer_option(texts: str) -> Any:
    """Return the field of a file that splits texts."""
    return option(
        "auto",
        f"SentencePiece .model or subword-nmt codes that split raw {texts}; auto: the file that "
        "the toolkit's options name, if it is in the folder of the checkpoint or at that path; "
        "none: texts are split already.",
        panel="Data",
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """A model of another toolkit, and the run to create."""

    toolkit: str = argument("joeynmt, opennmt or fairseq.")
    paths: list[Path] = argument(
        "joeynmt: the folder of a run. opennmt: a checkpoint. fairseq: a checkpoint, and the "
        "dictionaries of source and target, or a joint one."
    )
    output: Path = output_path("Folder of the run to create.")
    source_tokenizer: str = _tokenizer_option("sources")
    target_tokenizer: str = _tokenizer_option("translations")


def import_model(options: ImportOptions) -> None:
    r"""Import a recurrent model of JoeyNMT, OpenNMT-py or fairseq as a run.

    The run has the model and its vocabularies. Other commands, such as export, accept it. With the
    files that split texts, all commands and the artifact take raw text. A model with an option that
    has no equivalent is refused, with the names of all such options.

    Example:
        keras-bahdanau import opennmt model_step_10000.pt --output run \
            --source-tokenizer spm.model --target-tokenizer spm.model
    """
    toolkit, paths, output = options.toolkit, options.paths, options.output
    if toolkit not in _TOOLKITS:
        raise argument_error("toolkit", f"be one of {tuple(_TOOLKITS)}", toolkit)
    if len(paths) not in ({2, 3} if toolkit == "fairseq" else {1}):
        raise argument_error(
            "paths", f"be {_TOOLKITS[toolkit]} for {toolkit}", received=f"{len(paths)} paths"
        )
    if toolkit == "joeynmt" and not paths[0].is_dir():
        raise argument_error("paths", "be the folder of a JoeyNMT run", str(paths[0]))
    if toolkit != "joeynmt":
        for path in paths:
            check_file("paths", path)
    tokenizers = options.source_tokenizer, options.target_tokenizer
    for name, tokenizer in zip(("source_tokenizer", "target_tokenizer"), tokenizers, strict=True):
        if tokenizer not in ("auto", "none"):
            check_file(name, Path(tokenizer))
    if output.exists():
        raise argument_error("output", "be a new folder", received=f"{str(output)!r}, which exists")
    check_keras()
    import_keras()  # Keras imports TensorFlow, if it is installed, when it creates weights
    from keras_bahdanau.toolkits.fairseq import read_fairseq
    from keras_bahdanau.toolkits.joeynmt import read_joeynmt
    from keras_bahdanau.toolkits.opennmt import read_opennmt

    if toolkit == "joeynmt":
        model, notes = read_joeynmt(paths[0], tokenizers)
    elif toolkit == "opennmt":
        model, notes = read_opennmt(paths[0], tokenizers)
    else:
        model, notes = read_fairseq(paths[0], paths[1:], tokenizers)
    with atomic_folder(output, "a run", is_run) as folder:
        model.save(folder / BEST_FILE)
        model.tokenizer.save(folder / TOKENIZER_FILE)  # for `prepare --tokenizer`
    print_message(
        f"The run is {output}: {model.count_params():,} weights, "
        f"{model.source_vocabulary_size:,} source and {model.target_vocabulary_size:,} target ids."
    )
    for note in notes:
        print_message(note)
    print_message(_INT8_NOTE)
