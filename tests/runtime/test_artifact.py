"""The artifact folder: published completely or not at all, and verified when it is read."""

import errno
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
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
from keras_bahdanau_runtime.manifest import read_manifest, read_unreplaced
from keras_bahdanau_runtime.signature import FORMAT_VERSION, OPTIONS, SAMPLE, TRANSLATE

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
    """Change keys of the manifest without changing anything else."""
    path = artifact / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **keys}), "utf-8")


def change_record(artifact, sha256, size):
    change(artifact, files={"model.onnx": {"sha256": sha256, "bytes": size}})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_manifest_round_trip(artifact):
    manifest = read_manifest(artifact)
    assert list(manifest.files) == ["model.onnx", "saved_model/saved_model.pb"]
    record = manifest.files["model.onnx"]
    assert (record.sha256, record.bytes) == (hashlib.sha256(b"a graph").hexdigest(), 7)
    assert manifest.format_version == FORMAT_VERSION
    assert manifest.signatures == {"model.onnx": TRANSLATE.to_json()}
    assert manifest.vocabulary == {"source": 10, "target": 12}
    assert manifest.max_source_length == 50
    assert (manifest.search.document, manifest.search.beam_size) == ({"size": 5}, 5)
    assert manifest.packages == {"onnx": "1.0"}
    assert manifest.parity == {"sentences": 8}
    assert manifest.other == {"opset": 18}
    assert names(artifact.parent) == ["artifact"]


@pytest.mark.parametrize("signature", [TRANSLATE, SAMPLE], ids=["beam", "sampling"])
def test_the_signature_of_a_search_lists_its_options(tmp_path, signature):
    options = OPTIONS["max_length"], OPTIONS["suppressed"]
    signature = replace(signature, options=options)
    write_to = tmp_path / "artifact"
    with publish(write_to) as folder:
        (folder / "model.onnx").write_bytes(b"a graph")
        write_manifest(folder, {"signatures": {"model.onnx": signature.to_json()}})
    manifest = read_manifest(write_to)
    assert manifest.search_signature == signature
    assert manifest.has_search() and manifest.is_sampling() == (
        signature.inputs != TRANSLATE.inputs
    )
    assert manifest.signatures["model.onnx"]["options"] == [
        {"name": "max_length", "dtype": "int32", "axes": []},
        {"name": "suppressed", "dtype": "int32", "axes": ["rows", "suppressed"]},
    ]


@pytest.mark.parametrize("options", [5, {}, [{"name": "size"}], ["max_length"], None], ids=str)
def test_a_signature_with_unknown_options_is_not_a_search(tmp_path, options):
    with publish(tmp_path / "artifact") as folder:
        (folder / "model.onnx").write_bytes(b"a graph")
        signature = {**TRANSLATE.to_json(), "options": options}
        write_manifest(folder, {"signatures": {"model.onnx": signature}})
    assert not read_manifest(tmp_path / "artifact").has_search()


def test_manifest_without_optional_keys_in_a_new_parent_folder(tmp_path):
    path = tmp_path / "new" / "parents" / "artifact"
    with publish(path) as folder:
        write_manifest(folder, {})
    manifest = read_manifest(path)
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
        {"vocabulary": {"source": "many"}},
        {"vocabulary": [10]},
        {"max_source_length": 0},
        *({"search": {"max_length_ratio": ratio}} for ratio in (0, "1.5", True)),
        {"search": {"no_repeat_ngram": -1}},
        *({"search": {"forbidden": ids}} for ids in (3, [0, "1"], [0, -1])),
        {"parity": {"difference": float("nan")}},
    ],
)
def test_invalid_manifest_contents_are_not_published(tmp_path, contents):
    with pytest.raises(ValueError), publish(tmp_path / "artifact") as folder:
        write(folder, contents)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_exception_in_the_block_leaves_the_folder_unchanged(tmp_path, artifact, error, overwrite):
    destination = artifact if overwrite else tmp_path / "other"
    with pytest.raises(type(error)) as raised, publish(destination, overwrite) as folder:
        write(folder)
        raise error
    assert raised.value is error
    assert names(tmp_path) == ["artifact"]
    assert read_manifest(artifact).files["model.onnx"].bytes == 7


