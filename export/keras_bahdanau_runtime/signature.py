"""File names, tensor names and shapes that the exporter and the runtime share.

Letters: `batch` B, `source_length` Tx, `beam` K, `length` T (target steps). `rows` is B or 1.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from keras_bahdanau_runtime.search_settings import RANGES, SearchSettings

FORMAT = "keras_bahdanau artifact"
FORMAT_VERSION = 1

MANIFEST_FILE = "manifest.json"
# A folder with one of these is a training run, which must be exported before it can be run.
OF_RUNS = ("options.json", "last.keras", "best.keras")
MODEL_FILE = "model.onnx"
ENCODER_FILE = "encoder.onnx"
STEP_FILE = "step.onnx"
SCORE_FILE = "score.onnx"
CUDA_GRAPH_FILES = ("beam_start.onnx", "beam_step.onnx", "beam_end.onnx")
TOKENIZER_FILE = "tokenizer.json"
SHORTLIST_FILE = "shortlist.npz"
SAVED_MODEL_FOLDER = "saved_model"
MODEL_CARD_FILE = "README.md"

PRECISIONS = ("float32", "float16", "int8")


@dataclass(frozen=True)
class Tensor:
    """Input or output of a graph.

    Args:
        name: str. Name in the graph.
        dtype: str. NumPy name of the element type.
        axes: tuple of str or int: the name of a dynamic axis, or a fixed size.
    """

    name: str
    dtype: str
    axes: tuple[str | int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the tensor as a plain dict."""
        return {**asdict(self), "axes": list(self.axes)}


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a graph.

    Args:
        inputs: tuple of `Tensor`.
        outputs: tuple of `Tensor`.
        options: tuple of `Tensor`. Optional inputs, which have defaults in the graph.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    options: tuple[Tensor, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the signature as plain dicts and lists, for the manifest.

        There is a key "options" only if there are options.
        """
        return {
            side: [tensor.to_json() for tensor in getattr(self, side)]
            for side in ("inputs", "outputs", "options")
            if side != "options" or self.options
        }


# Hypotheses are sorted by score, best first. A row of tokens is right-padded with `PAD`, contains
# no `BOS`, and ends with `EOS` unless the length limit cut it; `lengths` includes `EOS`. `length`
# is the `max_length` of the export, even if all hypotheses are shorter. Artifacts written before
# there were `log_probs` have no such output.
TRANSLATE = Signature(
    inputs=(Tensor("source", "int32", ("batch", "source_length")),),
    outputs=(
        Tensor("tokens", "int32", ("batch", "beam", "length")),
        Tensor("scores", "float32", ("batch", "beam")),
        Tensor("lengths", "int32", ("batch", "beam")),
        Tensor("alignments", "float32", ("batch", "beam", "length", "source_length")),
        Tensor("log_probs", "float32", ("batch", "beam", "length")),
    ),
)

# Uniform random numbers in [0, 1) for sampling, one for each token of each hypothesis.
NOISE = Tensor("noise", "float32", ("batch", "beam", "length"))
SAMPLE = replace(TRANSLATE, inputs=(*TRANSLATE.inputs, NOISE))

# Log-probabilities of given targets, which are padded like the sources; see
# `keras_bahdanau.search.score_targets`.
SCORE = Signature(
    inputs=(TRANSLATE.inputs[0], Tensor("target", "int32", ("batch", "target_length"))),
    outputs=(
        Tensor("totals", "float32", ("batch",)),
        Tensor("log_probs", "float32", ("batch", "target_length")),
        Tensor("lengths", "int32", ("batch",)),
        Tensor("alignments", "float32", ("batch", "target_length", "source_length")),
    ),
)
# Models that copy also have the share of each token that was copied from each source token. Older
# artifacts have no such output.
SCORE_WITH_COPIES = replace(
    SCORE, outputs=(*SCORE.outputs, replace(SCORE.outputs[-1], name="copied"))
)

# Names of the settings of `SearchSettings`.
SETTINGS = tuple(setting.name for setting in fields(SearchSettings))
# Settings and constraints that are optional inputs of a search's graph, by name. The defaults are
# the settings of the export. A graph has those that its search can change.
OPTIONS: Mapping[str, Tensor] = {
    option.name: option
    for option in (
        *(Tensor(name, RANGES[name].dtype, ()) for name in SETTINGS),
        Tensor("prefix", "int32", ("rows", "prefix_length")),
        # Positions and ids: an id that may end the prefix at a position, instead of its ids there.
        Tensor("completions", "int32", ("completion_rows", "completions", 2)),
        Tensor("suppressed", "int32", ("rows", "suppressed")),
        Tensor("required", "int32", ("rows", "phrases", "phrase_length")),
    )
}

SIGNATURES: Mapping[str, Signature] = {MODEL_FILE: TRANSLATE, SCORE_FILE: SCORE}


def weights_file(graph: str) -> str:
    """Return the name of the file for weights that are too large for the graph's own file."""
    return f"{graph}.data"
