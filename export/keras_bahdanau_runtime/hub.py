"""Artifacts on the Hugging Face Hub: addresses, and downloads into the Hub's cache.

folder = download("user/en-de", revision="v1")  # only the files that the manifest lists
manifest = read_manifest(folder)                # compares the hash of every file
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import CorruptArtifactError, argument_error, require
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.manifest import read_file_list
from keras_bahdanau_runtime.signature import MANIFEST_FILE
from keras_bahdanau_runtime.version import __version__

_SCHEME = "hf://"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w.+/-]+", re.ASCII)
_ADDRESS = re.compile(rf"{_SCHEME}({_REPOSITORY.pattern})(?:@({_REVISION.pattern}))?", re.ASCII)


def is_hub_address(path: str) -> bool:
    """Return whether a path is the address of a repository, such as `hf://user/name`."""
    return path.startswith(_SCHEME)


def parse_hub_address(address: str) -> tuple[str, str | None]:
    """Return the repository and the revision of an address.

    Args:
        address: `hf://USER/NAME`, or `hf://USER/NAME@REVISION`.

    Returns:
        The repository `USER/NAME`, and the revision: a branch, tag or commit, or `None`.

    Raises:
        ValueError: The address has another form.

    Example:

    >>> parse_hub_address("hf://user/en-de@v1")
    ('user/en-de', 'v1')
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise argument_error(
            "artifact", "be a folder, hf://USER/NAME or hf://USER/NAME@REVISION", address
        )
    return match[1], match[2]


def download(
    repository: str,
    revision: str | None = None,
    on_download: Callable[[int, int], object] | None = None,
) -> Path:
    """Download the files of an artifact that the cache of the Hub does not have.

    `manifest.json` is downloaded first, then the files that it lists, and no others. Their hashes
    are compared when the artifact is opened. Without a connection, or with the environment variable
    `HF_HUB_OFFLINE=1`, the cached copy is used. The variables `HF_ENDPOINT`, `HF_HUB_CACHE` and
    `HF_TOKEN` apply, as everywhere in `huggingface_hub`. In a terminal it shows a progress bar for
    each file.

    Args:
        repository: `USER/NAME`.
        revision: A branch, tag or commit; `None` for the branch "main". Only a commit can never
            change.
        on_download: Called once before files are downloaded, with their number and their bytes.

    Returns:
        The folder of the artifact in the cache. It belongs to one commit.

    Raises:
        ValueError: A name has the wrong form, there is no such repository or revision, or it
            contains no artifact.
        CorruptArtifactError: `manifest.json` is damaged, or lists a file that is missing on the
            Hub.
        UnsupportedArtifactError: The artifact has a newer format.
        ConnectionError: The Hub cannot be reached, and the cache has no copy.
        OSError: A file cannot be written.
        MissingDependencyError: The package `huggingface_hub` is not installed.

    Example:

    ```python
    translator = Translator(download("user/en-de"))
    ```
    """
    _check_names(repository, revision)
    manifest_path = _download(repository, MANIFEST_FILE, revision)
    folder = manifest_path.parent
    manifest = read_file_list(folder)
    missing = {name: file for name, file in manifest.files.items() if not (folder / name).exists()}
    if missing and on_download is not None:
        on_download(len(missing), sum(file.bytes for file in missing.values()))
    for name in missing:
        _download(repository, name, folder.name)  # the commit of the manifest
    return folder


def _check_names(repository: str, revision: str | None) -> None:
    if not isinstance(repository, str) or not _REPOSITORY.fullmatch(repository):
        raise argument_error(
            "repository", "be USER/NAME, of letters, digits, '-', '_' and '.'", repository
        )
    if revision is not None and not (isinstance(revision, str) and _REVISION.fullmatch(revision)):
        raise argument_error("revision", "be the name of a branch or tag, or a commit", revision)


def _download(repository: str, name: str, revision: str | None) -> Path:
    """Return the path of a file in the cache after downloading it if necessary."""
    # The import takes 0.3 seconds, so programs that do not use the Hub do without it.
    hub = require("huggingface_hub", extra="runtime")
    cache = require("huggingface_hub.constants", extra="runtime").HF_HUB_CACHE
    with _plain_errors(repository, name, revision, cache), add_path_to_errors(cache):
        path = hub.hf_hub_download(
            repository,
            name,
            revision=revision,
            library_name="keras-bahdanau",
            library_version=__version__,
        )
    return Path(path)


@contextlib.contextmanager
def _plain_errors(repository: str, name: str, revision: str | None, cache: str) -> Iterator[None]:
    """Raise the errors of `download` instead of those of `huggingface_hub`."""
    constants: Any = require("huggingface_hub.constants", extra="runtime")
    errors: Any = require("huggingface_hub.errors", extra="runtime")
    endpoint = constants.ENDPOINT
    address = f"{_SCHEME}{repository}" + (f"@{revision}" if revision else "")
    expected = f"Argument `repository` must be a repository with an artifact at {endpoint}. "
    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ConnectionError(
            f"{address}: {endpoint} cannot be reached, and the cache {cache} has no copy of "
            f"{name}. {reason}"
        ) from error
    except errors.GatedRepoError as error:
        raise ValueError(
            f"{expected}Received: {repository!r}, which is for people with its owner's permission. "
            "Request it on the web page of the repository, and log in with `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"{expected}Received: {repository!r}, which does not exist, or is private. "
            "`hf auth login` gives access to private ones."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise argument_error(
            "revision",
            f"be a branch, tag or commit of {repository}",
            received=f"{revision!r}, which does not exist",
        ) from error
    except errors.EntryNotFoundError as error:
        if name == MANIFEST_FILE:
            raise ValueError(
                f"{expected}Received: {address}, which is no artifact: it has no {MANIFEST_FILE}"
            ) from error
        raise CorruptArtifactError(
            f"{address}: {name} is listed in {MANIFEST_FILE}, but there is no such file."
        ) from error
    except errors.HTTPError as error:  # also the connection errors of the HTTP client
        reason = str(error).partition("\n")[0]
        raise ConnectionError(f"{address}: {name} cannot be downloaded. {reason}") from error
