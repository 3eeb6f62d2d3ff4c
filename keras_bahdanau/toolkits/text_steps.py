"""How a toolkit splits raw texts, and the files that split them here."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from keras_bahdanau.models.seq2seq import Seq2Seq
from keras_bahdanau_runtime.errors import argument_error

logger = logging.getLogger("keras_bahdanau")

AUTO, SPLIT = "auto", "none"
_SIDES = "source", "target"


class ImportedModel(NamedTuple):
    """A model of another toolkit, and sentences about its texts for the user."""

    model: Seq2Seq
    notes: list[str]

    def logged(self):
        """Log the notes, and return the model."""
        for note in self.notes:
            logger.info(note)
        return self.model


@dataclass(frozen=True)
class TextSteps:
    """Steps of a toolkit from the texts of one side to their pieces.

    Args:
        file: Path of a SentencePiece model or of codes of subword-nmt that the toolkit's options
            name; `None` for none.
        others: Names of other steps, in the words of the toolkit's options.
    """

    file: str | None = None
    others: tuple[str, ...] = ()

    def find(self, folder):
        """Return the path of the file in a folder, or where the options name it; or `None`."""
        if self.file is None:
            return None
        path = Path(self.file)
        candidates = folder / path.name, path
        # Unlike `Path.is_file`, the function accepts any text, such as a name that is too long.
        return next((each for each in candidates if os.path.isfile(each)), None)


def choose_files(toolkit, folder, steps, arguments):
    """Choose the file that splits the texts of each side.

    Args:
        toolkit: Name of the toolkit, for notes.
        folder: Folder of the checkpoint.
        steps: `TextSteps` of the sources and of the targets.
        arguments: For each side a path, "none" for texts that are split already, or "auto" for the
            file that the toolkit's options name, if it exists.

    Returns:
        For each side a `Path` or `None`, and a list of notes for the user.

    Raises:
        ValueError: If a file does not exist.
    """
    files, notes = [], []
    for side, each, argument in zip(_SIDES, steps, arguments, strict=True):
        file, noun = None, f"{side.capitalize()} texts"
        if argument == AUTO:
            file = each.find(folder)
        elif argument != SPLIT:
            file = Path(argument)
            if not file.is_file():
                raise argument_error(
                    f"{side}_tokenizer",
                    "be a SentencePiece model, codes of subword-nmt, auto or none",
                    received=f"{str(argument)!r}, which is no file",
                )
        if file is not None:
            notes.append(f"{noun} are raw: {file} splits them.")
        elif each.file is not None:
            notes.append(
                f"{noun} must be split as {toolkit} did, by {each.file:.200}. For raw texts pass "
                f"this file as --{side}-tokenizer."
            )
        else:
            notes.append(f"{noun} must be split as for {toolkit}.")
        if each.others:
            notes.append(
                f"{toolkit} also changed them by {', '.join(each.others)}. Change them as well."
            )
        files.append(file)
    return files, notes
