"""The artifact folder: written whole or not at all, read back only when every byte is right."""

import errno
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import keras_bahdanau_export
import keras_bahdanau_runtime
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.errors import (
    ArtifactError,
    CorruptArtifactError,
    MissingDependencyError,
    ParityError,
    UnsupportedArtifactError,
    require,
)
from keras_bahdanau_runtime.files import _move_into_place
from keras_bahdanau_runtime.manifest import read_manifest, reading
from keras_bahdanau_runtime.signature import FORMAT_VERSION, TRANSLATE

CONTENTS = {
    "vocabulary": {"source": 10, "target": 12},
    "max_source_length": 50,
    "search": {"size": 5},
    "packages": {"onnx": "1.0"},
    "parity": {"sentences": 8},
    "opset": 18,
}


def write(folder, contents=CONTENTS):
    (folder / "model.onnx").write_bytes(b"a graph")
    (folder / "saved_model" / "assets").mkdir(parents=True)
    (folder / "saved_model" / "saved_model.pb").write_bytes(b"")
    write_manifest(folder, contents)


@pytest.fixture
def artifact(tmp_path):
    with publish(tmp_path / "artifact") as folder:
        write(folder)
    return tmp_path / "artifact"


def change(artifact, **keys):
    """Rewrites keys of the manifest behind its back."""
    path = artifact / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **keys}), "utf-8")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_round_trip(artifact):
    manifest = read_manifest(artifact)
    assert list(manifest.files) == ["model.onnx", "saved_model/saved_model.pb"]
    record = manifest.files["model.onnx"]
    assert (record.sha256, record.bytes) == (hashlib.sha256(b"a graph").hexdigest(), 7)
    assert manifest.format_version == FORMAT_VERSION
    assert manifest.signatures == {"model.onnx": TRANSLATE.to_json()}
    assert manifest.vocabulary == {"source": 10, "target": 12}
    assert manifest.max_source_length == 50
    assert manifest.search == {"size": 5}
    assert manifest.packages == {"onnx": "1.0"}
    assert manifest.parity == {"sentences": 8}
    assert manifest.other == {"opset": 18}
    assert names(artifact.parent) == ["artifact"]


def test_everything_but_the_files_may_be_left_out(tmp_path):
    with publish(tmp_path / "new" / "parents" / "artifact") as folder:
        write_manifest(folder, {})
    manifest = read_manifest(tmp_path / "new" / "parents" / "artifact")
    assert (manifest.files, manifest.vocabulary, manifest.max_source_length) == ({}, {}, None)


def test_manifest_is_the_documented_json(artifact):
    document = json.loads((artifact / "manifest.json").read_text("utf-8"))
    assert document["format"] == "keras_bahdanau artifact"
    assert document["format_version"] == 1
    assert document["files"]["model.onnx"]["bytes"] == 7
    assert document["signatures"]["model.onnx"]["inputs"] == [
        {"name": "source", "dtype": "int32", "axes": ["batch", "source_length"]}
    ]