def write_late_file(folder):
    write(folder)
    (folder / "late.txt").touch()


@pytest.mark.parametrize(
    ("write_files", "message"),
    [
        (lambda folder: (folder / "model.onnx").touch(), r"manifest\.json: expected a file"),
        (write_late_file, r"late\.txt"),
    ],
)
def test_folder_that_the_manifest_does_not_describe_is_not_published(
    tmp_path, write_files, message
):
    with pytest.raises(CorruptArtifactError, match=message):
        with publish(tmp_path / "artifact") as folder:
            write_files(folder)
    assert names(tmp_path) == []


def test_existing_folder_is_refused_before_the_block_runs(artifact):
    with pytest.raises(ValueError, match=r"artifact, which exists"), publish(artifact):
        pytest.fail("the block must not run")


def test_empty_folder_is_replaced_only_with_overwrite(tmp_path):
    path = tmp_path / "artifact"
    with pytest.raises(ValueError, match="exists"), publish(path) as folder:
        write(folder)
        path.mkdir()
    assert names(tmp_path) == ["artifact"] and names(path) == []
    with publish(path, overwrite=True) as folder:
        write(folder)
    assert names(tmp_path) == ["artifact"] and "model.onnx" in names(path)


def test_overwrite_replaces_the_whole_artifact(artifact):
    with publish(artifact, overwrite=True) as folder:
        (folder / "encoder.onnx").write_bytes(b"another")
        write_manifest(folder, {})
    assert list(read_manifest(artifact).files) == ["encoder.onnx"]
    assert names(artifact) == ["encoder.onnx", "manifest.json"]
    assert names(artifact.parent) == ["artifact"]


@pytest.mark.skipif(sys.platform != "linux", reason="Other systems rename twice.")
def test_overwrite_exchanges_the_folders_atomically(artifact, monkeypatch):
    monkeypatch.setattr(Path, "rename", None)  # two renames would leave a moment without a folder
    with publish(artifact, overwrite=True) as folder:
        write_manifest(folder, {"n": 1})
    assert read_manifest(artifact).other == {"n": 1}
    assert names(artifact.parent) == ["artifact"]


def test_replaced_artifact_with_the_same_inode_is_read_again(artifact):
    """A file system may reuse the inode of a removed folder."""
    opsets = []

    def read(manifest):
        opsets.append(manifest.other["opset"])
        if len(opsets) == 1:
            change(artifact, opset=19)
            raise CorruptArtifactError("the files do not match the manifest")
        return opsets

    assert read_unreplaced(artifact, read) == [18, 19]


def test_overwrite_deletes_only_artifacts(tmp_path, artifact):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work", "utf-8")
    (home / "manifest.json").write_text('{"name": "of a web page"}', "utf-8")
    (tmp_path / "link").symlink_to(artifact)
    for path in (home, home / "thesis.txt", tmp_path / "link"):
        with pytest.raises(ValueError, match="`path` must be an artifact or an empty folder"):
            with publish(path, overwrite=True):
                pytest.fail("the block must not run")
    assert (home / "thesis.txt").read_text("utf-8") == "years of work"


def test_failed_rename_restores_the_old_artifact(artifact):
    missing = artifact.with_name(".artifact.0123.partial")
    with pytest.raises(FileNotFoundError):
        _move_into_place(missing, artifact)
    assert names(artifact.parent) == ["artifact"]
    assert read_manifest(artifact).files["model.onnx"].bytes == 7


def test_only_copy_of_an_artifact_is_not_removed_as_a_leftover(artifact):
    """A writer that is killed between its two renames leaves the old artifact under this name."""
    replaced = artifact.rename(artifact.with_name(".artifact.0123abcd.replaced"))
    with pytest.raises(KeyboardInterrupt), publish(artifact):
        raise KeyboardInterrupt
    assert names(replaced.parent) == [replaced.name]
    assert names(replaced) == ["manifest.json", "model.onnx", "saved_model"]


