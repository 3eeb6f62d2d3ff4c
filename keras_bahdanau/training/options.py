"""Options of a training run, with their help texts and limits."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from keras_bahdanau.data.options import (
    AUTO,
    NO_NORMALIZATION,
    TOKENIZER_OPTIONS,
    TokenizerOptions,
    is_learned,
    join_sides,
)
from keras_bahdanau.model_defaults import ARCHITECTURE, DROPOUTS
from keras_bahdanau.schedules import SCHEDULES
from keras_bahdanau.user_modules import split_class
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import check_option_names, option
from keras_bahdanau_runtime.option_files import read_options
from keras_bahdanau_runtime.search_settings import RANGES
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.text.scores import MEASURES
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

# Models by option, with the names of their classes.
MODELS = {"rnnsearch": "RNNSearch", "rnnencdec": "RNNEncoderDecoder"}
PARTS = ("encoder", "decoder", "embeddings")
# Options that are chosen from the pairs if they are absent.
CHOSEN_OPTIONS = (
    *TOKENIZER_OPTIONS,
    *("units", "embedding_dim", "attention_units", "copy"),
    *("dropout", "annotation_dropout", "readout_dropout"),
    *("label_smoothing", "batch_size", "epochs", "every", "patience"),
    *("learning_rate", "ema", "average", "max_length", "best_by"),
)
# Names of options in files of earlier versions.
FORMER_NAMES = {
    "loss_chunk": "loss_chunk_size",
    "precision": "dtype_policy",
    "validation_beam": "validation_beam_size",
}


# Defaults of a model without `init`. The pairs choose the widths.
_MODEL_DEFAULTS = {"model": "rnnsearch", **ARCHITECTURE}
_CHOSEN = "chosen from the pairs"


def _width_option(help: str) -> Any:
    """Return the field of a width, which `init` determines, or else the pairs."""
    help = f"{help} If absent: {_CHOSEN}, or as in --init."
    return option(None, help, model_default=None, limits=_COUNT, panel="Model")


def _model_option(name: str, help: str, **metadata: Any) -> Any:
    """Return the field of an option that `init` determines, or else has a default."""
    default = _MODEL_DEFAULTS[name]
    default_text = str(default).lower() if isinstance(default, bool) else default
    help = f"{help} If absent: {default_text}, or as in --init."
    return option(None, help, model_default=default, **metadata)


_COUNT = {"low": 1}
_LENGTH = {"low": 2, "high": RANGES["max_length"].high}
_BEAM = {"low": 1, "high": RANGES["beam_size"].high}
_SHARE = {"low": 0, "high": 1, "open_high": True}
_ABOVE_ZERO = {"low": 0, "open_low": True}


@dataclass(frozen=True)
class TrainingOptions(TextFormat, TokenizerOptions):
    """Options of a training run.

    A text is two files with one sentence per line, or a file with both sides: without `target` or
    `validation_target`, `source` or `validation_source` has both; see `TextFormat`. A path may be a
    pattern such as "part*.tsv". Lengths are in tokens. An update is one step of the optimizer;
    after each `every` updates, the model is validated and saved. The learning rate follows a
    `WarmupSchedule`. With `minutes`, a run chooses `updates`, `every` and `warmup` when it starts,
    and its `options.json` has them instead. The command `keras-bahdanau train` has the same
    options, with the help texts below.

    Raises:
        ValueError: A value has another type than its field, or is outside its limits; the numbers
            of held-out sources and targets differ; `attention` has another form, or is given for a
            model without attention; `updates` is given without `every`, or is not a multiple of it;
            `minutes` is given with `epochs`, `updates` or several `devices`;
            `freeze` is given without `init`, or freezes the whole model; or the shares of `mix` are
            not below 1.

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
    adapted = TrainingOptions(
        source="emails.en",
        target="emails.de",
        validation_source="emails-dev.en",
        validation_target="emails-dev.de",
        init="run",
        mix="run/corpus=0.2",
        learning_rate=1e-3,
    )
    ```
    """

    source: Path = option(
        MISSING,
        "Source sentences, one per line; or a file with both sides (tab-separated, "
        ".csv, .jsonl, .parquet, .tmx), plain or compressed; or a folder from `prepare`.",
        positional=True,
    )
    target: Path | None = option(
        None,
        "Their translations, line by line; none if the source has both sides.",
        positional=True,
    )
    _: KW_ONLY
    validation_source: tuple[Path, ...] = option(
        MISSING,
        "Held-out source sentences; repeat it for more sets. The first decides.",
        panel="Validation",
    )
    validation_target: tuple[Path, ...] | None = option(
        None,
        "Their translations; none if the sources have both sides.",
        panel="Validation",
        type=list[Path],
    )
    init: Path | None = option(
        None,
        "Run, or .keras file, whose weights, architecture and tokenizer the model starts with.",
        panel="Fine-tuning",
    )
    freeze: tuple[str, ...] = option(
        (),
        "Part of the model of --init that is not trained: encoder, decoder or embeddings; repeat "
        "it for more.",
        choices=PARTS,
        panel="Fine-tuning",
    )
    mix: tuple[str, ...] = option(
        (),
        "CORPUS=SHARE: prepared corpus with the same tokenizer, and its share of the batches, such "
        "as run/corpus=0.2; repeat it for more.",
        panel="Fine-tuning",
    )
    model: str | None = _model_option(
        "model", "rnnsearch or rnnencdec.", choices=tuple(MODELS), panel="Model"
    )
    units: int | None = _width_option(
        "Width of the decoder and of each direction of the encoder, whose annotations are twice as "
        "wide."
    )
    embedding_dim: int | None = _width_option("Width of the embeddings.")
    source_embeddings: Path | None = option(
        None,
        "Word vectors (.vec text of word2vec or fastText) that the source embeddings "
        "start with, of width --embedding-dim.",
        panel="Model",
    )
    target_embeddings: Path | None = option(
        None,
        "Word vectors for the target embeddings.",
        panel="Model",
    )
    attention_units: int | None = _width_option("Width of the alignment model.")
    attention: str | None = option(
        None,
        "MODULE:CLASS or FILE.py:CLASS of an attention mechanism of your own, whose module is "
        "imported. The class gets --attention-units as `units`, if it needs them, and must pass "
        "`check_attention`. If absent: that of the paper, or as in --init.",
        model_default=None,
        panel="Model",
    )
    tie_embeddings: bool | None = _model_option(
        "tie_embeddings", "Use the target embedding as the output layer.", panel="Model"
    )
    join_embeddings: bool | None = _model_option(
        "join_embeddings",
        "Let the decoder attend to the words' embeddings in addition to their annotations.",
        panel="Model",
    )
    encoder_layers: int | None = _model_option(
        "encoder_layers", "Bidirectional layers of the encoder.", limits=_COUNT, panel="Model"
    )
    conditional: bool | None = _model_option(
        "conditional", "A second cell reads the context: the conditional GRU.", panel="Model"
    )
    layer_normalization: bool | None = _model_option(
        "layer_normalization", "Normalize the layers of the decoder's cells.", panel="Model"
    )
    copy: bool | None = option(
        None,
        "The decoder can also copy source tokens, such as letters, digits and names. If absent: "
        f"{_CHOSEN}, or as in --init.",
        model_default=None,
        panel="Model",
    )
    dropout: float | None = option(
        None,
        "Dropout rate of embeddings, of annotations and before the output layer. If absent: three "
        f"rates {_CHOSEN}, or as in --init.",
        limits=_SHARE,
        panel="Regularization",
    )
    annotation_dropout: float | None = option(
        None,
        "Dropout rate of annotations; that of --dropout if absent.",
        limits=_SHARE,
        panel="Regularization",
    )
    readout_dropout: float | None = option(
        None,
        "Dropout rate before the output layer; that of --dropout if absent.",
        limits=_SHARE,
        panel="Regularization",
    )
    encoder_dropout: float | None = _model_option(
        "encoder_dropout",
        "Dropout rate between the layers of the encoder.",
        limits=_SHARE,
        panel="Regularization",
    )
    bpe_dropout: float = option(
        0.0,
        "Share of merges skipped at random when words are split.",
        limits=_SHARE,
        panel="Regularization",
    )
    label_smoothing: float | None = option(
        None,
        f"Share of the target probability spread over all ids; {_CHOSEN} if absent.",
        limits=_SHARE,
        panel="Regularization",
    )
    loss_chunk_size: int | None = option(
        None,
        "Target positions whose logits are computed at once, which takes less memory and time than "
        "all; if absent 512, or all with several devices.",
        limits=_COUNT,
        panel="System",
    )
    sampled_softmax: int | None = option(
        None,
        "Random ids to train on in addition to those of a batch: for large vocabularies.",
        limits=_COUNT,
        panel="Optimization",
    )
    # Not mixed_float16: its optimizer skips updates, so they would not match the position in the
    # data.
    dtype_policy: str = option(
        "auto",
        "Keras dtype policy of training steps: float32, mixed_bfloat16, or auto: mixed_bfloat16 "
        "with TensorFlow and PyTorch on processors with AMX or AVX512-BF16, else float32. The "
        "trained model computes in float32.",
        choices=("auto", "float32", "mixed_bfloat16"),
        panel="System",
    )
    batch_size: int | None = option(
        None,
        f"Sentences in a batch; {_CHOSEN} if absent.",
        limits=_COUNT,
        panel="Optimization",
    )
    batch_tokens: int | None = option(
        None,
        "Positions in a batch, of both languages, instead of --batch-size; --bpe-dropout needs "
        "more of them.",
        limits=_COUNT,
        panel="Optimization",
    )
    accumulate: int = option(
        1, "Batches whose mean gradient makes one update.", limits=_COUNT, panel="Optimization"
    )
    epochs: int | None = option(
        None,
        f"Passes over the text; with --every, up to the next multiple of it; {_CHOSEN} if absent.",
        limits=_COUNT,
        panel="Optimization",
    )
    updates: int | None = option(
        None, "Updates in all, instead of --epochs.", limits=_COUNT, panel="Optimization"
    )
    minutes: float | None = option(
        None,
        "Train for about this many minutes, with validations, instead of --epochs: the number of "
        "updates and the schedule follow from the times of the first updates. A resumed run keeps "
        "them.",
        limits=_ABOVE_ZERO,
        panel="Optimization",
    )
    every: int | None = option(
        None,
        f"Updates between validations and checkpoints. If absent: a pass, or several {_CHOSEN}.",
        limits=_COUNT,
        panel="Validation",
    )
    best_by: str | None = option(
        None,
        "Measure on the first held-out set that decides which model is the best: bleu, chrf, exact "
        f"(exact matches), ser (symbol error rate) or loss; {_CHOSEN} if absent.",
        choices=tuple(MEASURES),
        panel="Validation",
    )
    patience: int | None = option(
        None,
        "Number of validations without improvement after which the run ends; 0: never; "
        f"{_CHOSEN} if absent.",
        limits={"low": 0},
        panel="Validation",
    )
    learning_rate: float | None = option(
        None,
        f"Adam's peak rate; {_CHOSEN} if absent.",
        limits=_ABOVE_ZERO,
        panel="Optimization",
    )
    schedule: str = option(
        "cosine",
        "Decay of the learning rate: cosine (to zero), inverse-sqrt or constant.",
        choices=SCHEDULES,
        panel="Optimization",
    )
    warmup: int | None = option(
        None,
        "Updates until the peak rate; half a pass, at most 4,000, if absent.",
        limits={"low": 0},
        panel="Optimization",
    )
    ema: float | None = option(
        None,
        "Decay of the exponential moving average of the weights to save; 0: none; "
        f"{_CHOSEN} if absent.",
        limits=_SHARE,
        panel="Optimization",
    )
    average: int | None = option(
        None,
        "Number of last checkpoints whose mean is compared with the best one; "
        f"{_CHOSEN} if absent.",
        limits={"low": 0},
        panel="Optimization",
    )
    keep: int = option(
        0,
        "Number of last checkpoints whose files are kept; at least --average.",
        limits={"low": 0},
        panel="System",
    )
    clip_norm: float = option(
        1.0, "Largest global norm of the gradients.", limits=_ABOVE_ZERO, panel="Optimization"
    )
    max_length: int | None = option(
        None,
        f"Longest sentence in tokens; {_CHOSEN} if absent.",
        limits=_LENGTH,
        panel="Data",
    )
    validation_beam_size: int = option(
        1, "Beam of each validation.", limits=_BEAM, panel="Validation"
    )
    tokenize: str = option(
        "13a",
        "sacreBLEU tokenizer of validations: 13a, none for tokenized text, zh, ...",
        panel="Validation",
    )
    devices: int = option(
        1,
        "Devices that share each batch; on PyTorch, the processes of torchrun.",
        limits=_COUNT,
        panel="System",
    )
    log_dir: Path | None = option(
        None,
        "Folder for TensorBoard logs of the validations.",
        panel="System",
    )
    # Keras and NumPy accept 32 bits, and the epoch is added to the seed.
    seed: int = option(
        0,
        "Random seed of weights, order and dropout.",
        limits={"low": 0, "high": 2**31 - 1},
        panel="System",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) is None and self.init is None:
                object.__setattr__(self, each.name, each.metadata.get("model_default"))
        TokenizerOptions.__post_init__(self)
        _ = self.text_format  # raises the errors of its values
        targets = self.validation_target
        if targets is not None and len(self.validation_source) != len(targets):
            raise argument_error(
                "validation_target",
                "have as many files as `validation_source`",
                received=f"{len(self.validation_source)} and {len(targets)}",
            )
        if self.copy and self.prevents_copy is not None:
            raise argument_error(
                "copy", f"be left out with {self.prevents_copy}", received=str(self.copy)
            )
        if self.attention is not None:
            split_class("attention", self.attention)  # raises the error of its form
            if self.model == "rnnencdec":
                raise argument_error(
                    "attention",
                    "be left out with `model` rnnencdec, which has no attention",
                    self.attention,
                )
        self._check_fine_tuning()
        self._check_tokenizer()
        for name, value in (("epochs", self.epochs), ("updates", self.updates)):
            if self.minutes is not None and value is not None:
                raise argument_error(
                    ("minutes", name), "not be given together", received=f"{self.minutes}, {value}"
                )
        if self.minutes is not None and self.devices > 1:
            raise argument_error(
                "minutes", "be left out with several `devices`", received=str(self.minutes)
            )
        if self.updates is not None and self.every is None:
            raise argument_error(
                "every", "be given with `updates`", received=f"updates={self.updates}, every=None"
            )
        if self.updates is not None and self.every is not None and self.updates % self.every:
            raise argument_error(
                "updates",
                "be a multiple of `every`, so that the run ends with a checkpoint",
                received=f"updates={self.updates}, every={self.every}",
            )

    @property
    def prevents_copy(self) -> str | None:
        """Name of the option with which a model cannot copy, or `None`."""
        if self.sampled_softmax is not None:
            return "`sampled_softmax`, whose logits are of a sample"
        if self.model == "rnnencdec":
            return "`model` rnnencdec, which has no attention"
        return None

    def _check_fine_tuning(self) -> None:
        """Raise a `ValueError` for `freeze` and `mix` that cannot be followed."""
        if self.freeze and self.init is None:
            raise argument_error(
                "freeze",
                "be left out without `init`, because new weights must be trained",
                received=str(list(self.freeze)),
            )
        if set(self.freeze) == set(PARTS):
            raise argument_error(
                "freeze",
                "leave a part of the model to train",
                received=f"{list(self.freeze)}, which is the whole model",
            )
        if self.word_vectors and self.init is not None:
            raise argument_error(
                ("source_embeddings", "target_embeddings"),
                "be left out with `init`, which has embeddings",
                received=str(list(self.word_vectors)),
            )
        if sum(share for _, share in self.mixed) >= 1:
            raise argument_error(
                "mix",
                "have shares below 1 in all, because the rest is for `source`",
                received=str(list(self.mix)),
            )

    def _check_tokenizer(self) -> None:
        """Raise a `ValueError` for options of a tokenizer that is not learned."""
        if self.is_prepared:
            self.check_left_out(TOKENIZER_OPTIONS, "a prepared corpus, which has a tokenizer")
        elif self.init is not None and self.learns:
            self.check_left_out(TOKENIZER_OPTIONS, "`init`, which has a tokenizer")

    def load_tokenizer(self) -> Tokenizer | None:
        """Load the tokenizer of both sides, or return `None` if that of a side is learned.

        Raises:
            ValueError: As `Tokenizer.load`.
            OSError: A file cannot be read.
        """
        source, target = (None, None) if self.learns else self.load_sides()
        return None if source is None or target is None else join_sides(source, target)

    @property
    def mixed(self) -> tuple[tuple[Path, float], ...]:
        """Folders of the corpora of `mix`, each with its share of the batches.

        Raises:
            ValueError: An item has another form, or a share is not between 0 and 1.
        """
        corpora = []
        for item in self.mix:
            folder, _, share = item.rpartition("=")
            try:
                number = float(share)
            except ValueError:
                number = math.nan
            if not folder or not 0 < number < 1:
                raise argument_error(
                    "mix",
                    "be CORPUS=SHARE, with a share above 0 and below 1, such as run/corpus=0.2",
                    item,
                )
            corpora.append((Path(folder), number))
        return tuple(corpora)

    @property
    def is_prepared(self) -> bool:
        """Whether the source is a folder of a prepared corpus."""
        return self.target is None and self.source.is_dir()

    @property
    def text_format(self) -> TextFormat:
        """Format of the texts."""
        return TextFormat(**{each.name: getattr(self, each.name) for each in fields(TextFormat)})

    @property
    def word_vectors(self) -> dict[str, Path]:
        """The files of word vectors, by "source" and "target"."""
        files = {"source": self.source_embeddings, "target": self.target_embeddings}
        return {side: path for side, path in files.items() if path is not None}

    def dropouts_after(self, defaults: Sequence[float] = DROPOUTS) -> tuple[float, ...]:
        """Return the three dropout rates of a model that has the rates `defaults` so far.

        The rates are those of embeddings, of annotations and before the output layer.
        """
        if self.dropout is not None:
            defaults = (self.dropout,) * 3
        own = (None, self.annotation_dropout, self.readout_dropout)
        return tuple(
            default if share is None else share
            for default, share in zip(defaults, own, strict=True)
        )

    @property
    def chunk_size(self) -> int | None:
        """Number of target positions whose logits are computed at once; all if `None`."""
        if self.loss_chunk_size is None and self.devices == 1:
            return 512
        # On JAX a chunk has positions of a few devices, and the other devices would wait for them.
        return self.loss_chunk_size

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "TrainingOptions":
        """Create options from a mapping, such as that of a file.

        Args:
            values: Mapping of names to values.

        Raises:
            ValueError: A name is not an option (the message suggests the nearest one), a required
                option is missing, or as the class.
        """
        values = {FORMER_NAMES.get(name, name): value for name, value in values.items()}
        check_option_names(cls, values, "training")
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
        """Create options from a YAML or JSON file, such as the `options.json` of an earlier run.

        Args:
            path: The file, a mapping of names to values. Paths in it are relative to the working
                folder.
            **values: Options that override those of the file.

        Raises:
            ValueError: As `read_options` and `from_values`.
        """
        return cls.from_values({**upgrade_options(read_options(path)), **values})

    def to_dict(self) -> dict[str, Any]:
        """Return the options by name as JSON values."""

        def to_json(value: Any) -> Any:
            if isinstance(value, tuple):
                return [to_json(item) for item in value]
            return str(value) if isinstance(value, Path) else value

        return {option.name: to_json(getattr(self, option.name)) for option in fields(self)}


def upgrade_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file, with those that the defaults of earlier versions meant.

    Files of runs of earlier versions have all options of their time, but no `source_tokenizer`. In
    them, `None` has another meaning, and options of a tokenizer that is not learned have defaults.

    Example:

    >>> saved = {"normalization": None, "dropout": None, "every": None}
    >>> upgraded = upgrade_options(saved)
    >>> upgraded["normalization"], upgraded["tokenizer"], upgraded["dropout"]
    ('none', 'bpe', 0.2)
    """
    values = dict(values)
    if not {"normalization", "dropout", "every"} <= values.keys():
        return values
    if values.get("init") is None:
        values.setdefault("copy", False)
    if "source_tokenizer" in values:
        return values
    values.setdefault("tokenizer", "bpe")
    source = values.get("source")
    has_corpus = isinstance(source, str) and values.get("target") is None and Path(source).is_dir()
    has_tokenizer = has_corpus or values.get("init") is not None
    if has_tokenizer and values["tokenizer"] == "bpe":
        values["tokenizer"] = AUTO
    if has_tokenizer or not is_learned(values["tokenizer"]):
        values |= dict.fromkeys(("vocabulary_size", "joint", "normalization"))
    elif values["tokenizer"] == "bytes":
        values["vocabulary_size"] = None
    if not has_tokenizer and values["normalization"] is None and is_learned(values["tokenizer"]):
        values["normalization"] = NO_NORMALIZATION
    if values["dropout"] is None and values.get("init") is None:
        rates = zip(("dropout", "annotation_dropout", "readout_dropout"), DROPOUTS, strict=True)
        values |= {name: rate for name, rate in rates if values.get(name) is None}
    return values