@pytest.mark.parametrize(
    "contents",
    [
        {"files": {}},
        {"format_version": 2},
        {"vocabulary": {"source": "many"}},
        {"vocabulary": [10]},
        {"max_source_length": 0},
        {"max_source_length": True},
        {"search": {"max_length_ratio": 0}},
        {"search": {"max_length_ratio": "1.5"}},
        {"search": {"max_length_ratio": True}},
        {"search": {"no_repeat_ngram": -1}},
        {"search": {"forbidden": 3}},
        {"search": {"forbidden": [0, "1"]}},
        {"search": {"forbidden": [0, -1]}},
        {"parity": {"difference": float("nan")}},
    ],
)
def test_wrong_contents_are_refused(tmp_path, contents):
    with pytest.raises(ValueError), publish(tmp_path / "artifact") as folder:
        write(folder, contents)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        KeyboardInterrupt(),
        SystemExit(1),
        RuntimeError("conversion failed"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_block_leaves_nothing(tmp_path, artifact, error, overwrite):
    destination = artifact if overwrite else tmp_path / "other"
    with pytest.raises(type(error)) as raised, publish(destination, overwrite) as folder:
        write(folder)
        raise error
    assert raised.value is error
    assert names(tmp_path) == ["artifact"]
    assert read_manifest(artifact).files["model.onnx"].bytes == 7


def test_a_block_without_a_manifest_publishes_nothing(tmp_path):
    with pytest.raises(CorruptArtifactError, match=r"manifest\.json"):
        with publish(tmp_path / "artifact") as folder:
            (folder / "model.onnx").write_bytes(b"a graph")
    assert names(tmp_path) == []


def test_a_file_written_after_the_manifest_publishes_nothing(tmp_path):
    with pytest.raises(CorruptArtifactError, match=r"late\.txt"):
        with publish(tmp_path / "artifact") as folder:
            write(folder)
            (folder / "late.txt").write_text("late", "utf-8")
    assert names(tmp_path) == []


def test_an_existing_folder_is_refused_before_any_work(artifact):
    with pytest.raises(ValueError, match=r"artifact, which exists"), publish(artifact):
        pytest.fail("the block must not run")


def test_a_folder_that_appears_meanwhile_is_refused(tmp_path):
    with pytest.raises(ValueError, match="exists"):
        with publish(tmp_path / "artifact") as folder:
            write(folder)
            (tmp_path / "artifact").mkdir()
    assert names(tmp_path) == ["artifact"]
    assert names(tmp_path / "artifact") == []


def test_overwrite_replaces_the_whole_artifact(artifact):
    with publish(artifact, overwrite=True) as folder:
        (folder / "encoder.onnx").write_bytes(b"another")
        write_manifest(folder, {})
    assert list(read_manifest(artifact).files) == ["encoder.onnx"]
    assert names(artifact) == ["encoder.onnx", "manifest.json"]
    assert names(artifact.parent) == ["artifact"]


@pytest.mark.skipif(sys.platform != "linux", reason="Other systems rename twice.")
def test_an_artifact_is_replaced_at_one_stroke(artifact, monkeypatch):
    def rename(*paths):
        raise AssertionError("For a moment there was no artifact.")

    monkeypatch.setattr(Path, "rename", rename)
    with publish(artifact, overwrite=True) as folder:
        write_manifest(folder, {"n": 1})
    assert read_manifest(artifact).other == {"n": 1}
    assert names(artifact.parent) == ["artifact"]


def test_an_artifact_with_the_inode_of_another_is_another(artifact):
    """A file system may give the inode of an artifact that was replaced to the next but one."""
    seen = []

    def read(manifest):
        seen.append(manifest.other["opset"])
        if len(seen) == 1:
            change(artifact, opset=19)
            raise CorruptArtifactError("the files of one, the manifest of another")
        return seen

    assert reading(artifact, read) == [18, 19]


def test_overwrite_takes_an_empty_folder(tmp_path):
    with publish(tmp_path / "artifact", overwrite=True) as folder:
        write(folder)
        (tmp_path / "artifact").mkdir()
    assert names(tmp_path) == ["artifact"]


def test_overwrite_deletes_nothing_but_an_artifact(tmp_path, artifact):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work", "utf-8")
    (home / "manifest.json").write_text('{"name": "of a web page"}', "utf-8")
    (tmp_path / "file").write_text("text", "utf-8")
    (tmp_path / "link").symlink_to(artifact)
    for path in (home, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ValueError, match="`path` must be an artifact or an empty folder"):
            with publish(path, overwrite=True):
                pytest.fail("the block must not run")
    assert (home / "thesis.txt").read_text("utf-8") == "years of work"


def test_a_failed_swap_puts_the_old_artifact_back(artifact):
    missing = artifact.with_name(".artifact.0123.partial")
    with pytest.raises(FileNotFoundError):
        _move_into_place(missing, artifact)
    assert names(artifact.parent) == ["artifact"]
    assert read_manifest(artifact).files["model.onnx"].bytes == 7


def test_a_parent_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("text", "utf-8")
    with pytest.raises(OSError, match="file"), publish(tmp_path / "file" / "artifact"):
        pytest.fail("the block must not run")
    assert (tmp_path / "file").read_text("utf-8") == "text"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a: (a / "manifest.json").unlink(), "manifest.json: expected a file"),
        (lambda a: (a / "manifest.json").write_bytes(b'{"format":'), "expected JSON"),
        (lambda a: (a / "manifest.json").write_bytes(b"\xff\xfe"), "expected JSON in UTF-8"),
        (lambda a: (a / "manifest.json").write_bytes(b"[" * 100_000), "expected JSON"),
        (lambda a: (a / "manifest.json").write_bytes(b"[1, 2]"), "expected an object"),
        (lambda a: (a / "model.onnx").unlink(), "model.onnx: listed in"),
        (lambda a: (a / "model.onnx").write_bytes(b"a gra"), "model.onnx: expected 7 bytes"),
        (lambda a: (a / "model.onnx").write_bytes(b"a graph!"), "model.onnx: expected 7 bytes"),
        (lambda a: (a / "model.onnx").write_bytes(b"A graph"), "model.onnx: expected sha256"),
        (lambda a: change(a, format="zip"), "'format'"),
        (lambda a: change(a, format_version="1"), "'format_version' to be int"),
        (lambda a: change(a, format_version=True), "'format_version' to be int"),
        (lambda a: change(a, format_version=0), "format_version 1 or more"),
        (lambda a: change(a, files=[]), "'files' to be dict"),
        (lambda a: change(a, files={"model.onnx": "abc"}), "'model.onnx' to be dict"),
        (lambda a: change(a, files={"model.onnx": {"bytes": 7}}), "'sha256' to be str"),
        (
            lambda a: change(a, files={"model.onnx": {"sha256": "a" * 64, "bytes": 7.0}}),
            "'bytes' to be int",
        ),
        (
            lambda a: change(a, files={"model.onnx": {"sha256": "a\nb" + "a" * 61, "bytes": 7}}),
            "'sha256' to be 64 hexadecimal digits. Received: 'a\\nb",
        ),
        (lambda a: change(a, signatures=None), "'signatures' to be dict"),
        (lambda a: change(a, vocabulary={"source": 1.5}), "'source' to be int"),
        (lambda a: change(a, packages={"onnx": 1}), "'onnx' to be str"),
        (lambda a: change(a, max_source_length="long"), "'max_source_length' to be int"),
        (lambda a: change(a, max_source_length=-1), "at least 1"),
    ],
)
def test_damage_is_found_and_named(artifact, damage, message):
    damage(artifact)
    with pytest.raises(CorruptArtifactError) as raised:
        read_manifest(artifact)
    assert message in str(raised.value)
    assert str(artifact) in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "a/../../secret", "/etc/passwd", "..\\secret", "C:secret"),
        *("./model.onnx", "a//b", "", ".", "..", "a/", "manifest.json", "a\0b"),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_path_tricks_are_refused(artifact, name, verify):
    (artifact.parent / "secret").write_bytes(b"")
    change(artifact, files={name: {"sha256": hashlib.sha256().hexdigest(), "bytes": 0}})
    with pytest.raises(CorruptArtifactError, match="relative paths inside the artifact"):
        read_manifest(artifact, verify=verify)