def test_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), publish(tmp_path / "file" / "artifact"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["file"]


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
        (lambda a: change_record(a, "a" * 64, 7.0), "'bytes' to be int"),
        (
            lambda a: change_record(a, "a\nb" + "a" * 61, 7),
            "'sha256' to be 64 hexadecimal digits. Received: 'a\\nb",
        ),
        (lambda a: change(a, signatures=None), "'signatures' to be dict"),
        (lambda a: change(a, vocabulary={"source": 1.5}), "'source' to be int"),
        (lambda a: change(a, packages={"onnx": 1}), "'onnx' to be str"),
        (lambda a: change(a, max_source_length="long"), "'max_source_length' to be int"),
        (lambda a: change(a, max_source_length=-1), "at least 1"),
        (lambda a: change(a, search={"max_length": "long"}), "'max_length' to be int"),
        (lambda a: change(a, search={"n": 0}), "'n' to be at least 1"),
        (lambda a: change(a, vocabulary={"source": 2**31}), "at most 2147483647"),
        (
            lambda a: (a / "manifest.json").write_bytes(b"{}" + b" " * 2**24),
            "more than 16777216 bytes",
        ),
    ],
)
def test_damage_raises_an_error_that_names_it(artifact, damage, message):
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
def test_paths_outside_the_artifact_are_refused(artifact, name, verify):
    (artifact.parent / "secret").write_bytes(b"")
    change(artifact, files={name: {"sha256": hashlib.sha256().hexdigest(), "bytes": 0}})
    with pytest.raises(CorruptArtifactError, match="relative paths inside the artifact"):
        read_manifest(artifact, verify=verify)


@pytest.mark.parametrize("name", ["model.onnx", "saved_model", "manifest.json"])
@pytest.mark.parametrize("verify", [True, False])
def test_links_inside_an_artifact_are_refused(artifact, name, verify):
    outside = artifact.parent / "outside"
    (artifact / name).rename(outside)
    (artifact / name).symlink_to(outside)
    with pytest.raises(CorruptArtifactError, match=r"Received: a link; `cp -rL`"):
        read_manifest(artifact, verify=verify)


def test_links_are_not_published(tmp_path):
    (tmp_path / "outside").write_bytes(b"")
    with pytest.raises(ValueError, match="`folder` must contain no links"):
        with publish(tmp_path / "artifact") as folder:
            (folder / "model.onnx").symlink_to(tmp_path / "outside")
            write_manifest(folder, {})
    assert names(tmp_path) == ["outside"]


def test_link_to_an_artifact_is_followed(artifact):
    (artifact.parent / "current").symlink_to(artifact)
    assert read_manifest(artifact.parent / "current").vocabulary["source"] == 10


def test_unverified_reading_skips_the_hashes(artifact):
    (artifact / "model.onnx").write_bytes(b"longer than it was")
    assert read_manifest(artifact, verify=False).files["model.onnx"].bytes == 7


def test_newer_format_version_is_refused(artifact):
    change(artifact, format_version=FORMAT_VERSION + 1, files="in another form")
    with pytest.raises(UnsupportedArtifactError, match="pip install --upgrade"):
        read_manifest(artifact)


def test_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(CorruptArtifactError, match="expected a readable file"):
        read_manifest(tmp_path / ("a" * 300))  # longer than file systems allow


def test_error_classes_have_common_base_classes():
    for error in (CorruptArtifactError, UnsupportedArtifactError, ParityError):
        assert issubclass(error, ArtifactError)
    assert issubclass(MissingDependencyError, ImportError)


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.submodule"])
def test_missing_package_error_has_the_pip_command(module):
    with pytest.raises(MissingDependencyError) as raised:
        require(module, extra="runtime")
    assert 'pip install "keras-bahdanau[runtime]"' in str(raised.value)
    assert raised.value.name == module


def test_runtime_import_needs_only_numpy():
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


def test_import_error_inside_a_package_is_not_a_missing_dependency(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import no_such_package_of_this_name\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as raised:
        require("broken_package", extra="runtime")
    assert not isinstance(raised.value, MissingDependencyError)


def test_exported_names_exist_and_others_raise_attribute_errors():
    for name in keras_bahdanau_runtime.__all__:
        assert getattr(keras_bahdanau_runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        keras_bahdanau_export.no_such_name  # noqa: B018
