"""The search of an artifact: open it, run it, and check its inputs and outputs."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.checks import checked_array
from keras_bahdanau_runtime.cuda.captured import CapturedSearch
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    LimitError,
    RunError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.session import Providers, device_of, may_use_cuda, open_graph, run
from keras_bahdanau_runtime.signature import BEAM_FILES, MODEL_FILE, SAMPLE, TRANSLATE, Signature

logger = logging.getLogger("keras_bahdanau_runtime")

LOOPS = ("auto", "graph", "captured")


class WholeSearch:
    """The search of an artifact as one graph, `model.onnx`.

    Args:
        manifest: Of the artifact.
        providers: As for `Translator`.
        threads: As for `Translator`.
        timeout: As for `Translator`.
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
        timeout: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        self.session = open_graph(manifest, MODEL_FILE, providers, threads, megabytes)
        self._timeout = timeout
        signature = SAMPLE if manifest.draws() else TRANSLATE
        check_graph(self.session, signature, manifest.folder / MODEL_FILE)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], shrink: bool = False
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """As `CapturedSearch.run`; nothing is padded."""
        names = [tensor.name for tensor in TRANSLATE.outputs]
        found = run(self.session, inputs, names, timeout=self._timeout, shrink=shrink)
        return found, inputs["source"].shape


Search = WholeSearch | CapturedSearch


def open_search(manifest: Manifest, loop: str, providers: Providers, *given: Any) -> Search:
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


def _opened(manifest: Manifest, loop: str, providers: Providers, *given: Any) -> Search:
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


def check_graph(session: Any, signature: Signature, path: Path) -> None:
    """Raises `CorruptArtifactError` unless the graph has the inputs and outputs it should have."""
    onnx_types = {"int32": "tensor(int32)", "float32": "tensor(float)"}
    for side, found in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        expected = {tensor.name: onnx_types[tensor.dtype] for tensor in getattr(signature, side)}
        received = {value.name: value.type for value in found}
        if expected != received:
            raise CorruptArtifactError(
                f"{path}: expected the {side} {expected}. Received: {received}"
            )


def search_arrays(
    found: Mapping[str, Any], source: tuple[int, ...], vocabulary: int, names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Outputs of a search as arrays; refuses what none finds, which a stranger's graph may give.

    Args:
        found: All outputs of `TRANSLATE`, `OrtValue`s by name.
        source: Shape `(B, Tx)` of the ids.
        vocabulary: Number of target ids.
        names: Those that are wanted, "tokens" and "lengths" among them.

    Raises:
        RunError: Shapes, tokens or lengths are none of a search's.
    """
    rows, width = source
    shapes = {name: tuple(value.shape()) for name, value in found.items()}
    beam, steps = (*shapes["tokens"][1:], 0, 0)[:2]
    expected = {
        "tokens": (rows, beam, steps),
        "scores": (rows, beam),
        "lengths": (rows, beam),
        "alignments": (rows, beam, steps, width),
    }
    if shapes != expected or not beam:
        raise RunError(
            f"The graph must give hypotheses for {rows} sources of {width} ids. Received: {shapes}"
        )
    arrays = {name: found[name].numpy() for name in names}
    for name, most in (("tokens", vocabulary - 1), ("lengths", steps)):
        # As unsigned numbers the negative ones are the largest.
        if arrays[name].view(np.uint32).max(initial=0) > most:
            raise RunError(
                f"The graph must give {name} from 0 to {most}. "
                f"Received: {arrays[name].min()} to {arrays[name].max()}"
            )
    return arrays


def checked_noise(
    noise: ArrayLike | None,
    search: Mapping[str, Any],
    rows: int,
    megabytes: float | None = None,
) -> NDArray[np.float32]:
    """The numbers that a search draws with, or a `ValueError`; those of its seed if `None`.

    A stranger's artifact may want more of them than there is memory for: a `LimitError`.

    Args:
        noise: As for `Translator.translate_ids`.
        search: Settings of the search in the manifest.
        rows: Number of sources.
        megabytes: The most that they may take; any if `None`.
    """
    shape = (rows, search["n"], search["max_length"])
    if noise is None:
        size = 4 * math.prod(shape) / 2**20
        too_large = f"The search draws with {size:.0f} MB of numbers, shape {shape}: too many."
        if megabytes is not None and size > megabytes:
            raise LimitError(too_large)
        try:
            return np.random.default_rng(search["seed"]).random(shape, dtype=np.float32)
        except MemoryError as error:
            raise LimitError(too_large) from error
    array = checked_array("noise", noise)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise ValueError(
            f"Argument `noise` must hold numbers in [0, 1) of shape {shape}. "
            f"Received: dtype {array.dtype}, shape {array.shape}"
        )
    wrong = array[~((array >= 0) & (array < 1))]
    if wrong.size:
        raise ValueError(
            f"Argument `noise` must hold numbers in [0, 1) of shape {shape}. Received: {wrong[0]}"
        )
    # What is just below 1 in float64 would be 1 in float32.
    return np.minimum(array.astype(np.float32), np.nextafter(np.float32(1), np.float32(0)))