@pytest.mark.parametrize("name", ["model.onnx", "saved_model", "manifest.json"])
@pytest.mark.parametrize("verify", [True, False])
def test_links_inside_are_refused(artifact, name, verify):
    outside = artifact.parent / "outside"
    (artifact / name).rename(outside)
    (artifact / name).symlink_to(outside)
    with pytest.raises(CorruptArtifactError, match=r"Received: a link; `cp -rL`"):
        read_manifest(artifact, verify=verify)


def test_a_folder_that_the_system_cannot_look_at_is_an_error_of_the_artifact(tmp_path):
    with pytest.raises(CorruptArtifactError, match="expected a file that can be read"):
        read_manifest(tmp_path / ("a" * 300))


def test_links_are_not_published(tmp_path):
    (tmp_path / "outside").write_bytes(b"")
    with (
        pytest.raises(ValueError, match="`folder` must hold no links"),
        publish(tmp_path / "artifact") as folder,
    ):
        (folder / "model.onnx").symlink_to(tmp_path / "outside")
        write_manifest(folder, {})
    assert names(tmp_path) == ["outside"]


def test_a_link_to_the_whole_artifact_is_followed(artifact):
    (artifact.parent / "current").symlink_to(artifact)
    assert read_manifest(artifact.parent / "current").vocabulary["source"] == 10


