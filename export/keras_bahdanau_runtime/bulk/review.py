"""Translations that a person should look at: a file of those with a low confidence."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.bulk.records import one_cell
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import add_path_to_errors, atomic_write
from keras_bahdanau_runtime.search_options import SearchOptions
from keras_bahdanau_runtime.signature import SETTINGS
from keras_bahdanau_runtime.translation import Translation
from keras_bahdanau_runtime.translator import Translator

_CONSTRAINTS = ("prefixes", "required", "suppressed", "disable_unknown")


class Review:
    """File of the translations below a confidence, the least confident first.

    A line has the source, the translation, the second best one, the confidence and the number of
    the row from 1, separated by tabs. Tabs and line breaks inside of texts become spaces. The lines
    are collected in PATH.partial, and sorted when all rows are translated. They are removed when
    the output is complete, too.

    Args:
        confidence: float. Translations with a smaller confidence are written.
        path: `Path` of the file.

    Attributes:
        count: int, number of translations in the file, once it is complete; `None` if an earlier
            call has completed it and it is missing now.

    Raises:
        ValueError: `confidence` is not a number from 0 to 1.

    Example:

    >>> review = Review(0.9, Path("doubtful.tsv"))
    >>> with review:
    ...     review.start(0)
    ...     review.add(1, "a man", translations)
    True
    >>> review.publish()
    >>> review.finish()
    """

    def __init__(self, confidence: float, path: str | os.PathLike[str]) -> None:
        check_range("review", confidence, float, 0, 1)
        self.confidence, self.path = confidence, Path(path)
        self._partial = Path(f"{self.path}.partial")
        self.count: int | None = 0

    def check(self, translator: Translator, options: Mapping[str, Any], resume: bool) -> None:
        """Check that the translations of a call have confidences, and that the file is new.

        Args:
            translator: The `Translator`.
            options: Options and constraints of `Translator.translate` by name.
            resume: Whether an interrupted call is continued, whose file may exist.

        Raises:
            ValueError: They have none, or the file exists.
        """
        settings = {name: value for name, value in options.items() if name in SETTINGS}
        calibration = translator.calibration_for(SearchOptions.from_values(settings))
        if calibration is None:
            raise argument_error(
                "review",
                "be used with a calibrated artifact. `export` calibrates it on held-out pairs",
                received=f"{translator.manifest.folder}, which has no confidences",
            )
        constraints = [name for name in _CONSTRAINTS if options.get(name)]
        if isinstance(calibration, str) or constraints:
            reason = calibration if isinstance(calibration, str) else f"`{constraints[0]}`"
            raise argument_error(
                "review", "be used with the search that was calibrated", received=reason
            )
        if self.path.exists() and not resume:
            raise argument_error(
                "review", "be a new file", received=f"{str(self.path)!r}, which exists"
            )

    def __enter__(self) -> "Review":
        with add_path_to_errors(self._partial):
            self._file = self._partial.open("a+b")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def start(self, rows: int) -> None:
        """Keep only the lines of the first rows, as many as an interrupted call has finished."""
        self._file.seek(0)
        end = 0
        for line in self._file:
            # A process was killed at a line without an end.
            if not line.endswith(b"\n") or json.loads(line)[-1] > rows:
                break
            end += len(line)
        self._file.truncate(end)

    def add(self, number: int, source: str, hypotheses: Sequence[Translation]) -> bool:
        """Write the translation of a row, and return True, if its confidence is too small.

        Args:
            number: Number of the row, from 1.
            source: Its text.
            hypotheses: Its translations, best first.
        """
        best, *others = hypotheses
        if best.confidence is None or best.confidence >= self.confidence:
            return False
        second = others[0].text if others else ""
        row = [source, best.text, second, best.confidence, number]
        self._file.write(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
        return True

    def flush(self) -> None:
        """Write all lines to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def publish(self) -> None:
        """Write the file from the collected lines, which are kept until `finish`."""
        with self._partial.open(encoding="utf-8") as file:
            rows = sorted((json.loads(line) for line in file), key=lambda row: row[-2:])
        with atomic_write(self.path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for *texts, confidence, number in rows:
                columns = [one_cell(text) for text in texts]
                file.write("\t".join([*columns, f"{confidence:.4f}", str(number)]) + "\n")
        self.count = len(rows)

    def finish(self) -> None:
        """Remove the collected lines, once no call needs them to continue."""
        self._partial.unlink(missing_ok=True)

    def read_count(self) -> None:
        """Count the translations in the file of an earlier call that has completed it."""
        try:
            with self.path.open("rb") as file:
                self.count = sum(1 for _ in file)
        except FileNotFoundError:
            self.count = None
