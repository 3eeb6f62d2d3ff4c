"""The options of an export: their defaults, help texts, and the checks that need no Keras."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_bahdanau_runtime.checks import check_positive, check_range, checked_texts
from keras_bahdanau_runtime.runs.options import check_option_names
from keras_bahdanau_runtime.signature import PRECISIONS

FORMATS = ("onnx", "tf_saved_model")


def _flag(default: Any, help: str, **metadata: Any) -> Any:
    """Return a field that is also a flag of the command.

    `type` and `flag` in the metadata are the type and name of the flag, if they differ.
    """
    return field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export, checked when they are created.

    `export(model, path, **options)` takes them by name. The command `keras-bahdanau export` has a
    flag for each option that is a string, a number, a bool or a list of strings.

    Args:
        format: "onnx", "tf_saved_model", or a list of both.
        search: The search in the graph; `BeamSearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        max_source_length: Longest source in tokens that the runtime accepts; `None` for no limit.
        tokenizer: A `Tokenizer`; `None` for the one attached to the model, `False` for none.
            Without one the artifact takes ids only.
        texts: Sentences to compare on, in addition to random ids; they need a tokenizer.
        references: A translation of each of `texts`, to measure what a precision costs.
        stepwise: Whether to write `encoder.onnx` and `step.onnx`, too, for decoding token by token.
        captured: Whether to write `beam_start.onnx`, `beam_step.onnx` and `beam_end.onnx`, too: the
            search cut at its loop, whose step CUDA records once and replays.
        precision: "float32", "float16" (for GPUs; on a CPU it saves only room) or "int8" (for
            CPUs). The float32 graph is compared with Keras first, then the smaller one with it.
        max_bleu_loss: BLEU on `texts` that the precision, and the shortlist, may cost.
        imports: Names of modules that register layers of your own, which the TensorFlow process
            imports first. Modules of the model's layers are found without it.
        input_names: For a model that does not generate, a name for each input of its graph, in the
            order of `model.inputs`; those of the `keras.Input`s if `None`.
        output_names: The same for each output; if `None` the keys where the model returns a dict,
            else the names of the layers, `decode_0`, `decode_1` where a layer gives several.
        shortlist: A `Shortlist`: the graph chooses among its ids only, which takes a part of the
            time; the model's own search, with all ids, says on `texts` what that costs.

    Raises:
        ValueError: If a value is unknown or out of its range.

    Example:

    >>> ExportOptions(precision="int8", max_length=60).formats
    ['onnx']

    From a YAML or JSON file, which `keras_bahdanau_runtime.runs.options.read_options` reads:

    ```python
    export(model, "artifact", **read_options("export.yaml"))
    ```
    """

    format: str | Sequence[str] = _flag(
        "onnx", "onnx or tf_saved_model; may be given twice.", type=list[str]
    )
    search: Any = None
    max_length: int = _flag(100, "Tokens after which an output is cut.")
    max_source_length: int | None = _flag(None, "Longest source in tokens that the artifact takes.")
    tokenizer: Any = None
    texts: Sequence[str] = ()
    references: Sequence[str] = ()
    stepwise: bool = _flag(False, "Write encoder.onnx and step.onnx, too.")
    captured: bool = _flag(False, "Write the search in steps that CUDA can record, too.")
    precision: str = _flag("float32", "float32, float16 (GPU) or int8 (CPU).")
    max_bleu_loss: float = _flag(0.5, "BLEU that a precision, and a shortlist, may cost.")
    imports: Sequence[str] = _flag(
        (),
        "A module that registers layers of yours; may be repeated.",
        type=list[str],
        flag="--import",
    )
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    shortlist: Any = None

    def __post_init__(self) -> None:
        for name in ("stepwise", "captured"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise ValueError(f"Argument `{name}` must be a bool. Received: {value!r}")
        unknown = [format for format in self.formats if format not in FORMATS]
        if unknown or not self.formats:
            raise ValueError(
                f"Argument `format` must be one of {FORMATS} or a list of both; for others there "
                "is Keras's own `model.export`, which exports no search. "
                f"Received: {unknown[0] if unknown else []!r}"
            )
        if self.precision not in PRECISIONS or (
            self.precision != "float32" and "onnx" not in self.formats
        ):
            raise ValueError(
                f'Argument `precision` must be one of {PRECISIONS}, and "float32" where no ONNX '
                f"graph is written. Received: {self.precision!r}"
            )
        check_range("max_bleu_loss", self.max_bleu_loss, float, -100, 100)
        check_positive(max_length=self.max_length)
        if self.max_source_length is not None:
            check_positive(max_source_length=self.max_source_length)
        if self.captured and "onnx" not in self.formats:
            raise ValueError(
                "Argument `captured` must be False where no ONNX graph is written. Received: True"
            )
        for name in ("texts", "references", "imports"):
            object.__setattr__(self, name, checked_texts(name, getattr(self, name)))

    @property
    def formats(self) -> list[str]:
        """The formats as a list."""
        return list(self.format) if isinstance(self.format, (list, tuple)) else [self.format]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ExportOptions":
        """Options from a mapping of their names.

        Raises:
            ValueError: If a name is no option (the nearest one is named), or as the class.
        """
        check_option_names(cls, values, "an export")
        return cls(**values)
