"""The providers that onnxruntime is asked to compute with, and their options."""

from collections.abc import Sequence
from typing import Any

from keras_bahdanau_runtime.errors import require

Providers = str | Sequence[str | tuple[str, dict[str, Any]]]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
# TensorRT is used where it is asked for: it compiles a graph anew, for minutes, for each new shape.
GPU = ("TensorrtExecutionProvider", CUDA)


def chosen_providers(
    providers: Providers, available: Sequence[str], capture: bool
) -> list[str | tuple[str, dict[str, Any]]]:
    """The providers to ask onnxruntime for; the arguments are those of `open_session`."""
    chosen: list[str | tuple[str, dict[str, Any]]]
    if providers == "auto":
        chosen = [name for name in (CUDA,) if name in available]
        chosen.append(CPU)
    else:
        chosen = [providers] if isinstance(providers, str) else list(providers)
    names = [provider if isinstance(provider, str) else provider[0] for provider in chosen]
    if not names or not set(names) <= set(available):
        raise ValueError(
            f"Argument `providers` must be 'auto' or some of {available}. Received: {providers!r}"
        )
    if CUDA in names:
        place = names.index(CUDA)
        given = chosen[place]
        ours = {"use_tf32": "0", **({"enable_cuda_graph": "1"} if capture else {})}
        chosen[place] = (CUDA, ours | ({} if isinstance(given, str) else given[1]))
    return chosen


def with_tf32(providers: Providers) -> Providers:
    """Providers, those of `Translator`, whose CUDA multiplies with 10 bits of precision (TF32)."""
    asked = [providers] if isinstance(providers, str) else list(providers)
    if providers == "auto":
        available = require("onnxruntime", extra="runtime").get_available_providers()
        asked = [name for name in (CUDA, CPU) if name in available]
    pairs = [(one, {}) if isinstance(one, str) else one for one in asked]
    return [
        (name, {**options, "use_tf32": "1"}) if name == CUDA else (name, options)
        for name, options in pairs
    ]


def prefers_cuda(providers: Providers) -> bool:
    """Whether a session for these providers, those of `Translator`, would compute on CUDA first."""
    available = require("onnxruntime", extra="runtime").get_available_providers()
    first = chosen_providers(providers, available, capture=False)[0]
    return (first if isinstance(first, str) else first[0]) == CUDA
