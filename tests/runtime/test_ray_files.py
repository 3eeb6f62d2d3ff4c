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
    arguments, row = (artifact, fingerprint(read_manifest(artifact)), output, {}), source / "a.txt"
    too_large = _FileTranslator(*arguments, {"beam_size": 3})({"path": str(row)})
    assert "`beam_size` must be an int of at least 1 and at most 2" in too_large["reason"]
    assert not (output / "a.txt").exists()
    translate = _FileTranslator(*arguments, {"beam_size": 1, "suppressed": ["on"]})
    for text in ("a man\n", "a dog\n"):  # a changed file is translated again
        row.write_text(text)
        assert translate({"path": str(row)}) == {"name": "a.txt", "reason": ""}
        assert (output / "a.txt").read_text() == text
    assert sorted(path.name for path in output.iterdir()) == [".a.txt.journal", "a.txt"]
