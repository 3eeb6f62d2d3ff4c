"""The actor that translates the files of a folder, without Ray."""

from copy_artifact import make_with_options

from keras_bahdanau_runtime.bulk.file import fingerprint
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.ray.bulk import _FileTranslator


def test_files_are_translated_with_the_options_of_the_search(tmp_path):
    artifact = make_with_options(tmp_path / "artifact")
    source, output = tmp_path / "in", tmp_path / "out"
    for folder in (source, output):
        folder.mkdir()
    (source / "a.txt").write_text("a man\n")
    arguments = artifact, fingerprint(read_manifest(artifact)), source, output, {}
    too_large = _FileTranslator(*arguments, {"beam_size": 3})({"name": "a.txt"})
    assert "`beam_size` must be an int of at least 1 and at most 2" in too_large["reason"]
    assert not (output / "a.txt").exists()
    options = {"beam_size": 1, "suppressed": ["on"]}
    assert _FileTranslator(*arguments, options)({"name": "a.txt"})["reason"] == ""
    assert (output / "a.txt").read_text() == "a man\n"
    again = _FileTranslator(*arguments, options)
    assert again({"name": "a.txt"})["reason"] == ""
    (source / "a.txt").write_text("a dog\n")
    assert "`source` must contain the rows" in again({"name": "a.txt"})["reason"]
    assert sorted(path.name for path in output.iterdir()) == [".a.txt.journal", "a.txt"]
    assert (output / "a.txt").read_text() == "a man\n"
