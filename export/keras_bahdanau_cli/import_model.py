"""Command `import`: a trained model of another toolkit as a run, for the other commands."""

from dataclasses import dataclass
from pathlib import Path

from keras_bahdanau.run_folder import BEST_FILE
from keras_bahdanau_cli.arguments import argument, check_file, output_path
from keras_bahdanau_cli.tensorflow_logging import check_keras, import_keras
from keras_bahdanau_cli.terminal import print_message
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_folder
from keras_bahdanau_runtime.manifest import is_run
from keras_bahdanau_runtime.signature import TOKENIZER_FILE

# The files that each toolkit needs, for messages.
_TOOLKITS = {
    "joeynmt": "the folder of a run",
    "opennmt": "a checkpoint",
    "fairseq": "a checkpoint and one or two dictionaries",
}


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """A model of another toolkit, and the run to create."""

    toolkit: str = argument("joeynmt, opennmt or fairseq.")
    paths: list[Path] = argument(
        "joeynmt: the folder of a run. opennmt: a checkpoint. fairseq: a checkpoint, and the "
        "dictionaries of source and target, or a joint one."
    )
    output: Path = output_path("Folder of the run to create.")


def import_model(options: ImportOptions) -> None:
    """Import a recurrent model of JoeyNMT, OpenNMT-py or fairseq as a run.

    The run has the model and its vocabularies. Other commands, such as export, accept it. A model
    with an option that has no equivalent is refused, with the names of all such options.

    Example:
        keras-bahdanau import opennmt model_step_10000.pt --output run
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
    if output.exists():
        raise argument_error("output", "be a new folder", received=f"{str(output)!r}, which exists")
    check_keras()
    import_keras()  # Keras imports TensorFlow, if it is installed, when it creates weights
    from keras_bahdanau import toolkits

    if toolkit == "joeynmt":
        model = toolkits.import_joeynmt(paths[0])
    elif toolkit == "opennmt":
        model = toolkits.import_opennmt(paths[0])
    else:
        model = toolkits.import_fairseq(paths[0], paths[1:])
    with atomic_folder(output, "a run", is_run) as folder:
        model.save(folder / BEST_FILE)
        model.tokenizer.save(folder / TOKENIZER_FILE)  # for `prepare --tokenizer`
    print_message(
        f"The run is {output}: {model.count_params():,} weights, "
        f"{model.source_vocabulary_size:,} source and {model.target_vocabulary_size:,} target ids."
    )
