"""Opens ONNX graphs with onnxruntime and says on what they run."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_export.errors import CorruptArtifactError, require
from keras_bahdanau_export.signature import Signature

logger = logging.getLogger("keras_bahdanau_export")

Providers = str | Sequence[str | tuple[str, dict[str, Any]]]


def open_session(path: Path, providers: Providers, threads: int | None) -> Any:
    """Opens a graph with onnxruntime; see `Translator` for the arguments and what is raised."""
    onnxruntime = require("onnxruntime", extra="runtime")
    available = onnxruntime.get_available_providers()
    chosen: list[str | tuple[str, dict[str, Any]]]
    if providers == "auto":
        chosen = [name for name in ("CUDAExecutionProvider",) if name in available]
        chosen.append("CPUExecutionProvider")
    else:
        chosen = [providers] if isinstance(providers, str) else list(providers)
    names = [provider if isinstance(provider, str) else provider[0] for provider in chosen]
    if not names or not set(names) <= set(available):
        raise ValueError(
            f"providers: expected 'auto' or some of {available}. Received: {providers!r}"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: its warnings are of names inside graphs
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=chosen)
    # onnxruntime goes on without a provider whose libraries do not load, and only prints so.
    used = session.get_providers()
    lost = [name for name in names if name not in used]
    if lost and providers != "auto":
        raise ValueError(
            f"providers: {lost} could not be started; onnxruntime printed why. It would use {used}."
        )
    if lost:
        logger.warning("%s could not be started; onnxruntime printed why.", lost)
    logger.info(
        "Running %s on %s (providers=%r; available: %s).",
        path,
        ", ".join(used),
        providers,
        ", ".join(available),
    )
    return session


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
