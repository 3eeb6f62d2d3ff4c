"""Models of a service, which can be loaded, replaced and unloaded while it serves requests.

An artifact served as NAME has two models: the text model NAME, and the graph model `NAME-graph`
with the tensors of `model.onnx`. An artifact without a tokenizer or without a search has only the
graph model.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArtifactError, argument_error
from keras_bahdanau_runtime.manifest import Manifest, is_run, read_unreplaced
from keras_bahdanau_runtime.service.engine import Engine
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.graph_model import GraphModel
from keras_bahdanau_runtime.service.models import Model, TextModel
from keras_bahdanau_runtime.session import CPU, available_cores, open_graph
from keras_bahdanau_runtime.signature import MANIFEST_FILE, MODEL_FILE, STEP_FILE
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_runtime")

_Result = TypeVar("_Result")

_GRAPH_SUFFIX = "-graph"
# More threads gain nothing for a single batch, whose operators are small, and they spin.
_MAX_MODEL_THREADS = 4
_DIGEST_LETTERS = 12  # of a hash that names an artifact in the metrics
_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


class Repository:
    """Models by name and version.

    While a model is replaced, requests that have started finish on the old one, which is released
    after the last of them.

    Args:
        sources: Folders by name. Each is an artifact, or has artifacts as subfolders whose names
            are version numbers. Requests without a version get the highest one.
        engine: `Engine` that runs the models.
        megabytes: As for `Translator`.
        model_threads: int, threads of a model, shared by the batches that run at once; `None` for
            the number of cores, at most four.

    Attributes:
        is_shared: bool. Whether other processes of this service have the same models.
        is_terminating: bool. Whether the service is about to stop. It is not ready then, even while
            it still accepts requests.

    Raises:
        ValueError: A name is not valid in a URL, or two models would have the same name.
    """

    def __init__(
        self,
        sources: Mapping[str, Path],
        engine: Engine,
        megabytes: float | None = None,
        model_threads: int | None = None,
    ) -> None:
        self.sources, self.engine, self._megabytes = dict(sources), engine, megabytes
        if model_threads is None:
            model_threads = min(_MAX_MODEL_THREADS, available_cores())
        check_positive(model_threads=model_threads)
        self._threads = model_threads
        for name in sources:
            if not _NAME.fullmatch(name):
                raise argument_error(
                    "sources", "have names of letters, digits, '.', '_' and '-'", name
                )
        duplicates = {name + _GRAPH_SUFFIX for name in sources} & set(sources)
        if duplicates:
            raise argument_error(
                "sources",
                f"not have the names {sorted(duplicates)}, which are those of graph models",
                received=str(sorted(sources)),
            )
        self.is_shared = self.is_terminating = False
        self._models: dict[str, list[Model]] = {}  # by source, the lowest version first
        self._unloaded: set[str] = set()  # sources that a client has unloaded
        self._reasons: dict[str, str] = {}  # why a source is missing or outdated
        self._file_states: dict[str, Any] = {}  # of each source when it was loaded
        self._loading = {name: asyncio.Lock() for name in sources}
        self._tasks: set[asyncio.Task[None]] = set()
        # Not the event loop's own pool: Python would wait for its threads at exit.
        self._pool = ThreadPoolExecutor(thread_name_prefix="keras_bahdanau opening")
        self._opening: set[object] = set()

    @property
    def is_opening(self) -> bool:
        """Whether a thread opens an artifact, including one whose result will be discarded."""
        return bool(self._opening)

    @property
    def is_complete(self) -> bool:
        """Whether every source is loaded."""
        return set(self._models) == set(self.sources)

    @property
    def is_ready(self) -> bool:
        """Whether every source is loaded, except those that a client has unloaded."""
        return not self.is_terminating and {*self._models, *self._unloaded} == set(self.sources)

    def names(self) -> list[tuple[str, list[str]]]:
        """Return the names of the models with their versions."""
        versions: dict[str, list[str]] = {}
        for models in self._models.values():
            for model in models:
                versions.setdefault(model.name, []).append(model.version)
        return sorted(versions.items())

    def has(self, name: str) -> bool:
        """Whether a model of this name is loaded."""
        return any(model.name == name for models in self._models.values() for model in models)

    def may_have(self, name: str) -> bool:
        """Whether a model of this name is loaded or could be loaded."""
        return name in self.sources or self.has(name)

    def get(self, name: str, version: str = "") -> Model:
        """Return a model, by default its highest version.

        Raises:
            ServiceError: "not_found", or "unavailable" for a model that is not loaded.
        """
        source = self._source(name)
        models = self._models.get(source)
        if models is None:
            reason = self._reasons.get(source, "it is being loaded")
            raise ServiceError(
                "unavailable", f"The model {name!r:.200} is not available: {reason}", "model", 1
            )
        candidates = {model.version: model for model in models if model.name == name}
        chosen = version or max(candidates, key=int, default="")
        if chosen in candidates:
            return candidates[chosen]
        available = ", ".join(f"{model.name} {model.version}" for model in models)
        raise ServiceError(
            "not_found",
            f"There is no model {name!r:.200}{f' of version {version!r:.80}' if version else ''}. "
            f"There are: {available}.",
            "version" if version else "model",
        )

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return the statistics of a model, or without a name those of every model and version.

        Raises:
            ServiceError: As `get`.
        """
        keys = [(name, version)]
        if not name:
            keys = [(model, each) for model, versions in self.names() for each in versions]
        return [self.get(*key).statistics() for key in keys]

    def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """Return name, version and state of every model (Triton's model repository extension)."""
        entries = []
        for source in sorted(self.sources):
            reason = self._reasons.get(source, "")
            models = self._models.get(source, [])
            entries += [(model.name, model.version, "READY", reason) for model in models]
            if source not in self._models and not only_ready:
                entries.append((source, "", "UNAVAILABLE" if reason else "LOADING", reason))
        keys = ("name", "version", "state", "reason")
        return [dict(zip(keys, entry, strict=True)) for entry in entries]

    def check_single_process(self) -> None:
        """Refuse a call that would reach only one of several processes.

        Raises:
            ServiceError: "conflict".
        """
        if self.is_shared:
            raise ServiceError(
                "conflict",
                "The service has several processes, and the call would reach one of them. Replace "
                "the folder, and send SIGHUP to the first process, or start it with --watch.",
            )

    async def load(self, name: str) -> None:
        """Load or reload a model. If that fails, the loaded one stays.

        Loading continues if the caller is cancelled.

        Raises:
            ServiceError: "not_found", or "unprocessable" for an invalid artifact.
            Exception: Any other error, such as `MemoryError`.
        """
        await asyncio.shield(self._start_task(self._load(self._source(name))))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Return a task that is referenced until it ends."""

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # asyncio would log one that is not retrieved

        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(end)
        return task

    async def _in_thread(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        marker = object()

        def run() -> _Result:
            try:
                return function(*arguments)
            finally:
                self._opening.discard(marker)

        self._opening.add(marker)
        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    async def _load(self, source: str) -> None:
        async with self._loading[source]:
            self._unloaded.discard(source)
            self._file_states[source] = _file_state(self.sources[source])
            try:
                models = await self._in_thread(self._open, source)
            except Exception as error:
                reason = self._reasons[source] = str(error) or type(error).__name__
                state = "the old one stays" if source in self._models else "it is not served"
                logger.error("The model %s could not be loaded, %s: %s", source, state, reason)
                if isinstance(error, (ArtifactError, ValueError, OSError)):
                    raise ServiceError("unprocessable", reason, "model") from error
                # Not the fault of the artifact, so `watch` tries again: memory may be free later.
                self._file_states[source] = None
                raise
            self._replace_models(source, models)
            self._reasons.pop(source, None)
            versions = list(dict.fromkeys(model.version for model in models))
            logger.info("The model %s is ready: versions %s.", source, versions)

    def _replace_models(self, source: str, models: list[Model] | None) -> None:
        """Serve other models of a source, or none."""
        information = self.engine.metrics.models
        for model in self._models.pop(source, []):
            information.labels(model.name, model.version, model.artifact).set(0)
        for model in models or []:
            information.labels(model.name, model.version, model.artifact).set(1)
        if models is not None:
            self._models[source] = models

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def unload(self, name: str) -> None:
        """Unload a model. Requests that have started finish.

        Raises:
            ServiceError: "not_found".
        """
        source = self._source(name)
        async with self._loading[source]:
            self._replace_models(source, None)
            self._unloaded.add(source)
            self._reasons[source] = "it was unloaded"

    async def watch(self, seconds: float) -> None:
        """Check the folders periodically, and reload those whose files have changed."""
        while True:
            await asyncio.sleep(seconds)
            for source in self.sources:
                if source in self._unloaded:
                    continue
                if _file_state(self.sources[source]) != self._file_states[source]:
                    with contextlib.suppress(Exception):  # it is logged, and in the index
                        await self.load(source)

    def _source(self, name: str) -> str:
        """Return the source of a text model or a graph model."""
        source = name if name in self.sources else name.removesuffix(_GRAPH_SUFFIX)
        if source not in self.sources:
            raise ServiceError("not_found", f"There is no model {name!r:.200}.", "model")
        return source

    def _open(self, source: str) -> list[Model]:
        """Return the models of a source, the lowest version first; called in a thread."""
        path = self.sources[source]
        folders = {"1": path}
        if path.is_dir() and not (path / MANIFEST_FILE).exists() and not is_run(path):
            folders = {
                child.name: child
                for child in path.iterdir()
                if child.name.isascii() and child.name.isdigit() and child.is_dir()
            }
        if not folders:
            raise argument_error(
                "sources",
                "be artifacts, or folders with artifacts whose names are version numbers",
                received=str(path),
            )
        models = [
            model
            for version in sorted(folders, key=int)
            for model in self._open_artifact(source, version, folders[version])
        ]
        for model in models:
            model.versions = [other.version for other in models if other.name == model.name]
        return models

    def _open_artifact(self, name: str, version: str, folder: Path) -> list[Model]:
        timeout = self.engine.limits.timeout

        def open_models(manifest: Manifest) -> list[Model]:
            models = open_graphs(manifest)
            digest = hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()
            for model in models:
                model.artifact = digest[:_DIGEST_LETTERS]
            return models

        def open_graphs(manifest: Manifest) -> list[Model]:
            if manifest.has_search():
                translator = Translator(folder, CPU, self._threads, timeout, self._megabytes)
                session, search = translator.session, manifest.search
                graph = GraphModel(name + _GRAPH_SUFFIX, version, self.engine, session, search)
                if translator.tokenizer is None:
                    return [graph]
                translator.translate(["a"])  # the first run is slower than later ones
                if STEP_FILE in manifest.files:
                    translator.open_stepper()
                return [TextModel(name, version, self.engine, translator), graph]
            for other in manifest.files:
                if other != MODEL_FILE:
                    manifest.check(other)
            session = open_graph(manifest, MODEL_FILE, CPU, self._threads, self._megabytes)
            return [GraphModel(name + _GRAPH_SUFFIX, version, self.engine, session)]

        return read_unreplaced(folder, open_models)


def _file_state(path: Path) -> Any:
    """Return a value that changes when a file of an artifact or of its versions is replaced.

    It includes every file, as files may be written after the manifest. The time of the last change
    of the inode detects a new file whose modification time was set back.
    """
    try:
        files = sorted([*path.glob("*"), *path.glob("[0-9]*/*")])
        states = [(str(file), file.stat()) for file in files if file.is_file()]
    except OSError:
        return None
    return [
        (name, state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
        for name, state in states
    ]
