"""The parts of the Multi30k recipe that need no data."""

import gzip
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "multi30k"


@pytest.fixture(scope="module")
def recipe():
    sys.path.insert(0, str(FOLDER))
    try:
        yield runpy.run_path(str(FOLDER / "recipe.py"))
    finally:
        sys.path.remove(str(FOLDER))


def test_a_missing_data_file_is_named(recipe, tmp_path):
    find = recipe["multi30k_files"].find_file
    with pytest.raises(ValueError, match=r"`data` must be a folder with val\.de or val\.de\.gz"):
        find(tmp_path, "val", "de")
    with pytest.raises(ValueError, match=r"with tok/val\.lc\.norm\.tok\.fr or"):
        find(tmp_path, "val", "fr", tokenized=True)


@pytest.mark.parametrize("name", ["val.de", "val.de.gz"])
def test_a_data_file_of_another_version_is_refused(recipe, tmp_path, name):
    text = b"Ein Mann.\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(ValueError, match=r"`data` must contain the files of https.*SHA-256"):
        recipe["multi30k_files"].find_file(tmp_path, "val", "de")


@pytest.mark.parametrize(
    "contents",
    [b"<html>", gzip.compress(b"Ein Mann.\n" * 99)[:-9]],
    ids=["a web page", "a truncated file"],
)
def test_an_incomplete_gzip_file_is_named(recipe, tmp_path, contents):
    (tmp_path / "val.de.gz").write_bytes(contents)
    with pytest.raises(ValueError, match=r"`data` must contain complete gzip files.*val\.de\.gz: "):
        recipe["multi30k_files"].find_file(tmp_path, "val", "de")


@pytest.fixture
def origin(recipe, tmp_path, monkeypatch):
    """The folder that the files are downloaded from."""
    folder = tmp_path / "origin"
    (folder / "raw").mkdir(parents=True)
    monkeypatch.setattr(recipe["multi30k_files"], "SOURCE", folder.as_uri())
    return folder


def test_files_that_cannot_be_downloaded_are_named(recipe, origin, tmp_path):
    with pytest.raises(SystemExit, match=r"--data DIR.*without train\.en, train\.de, val\.en, val"):
        recipe["main"](["en-de", "--data", str(tmp_path / "new"), "--output", str(tmp_path / "o")])


def test_a_download_of_another_version_is_not_kept(recipe, origin, tmp_path):
    (origin / "raw" / "train.en.gz").write_bytes(gzip.compress(b"A man.\n"))
    with pytest.raises(ValueError, match=r"raw/train\.en\.gz, whose text has the SHA-256"):
        recipe["multi30k_files"].download(tmp_path / "new", "de")
    assert not (tmp_path / "new").exists()


def test_settings_are_options_of_training(recipe, tmp_path):
    files = {"source": "a", "target": "b", "validation_source": "c", "validation_target": "d"}
    for path in FOLDER.glob("*.yaml"):
        recipe["TrainingOptions"].from_file(path, **files)
