"""Translate a folder of files with the machines of a Ray cluster.

    translate_folder(Path("artifact"), Path("source"), Path("target"), actors=8)

Ray Data passes whole files to a pool of actors. An output is renamed when it is complete, and a
file with an output is not translated again; the record of the output must say that it was made from
this file (see `translate_file`). So no state outside of the output folder decides about
completeness: if workers, machines or the driver fail, the other actors or the same call continue.
All machines must see the folders and the artifact under the same paths.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.batch_sizes import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.bulk.file import (
    Journal,
    Position,
    Progress,
    fingerprint,
    record_path,
    translate_file,
)
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArtifactError, RunError, argument_error, require
from keras_bahdanau_runtime.files import claim_folder, fsync
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.search_options import SearchOptions
from keras_bahdanau_runtime.translator import Translator

_JOURNAL = ".journal"
_PARTIAL = ".partial"


def translate_folder(
    artifact: Path,
    source: Path,
    output: Path,
    actors: int | None = None,
    parallel_batches: int = 1,
    timeout: float | None = None,
    megabytes: float | None = None,
    text_column: str | Sequence[str] | None = None,
    output_column: str | None = None,
    batch_size: int = BATCH_SIZE,
    batch_tokens: int = BATCH_TOKENS,
    truncate: bool = False,
    progress: Progress | None = None,
    **search_options: Any,
) -> dict[str, str]:
    """Translate every file of a folder that has no output yet.

    If Ray is not connected yet, this connects like `ray.init()`: to the cluster of RAY_ADDRESS or
    of this machine, or to a new cluster of this machine alone.

    Args:
        artifact: Folder of the artifact.
        source: Folder of files, as for `translate_file`; hidden files are ignored.
        output: Folder of the outputs, which have the same names. It is created if missing.
        actors: int, files that are translated at once; `None` for as many as the processors of the
            cluster allow.
        parallel_batches: As for `Translator`; an actor uses as many processors.
        timeout: As for `Translator`.
        megabytes: As for `Translator`.
        text_column: As for `translate_file`.
        output_column: As for `translate_file`.
        batch_size: As for `Translator.translate`.
        batch_tokens: As for `Translator.translate`.
        truncate: As for `Translator.translate`.
        progress: Called with the number of finished files and of all files.
        **search_options: The fields of `SearchOptions`, `suppressed` and `disable_unknown`, as for
            `Translator.translate`.

    Returns:
        dict, error messages by file name: for example, a damaged file has no output, a file with
        failed rows has an output without their translations, and an output was made from an earlier
        version of its file.

    Raises:
        ValueError: `source` has no files or is the output, or `output` was started with another
            artifact or other settings, another call writes to it, or an option is out of its range.
        RunError: Ray failed. Finished files are kept, and the same call continues.
        MissingDependencyError: Ray is not installed.
    """
    check_positive(parallel_batches=parallel_batches)
    ray = require("ray", extra="ray")
    require("ray.data", extra="ray")
    source, output, artifact = source.resolve(), output.resolve(), artifact.resolve()
    names = sorted(path.name for path in source.iterdir() if _is_source_file(path))
    if not names:
        raise argument_error("source", "be a folder of files", received=str(source))
    if source == output:
        raise argument_error("output", "be another folder", received=str(output))
    if not isinstance(text_column, str | None):
        text_column = list(text_column)  # as in a journal
    options = {
        "text_column": text_column,
        "output_column": output_column,
        "batch_size": batch_size,
        "batch_tokens": batch_tokens,
        "truncate": truncate,
        **search_options,
    }
    manifest = read_manifest(artifact)
    numbers = search_options.keys() - {"suppressed", "disable_unknown"}  # actors check these two
    SearchOptions.from_values({name: search_options[name] for name in numbers}).check(manifest)
    artifact_hash = fingerprint(manifest)
    limits = {
        "parallel_batches": parallel_batches,
        "timeout": timeout,
        "megabytes": megabytes,
    }
    with claim_folder(output, "translates into"):
        journal = Journal(output / _JOURNAL, {"artifact": artifact_hash, **options})
        if journal.read() is None:
            journal.write(Position())
        _remove_stale_folders(output)
        arguments = (artifact, artifact_hash, source, output, limits, options)
        try:
            return _run(ray, arguments, names, actors, progress or (lambda done, total: None))
        except ray.exceptions.RayError as error:
            raise RunError(f"Ray failed. Run the same call to continue: {error}") from error
        finally:
            _remove_stale_folders(output)


def _run(
    ray: Any, arguments: tuple[Any, ...], names: list[str], actors: int | None, progress: Progress
) -> dict[str, str]:
    """Let actors translate files, or check their outputs; return error messages by file name."""
    limits = arguments[4]
    done, errors = 0, dict[str, str]()
    progress(done, len(names))
    if not ray.is_initialized():
        ray.init(logging_level="warning", log_to_driver=False)
    processors = limits["parallel_batches"]
    if actors is None:
        actors = max(1, int(ray.cluster_resources().get("CPU", 1)) // processors)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    files = ray.data.from_items(
        [{"name": name} for name in names],
        override_num_blocks=len(names),  # an actor takes one block, so each file is a block
    ).map(
        _FileTranslator,
        fn_constructor_args=arguments,
        num_cpus=processors,
        # A file must not wait behind another one while other actors are idle.
        compute=ray.data.ActorPoolStrategy(
            size=min(actors, len(names)), max_tasks_in_flight_per_actor=1
        ),
    )
    for row in files.iter_rows():
        done += 1
        if row["reason"]:
            errors[row["name"]] = row["reason"]
        progress(done, len(names))
    return errors


class _FileTranslator:
    """Actor that translates files; the arguments are those of `translate_folder`.

    Args:
        artifact: `Path`.
        artifact_hash: Fingerprint that the artifact must have on the actor's machine.
        source: `Path`.
        output: `Path`.
        limits: Arguments of `Translator`.
        options: Arguments of `translate_file`.
    """

    def __init__(
        self,
        artifact: Path,
        artifact_hash: str,
        source: Path,
        output: Path,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        # One thread for each of its processors. Otherwise each onnxruntime uses all cores of the
        # machine, and the busily waiting threads of its actors slow each other down.
        self._translator = Translator(artifact, threads=1, **limits)
        received = fingerprint(self._translator.manifest)
        if received != artifact_hash:
            raise ValueError(
                f"{artifact}: expected the artifact {artifact_hash}. Received: {received}"
            )
        self._source, self._output, self._options = source, output, options

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Translate the file `row["name"]`; return the name and an error message, or ""."""
        name, reason = row["name"], ""
        try:
            failed = self._translate(name)
            reason = f"{failed} rows could not be translated" if failed else ""
        except (ArtifactError, ValueError, OSError) as error:
            reason = str(error)
        return {"name": name, "reason": reason}

    def _translate(self, name: str) -> int:
        source, output = self._source / name, self._output / name
        if output.exists():  # of an earlier call, or of an actor whose result was lost
            return translate_file(self._translator, source, output, resume=True, **self._options)
        # In a new folder, because another machine may translate the same file.
        with tempfile.TemporaryDirectory(_PARTIAL, f".{name}.", self._output) as folder:
            temporary = Path(folder) / name
            failed = translate_file(self._translator, source, temporary, **self._options)
            # First: a record without an output is ignored.
            os.replace(record_path(temporary), record_path(output))
            os.replace(temporary, output)
        fsync(self._output)
        return failed


def _is_source_file(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def _remove_stale_folders(output: Path) -> None:
    """Remove the folders of killed actors; an actor that still runs fails, and nobody waits."""
    for stale in output.glob(f".*{_PARTIAL}"):
        shutil.rmtree(stale, ignore_errors=True)
