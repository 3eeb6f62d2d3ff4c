"""Names and shapes that the writers and the runtime must agree on, written once.

Letters: `batch` B, `source_length` Tx, `beam` K, `length` T (target steps).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

FORMAT = "keras_bahdanau artifact"
FORMAT_VERSION = 1

MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.onnx"
ENCODER_FILE = "encoder.onnx"
STEP_FILE = "step.onnx"
BEAM_FILES = ("beam_start.onnx", "beam_step.onnx", "beam_end.onnx")
TOKENIZER_FILE = "tokenizer.json"
SHORTLIST_FILE = "shortlist.npz"
SAVED_MODEL_FOLDER = "saved_model"

PRECISIONS = ("float32", "float16", "int8")


@dataclass(frozen=True)
class Tensor:
    """One input or output of a graph.

    Args:
        name: str. Its name in the graph.
        dtype: str. NumPy name of the element type.
        axes: tuple of str or int. A str names a dynamic axis, an int is a fixed size.
    """

    name: str
    dtype: str
    axes: tuple[str | int, ...]


@dataclass(frozen=True)
class Signature:
    """What goes into a graph and what comes out.

    Args:
        inputs: tuple of `Tensor`.
        outputs: tuple of `Tensor`.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the signature as plain dicts and lists, for the manifest."""
        return {
            side: [{**asdict(tensor), "axes": list(tensor.axes)} for tensor in getattr(self, side)]
            for side in ("inputs", "outputs")
        }


# Hypotheses stand best first. A token row is right-padded with `PAD`, holds no `BOS`, and
# ends in `EOS` unless the length limit cut it; `lengths` counts its tokens, `EOS` included.
# `length` is the `max_length` of the export, however short the longest hypothesis is.
TRANSLATE = Signature(
    inputs=(Tensor("source", "int32", ("batch", "source_length")),),
    outputs=(
        Tensor("tokens", "int32", ("batch", "beam", "length")),
        Tensor("scores", "float32", ("batch", "beam")),
        Tensor("lengths", "int32", ("batch", "beam")),
        Tensor("alignments", "float32", ("batch", "beam", "length", "source_length")),
    ),
)

# What a search draws with, in [0, 1): one number for each token of each hypothesis.
NOISE = Tensor("noise", "float32", ("batch", "beam", "length"))
SAMPLE = replace(TRANSLATE, inputs=(*TRANSLATE.inputs, NOISE))

SIGNATURES: Mapping[str, Signature] = {MODEL_FILE: TRANSLATE}


def weights_file(graph: str) -> str:
    """Name of the file beside a graph's that holds weights which are too large for it."""
    return f"{graph}.data"


def hypotheses(search: Mapping[str, Any]) -> int:
    """How many hypotheses a search keeps for each sentence, by its settings in the manifest."""
    return int(search.get("size") or search.get("n") or 1)


def returned(search: Mapping[str, Any]) -> int:
    """How many hypotheses a search returns for each sentence, by its settings in the manifest."""
    return int(search.get("n_best") or hypotheses(search))


def most_rows(search: Mapping[str, Any], vocabulary: int) -> int:
    """How many sentences a search takes at once.

    It counts the candidates, and the steps, of all hypotheses in int32.
    """
    steps = int(search.get("max_length", 1))
    return int((2**31 - 1) // (hypotheses(search) * max(vocabulary, steps)))
