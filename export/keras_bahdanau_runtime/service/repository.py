"""The models of a service: opened, replaced and taken away while others are answered.

An artifact served as NAME is the model NAME, with texts in and translations out, and the model
`NAME-graph`, which has exactly the tensors of `model.onnx`. Without a tokenizer, or with the graph
of any other Keras model, it is `NAME-graph` alone.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArtifactError
from keras_bahdanau_runtime.manifest import Manifest, read_unreplaced
from keras_bahdanau_runtime.runs.folder import is_run
from keras_bahdanau_runtime.service.engine import Engine
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.graph_model import GraphModel
from keras_bahdanau_runtime.service.models import Model
from keras_bahdanau_runtime.service.text_model import TextModel
from keras_bahdanau_runtime.session import CPU, available_cores, open_graph
from keras_bahdanau_runtime.signature import MANIFEST_FILE, MODEL_FILE, STEP_FILE
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_runtime")

_Found = TypeVar("_Found")

_GRAPH = "-graph"
_ALONE = 4  # threads: they wait awake, and the operators of a sentence are small
_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


class Repository:
    """Models by name and version.

    What is asked of a model while another takes its place is answered by the one that was there
    when the question came. The old one goes when its last answer has.

    Args:
        sources: Folders by name: each an artifact, or one whose subfolders are artifacts and have
            numbers for names, the versions. The highest is called where none is named.
        engine: `Engine` that all work goes through.
        megabytes: As for `Translator`.
        alone_threads: int, the threads of a batch of texts that is all there is to do; `None` for
            the cores, at most four. They come when a model is ready, and its weights with them
            once more; with one it is in memory once.

    Attributes:
        shared: bool. Whether other processes of this service have the same models.

    Raises:
        ValueError: A name cannot stand in an address, or two models would have one.
    """

    def __init__(
        self,
        sources: Mapping[str, Path],
        engine: Engine,
        megabytes: float | None = None,
        alone_threads: int | None = None,
    ) -> None:
        self.sources, self.engine, self._megabytes = dict(sources), engine, megabytes
        self._alone_threads = (
            min(_ALONE, available_cores()) if alone_threads is None else alone_threads
        )
        check_positive(alone_threads=self._alone_threads)
        for name in sources:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    "Argument `sources` must have names of letters, digits, '.', '_' and '-'. "
                    f"Received: {name!r}"
                )
        clash = {name + _GRAPH for name in sources} & set(sources)
        if clash:
            raise ValueError(
                f"Argument `sources` must leave the names {sorted(clash)} to graphs. "
                f"Received: {sorted(sources)}"
            )
        self.shared = False
        self._models: dict[str, list[Model]] = {}  # by source, the lowest version first
        self._unloaded: set[str] = set()  # sources, because somebody asked for it
        self._reasons: dict[str, str] = {}  # why a source is not there, or not the latest
        self._seen: dict[str, Any] = {}  # what `watch` saw of each
        self._loading = {name: asyncio.Lock() for name in sources}
        self._tasks: set[asyncio.Task[None]] = set()
        # Python waits for the threads of the event loop's own pool, however long one takes.
        self._pool = ThreadPoolExecutor(thread_name_prefix="keras_bahdanau opening")
        self._opening: set[object] = set()

    @property
    def draining(self) -> bool:
        """Whether the service is about to stop."""
        return self.engine.draining

    @property
    def opening(self) -> bool:
        """Whether a thread is opening something, be it one that nobody waits for any longer."""
        return bool(self._opening)

    @property
    def whole(self) -> bool:
        """Whether every model is there to be called."""
        return set(self._models) == set(self.sources)

    @property
    def ready(self) -> bool:
        """Whether every model is there to be called, but for those that were unloaded."""
        return not self.draining and {*self._models, *self._unloaded} == set(self.sources)

    def names(self) -> list[tuple[str, list[str]]]:
        """The models, with their versions."""
        found: dict[str, list[str]] = {}
        for models in self._models.values():
            for model in models:
                found.setdefault(model.name, []).append(model.version)
        return sorted(found.items())

    def has(self, name: str) -> bool:
        """Whether there is a model of this name."""
        return any(model.name == name for models in self._models.values() for model in models)

    def knows(self, name: str) -> bool:
        """Whether there is a model of this name, or may be one again."""
        return name in self.sources or self.has(name)

    def get(self, name: str, version: str = "") -> Model:
        """The model of a name, its highest version where none is named.

        Raises:
            ServiceError: "not_found", or "unavailable" for one that is not loaded.
        """
        source = self._source(name)
        models = self._models.get(source)
        if models is None:
            reason = self._reasons.get(source, "it is being loaded")
            raise ServiceError(
                "unavailable", f"The model {name!r:.200} is not there: {reason}", "model", 1
            )
        found = {model.version: model for model in models if model.name == name}
        chosen = version or max(found, key=int, default="")
        if chosen in found:
            return found[chosen]
        there = ", ".join(f"{model.name} {model.version}" for model in models)
        raise ServiceError(
            "not_found",
            f"There is no model {name!r:.200}{f' of version {version!r:.80}' if version else ''}. "
            f"There are: {there}.",
            "version" if version else "model",
        )

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """What was counted of a model; of each version of every one where none is named.

        Raises:
            ServiceError: As `get`.
        """
        asked = [(name, version)]
        if not name:
            asked = [(model, each) for model, versions in self.names() for each in versions]
        return [self.get(*one).statistics() for one in asked]

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Every model, or every ready one, with its state, as Triton's extension has it."""
        found = []
        for source in sorted(self.sources):
            reason = self._reasons.get(source, "")
            models = self._models.get(source, [])
            found += [(model.name, model.version, "READY", reason) for model in models]
            if source not in self._models:
                found.append((source, "", "UNAVAILABLE" if reason else "LOADING", reason))
        names = ("name", "version", "state", "reason")
        return [
            dict(zip(names, one, strict=True)) for one in found if one[2] == "READY" or not ready
        ]

    def check_alone(self) -> None:
        """Raises a `ServiceError`, "conflict", where a call would reach one process of several."""
        if self.shared:
            raise ServiceError(
                "conflict",
                "Several processes serve, and this call would reach one of them. Replace the "
                "folder, and send SIGHUP to the first process, or start it with --watch.",
            )

    async def load(self, name: str) -> None:
        """Opens a model, or opens it anew; one that cannot be opened leaves the old one.

        It goes on where the caller is cancelled.

        Raises:
            ServiceError: "not_found", or "unprocessable" for an artifact that cannot be served.
            Exception: What else it failed with, such as a want of memory.
        """
        await asyncio.shield(self._begin(self._load(self._source(name))))

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that is kept until its end."""

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # seen, though who asked has left

        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(end)
        return task

    async def _in_thread(self, function: Callable[..., _Found], *arguments: Any) -> _Found:
        opening = object()

        def run() -> _Found:
            try:
                return function(*arguments)
            finally:
                self._opening.discard(opening)

        self._opening.add(opening)
        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    async def _load(self, source: str) -> None:
        async with self._loading[source]:
            self._unloaded.discard(source)
            self._seen[source] = _state(self.sources[source])
            try:
                opened = await self._in_thread(self._open, source)
            except Exception as error:
                reason = self._reasons[source] = str(error) or type(error).__name__
                kept = "the old one goes on" if source in self._models else "it is not served"
                logger.error("The model %s could not be loaded, %s: %s", source, kept, reason)
                if isinstance(error, (ArtifactError, ValueError, OSError)):
                    raise ServiceError("unprocessable", reason, "model") from error
                self._seen[source] = None  # not for the artifact's sake: memory may be free again
                raise
            self._models[source] = opened
            self._reasons.pop(source, None)
            versions = list(dict.fromkeys(model.version for model in opened))
            logger.info("The model %s is ready: versions %s.", source, versions)
            if self._alone_threads > 1:
                texts = [model for model in opened if isinstance(model, TextModel)]
                self._begin(self._in_thread(self._widen, texts))

    def _widen(self, models: list[TextModel]) -> None:
        """Gives models that answer already their threads for batches that are alone."""
        for model in models:
            try:
                model.add_threads(self._alone_threads)
            except (ArtifactError, ValueError, OSError) as error:
                said = "A batch of %s that is alone has one thread, as the others: %s"
                logger.warning(said, model.name, error)

    def close(self) -> None:
        """Lets the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def unload(self, name: str) -> None:
        """Takes a model away, to be loaded again; what it was asked before is answered.

        Raises:
            ServiceError: "not_found".
        """
        source = self._source(name)
        async with self._loading[source]:
            self._models.pop(source, None)
            self._unloaded.add(source)
            self._reasons[source] = "it was unloaded"

    async def watch(self, seconds: float) -> None:
        """Looks at the folders for ever, and loads those that were replaced."""
        while True:
            await asyncio.sleep(seconds)
            for source in self.sources:
                if source in self._unloaded:
                    continue
                if _state(self.sources[source]) != self._seen[source]:
                    with contextlib.suppress(Exception):  # it is logged, and stands in the index
                        await self.load(source)

    def _source(self, name: str) -> str:
        """The source of a model, or of its graph."""
        source = name if name in self.sources else name.removesuffix(_GRAPH)
        if source not in self.sources:
            raise ServiceError("not_found", f"There is no model {name!r:.200}.", "model")
        return source

    def _open(self, source: str) -> list[Model]:
        """The models of a source, the lowest version first; in a thread."""
        path = self.sources[source]
        folders = {"1": path}
        if path.is_dir() and not (path / MANIFEST_FILE).exists() and not is_run(path):
            folders = {
                part.name: part
                for part in path.iterdir()
                if part.name.isascii() and part.name.isdigit() and part.is_dir()
            }
        if not folders:
            raise ValueError(
                f"Argument `sources` must hold artifacts, or folders of them by number. "
                f"Received: {path}"
            )
        opened = [
            model
            for version in sorted(folders, key=int)
            for model in self._open_artifact(source, version, folders[version])
        ]
        for model in opened:
            model.versions = [other.version for other in opened if other.name == model.name]
        return opened

    def _open_artifact(self, name: str, version: str, folder: Path) -> list[Model]:
        limit = self.engine.limits.seconds

        def opened(manifest: Manifest) -> list[Model]:
            if manifest.has_search():
                translator = Translator(folder, CPU, 1, limit, self._megabytes)
                graph = GraphModel(name + _GRAPH, version, self.engine, translator.session)
                if translator.tokenizer is None:
                    return [graph]
                translator.translate(["a"])  # the first run is slower than the others
                if STEP_FILE in manifest.files:
                    translator.open_stepper()
                return [TextModel(name, version, self.engine, translator), graph]
            for other in manifest.files:
                if other != MODEL_FILE:
                    manifest.check(other)
            session = open_graph(manifest, MODEL_FILE, CPU, 1, self._megabytes)
            return [GraphModel(name + _GRAPH, version, self.engine, session)]

        return read_unreplaced(folder, opened)


def _state(path: Path) -> Any:
    """What changes when a file of an artifact, or of one of its versions, is replaced.

    Not that of the manifest alone: where a folder is written in place, others come after it. The
    time of the last change of its entry tells of a file that was given its old time back.
    """
    try:
        parts = sorted([*path.glob("*"), *path.glob("[0-9]*/*")])
        found = [(str(part), part.stat()) for part in parts if part.is_file()]
    except OSError:
        return None
    return [
        (name, state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
        for name, state in found
    ]
