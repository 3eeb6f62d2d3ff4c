"""Model card: the README.md that makes an artifact a model repository of the Hugging Face Hub."""

import csv
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bahdanau.run_folder import (
    AVERAGE_FILE,
    BEST_FILE,
    CORPUS_FOLDER,
    HISTORY_FILE,
    OPTIONS_FILE,
    option_folders,
)
from keras_bahdanau_runtime.checks import check_text, checked_texts
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import file_sha256
from keras_bahdanau_runtime.manifest import is_run
from keras_bahdanau_runtime.signature import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE
from keras_bahdanau_runtime.text.file_kind import uncompressed_name
from keras_bahdanau_runtime.text.scores import MEASURES
from keras_bahdanau_runtime.version import __version__

_LANGUAGE = re.compile("[a-z]{2,3}")
_LICENSE = re.compile("[a-z0-9][a-z0-9.+-]*")
_TEXT_LANGUAGE = re.compile(r".+\.([a-z]{2})")  # train.en
_SCORE = re.compile(rf"val(\d*)_({'|'.join(MEASURES)})")  # columns of history.csv
_HUB_METRICS = {"bleu": "bleu", "chrf": "chrf", "exact": "exact_match"}
_ARCHITECTURE = ("model", "units", "embedding_dim", "attention_units", "encoder_layers")
# Title of the section for a key of the manifest.
_FIGURES = {
    "parity": "Comparison with Keras",
    "precision": "Reduced precision",
    "shortlist": "Shortlist",
}
_TAGS = ["translation", "seq2seq", "attention", "onnx"]

_Table = list[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Contents of a model card that the manifest of the artifact does not have.

    The card is `README.md`, with the metadata of the Hub in YAML, how to use the artifact, the
    training data, the scores on held-out text, and the figures of the manifest. Only the names of
    data files are written, without their folders.

    Args:
        languages: Codes of ISO 639 of the source and the target language, such as
            `("en", "de")`. If empty, the endings of the first run's text files are used where both
            have two letters, as `train.en` and `train.de` have.
        license: Identifier of the Hub, such as "apache-2.0", "cc-by-4.0" or "other"; `None` to name
            no license.
        runs: Folders of the training runs that the model is from.
        notes: Markdown text after the introduction, such as intended use and limits.

    Raises:
        ValueError: A language or the license has another form, there are not two languages, or a
            folder is no training run.

    Example:

    ```python
    card = ModelCard(languages=("en", "de"), license="apache-2.0", runs=["run"])
    export(model, "en-de", model_card=card)
    ```
    """

    languages: Sequence[str] = ()
    license: str | None = None
    runs: Sequence[str | os.PathLike[str]] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        languages = checked_texts("languages", self.languages)
        if len(languages) not in (0, 2) or not all(map(_LANGUAGE.fullmatch, languages)):
            raise argument_error(
                "languages",
                "be the codes of the source and the target language, such as en and de",
                received=str(languages),
            )
        if self.license is not None and not (
            isinstance(self.license, str) and _LICENSE.fullmatch(self.license)
        ):
            raise argument_error(
                "license", "be an identifier of the Hub, such as apache-2.0 or other", self.license
            )
        check_text("notes", self.notes)
        for run in self.runs:
            if not is_run(Path(run)):
                raise argument_error("runs", "be folders of training runs", os.fspath(run))

    def text(self, name: str, manifest: Mapping[str, Any], files: Iterable[str]) -> str:
        """Return the Markdown of the card.

        Args:
            name: Title of the card.
            manifest: Contents of the manifest.
            files: Names of the other files of the artifact.

        Raises:
            ValueError: A file of a run cannot be read.
        """
        runs = [_Run(Path(run)) for run in self.runs]
        languages = list(self.languages) or (runs[0].languages() if runs else [])
        translates = {MODEL_FILE, TOKENIZER_FILE} <= {*files}
        scores = [score for run in runs for score in run.scores()]
        header = {
            "language": languages,
            "license": self.license,
            "library_name": "keras-bahdanau",
            "pipeline_tag": "translation" if translates else None,
            "tags": _TAGS if translates else None,
            "metrics": sorted({_HUB_METRICS[kind] for kind, *_ in scores if kind in _HUB_METRICS}),
        }
        sections = [
            _front_matter(header),
            f"# {name}",
            _introduction(manifest, languages if translates else []),
            self.notes.strip(),
            _usage(name, translates),
            _section("Model", _model_rows(manifest, runs, self.license)),
            _section("Training data", [row for run in runs for row in run.data_rows()]),
            _section("Scores on held-out text", [row for _, *row in scores]),
            *(_section(title, manifest.get(key, {}).items()) for key, title in _FIGURES.items()),
            f"`{MANIFEST_FILE}` has the SHA-256 of every file, this one included. An artifact with "
            "a changed file is refused.",
        ]
        return "\n\n".join(filter(None, sections)) + "\n"


class _Run:
    """The parts of a card that are read from the folder of a training run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options = self._read_options()

    def _read_options(self) -> dict[str, Any]:
        path = self.folder / OPTIONS_FILE
        try:
            options = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            if not isinstance(options, dict):
                raise ValueError(f"expected an object, received {options!r:.80}")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return options

    def _names(self, option: str) -> list[str]:
        """Return the file names of an option that is a path, a list of paths, or null."""
        value = self.options.get(option) or []
        return [Path(path).name for path in ([value] if isinstance(value, str) else value)]

    def languages(self) -> list[str]:
        """Return the endings of the source and the target file if both are codes, else none."""
        languages = set()
        for names in zip(self._names("source"), self._names("target"), strict=False):
            matches = [_TEXT_LANGUAGE.fullmatch(uncompressed_name(name).lower()) for name in names]
            languages.add(tuple(match[1] for match in matches if match))
        pair = list(languages.pop()) if len(languages) == 1 else []
        return pair if len(pair) == 2 else []

    def data_rows(self) -> _Table:
        """Return the names of the training texts, and the number of pairs if it is recorded."""
        corpora = [self.folder / CORPUS_FOLDER]
        if isinstance(self.options.get("source"), str):
            source = self.options["source"]
            corpora += [folder / source for folder in option_folders(self.folder)]
        corpus = next((path for path in corpora if path.is_dir()), corpora[0])
        rows: _Table = [("texts", [*self._names("source"), *self._names("target")])]
        if (corpus / MANIFEST_FILE).is_file():
            from keras_bahdanau.data.corpus import PreparedCorpus

            rows.append(("pairs", PreparedCorpus(corpus).pairs))
        held_out = [*self._names("validation_source"), *self._names("validation_target")]
        return [row for row in [*rows, ("held-out texts", held_out)] if row[1]]

    def scores(self) -> list[tuple[str, str, float]]:
        """Return kind, description and value of each score of the best checkpoint.

        If the best model is the mean of several checkpoints, its scores are not recorded.
        """
        path, average = self.folder / HISTORY_FILE, self.folder / AVERAGE_FILE
        best_by = self.options.get("best_by", "bleu")
        if not path.is_file() or best_by not in MEASURES:
            return []
        if average.is_file() and file_sha256(average) == file_sha256(self.folder / BEST_FILE):
            return []
        monitor = f"val_{best_by}"
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if row.get(monitor)]
            improvement = MEASURES[best_by].improvement
            # The latest of equal rows, like `RunCheckpoint.best`.
            best = max(
                reversed(rows), key=lambda row: improvement(0.0, float(row[monitor])), default={}
            )
            columns = {name: float(value) for name, value in best.items() if value}
        except (TypeError, ValueError, csv.Error) as error:
            raise ValueError(f"{path}: expected numbers. Received: {error}") from error
        scores = []
        for column, value in columns.items():
            if match := _SCORE.fullmatch(column):
                number, kind = int(match[1] or 1) - 1, match[2]
                texts = self._names("validation_source")[number : number + 1]
                texts += self._names("validation_target")[number : number + 1]
                scores.append((kind, f"{MEASURES[kind].title}, {' and '.join(texts)}", value))
        return scores


