"""The search of an artifact: open it, run it, and check its inputs and outputs."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.checks import checked_array
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    LimitError,
    RunError,
    argument_error,
)
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.session import Providers, device_of, open_graph, run
from keras_bahdanau_runtime.signature import MODEL_FILE, TRANSLATE, Signature

logger = logging.getLogger("keras_bahdanau_runtime")


class GraphSearch:
    """Search of an artifact as one graph, `model.onnx`, that contains the loop.

    Args:
        manifest: Manifest of the artifact.
        providers: As for `Translator`.
        threads: As for `Translator`.
        timeout: As for `Translator`.
        megabytes: As for `Translator`.

    Raises:
        CorruptArtifactError: The file does not match the manifest, or is not a search.
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
        self._manifest, self._timeout = manifest, timeout
        signature = manifest.search_signature or TRANSLATE
        check_signature(self.session, signature, manifest.folder / MODEL_FILE)
        self._outputs = [tensor.name for tensor in signature.outputs]
        precision = manifest.other.get("precision")
        is_float16 = isinstance(precision, dict) and precision.get("precision") == "float16"
        if is_float16 and device_of(self.session)[0] == "cpu":
            logger.warning(
                "%s: float16 is for GPUs. It runs on the CPU, which computes in float32.",
                manifest.folder,
            )

    def run(
        self, inputs: Mapping[str, NDArray[Any]], alignments: bool = True, shrink: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Run the search.

        Args:
            inputs: Inputs and options of the search, arrays by name.
            alignments: Whether to return "alignments".
            shrink: As for `session.run`.

        Returns:
            The outputs of the search, arrays by name.

        Raises:
            LimitError: The search exceeded `timeout` or the available memory.
            RunError: The search failed for another reason, or its outputs are invalid.
        """
        outputs = run(self.session, inputs, self._outputs, timeout=self._timeout, shrink=shrink)
        return checked_outputs(outputs, inputs["source"].shape, self._manifest, alignments)


def check_signature(session: Any, signature: Signature, path: Path) -> None:
    """Raise a `CorruptArtifactError` unless the graph has the values of `signature`."""
    onnx_types = {"int32": "tensor(int32)", "float32": "tensor(float)"}
    for side, values in (
        ("inputs", session.get_inputs()),
        ("outputs", session.get_outputs()),
        ("options", session.get_overridable_initializers()),
    ):
        expected = {tensor.name: onnx_types[tensor.dtype] for tensor in getattr(signature, side)}
        received = {value.name: value.type for value in values}
        if expected != received:
            raise CorruptArtifactError(
                f"{path}: expected the {side} {expected}. Received: {received}"
            )


def checked_outputs(
    outputs: Mapping[str, Any], source: tuple[int, ...], manifest: Manifest, alignments: bool
) -> dict[str, NDArray[Any]]:
    """Return outputs of a search as arrays after checking shapes and ranges.

    The graph of an untrusted artifact may return anything.

    Args:
        outputs: All outputs of the search, `OrtValue`s by name.
        source: Shape `(B, Tx)` of the source ids.
        manifest: Manifest of the artifact.
        alignments: Whether to return "alignments".

    Raises:
        RunError: Shapes, tokens or lengths are not those of a search.
    """
    rows, width = source
    shapes = {name: tuple(value.shape()) for name, value in outputs.items()}
    beam, steps = (*shapes["tokens"][1:], 0, 0)[:2]
    expected = {
        "tokens": (rows, beam, steps),
        "scores": (rows, beam),
        "lengths": (rows, beam),
        "alignments": (rows, beam, steps, width),
        "log_probs": (rows, beam, steps),
    }
    expected = {name: shape for name, shape in expected.items() if name in outputs}
    if shapes != expected or not beam:
        raise RunError(
            f"The graph must return hypotheses for {rows} sources of {width} ids. "
            f"Received: {shapes}"
        )
    names = [name for name in outputs if alignments or name != "alignments"]
    arrays = {name: outputs[name].numpy() for name in names}
    vocabulary = manifest.vocabulary.get("target", 2**31)
    for name, largest in (("tokens", vocabulary - 1), ("lengths", steps)):
        # Viewed as unsigned ints, negative values are the largest.
        if arrays[name].view(np.uint32).max(initial=0) > largest:
            raise RunError(
                f"The graph must return {name} from 0 to {largest}. "
                f"Received: {arrays[name].min()} to {arrays[name].max()}"
            )
    return arrays


def checked_noise(
    noise: ArrayLike | None,
    search: ManifestSearch,
    rows: int,
    megabytes: float | None = None,
) -> NDArray[np.float32]:
    """Return the random numbers of a sampling search after checking them.

    Args:
        noise: As for `Translator.translate_ids`; `None` to draw from the seed of the search.
        search: Settings of the search in the manifest.
        rows: Number of sources.
        megabytes: Largest size of the numbers; `None` for no limit.

    Raises:
        ValueError: `noise` has another shape or dtype, or numbers outside [0, 1).
        LimitError: The numbers of an untrusted artifact exceed `megabytes` or the memory.
    """
    shape = (rows, search.num_hypotheses, search.max_steps)
    if noise is None:
        size = 4 * math.prod(shape) / 2**20
        too_large = f"The search needs {size:.0f} MB of random numbers, shape {shape}: too many."
        if megabytes is not None and size > megabytes:
            raise LimitError(too_large)
        try:
            return np.random.default_rng(search.seed).random(shape, dtype=np.float32)
        except MemoryError as error:
            raise LimitError(too_large) from error
    array = checked_array("noise", noise)
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise argument_error(
            "noise",
            f"hold numbers in [0, 1) of shape {shape}",
            received=f"dtype {array.dtype}, shape {array.shape}",
        )
    invalid = array[~((array >= 0) & (array < 1))]
    if invalid.size:
        raise argument_error(
            "noise", f"hold numbers in [0, 1) of shape {shape}", received=str(invalid[0])
        )
    # A float64 just below 1 would round to 1 in float32.
    return np.minimum(array.astype(np.float32), np.nextafter(np.float32(1), np.float32(0)))
