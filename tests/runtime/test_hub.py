"""Artifacts of the Hugging Face Hub, downloaded from a server that speaks its protocol."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from copy_artifact import COPY_SCORE, make, marked
from hub_server import running_hub, use_hub

from keras_bahdanau_runtime import CorruptArtifactError, Translator, UnsupportedArtifactError
from keras_bahdanau_runtime.hub import download, parse_hub_address
from keras_bahdanau_runtime.manifest import read_manifest

TEXT = "a man on a bike"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("hub") / "artifact", score=COPY_SCORE)


@pytest.fixture
def files(artifact):
    """The contents of the artifact's files by name, which a test may change."""
    return {path.name: path.read_bytes() for path in artifact.iterdir()}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch, cache):
    with running_hub() as hub:
        use_hub(monkeypatch, hub, cache)
        yield hub


def test_only_the_files_of_the_manifest_are_downloaded_and_only_once(hub, files):
    names = sorted(files)
    hub.commit("user/en-de", {**files, "extra.bin": b"of someone else", ".gitattributes": b"*"})
    announced = []
    for _ in range(2):
        folder = download("user/en-de", on_download=lambda *sizes: announced.append(sizes))
    assert sorted(path.name for path in folder.iterdir()) == names
    large = {name: f"/large/{hashlib.sha256(files[name]).hexdigest()}" for name in names}
    assert sorted(hub.downloads()) == sorted(
        large[name] if name.endswith(".onnx") else name for name in names
    )
    del files["manifest.json"]  # was there before the other files were known
    assert announced == [(len(files), sum(map(len, files.values())))]
    assert read_manifest(folder).files.keys() == files.keys()


def test_a_translator_from_the_hub_is_that_of_the_folder_also_after_pickling(hub, files, artifact):
    hub.commit("user/en-de", files)
    expected = Translator(artifact).translate([TEXT])[0]
    translator = Translator.from_hub("user/en-de", parallel_batches=2, threads=1)
    for each in (translator, pickle.loads(pickle.dumps(translator))):
        [translation] = each.translate([TEXT])
        assert (translation.text, translation.score) == (expected.text, expected.score)


def test_revisions_are_branches_tags_and_commits(hub, files, tmp_path):
    first = hub.commit("user/en-de", files)
    hub.commit("user/en-de", files, branch="refs/pr/1")
    assert Translator.from_hub("user/en-de").translate([TEXT])[0].score == -6
    hub.commit("user/en-de", marked(tmp_path / "new", 2))
    assert Translator.from_hub("user/en-de").translate([TEXT])[0].score == 12
    for revision in (first, "refs/pr/1"):
        assert Translator.from_hub("user/en-de", revision).translate([TEXT])[0].score == -6


@pytest.mark.parametrize("is_offline", [True, False])
def test_the_cached_copy_is_used_without_a_network(hub, files, cache, monkeypatch, is_offline):
    hub.commit("user/en-de", files)
    folder = download("user/en-de")
    if is_offline:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        requests = len(hub.requests)
        assert download("user/en-de") == folder
        assert len(hub.requests) == requests
        with pytest.raises(
            ConnectionError, match=rf"hf://user/other: {hub.url} cannot be reac"
        ) as e:
            download("user/other")
        assert f"the cache {cache} has no copy of manifest.json" in str(e.value)
        assert "offline" in str(e.value)
    else:
        hub.stop()
        assert download("user/en-de", "main") == folder
        # It would try again for half a minute.
        monkeypatch.setattr(huggingface_hub.utils._http.time, "sleep", lambda seconds: None)
        with pytest.raises(ConnectionError, match=r"has no copy of manifest\.json\. .*refused"):
            download("user/en-de", "v2")


def test_a_missing_private_or_gated_repository_is_named(hub, files):
    hub.commit("user/gated", files)
    hub.gated.add("user/gated")
    for name, reason in (("user/none", "does not exist, or is"), ("user/gated", "its owner's per")):
        with pytest.raises(
            ValueError, match=rf"Argument `repository` .*{hub.url}.*'{name}', .*{reason}"
        ):
            download(name)


def test_a_missing_revision_is_named(hub, files):
    hub.commit("user/en-de", files)
    with pytest.raises(ValueError, match=r"`revision` must be .* of user/en-de. Received: 'v9'"):
        Translator.from_hub("user/en-de", "v9")


def test_a_repository_without_a_manifest_is_no_artifact(hub, files, cache):
    hub.commit("user/bert", {"config.json": b"{}", "model.onnx": files["model.onnx"]})
    with pytest.raises(ValueError, match="hf://user/bert, which is no artifact: it has no manife"):
        download("user/bert")
    assert hub.downloads() == []


