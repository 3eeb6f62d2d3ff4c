"""The options of a training run: written once, with their help texts and limits."""

import difflib
import functools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.text.tokenizer import (
    MOST_PIECES,
    NORMALIZATIONS,
    SMALLEST_VOCABULARY,
)

MODELS = ("rnnsearch", "rnnencdec")
SCHEDULES = ("cosine", "inverse-sqrt", "constant")
# Options by their names in files of earlier versions.
_FORMER_NAMES = {
    "loss_chunk": "loss_chunk_size",
    "precision": "dtype_policy",
    "validation_beam": "validation_beam_size",
}


def _option(default: Any, help: str, **metadata: Any) -> Any:
    """A field with its help text; `limits` are arguments of `check_range`, `choices` are names."""
    return field(default=default, metadata={"help": help, **metadata})


_COUNT = {"low": 1}
_SHARE = {"low": 0, "high": 1, "open_high": True}
_ABOVE_ZERO = {"low": 0, "open_low": True}


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that decides a training run, checked as it is made.

    Texts are UTF-8, one sentence a line, plain or .gz. Lengths are in tokens. An update is one step
    of the optimiser; after every `every` of them there is a validation and a checkpoint. The
    learning rate is that of a `WarmupSchedule`. The command `keras-bahdanau train` has these
    options, with the help texts below.

    Raises:
        ValueError: If a value has another type than its field, or is outside its limits; held-out
            texts do not go in pairs; or `updates` comes without `every`, or is no multiple of it.

    Example:

    ```python
    options = TrainingOptions(
        source="train.en",
        target="train.de",
        validation_source="dev.en",
        validation_target="dev.de",
        units=512,
    )
    longer = TrainingOptions.from_file("run/options.json", epochs=40)
    ```
    """

    source: Path = field(
        metadata={
            "help": "Source sentences, one a line, plain or .gz; or a folder made by `prepare`.",
            "positional": True,
        }
    )
    target: Path | None = field(
        default=None,
        metadata={
            "help": "Their translations, line by line; none for a prepared folder.",
            "positional": True,
        },
    )
    _: KW_ONLY
    validation_source: tuple[Path, ...] = field(
        metadata={"help": "Held-out source sentences; given again, another set: the first decides."}
    )
    validation_target: tuple[Path, ...] = field(metadata={"help": "Their translations."})
    model: str = _option("rnnsearch", "rnnsearch or rnnencdec.", choices=MODELS)
    vocabulary_size: int = _option(
        8000, "Byte-pair pieces to learn.", limits={"low": SMALLEST_VOCABULARY, "high": MOST_PIECES}
    )
    joint: bool = _option(
        True, "One vocabulary for both languages, or two.", flags="--joint/--separate"
    )
    normalization: str | None = _option(
        None,
        "Unicode form that the tokenizer brings all text into: nfc or nfkc; none if absent.",
        choices=NORMALIZATIONS,
    )
    units: int = _option(256, "Width of each recurrence.", limits=_COUNT)
    embedding_dim: int = _option(256, "Width of the embeddings.", limits=_COUNT)
    attention_units: int = _option(256, "Width of the alignment model.", limits=_COUNT)
    tie_embeddings: bool = _option(True, "Use the target embedding as the output layer.")
    join_embeddings: bool = _option(
        True, "Let the decoder attend to the words' embeddings beside their annotations."
    )
    encoder_layers: int = _option(1, "Bidirectional layers of the encoder.", limits=_COUNT)
    conditional: bool = _option(True, "A second cell reads the context: the conditional GRU.")
    layer_normalization: bool = _option(False, "Normalise the layers of the decoder's cells.")
    dropout: float | None = _option(
        None,
        "Share of features dropped: from embeddings, from annotations and before the output layer; "
        "0.3, 0.5 and 0.5 if absent.",
        limits=_SHARE,
    )
    annotation_dropout: float | None = _option(
        None, "Share dropped from annotations; as --dropout says if absent.", limits=_SHARE
    )
    readout_dropout: float | None = _option(
        None, "Share dropped before the output layer; as --dropout says if absent.", limits=_SHARE
    )
    encoder_dropout: float = _option(
        0.0, "Share dropped between the layers of the encoder, if it has several.", limits=_SHARE
    )
    bpe_dropout: float = _option(
        0.0, "Share of merges left out, anew each time, as words are cut.", limits=_SHARE
    )
    label_smoothing: float = _option(0.1, "Share of the target spread out.", limits=_SHARE)
    loss_chunk_size: int | None = _option(
        None,
        "Target places whose logits are made at once, which takes less memory and time than all; "
        "if absent 512, or all with several devices.",
        limits=_COUNT,
    )
    sampled_softmax: int | None = _option(
        None,
        "Ids drawn beside those of a batch, to train on these alone: for large vocabularies.",
        limits=_COUNT,
    )
    # Not mixed_float16: its optimiser skips updates, and so loses count of the place in the data.
    dtype_policy: str = _option(
        "float32",
        "Keras dtype policy of the model: float32 or mixed_bfloat16.",
        choices=("float32", "mixed_bfloat16"),
    )
    batch_size: int = _option(96, "Sentences in a batch.", limits=_COUNT)
    batch_tokens: int | None = _option(
        None,
        "Places in a batch, of both languages, instead of --batch-size; pieces that --bpe-dropout "
        "cuts take more.",
        limits=_COUNT,
    )
    accumulate: int = _option(1, "Batches whose mean gradient makes one update.", limits=_COUNT)
    epochs: int = _option(
        14, "Passes over the text; with --every, up to the next multiple of it.", limits=_COUNT
    )
    updates: int | None = _option(None, "Updates in all, instead of --epochs.", limits=_COUNT)
    every: int | None = _option(
        None,
        "Updates from one validation and checkpoint to the next; a pass if absent.",
        limits=_COUNT,
    )
    best_by: str = _option(
        "bleu", "What is best: bleu, or loss of the first held-out set.", choices=("bleu", "loss")
    )
    patience: int = _option(
        0, "Validations without a better one that end the run; 0: none do.", limits={"low": 0}
    )
    learning_rate: float = _option(1.2e-3, "Adam's peak rate.", limits=_ABOVE_ZERO)
    schedule: str = _option(
        "cosine",
        "How the rate falls: cosine (to zero), inverse-sqrt or constant.",
        choices=SCHEDULES,
    )
    warmup: int | None = _option(
        None,
        "Updates until the peak rate; half a pass, but 4,000 at most, if absent.",
        limits={"low": 0},
    )
    ema: float = _option(
        0.0,
        "Decay of the running mean of the weights that is kept; 0: none.",
        limits=_SHARE,
    )
    average: int = _option(
        0, "Last checkpoints whose mean is tried against the best one.", limits={"low": 0}
    )
    keep: int = _option(
        0, "Last checkpoints that keep a file; at least as many as --average.", limits={"low": 0}
    )
    clip_norm: float = _option(1.0, "Largest norm of all gradients.", limits=_ABOVE_ZERO)
    max_length: int = _option(100, "Longest sentence in tokens.", limits={"low": 2})
    validation_beam_size: int = _option(1, "Beam of each validation.", limits=_COUNT)
    tokenize: str = _option(
        "13a",
        "How BLEU of validations splits words: 13a, none for tokenised text, zh, ...",
    )
    devices: int = _option(
        1, "Devices that share each batch; on PyTorch, the processes of torchrun.", limits=_COUNT
    )
    log_dir: Path | None = field(
        default=None, metadata={"help": "A folder for TensorBoard: the figures of validations."}
    )
    # Keras and NumPy take 32 bits, and the number of the epoch is added to it.
    seed: int = _option(
        0, "Randomness of weights, order and dropout.", limits={"low": 0, "high": 2**31 - 1}
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = _checked(option, getattr(self, option.name))
            object.__setattr__(self, option.name, value)
        if len(self.validation_source) != len(self.validation_target):
            raise ValueError(
                "Argument `validation_target` must be as many files as `validation_source`. "
                f"Received: {len(self.validation_source)} and {len(self.validation_target)}"
            )
        if self.target is None:
            for name in ("vocabulary_size", "joint", "normalization"):
                value = getattr(self, name)
                if value != getattr(TrainingOptions, name):
                    raise ValueError(
                        f"Argument `{name}` must be left out for a prepared corpus, which has its "
                        f"tokenizer. Received: {value!r}"
                    )
        if self.updates is not None and self.every is None:
            raise ValueError(
                "Argument `every` must be given with `updates`. "
                f"Received: updates={self.updates}, every=None"
            )
        if self.updates is not None and self.every is not None and self.updates % self.every:
            raise ValueError(
                "Argument `updates` must be a multiple of `every`, so that the run ends with a "
                f"checkpoint. Received: updates={self.updates}, every={self.every}"
            )

    @property
    def dropouts(self) -> tuple[float, ...]:
        """The shares dropped from embeddings, from annotations and before the output layer."""
        everywhere = (0.3, 0.5, 0.5) if self.dropout is None else (self.dropout,) * 3
        own = (None, self.annotation_dropout, self.readout_dropout)
        return tuple(
            default if share is None else share
            for default, share in zip(everywhere, own, strict=True)
        )

    @property
    def chunk_size(self) -> int | None:
        """How many target places have their logits at once; all if `None`."""
        if self.loss_chunk_size is None and self.devices == 1:
            return 512
        # On JAX a chunk holds places of a few devices, and the others would wait for these.
        return self.loss_chunk_size

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "TrainingOptions":
        """Options from a mapping of their names, such as that of a file.

        Args:
            values: Mapping of names to values.

        Raises:
            ValueError: If a name is no option (the nearest one is named), one without a default is
                missing, or as the class.
        """
        values = {_FORMER_NAMES.get(name, name): value for name, value in values.items()}
        check_known(cls, values, "training")
        required = [option.name for option in fields(cls) if option.default is MISSING]
        missing = [f"`{name}`" for name in required if name not in values]
        if missing:
            raise ValueError(
                f"Argument {', '.join(missing)} must be given. "
                f"Received: {', '.join(values) or 'nothing'}"
            )
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **values: Any) -> "TrainingOptions":
        """Options from a YAML or JSON file, such as the `options.json` of an earlier run.

        Args:
            path: The file, a mapping of names to values. Paths in it are read from the working
                folder, as everywhere.
            **values: Options that win over those of the file.

        Raises:
            ValueError: As `read_options` and `from_values`.
        """
        return cls.from_values({**read_options(path), **values})

    def to_dict(self) -> dict[str, Any]:
        """The options by name, as JSON can say them."""

        def said(value: Any) -> Any:
            if isinstance(value, tuple):
                return [said(each) for each in value]
            return str(value) if isinstance(value, Path) else value

        return {option.name: said(getattr(self, option.name)) for option in fields(self)}


def check_known(options: type[Any], values: Mapping[str, Any], purpose: str) -> None:
    """Raises a `ValueError` that names the nearest option, unless every name is an option.

    Args:
        options: A dataclass of options.
        values: Mapping of names to values.
        purpose: What the options are of, for the message.
    """
    known = [option.name for option in fields(options)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"The options are {known}."
            raise ValueError(
                f"Argument `{name}` must be an option of {purpose}. {hint} "
                f"Received: {name}={values[name]!r}"
            )


def read_options(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the mapping in a YAML or JSON file.

    Args:
        path: A file whose name ends with .json, .yaml or .yml.

    Returns:
        A `dict`, not checked further; an empty YAML file is an empty one.

    Raises:
        ValueError: If the file has another name, is not what its name says, holds no mapping, or
            one that says an option twice.
        MissingDependencyError: If the file is YAML and PyYAML is not installed.
    """
    path = Path(path)
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise ValueError(
            f"Argument `config` must end with .json, .yaml or .yml. Received: {str(path)!r}"
        )
    data = path.read_bytes()
    if path.suffix == ".json":
        format = "JSON"
        errors: tuple[type[Exception], ...] = (ValueError, RecursionError)
        parse: Callable[[bytes], Any] = functools.partial(json.loads, object_pairs_hook=_said_once)
    else:
        yaml = require("yaml", extra="cli")
        format, errors = "YAML", (yaml.YAMLError, ValueError)
        parse = _parse_yaml
    try:
        values = parse(data)
    except errors as error:
        raise ValueError(
            f"Argument `config` must be {format}. Received: {str(path)!r}: "
            + " ".join(str(error).split())
        ) from error
    values = {} if values is None and format == "YAML" else values
    if not isinstance(values, dict):
        raise ValueError(
            "Argument `config` must hold a mapping of options to values. "
            f"Received: {str(path)!r}, which holds {values!r:.80}"
        )
    return values