def test_unverified_reading_skips_the_hashes(artifact):
    (artifact / "model.onnx").write_bytes(b"longer than it was")
    assert read_manifest(artifact, verify=False).files["model.onnx"].bytes == 7


def test_a_newer_version_is_refused(artifact):
    change(artifact, format_version=FORMAT_VERSION + 1, files="in another form")
    with pytest.raises(UnsupportedArtifactError, match="pip install --upgrade"):
        read_manifest(artifact)


def test_no_folder_is_the_users_mistake(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        read_manifest(tmp_path / "nowhere")


def test_one_error_tree():
    for error in (CorruptArtifactError, UnsupportedArtifactError, ParityError):
        assert issubclass(error, ArtifactError)
    assert issubclass(MissingDependencyError, ImportError)


def test_a_missing_package_names_its_pip_command():
    with pytest.raises(MissingDependencyError) as raised:
        require("no_such_package_of_this_name", extra="runtime")
    assert 'pip install "keras-bahdanau[runtime]"' in str(raised.value)
    assert raised.value.name == "no_such_package_of_this_name"


def test_a_missing_parent_of_a_package_counts_as_missing():
    with pytest.raises(MissingDependencyError):
        require("no_such_package_of_this_name.part", extra="runtime")


def test_the_runtime_loads_with_numpy_alone():
    code = (
        "import sys\n"
        "for name in ('google', 'onnxruntime', 'tokenizers', 'sacrebleu', 'matplotlib', 'onnx'):\n"
        "    sys.modules[name] = None\n"
        "import keras_bahdanau_runtime\n"
        "from keras_bahdanau_runtime.text import alignment, batches, corpus, scores\n"
        "try:\n"
        "    keras_bahdanau_runtime.Tokenizer.train(['a'], ['b'])\n"
        "except keras_bahdanau_runtime.MissingDependencyError as error:\n"
        "    print(error.package, error.extra)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tokenizers", "text"]


def test_a_broken_package_raises_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import no_such_package_of_this_name\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as raised:
        require("broken_package", extra="runtime")
    assert not isinstance(raised.value, MissingDependencyError)


def test_exported_names():
    for name in keras_bahdanau_runtime.__all__:
        assert getattr(keras_bahdanau_runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        keras_bahdanau_export.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"search": {"max_length": "long"}}, "'max_length' to be int"),
        ({"search": {"n": 0}}, "'n' to be at least 1"),
        ({"vocabulary": {"source": 2**31}}, "at most 2147483647"),
    ],
)
def test_numbers_that_no_graph_counts_are_named(artifact, changed, message):
    change(artifact, **changed)
    with pytest.raises(CorruptArtifactError, match=message):
        read_manifest(artifact)


def test_a_manifest_has_an_end(artifact):
    with (artifact / "manifest.json").open("ab") as file:
        file.write(b" " * 2**24)
    with pytest.raises(CorruptArtifactError, match="more than 16777216 bytes"):
        read_manifest(artifact)
