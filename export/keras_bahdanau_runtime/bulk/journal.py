"""What is kept on the disk of translations under way, so that whoever is killed can go on."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.manifest import Manifest

_VERSION = 1


@dataclass(frozen=True)
class Place:
    """How far a file has come.

    Args:
        rows: int. Rows that are translated.
        bytes: int. Bytes of the partial file that hold them.
        failed: int. How many of the rows have no translation.
        digest: str. SHA-256 of their keys.
    """

    rows: int = 0
    bytes: int = 0
    failed: int = 0
    digest: str = hashlib.sha256().hexdigest()


class Journal:
    """A file with a `Place`, and with the settings that decide about translations.

    It is replaced at one stroke, and whole or absent.

    Args:
        path: `Path`.
        settings: Values of JSON by name.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self._settings = path, dict(settings)

    def read(self) -> Place | None:
        """The place; `None` where there is no journal.

        Raises:
            ValueError: It was begun with other settings, or is none.
        """
        try:
            found = json.loads(self.path.read_text("utf-8"))
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']!r}")
            place, begun = Place(**found["place"]), dict(found["settings"])
            for field in dataclasses.fields(Place):
                if type(getattr(place, field.name)) is not type(field.default):
                    raise TypeError(f"{field.name}={getattr(place, field.name)!r}")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path}: expected a journal of version {_VERSION}. Received: {error!r}"
            ) from error
        for name, value in self._settings.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"Argument `{name}` must be what {self.path} was begun with, "
                    f"{begun.get(name)!r}. Received: {value!r}"
                )
        return place

    def write(self, place: Place) -> None:
        """Keeps a place, on the disk when this returns."""
        known = {
            "version": _VERSION,
            "settings": self._settings,
            "place": dataclasses.asdict(place),
        }
        with written(self.path) as path:
            path.write_text(json.dumps(known, indent=2) + "\n", "utf-8")


def fingerprint(manifest: Manifest) -> str:
    """SHA-256 of all that an artifact's manifest says, the hashes of its files among it."""
    known = dataclasses.asdict(dataclasses.replace(manifest, folder=Path()))
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
