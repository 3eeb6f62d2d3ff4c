"""Translate files into a folder with the machines of a Ray cluster.

    translate_folder(Path("artifact"), Path("source"), Path("target"), actors=8)

Ray Data passes whole files to a pool of actors. An output is renamed when it is complete. A file is
translated unless the record of its output says that it was made from the same rows in the same way
(see `translate_file`). So no state outside of the output folder decides about completeness: if
workers, machines or the driver fail, the other actors or the same call continue. All machines must
see the folders and the artifact under the same paths.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.batch_sizes import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.bulk.file import Progress, fingerprint, translate_file
from keras_bahdanau_runtime.bulk.folder import find_files
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArtifactError, RunError, require
from keras_bahdanau_runtime.files import claim_folder
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.search_options import SearchOptions
from keras_bahdanau_runtime.translator import Translator

_PARTIAL = ".partial"


def translate_folder(
    artifact: Path,
    sources: Path | Sequence[Path],
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
    """Translate each file that has no complete output made from the same rows in the same way.

    If Ray is not connected yet, this connects like `ray.init()`: to the cluster of RAY_ADDRESS or
    of this machine, or to a new cluster of this machine alone.

    Args:
        artifact: Folder of the artifact.
        sources: A folder, or files, folders and patterns, as for `find_files`.
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
        failed rows has an output without their translations, and an output has changed since it was
        written.

    Raises:
        ValueError: As `find_files`, or another call writes to `output`, or an option is out of its
            range.
        RunError: Ray failed. Finished files are kept, and the same call continues.
        MissingDependencyError: Ray is not installed.
    """
    check_positive(parallel_batches=parallel_batches)
    ray = require("ray", extra="ray")
    require("ray.data", extra="ray")
    output, artifact = output.resolve(), artifact.resolve()
    sources = [sources] if isinstance(sources, Path) else sources
    files = [path.absolute() for path in find_files(sources, output)]
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
        _remove_stale_folders(output)
        arguments = (artifact, artifact_hash, output, limits, options)
        try:
            return _run(ray, arguments, files, actors, progress or (lambda done, total: None))
        except ray.exceptions.RayError as error:
            raise RunError(f"Ray failed. Run the same call to continue: {error}") from error
        finally:
            _remove_stale_folders(output)


def _run(
    ray: Any, arguments: tuple[Any, ...], files: list[Path], actors: int | None, progress: Progress
) -> dict[str, str]:
    """Let actors translate files, or check their outputs; return error messages by file name."""
    limits = arguments[3]
    done, errors = 0, dict[str, str]()
    progress(done, len(files))
    if not ray.is_initialized():
        ray.init(logging_level="warning", log_to_driver=False)
    processors = limits["parallel_batches"]
    if actors is None:
        actors = max(1, int(ray.cluster_resources().get("CPU", 1)) // processors)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    rows = ray.data.from_items(
        [{"path": str(path)} for path in files],
        override_num_blocks=len(files),  # an actor takes one block, so each file is a block
    ).map(
        _FileTranslator,
        fn_constructor_args=arguments,
        num_cpus=processors,
        # A file must not wait behind another one while other actors are idle.
        compute=ray.data.ActorPoolStrategy(
            size=min(actors, len(files)), max_tasks_in_flight_per_actor=1
        ),
    )
    for row in rows.iter_rows():
        done += 1
        if row["reason"]:
            errors[row["name"]] = row["reason"]
        progress(done, len(files))
    return errors


class _FileTranslator:
    """Actor that translates files; the arguments are those of `translate_folder`.

    Args:
        artifact: `Path`.
        artifact_hash: Fingerprint that the artifact must have on the actor's machine.
        output: `Path`.
        limits: Arguments of `Translator`.
        options: Arguments of `translate_file`.
    """

    def __init__(
        self,
        artifact: Path,
        artifact_hash: str,
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
        self._output, self._options = output, options

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Translate the file `row["path"]`; return its name and an error message, or ""."""
        source, reason = Path(row["path"]), ""
        try:
            failed = self._translate(source)
            reason = f"{failed} rows could not be translated" if failed else ""
        except (ArtifactError, ValueError, OSError) as error:
            reason = str(error)
        return {"name": source.name, "reason": reason}

    def _translate(self, source: Path) -> int:
        # In a new folder, because another machine may translate the same file.
        with tempfile.TemporaryDirectory(_PARTIAL, f".{source.name}.", self._output) as folder:
            result = translate_file(
                self._translator,
                source,
                self._output / source.name,
                resume=True,
                replace=True,
                work_folder=Path(folder),
                **self._options,
            )
        return result.failed_rows


def _remove_stale_folders(output: Path) -> None:
    """Remove the folders of killed actors; an actor that still runs fails, and nobody waits."""
    for stale in output.glob(f".*{_PARTIAL}"):
        shutil.rmtree(stale, ignore_errors=True)