@pytest.mark.parametrize("name", ["model.onnx", "score.onnx", "tokenizer.json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"?", lambda data: data + b"?"])
def test_a_changed_file_is_named(hub, files, name, damage):
    hub.commit("user/en-de", {**files, name: damage(files[name])})
    with pytest.raises(CorruptArtifactError, match=rf"models--user--en-de.*{name}: expected "):
        Translator.from_hub("user/en-de")


def test_a_file_that_is_listed_but_missing_is_named(hub, files):
    del files["tokenizer.json"]
    commit = hub.commit("user/en-de", files)
    with pytest.raises(
        CorruptArtifactError, match=rf"de@{commit}: tokenizer.json is listed in man"
    ):
        download("user/en-de")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "other"}, CorruptArtifactError, "'format'"),
        ({"format_version": 9}, UnsupportedArtifactError, "pip install --upgrade"),
        (
            {"files": {"../../../outside": {"sha256": 64 * "0", "bytes": 1}}},
            CorruptArtifactError,
            "relative paths inside",
        ),
    ],
)
def test_an_invalid_manifest_downloads_nothing_else(hub, files, change, error, message):
    manifest = {**json.loads(files["manifest.json"]), **change}
    hub.commit("user/en-de", {**files, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(error, match=message):
        download("user/en-de")
    assert hub.downloads() == ["manifest.json"]


def test_a_failing_server_is_named(hub, files, monkeypatch):
    hub.commit("user/en-de", files)
    monkeypatch.setattr(type(hub), "large_file", lambda hub, digest: None)
    with pytest.raises(ConnectionError, match=r"hf://user/en-de@\w+: model.onnx cannot be downlo"):
        download("user/en-de")


# Links of a snapshot: within the cache they are files of the artifact, elsewhere they are refused.


@pytest.fixture
def snapshot(hub, files):
    hub.commit("user/en-de", files)
    folder = download("user/en-de")
    assert (folder / "model.onnx").is_symlink()
    return folder


def test_a_blob_may_be_a_link_to_the_store_that_repositories_share(snapshot, cache):
    blob = (snapshot / "model.onnx").resolve()
    store = cache / "blobs" / "ab"
    store.mkdir(parents=True)
    blob.rename(store / "abcd")
    blob.symlink_to(store / "abcd")
    assert "model.onnx" in read_manifest(snapshot).files


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json"])
@pytest.mark.parametrize("is_chain", [True, False])
def test_links_of_a_snapshot_that_leave_the_cache_are_refused(snapshot, tmp_path, name, is_chain):
    blob = (snapshot / name).resolve()
    blob.rename(tmp_path / "outside")
    if is_chain:
        blob.symlink_to(tmp_path / "outside")
    else:
        (snapshot / name).unlink()
        (snapshot / name).symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptArtifactError, match=f"{name}: .*Received: a link"):
        read_manifest(snapshot)


def test_a_folder_of_blobs_that_is_a_link_is_refused(snapshot, tmp_path):
    blobs = snapshot.parents[1] / "blobs"
    blobs.rename(tmp_path / "outside")
    blobs.symlink_to(tmp_path / "outside")
    with pytest.raises(CorruptArtifactError, match="Received: a link"):
        read_manifest(snapshot)


def test_a_moved_cache_and_a_link_to_a_snapshot_are_read(snapshot, cache, tmp_path):
    shutil.move(cache, tmp_path / "moved")
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "moved" / snapshot.relative_to(cache))
    assert "model.onnx" in read_manifest(link).files


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://user/en-de", ("user/en-de", None)),
        ("hf://user/en-de@v1.0", ("user/en-de", "v1.0")),
        ("hf://user/en-de@refs/pr/1", ("user/en-de", "refs/pr/1")),
    ],
)
def test_addresses_have_a_repository_and_a_revision(address, expected):
    assert parse_hub_address(address) == expected


@pytest.mark.parametrize(
    "address",
    ["hf://user", "hf://user/a/b", "hf://user/a@", "hf://user/a@../b", "hf:/user/a", "hf:///a"],
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(ValueError, match=r"or hf://USER/NAME@REVISION\. Received: "):
        parse_hub_address(address)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("user",), "repository"),
        (("user/a\n",), "repository"),
        ((Path("user/a"),), "repository"),
        (("user/a", ""), "revision"),
        (("user/a", "../../b"), "revision"),
    ],
)
def test_invalid_names_are_refused_before_any_request(arguments, name):
    with pytest.raises(ValueError, match=f"Argument `{name}` must be "):
        download(*arguments)
