"""Runs the search of an artifact: as one graph with its loop inside, or step by step."""

import logging
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from keras_bahdanau_runtime.cuda.captured import CapturedSearch
from keras_bahdanau_runtime.errors import UnsupportedArtifactError
from keras_bahdanau_runtime.graph_checks import check_graph
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.providers import Providers, may_use_cuda
from keras_bahdanau_runtime.session import device_of, open_graph, run
from keras_bahdanau_runtime.signature import BEAM_FILES, MODEL_FILE, SAMPLE, TRANSLATE

logger = logging.getLogger("keras_bahdanau_runtime")

LOOPS = ("auto", "graph", "captured")


class WholeSearch:
    """The search of an artifact as one graph, `model.onnx`.

    Args:
        manifest: Of the artifact.
        providers: As for `Translator`.
        threads: As for `Translator`.
        seconds: As for `Translator`.
        megabytes: As for `Translator`.

    Raises:
        CorruptArtifactError: It is not what the manifest says, or no search.
    """

    files = (MODEL_FILE,)

    def __init__(
        self,
        manifest: Manifest,
        providers: Providers,
        threads: int | None,
        seconds: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        self.session = open_graph(manifest, MODEL_FILE, providers, threads, megabytes)
        self._seconds = seconds
        signature = SAMPLE if manifest.draws() else TRANSLATE
        check_graph(self.session, signature, manifest.folder / MODEL_FILE)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], shrink: bool = False
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """As `CapturedSearch.run`; nothing is padded."""
        names = [tensor.name for tensor in TRANSLATE.outputs]
        found = run(self.session, inputs, names, seconds=self._seconds, shrink=shrink)
        return found, inputs["source"].shape


def open_search(
    manifest: Manifest, loop: str, providers: Providers, *given: Any
) -> WholeSearch | CapturedSearch:
    """The search of an artifact, run as `loop` says.

    Args:
        manifest: Of the artifact.
        loop: As for `Translator`.
        providers: As for `Translator`.
        *given: The other arguments of `WholeSearch`.

    Raises:
        ValueError: `loop` is unknown.
        UnsupportedArtifactError: The artifact holds no such graphs, or CUDA cannot record its step.
    """
    if loop not in LOOPS:
        raise ValueError(f"Argument `loop` must be one of {LOOPS}. Received: {loop!r}")
    found = _opened(manifest, loop, providers, *given)
    numbers = manifest.other.get("precision")
    half = isinstance(numbers, dict) and numbers.get("precision") == "float16"
    if half and device_of(found.session)[0] == "cpu":
        said = "%s: float16 is for GPUs; the CPU, where it runs, computes in float32."
        logger.warning(said, manifest.folder)
    return found


def _opened(
    manifest: Manifest, loop: str, providers: Providers, *given: Any
) -> WholeSearch | CapturedSearch:
    if loop == "captured":
        return CapturedSearch(manifest, providers, *given)
    if loop == "auto" and set(BEAM_FILES) <= set(manifest.files) and may_use_cuda(providers):
        try:
            driven = CapturedSearch(manifest, providers, *given)
            if device_of(driven.session)[0] == "cuda":
                return driven
            logger.info("The loop runs as one graph, as CUDA did not start.")
        except UnsupportedArtifactError as error:
            logger.warning("The loop runs as one graph: %s", error)
    return WholeSearch(manifest, providers, *given)
