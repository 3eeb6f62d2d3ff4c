"""Write a static web site that runs artifacts in the browser, with onnxruntime-web.

site/
  index.html           the page, with the list of models
  offline.js           service worker: the site works offline after the first translation
  files/               scripts, onnxruntime, models and tokenizers, named by their hashes

A file never changes under its name, so browsers and proxies may keep it for any time.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.calibration import load_calibration
from keras_bahdanau_runtime.checks import check_positive, check_text
from keras_bahdanau_runtime.errors import UnsupportedArtifactError, argument_error
from keras_bahdanau_runtime.files import atomic_folder
from keras_bahdanau_runtime.manifest import Manifest, read_unreplaced
from keras_bahdanau_runtime.operators import remove_defaults
from keras_bahdanau_runtime.pictures.page import PAGE_SETTINGS, translator_page
from keras_bahdanau_runtime.session import read_graph
from keras_bahdanau_runtime.signature import (
    MODEL_FILE,
    OPTIONS,
    TOKENIZER_FILE,
)
from keras_bahdanau_runtime.translation import load_tokenizer

RUNTIME_PACKAGE = "onnxruntime-web"
RUNTIME_VERSION = "1.30.0"
# SHA-256 of the files of the package's folder `dist` that run graphs on one thread.
_SCRIPT = "ort.wasm.bundle.min.mjs"
_WASM = "ort-wasm-simd-threaded.wasm"
_RUNTIME_HASHES = {
    _SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    _WASM: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
_FOLDER = Path(__file__).parent
_INDEX, _OFFLINE, _FILES = "index.html", "offline.js", "files"
_PREFIX = ("prefix", "completions")
# The page loads nothing of other hosts, and runs no script but its own.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self' {hashes}; "
    "worker-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
)
_INLINE_SCRIPT = re.compile("<script>(.*?)</script>", re.S)


@dataclass(frozen=True)
class _Model:
    """A checked artifact: its manifest, graph and tokenizer."""

    manifest: Manifest
    graph: bytes
    tokenizer: bytes


def write_site(
    artifacts: Mapping[str, str | os.PathLike[str]],
    path: str | os.PathLike[str],
    runtime: str | os.PathLike[str],
    examples: Sequence[str] = (),
    max_characters: int = 5000,
    max_tokens: int = 1024,
    overwrite: bool = False,
) -> int:
    """Write a static web site whose page translates with artifacts, in the browser.

    Any web server can host the folder, under any path. The page requests no other host. It runs the
    search of `model.onnx` on one thread of a worker, and needs WebAssembly with SIMD.

    Args:
        artifacts: Folder of each artifact by the name that the page shows. The first one is
            selected. Each has a search that does not sample, and a tokenizer that
            `Tokenizer.train` learned, or one of SentencePiece or subword-nmt.
        path: The folder to create.
        runtime: Folder of the npm package onnxruntime-web, of version `RUNTIME_VERSION`.
        examples: Texts that the page offers to translate. It starts with the first one.
        max_characters: int, longest text in characters.
        max_tokens: int, longest text in tokens, if the artifact has no smaller limit.
        overwrite: bool. Whether a site at `path` may be replaced.

    Returns:
        int, the bytes of all files.

    Raises:
        ValueError: There is no artifact, a folder is no artifact, an artifact has no tokenizer,
            `runtime` has other files than that version, a number is not positive, or `path` exists
            and may not be replaced.
        CorruptArtifactError: An artifact is damaged.
        UnsupportedArtifactError: The browser cannot run the search or the tokenizer of an artifact.

    Example:

    ```python
    write_site({"en-de": "artifact"}, "site", "node_modules/onnxruntime-web")
    ```
    """
    check_positive(max_characters=max_characters, max_tokens=max_tokens)
    if not artifacts:
        raise argument_error("artifacts", "have an artifact", received="none")
    for example in examples:
        check_text("examples", example)
    models = {name: read_unreplaced(folder, _read_model) for name, folder in artifacts.items()}
    scripts = _read_runtime(Path(runtime))
    with atomic_folder(path, "a site", _is_site, overwrite) as folder:
        (folder / _FILES).mkdir()
        integrity = {}

        def add(contents: bytes, suffix: str) -> dict[str, Any]:
            digest = hashlib.sha256(contents).hexdigest()
            name = f"{_FILES}/{digest[:16]}{suffix}"
            (folder / name).write_bytes(contents)
            integrity[name] = _integrity(contents)
            return {"path": Path(name).name, "sha256": digest, "bytes": len(contents)}

        worker = _script("worker.js")
        for placeholder, contents in (
            ("./ort.js", scripts[_SCRIPT]),
            ("./tokenizer.js", _script("tokenizer.js").encode("utf-8")),
        ):
            worker = worker.replace(placeholder, f"./{add(contents, '.js')['path']}")
        site = {
            "worker": f"{_FILES}/{add(worker.encode('utf-8'), '.js')['path']}",
            "wasm": add(scripts[_WASM], ".wasm"),
            "examples": list(examples),
            "models": [
                {**_describe(name, model, max_characters, max_tokens), "files": _add(model, add)}
                for name, model in models.items()
            ],
        }
        page = _page(site).encode("utf-8")
        (folder / _INDEX).write_bytes(page)
        offline = _script(_OFFLINE).replace("{/* files */}", json.dumps(integrity))
        version = hashlib.sha256(page).hexdigest()[:16]
        (folder / _OFFLINE).write_text(offline.replace("/* version */", version), "utf-8")
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _add(model: _Model, add: Callable[[bytes, str], dict[str, Any]]) -> dict[str, Any]:
    return {"model": add(model.graph, ".onnx"), "tokenizer": add(model.tokenizer, ".json")}


def _read_runtime(folder: Path) -> dict[str, bytes]:
    """Return the scripts of onnxruntime-web after comparing their hashes."""
    expected = (
        f"Argument `runtime` must be the folder of {RUNTIME_PACKAGE} {RUNTIME_VERSION}. Install it "
        f"with: npm install {RUNTIME_PACKAGE}@{RUNTIME_VERSION}. Received: {str(folder)!r}"
    )
    scripts = {}
    for name, digest in _RUNTIME_HASHES.items():
        file = folder / "dist" / name
        if not file.is_file():
            raise ValueError(f"{expected}, which has no file dist/{name}")
        contents = file.read_bytes()
        received = hashlib.sha256(contents).hexdigest()
        if received != digest:
            raise ValueError(f"{expected}, whose dist/{name} has sha256 {received}")
        scripts[name] = contents
    return scripts


def _read_model(manifest: Manifest) -> _Model:
    """Check that the browser can run an artifact, and read its files."""
    folder = manifest.folder
    if not manifest.has_search():
        raise UnsupportedArtifactError(
            f"{folder}: {MODEL_FILE} contains no search, only the forward pass of a model. "
            "A site needs an artifact of a Seq2Seq."
        )
    if manifest.is_sampling():
        raise UnsupportedArtifactError(
            f"{folder}: the search samples, which a site cannot do. Export a beam search."
        )
    if TOKENIZER_FILE not in manifest.files:
        raise argument_error(
            "artifacts",
            "have artifacts with a tokenizer",
            received=f"{folder}, which was exported without one",
        )
    if not load_tokenizer(manifest).runs_in_browser:
        raise UnsupportedArtifactError(
            f"{folder}: a site cannot run the tokenizer. It needs one that was learned by this "
            "package, or a SentencePiece model, or an imported model with the files of its "
            "tokenizers."
        )
    graph, weights = read_graph(manifest, MODEL_FILE)
    if weights:
        raise UnsupportedArtifactError(
            f"{folder}: {MODEL_FILE} has weights in files of their own, because it is too large "
            "for a browser."
        )
    inputs = [*_settings(manifest), *(_PREFIX if _has_prefix(manifest) else ())]
    graph = remove_defaults(graph, inputs)
    return _Model(manifest, graph, manifest.read(TOKENIZER_FILE))


def _settings(manifest: Manifest) -> dict[str, Any]:
    """Return the settings of the export by name, of the options that the page can set."""
    search = replace(manifest.search, beam_size=manifest.search.num_hypotheses)
    settings = {name: getattr(search, name) for name in PAGE_SETTINGS if name in manifest.options}
    return {name: value for name, value in settings.items() if value is not None}


def _has_prefix(manifest: Manifest) -> bool:
    return set(_PREFIX) <= set(manifest.options)


def _describe(name: str, model: _Model, max_characters: int, max_tokens: int) -> dict[str, Any]:
    """Return a model as the page needs it, like `GET /models` of the service."""
    manifest, settings = model.manifest, _settings(model.manifest)
    return {
        "name": name,
        "streams": False,
        "max_characters": max_characters,
        "max_tokens": min(max_tokens, manifest.max_source_length or max_tokens),
        "n_best": manifest.search.num_returned,
        "max_beam_size": manifest.search.num_hypotheses,
        "max_length": manifest.search.max_steps,
        "max_length_ratio": manifest.search.max_length_ratio,
        "options": {**settings, **({"prefix": None} if _has_prefix(manifest) else {})},
        "dtypes": {name: OPTIONS[name].dtype for name in settings},
        "calibration": _calibration(manifest),
    }


def _calibration(manifest: Manifest) -> dict[str, Any] | None:
    """Return the models of the confidence, or `None` if they do not hold for the search."""
    calibration = load_calibration(manifest)
    if calibration is None or calibration.mismatch(manifest.search.document) is not None:
        return None
    document = calibration.to_json()
    return {name: document[name] for name in ("confidence", "expected_errors", "tokens")}


def _page(site: Mapping[str, Any]) -> str:
    """Return the page of a site, with a policy that allows only its own scripts."""
    # A "<" in a name must not end the script element.
    text = json.dumps(site, ensure_ascii=False).replace("<", "\\u003c")
    page = translator_page(_script("client.js").replace("/* site */ null", text))
    scripts = _INLINE_SCRIPT.findall(page)
    hashes = " ".join(f"'{_integrity(script.encode('utf-8'))}'" for script in scripts)
    policy = _POLICY.format(hashes=hashes)
    element = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{element}', 1)


def _integrity(contents: bytes) -> str:
    """Return the hash of a file as browsers write it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(contents).digest()).decode('ascii')}"


def _script(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _is_site(folder: Path) -> bool:
    offline = folder / _OFFLINE
    return offline.is_file() and b"keras-bahdanau" in offline.read_bytes()
