"""A model of tensors: exactly those of a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bahdanau_runtime.errors import UnsupportedArtifactError
from keras_bahdanau_runtime.service.engine import Engine
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.models import (
    CountedJob,
    Model,
    answered,
    check_names,
    seconds_of,
)
from keras_bahdanau_runtime.service.protocol import InferRequest, Tensor, TensorSpec
from keras_bahdanau_runtime.session import run_arrays

_BITS = (8, 16, 32, 64)
_OF_ONNX = {
    "tensor(bool)": "BOOL",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    **{f"tensor(int{bits})": f"INT{bits}" for bits in _BITS},
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in _BITS},
}


class _Call(CountedJob):
    """Runs a graph on `(arrays by name, names of the outputs)`, one request at a time."""

    def __init__(self, model: "GraphModel") -> None:
        super().__init__(model)
        self._session, self._seconds = model.session, model.engine.limits.seconds

    def _run(self, payloads: Sequence[Any], alone: bool) -> list[Any]:
        return [self._called(*payload) for payload in payloads]

    def _called(self, feeds: dict[str, Any], names: list[str]) -> list[tuple[str, Any]]:
        return list(run_arrays(self._session, feeds, names, self._seconds).items())


class GraphModel(Model):
    """The tensors of a graph in, and those out.

    Args:
        name: As it is called.
        version: A number, as a str.
        engine: The `Engine` that its work goes through.
        session: A session of `open_graph`.

    Raises:
        UnsupportedArtifactError: A value of the graph is no tensor, or one of texts.
    """

    platform = "onnxruntime_onnx"

    def __init__(self, name: str, version: str, engine: Engine, session: Any) -> None:
        super().__init__(name, version, engine)
        self.session = session
        self.inputs = [_spec(value) for value in session.get_inputs()]
        self.outputs = [_spec(value) for value in session.get_outputs()]
        self._call = _Call(self)

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        given = {tensor.name: tensor for tensor in request.inputs}
        names = [tensor.name for tensor in request.inputs]
        check_names("inputs", names, self.inputs, complete=True)
        for spec in self.inputs:
            tensor = given[spec.name]
            shape = tensor.data.shape
            # A loop over rows or steps of which there are none ends onnxruntime and the process.
            fits = len(shape) == len(spec.shape) and all(
                received == size or (size == -1 and received > 0)
                for size, received in zip(spec.shape, shape, strict=True)
            )
            if tensor.datatype != spec.datatype or not fits:
                raise ServiceError(
                    "invalid",
                    f"Argument `{spec.name}` must be {spec.datatype} of shape {list(spec.shape)}, "
                    "where -1 is any length of at least 1. "
                    f"Received: {tensor.datatype} of shape {list(shape)}",
                    spec.name,
                )
        wanted = [output.name for output in request.outputs] or [spec.name for spec in self.outputs]
        feeds = {name: np.asarray(tensor.data, order="C") for name, tensor in given.items()}
        length, most = sum(array.size for array in feeds.values()), self.engine.limits.queued_tokens
        if length > most:
            raise ServiceError(
                "too_large",
                f"Argument `inputs` must hold at most {most} numbers. Received: {length}",
            )
        async with self.engine.timely(seconds_of(request.parameters)):
            [found] = await answered(self.engine, self._call, [(feeds, wanted)], [length])
        types = {spec.name: spec.datatype for spec in self.outputs}
        return [Tensor(name, types[name], array) for name, array in found]


def _spec(value: Any) -> TensorSpec:
    if value.type not in _OF_ONNX:
        raise UnsupportedArtifactError(
            f"{value.name!r}: expected one of {sorted(_OF_ONNX)}. Received: {value.type}"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSpec(value.name, _OF_ONNX[value.type], shape)