def _front_matter(header: Mapping[str, Any]) -> str:
    """Return the metadata as YAML, without missing values."""
    # JSON is YAML, and its quotes keep the language "no" from being the value false.
    lines = [f"{key}: {json.dumps(value)}" for key, value in header.items() if value]
    return "\n".join(["---", *lines, "---"])


def _introduction(manifest: Mapping[str, Any], languages: Sequence[str]) -> str:
    subject = "An attentive recurrent model" if manifest.get("search") else "A Keras model"
    if languages:
        subject += f" that translates from `{languages[0]}` to `{languages[1]}`"
    return (
        f"{subject}, exported by keras_bahdanau {__version__}. It runs with onnxruntime, without "
        "Keras."
    )


def _usage(name: str, translates: bool) -> str:
    if not translates:
        return (
            f"## Use\n\n`{MANIFEST_FILE}` describes the inputs and outputs of each graph. "
            f"`keras-bahdanau inspect hf://USER/{name}` prints it."
        )
    return f"""## Use

```bash
pip install "keras-bahdanau[runtime]"
```

```python
from keras_bahdanau_runtime import Translator

translator = Translator.from_hub("USER/{name}")  # USER is the owner of this repository
print(translator.translate(["A sentence."])[0].text)
```"""


def _model_rows(manifest: Mapping[str, Any], runs: Sequence[_Run], license: str | None) -> _Table:
    rows: _Table = [("license", license)]
    for run in runs:
        rows += [(option.replace("_", " "), run.options.get(option)) for option in _ARCHITECTURE]
    vocabulary = manifest.get("vocabulary", {})
    rows += [(f"{side} vocabulary", size) for side, size in vocabulary.items()]
    search = manifest.get("search", {})
    rows += [(f"search, {key.replace('_', ' ')}", value) for key, value in search.items()]
    rows.append(("longest source, in tokens", manifest.get("max_source_length")))
    return rows


def _section(title: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a heading and a table; nothing if all values are missing."""
    lines = [
        f"| {_cell(name.replace('_', ' '))} | {_cell(value)} |"
        for name, value in rows
        if value is not None and value != []
    ]
    return "\n".join([f"## {title}\n\n| | |", "|---|---|", *lines]) if lines else ""


def _cell(value: Any) -> str:
    """Return a value as text that does not end a cell of a table."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
