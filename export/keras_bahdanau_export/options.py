"""Options of an export: defaults, help texts, and the checks that need no Keras."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bahdanau_export.model_card import ModelCard
from keras_bahdanau_runtime.checks import check_positive, check_range, checked_texts
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import check_option_names, option
from keras_bahdanau_runtime.search_settings import check_setting
from keras_bahdanau_runtime.signature import PRECISIONS

# A search that copies needs memory for each pair of source tokens: 17 MB for a source this long.
MAX_COPIED_SOURCE_LENGTH = 2048

FORMATS = ("onnx", "tf_saved_model")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export, checked when they are created.

    `export(model, path, **options)` takes them by name. The command `keras-bahdanau export` has a
    flag for each option with a help text, and reads these options from a file with `--config`.

    Args:
        search: The search in the graph; `BeamSearch()` if `None`.
        tokenizer: A `Tokenizer`; `None` for the one attached to the model, `False` for none. An
            artifact without a tokenizer accepts only ids.
        texts: Source sentences to compare on, in addition to random ids; they need a tokenizer.
        references: One reference translation for each of `texts`, to measure the BLEU that a
            reduced precision or a shortlist costs.
        stepwise: Whether to also write `encoder.onnx` and `step.onnx`, for decoding token by token.
        cuda_graphs: Whether to also write `beam_start.onnx`, `beam_step.onnx` and `beam_end.onnx`:
            the search split at its loop, so that a GPU runs each step as a CUDA graph.
        skip_ended: Whether `model.onnx` computes logits only for hypotheses that have not ended,
            which is faster in batches on a CPU. On a GPU each step would wait for their number.
            Needs a beam search without copying or a shortlist.
        precision: Number format of the weights: "float32", "float16" (for GPUs; on a CPU it only
            makes the file smaller) or "int8" (for CPUs). The float32 graph is compared with Keras
            first, then the reduced graph with the float32 graph.
        imports: Names of modules that register custom layers, which the TensorFlow process imports
            before it loads the model. It finds the modules of the model's own layers without this.
        input_names: For a model without a search, a name for each graph input, in the order of
            `model.inputs`; the names of the `keras.Input`s if `None`.
        output_names: For a model without a search, a name for each graph output. If `None`: the
            keys if the model returns a dict, else the layer names, numbered as in `decode_0` and
            `decode_1` where a layer has several outputs.
        calibrate: Pairs `(source, right output)` of `str` that the model was not trained on. They
            are translated with the artifact to fit the confidence of its outputs, which needs
            at least 100 different sources; at most 5,000 are used. Several pairs with one source
            are several right outputs. Without pairs, translations have no confidence.
        shortlist: A `Shortlist` of target ids. The graph searches only these, which is faster. The
            loss is measured on `texts` against the model's search over all ids.
        model_card: A `ModelCard`, to also write `README.md`, which makes the artifact a model
            repository of the Hugging Face Hub.

    Raises:
        ValueError: If a value is unknown or out of its range.

    Example:

    >>> ExportOptions(precision="int8", max_length=60).formats
    ['onnx']

    From a YAML or JSON file, read by `keras_bahdanau_runtime.option_files.read_options`:

    ```python
    export(model, "artifact", **read_options("export.yaml"))
    ```
    """

    format: str | Sequence[str] = option(
        "onnx", "onnx or tf_saved_model; may be repeated.", type=list[str], panel="Output"
    )
    search: Any = None
    max_length: int = option(100, "Maximum number of output tokens.", panel="Search")
    max_source_length: int | None = option(
        None,
        "Maximum number of source tokens that the artifact accepts. If absent: "
        f"{MAX_COPIED_SOURCE_LENGTH:,} for a model that copies, else no limit.",
        panel="Output",
    )
    tokenizer: Any = None
    texts: Sequence[str] = ()
    references: Sequence[str] = ()
    stepwise: bool = option(
        False, "Also write encoder.onnx and step.onnx, for decoding token by token.", panel="Output"
    )
    cuda_graphs: bool = option(
        False,
        "Also write the search split at its loop, for CUDA graphs on a GPU.",
        panel="Output",
    )
    skip_ended: bool = option(
        False,
        "Compute logits only for hypotheses that have not ended: faster in batches on a CPU.",
        panel="Output",
    )
    precision: str = option(
        "float32", "Number format: float32, float16 (GPU) or int8 (CPU).", panel="Output"
    )
    max_bleu_loss: float = option(
        0.5, "Maximum loss of BLEU by the precision, and by the shortlist.", panel="Validation"
    )
    imports: Sequence[str] = option(
        (),
        "A module, or its .py file, with classes of the model, such as that of `train "
        "--attention`. Its code runs. May be repeated.",
        type=list[str],
        flags="--import",
        panel="Model",
    )
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    calibrate: Sequence[tuple[str, str]] = ()
    shortlist: Any = None
    model_card: ModelCard | None = None

    def __post_init__(self) -> None:
        for name in ("stepwise", "cuda_graphs", "skip_ended"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise argument_error(name, "be a bool", value)
        unknown = [format for format in self.formats if format not in FORMATS]
        if unknown or not self.formats:
            raise argument_error(
                "format",
                f"be one of {FORMATS} or a list of both. Keras's own `model.export` writes "
                "other formats, without a search",
                unknown[0] if unknown else [],
            )
        if self.precision not in PRECISIONS or (
            self.precision != "float32" and "onnx" not in self.formats
        ):
            raise argument_error(
                "precision",
                f'be one of {PRECISIONS}, and "float32" if no ONNX graph is written',
                self.precision,
            )
        check_range("max_bleu_loss", self.max_bleu_loss, float, -100, 100)
        check_setting("max_length", self.max_length)
        if self.max_source_length is not None:
            check_positive(max_source_length=self.max_source_length)
        for name in ("cuda_graphs", "skip_ended"):
            if getattr(self, name) and "onnx" not in self.formats:
                raise argument_error(name, "be False if no ONNX graph is written", received="True")
        if not isinstance(self.model_card, ModelCard | None):
            raise argument_error("model_card", "be a ModelCard or None", self.model_card)
        pairs = list(self.calibrate) if isinstance(self.calibrate, Iterable) else [self.calibrate]
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise argument_error("calibrate", "hold pairs (source, right output)", pairs)
        for side in zip(*pairs, strict=True):
            checked_texts("calibrate", side)
        object.__setattr__(self, "calibrate", pairs)
        for name in ("texts", "references", "imports"):
            object.__setattr__(self, name, checked_texts(name, getattr(self, name)))

    @property
    def formats(self) -> list[str]:
        """The formats as a list."""
        return list(self.format) if isinstance(self.format, (list, tuple)) else [self.format]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ExportOptions":
        """Create options from a mapping of names to values.

        Raises:
            ValueError: If a name is not an option (the message suggests the closest one), or as
                the class.
        """
        check_option_names(cls, values, "an export")
        return cls(**values)
