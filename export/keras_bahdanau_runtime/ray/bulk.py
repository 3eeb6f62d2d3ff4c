"""A folder of files in, the same files translated out, by as many machines as Ray has.

    translate_folder(Path("artifact"), Path("source"), Path("target"), actors=8)

Ray Data hands each file, whole, to one of a pool of actors. Order and completeness rest on file
names alone: an output is renamed when it is whole, and a file whose output is there is not
translated again. Whatever of workers, machines and the driver is lost, the rest goes on, or the
same call does. The folders and the artifact stand where every machine sees them.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.bulk.file import Journal, Place, Progress, fingerprint, translate_file
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArtifactError, RunError, require
from keras_bahdanau_runtime.files import claimed, flush
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.translator import Translator

_JOURNAL = ".journal"
_PARTIAL = ".partial"


def translate_folder(
    artifact: Path,
    source: Path,
    output: Path,
    actors: int | None = None,
    workers: int = 1,
    timeout: float | None = None,
    megabytes: float | None = None,
    text_column: str | None = None,
    output_column: str | None = None,
    batch_size: int = BATCH_SIZE,
    batch_tokens: int = BATCH_TOKENS,
    truncate: bool = False,
    progress: Progress | None = None,
) -> dict[str, str]:
    """Translates every file of a folder that has no output yet.

    Ray is connected to as `ray.init()` does, if it is not yet: to the cluster that RAY_ADDRESS or
    this machine has, or to a new one of this machine alone.

    Args:
        artifact: Folder of the artifact.
        source: Folder of files, as `translate_file` takes them; hidden ones are left out.
        output: Folder of the outputs, of the same names; made if it is not there.
        actors: int, files at once; `None` for as many as the processors of the cluster allow.
        workers: As for `Translator`; an actor takes as many processors.
        timeout: As for `Translator`.
        megabytes: As for `Translator`.
        text_column: As for `translate_file`.
        output_column: As for `translate_file`.
        batch_size: As for `Translator.translate`.
        batch_tokens: As for `Translator.translate`.
        truncate: As for `Translator.translate`.
        progress: Called with the files that are there and the files that there will be.

    Returns:
        dict, what went wrong by file name: a file without an output that is damaged, for example,
        or one with an output that misses some translations.

    Raises:
        ValueError: `source` holds no files or is the output, or `output` was begun with another
            artifact or other settings, or is written to by another call.
        RunError: Ray has failed; what is done is kept, and the same call goes on.
        MissingDependencyError: Ray is not installed.
    """
    check_positive(workers=workers)
    ray = require("ray", extra="ray")
    require("ray.data", extra="ray")
    source, output, artifact = source.resolve(), output.resolve(), artifact.resolve()
    names = sorted(path.name for path in source.iterdir() if _is_shard(path))
    if not names:
        raise ValueError(f"Argument `source` must be a folder of files. Received: {source}")
    if source == output:
        raise ValueError(f"Argument `output` must be another folder. Received: {output}")
    options = {
        "text_column": text_column,
        "output_column": output_column,
        "batch_size": batch_size,
        "batch_tokens": batch_tokens,
        "truncate": truncate,
    }
    known = fingerprint(read_manifest(artifact))
    limits = {"workers": workers, "timeout": timeout, "megabytes": megabytes}
    with claimed(output, "translates into"):
        journal = Journal(output / _JOURNAL, {"artifact": known, **options})
        if journal.read() is None:
            journal.write(Place())
        _remove_leftovers(output)
        given = (artifact, known, source, output, limits, options)
        try:
            return _run(ray, given, names, actors, progress or (lambda done, total: None))
        except ray.exceptions.RayError as error:
            raise RunError(f"Ray has failed; the same call goes on: {error}") from error
        finally:
            _remove_leftovers(output)


def _run(
    ray: Any, given: tuple[Any, ...], names: list[str], actors: int | None, progress: Progress
) -> dict[str, str]:
    """Has the actors translate what is not there; returns what went wrong by file name."""
    _, _, _, output, limits, _ = given
    todo = [name for name in names if not (output / name).exists()]
    done, failed = len(names) - len(todo), dict[str, str]()
    progress(done, len(names))
    if not todo:
        return failed
    if not ray.is_initialized():
        ray.init(logging_level="warning", log_to_driver=False)
    workers = limits["workers"]
    if actors is None:
        actors = max(1, int(ray.cluster_resources().get("CPU", 1)) // workers)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    files = ray.data.from_items(
        [{"name": name} for name in todo],
        override_num_blocks=len(todo),  # a block is what an actor takes: else there are few
    ).map(
        _Files,
        fn_constructor_args=given,
        num_cpus=workers,
        # A file that waits behind another would do so while other actors have nothing to do.
        compute=ray.data.ActorPoolStrategy(
            size=min(actors, len(todo)), max_tasks_in_flight_per_actor=1
        ),
    )
    for row in files.iter_rows():
        done += 1
        if row["reason"]:
            failed[row["name"]] = row["reason"]
        progress(done, len(names))
    return failed


class _Files:
    """An actor that translates files; the arguments are those of `translate_folder`.

    Args:
        artifact: `Path`.
        known: The fingerprint that the artifact must have, on whatever machine this is.
        source: `Path`.
        output: `Path`.
        limits: Of `Translator`.
        options: Of `translate_file`.
    """

    def __init__(
        self,
        artifact: Path,
        known: str,
        source: Path,
        output: Path,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        # One thread for each of its processors: by itself onnxruntime would take those of all the
        # machine, and the threads of its other actors, which wait awake, would halve each other.
        self._translator = Translator(artifact, threads=1, **limits)
        found = fingerprint(self._translator.manifest)
        if found != known:
            raise ValueError(f"{artifact}: expected the artifact {known}. Received: {found}")
        self._source, self._output, self._options = source, output, options

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Translates the file of this name; returns it with the reason why it is not whole."""
        name, reason = row["name"], ""
        output = self._output / name
        if not output.exists():  # by an actor whose answer was lost with its machine
            try:
                failed = self._translate(name)
                reason = f"{failed} rows could not be translated" if failed else ""
            except (ArtifactError, ValueError, OSError) as error:
                reason = str(error)
        return {"name": name, "reason": reason}

    def _translate(self, name: str) -> int:
        """In a folder of its own: another machine may be at the same file, and not know of it."""
        with tempfile.TemporaryDirectory(_PARTIAL, f".{name}.", self._output) as folder:
            made = Path(folder) / name
            failed = translate_file(self._translator, self._source / name, made, **self._options)
            os.replace(made, self._output / name)
        flush(self._output)
        return failed


def _is_shard(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def _remove_leftovers(output: Path) -> None:
    """Removes what actors left that were killed; one that lives on fails, and nobody waits."""
    for left in output.glob(f".*{_PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)
