"""The Multi30k recipe, as far as it goes without the data."""

import gzip
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "multi30k"
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def recipe():
    sys.path.insert(0, str(FOLDER))
    try:
        yield runpy.run_path(str(FOLDER / "recipe.py"))
    finally:
        sys.path.remove(str(FOLDER))


def test_a_folder_without_a_file_is_named(recipe, tmp_path):
    find = recipe["data"].find
    with pytest.raises(ValueError, match=r"`data` must be a folder with val\.de or val\.de\.gz"):
        find(tmp_path, "val", "de")
    with pytest.raises(ValueError, match=r"with tok/val\.lc\.norm\.tok\.fr or"):
        find(tmp_path, "val", "fr", tokenized=True)


@pytest.mark.parametrize("name", ["val.de", "val.de.gz"])
def test_another_version_is_named(recipe, tmp_path, name):
    text = b"Ein Mann.\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(ValueError, match=r"`data` must hold the files of https.*SHA-256"):
        recipe["data"].find(tmp_path, "val", "de")


def test_settings_are_options_of_training(recipe, tmp_path):
    files = {"source": "a", "target": "b", "validation_source": "c", "validation_target": "d"}
    for path in FOLDER.glob("*.yaml"):
        recipe["TrainingOptions"].from_file(path, **files)
