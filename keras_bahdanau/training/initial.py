"""The model that a run starts with: its file, architecture and tokenizer, read without Keras."""

import json
import os
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from keras_bahdanau.run_folder import best_file
from keras_bahdanau.training.options import MODELS, TrainingOptions
from keras_bahdanau.user_modules import module_name, split_class
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.zip_files import open_zip, read_member

_CONFIG_FILE, _TOKENIZER_FILE = "config.json", "assets/tokenizer.json"  # inside a .keras file
_MAX_SIZE = 2**26  # bytes of each of the two


@dataclass(frozen=True)
class InitialModel:
    """Contents of a `.keras` file that do not need Keras.

    Args:
        path: The file.
        class_name: Name of the model's class, such as "RNNSearch".
        config: The model's arguments by name.
        tokenizer: Its `Tokenizer`, or `None`.
    """

    path: Path
    class_name: str
    config: dict[str, Any]
    tokenizer: Tokenizer | None

    @classmethod
    def read(cls, init: str | os.PathLike[str]) -> "InitialModel":
        """Read the best model of a run, or a `.keras` file.

        Args:
            init: Folder of a run of `train`, or the file.

        Raises:
            ValueError: There is no such file, or it is not a `.keras` file.
        """
        path = Path(init)
        if not path.is_file():
            path = best_file(path, "init")
        contents = None
        try:
            with open_zip(path) as archive:
                document = json.loads(read_member(archive, _CONFIG_FILE, _MAX_SIZE))
                if _TOKENIZER_FILE in archive.namelist():
                    contents = read_member(archive, _TOKENIZER_FILE, _MAX_SIZE)
            match document:
                case {"class_name": str(class_name), "config": dict(config)}:
                    pass
                case _:
                    raise ValueError(f"{_CONFIG_FILE} is not that of a model")
        except (zipfile.BadZipFile, ValueError, RecursionError) as error:
            raise argument_error(
                "init",
                "be the folder of a training run, or the .keras file of a model",
                received=f"{str(path)!r}, which is not a .keras file: {error!s:.400}",
            ) from error
        tokenizer = None
        if contents is not None:
            tokenizer = Tokenizer.parse(contents, f"{path}, {_TOKENIZER_FILE}")
        return cls(path, class_name, config, tokenizer)

    def choose_tokenizer(self, replacement: Tokenizer | None) -> Tokenizer:
        """Return the tokenizer of the model, or the one that the options name if it has none.

        Args:
            replacement: That of the options; `None` if they name none.

        Raises:
            ValueError: There is none, the two differ, or the one of the options has more ids than
                the model.
        """
        if self.tokenizer is not None:
            if replacement is not None and replacement != self.tokenizer:
                raise argument_error(
                    "tokenizer",
                    f"be left out with `init`, or be the tokenizer of {self.path}",
                    received="another one",
                )
            return self.tokenizer
        if replacement is None:
            raise argument_error(
                "init",
                "have a tokenizer, or `tokenizer` be its file",
                received=f"{str(self.path)!r}, a {self.class_name} without one",
            )
        for side in ("source", "target"):
            limit = self.config.get(f"{side}_vocabulary_size")
            size = getattr(replacement, f"{side}_vocabulary_size")
            if isinstance(limit, int) and size > limit:
                raise argument_error(
                    "tokenizer",
                    f"have at most {limit} {side} ids, as many as the model of `init`",
                    received=f"one with {size}",
                )
        return replacement

    def check_architecture(self, options: TrainingOptions) -> None:
        """Raise a `ValueError` that lists the options that contradict this model."""
        values = {"model": _option_of_class(self.class_name), **self.config}
        values["copy"] = self.config.get("copy") is not None
        values["attention"] = _name_of_class(self.config.get("attention"))
        contradictions = []
        for option in fields(options):
            name, value = option.name, getattr(options, option.name)
            if name == "attention" and value is not None:
                module, class_name = split_class(name, value)
                value = f"{module_name(module)}:{class_name}"
            if value is None or "model_default" not in option.metadata:
                continue
            if name not in values:
                contradictions.append(f"`{name}` is {value!r}, which {self.class_name} lacks")
            elif name != "encoder_dropout" and values[name] != value:
                contradictions.append(f"`{name}` is {value!r} instead of {values[name]!r:.80}")
        if contradictions:
            raise ValueError(
                "Arguments of the architecture must be left out with `init`, or be those of "
                f"{self.path}. Received: {', '.join(contradictions)}"
            )


def _name_of_class(config: Any) -> str | None:
    """Return MODULE:CLASS of a serialized layer, or `None`."""
    return f"{config.get('module')}:{config.get('class_name')}" if config else None


def _option_of_class(class_name: str) -> str:
    """Return the value of the option `model` for a class, or the name of another class."""
    return next((option for option, name in MODELS.items() if name == class_name), class_name)