def _said_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The mapping of pairs; of two values for one key neither is the right one."""
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{key!r} stands there {count} times")
    return dict(pairs)


def _parse_yaml(data: bytes) -> Any:
    yaml = require("yaml", extra="cli")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """YAML 1.1, to which 1e-3 is a text, with the numbers and the single keys of YAML 1.2."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            scalars = [pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode)]
            _said_once([(key.value, value) for key, value in scalars])
            return super().construct_mapping(node, deep=deep)

    number = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return yaml.load(data, Loader)


def _checked(option: Field[Any], value: Any) -> Any:
    """The value of a field in the field's type, or a `ValueError` that says what it must be."""
    name, rules = option.name, option.metadata
    kind: Any = option.type
    if isinstance(kind, UnionType):  # with `None`
        if value is None:
            return None
        kind, _ = get_args(kind)
    if get_origin(kind) is tuple:  # of paths, or a single one
        several = value if isinstance(value, list | tuple) else [value]
        if not several or not all(isinstance(path, str | os.PathLike) for path in several):
            raise ValueError(f"Argument `{name}` must be a path, or several. Received: {value!r}")
        return tuple(map(Path, several))
    if kind is Path:
        if not isinstance(value, str | os.PathLike):
            raise ValueError(f"Argument `{name}` must be a path. Received: {value!r}")
    elif kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"Argument `{name}` must be true or false. Received: {value!r}")
    elif kind is str:
        known = rules.get("choices")
        if not isinstance(value, str) or (known is not None and value not in known):
            choices = "a name" if known is None else f"one of {', '.join(map(repr, known))}"
            raise ValueError(f"Argument `{name}` must be {choices}. Received: {value!r}")
    else:
        check_range(name, value, kind, **rules["limits"])
    return kind(value)
