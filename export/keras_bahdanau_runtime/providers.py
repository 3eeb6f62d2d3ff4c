"""The providers that onnxruntime is asked to compute with, and their options."""

from collections.abc import Sequence
from typing import Any

from keras_bahdanau_runtime.errors import require

Providers = str | Sequence[str | tuple[str, dict[str, Any]]]

AUTO = "auto"
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
# TensorRT is used where it is asked for: it compiles a graph anew, for minutes, for each new shape.
GPU = ("TensorrtExecutionProvider", CUDA)


def chosen_providers(
    providers: Providers, available: Sequence[str], capture: bool
) -> list[tuple[str, dict[str, Any]]]:
    """The providers to ask onnxruntime for; the arguments are those of `open_session`.

    Raises:
        ValueError: They are not "auto", or some of those available.
    """
    chosen = _pairs(providers)
    if is_auto(providers):
        [(_, options)] = chosen
        chosen = [(CUDA, options)] if CUDA in available else []
        chosen.append((CPU, {}))
    if not chosen or not {name for name, _ in chosen} <= set(available):
        raise ValueError(
            f"Argument `providers` must be 'auto' or some of {available}. Received: {providers!r}"
        )
    ours = {"use_tf32": "0", **({"enable_cuda_graph": "1"} if capture else {})}
    return [(name, ours | options if name == CUDA else options) for name, options in chosen]


def _pairs(providers: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names with their options."""
    found = []
    for one in providers if isinstance(providers, (list, tuple)) else [providers]:
        pair = (one, {}) if isinstance(one, str) else one
        if type(pair) is not tuple or list(map(type, pair)) != [str, dict]:
            raise ValueError(
                "Argument `providers` must be a name, or a list of names and of (name, options) "
                f"pairs. Received: {providers!r}"
            )
        found.append(pair)
    return found


def is_auto(providers: Providers) -> bool:
    """Whether they are what there is, so that one which does not start is left out."""
    return [name for name, _ in _pairs(providers)] == [AUTO]


def with_tf32(providers: Providers, wanted: bool) -> Providers:
    """Providers, those of `Translator`; if wanted, CUDA multiplies with 10 bits (TF32).

    Raises:
        ValueError: `wanted` is no bool.
    """
    if type(wanted) is not bool:
        raise ValueError(f"Argument `tf32` must be a bool. Received: {wanted!r}")
    if not wanted:
        return providers
    return [
        (name, {**options, "use_tf32": "1"} if name in (AUTO, CUDA) else options)
        for name, options in _pairs(providers)
    ]


def check_providers(providers: Providers) -> None:
    """Raises a `ValueError` unless onnxruntime has these providers, those of `Translator`."""
    available = require("onnxruntime", extra="runtime").get_available_providers()
    chosen_providers(providers, available, capture=False)


def may_use_cuda(providers: Providers) -> bool:
    """Whether a session for these providers, those of `Translator`, would try CUDA first."""
    available = require("onnxruntime", extra="runtime").get_available_providers()
    return chosen_providers(providers, available, capture=False)[0][0] == CUDA
