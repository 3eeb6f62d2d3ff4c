"""Models that run a graph on the tensors of a request."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import UnsupportedArtifactError
from keras_bahdanau_runtime.request import timeout_seconds
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.service.engine import BATCH_COST, Engine
from keras_bahdanau_runtime.service.errors import ServiceError, argument_errors
from keras_bahdanau_runtime.service.models import Model, ModelJob, check_names
from keras_bahdanau_runtime.service.protocol import MAX_NUMBERS, InferRequest, Tensor, TensorSpec
from keras_bahdanau_runtime.session import run_arrays
from keras_bahdanau_runtime.signature import TRANSLATE

_BITS = (8, 16, 32, 64)
_ONNX_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    **{f"tensor(int{bits})": f"INT{bits}" for bits in _BITS},
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in _BITS},
}


class _GraphPayload(NamedTuple):
    """Inputs of a graph, and the names of the outputs to return."""

    feeds: Mapping[str, NDArray[Any]]
    outputs: list[str]


class GraphModel(Model):
    """Model that runs an ONNX graph on the tensors of a request.

    Args:
        name: str.
        version: A number, as a str.
        engine: `Engine` that runs the model.
        session: Session of `open_graph`.
        search: Settings of the search that the graph contains; `None` if it contains none.

    Raises:
        UnsupportedArtifactError: An input or output of the graph is not a tensor of numbers.
    """

    platform = "onnxruntime_onnx"

    def __init__(
        self,
        name: str,
        version: str,
        engine: Engine,
        session: Any,
        search: ManifestSearch | None = None,
    ) -> None:
        super().__init__(name, version, engine)
        self.session, self._search = session, search
        self.inputs = [_tensor_spec(value) for value in session.get_inputs()]
        self.outputs = [_tensor_spec(value) for value in session.get_outputs()]
        self._job = _GraphJob(self)

    async def _infer(self, request: InferRequest) -> list[Tensor]:
        tensors = {tensor.name: tensor for tensor in request.inputs}
        names = [tensor.name for tensor in request.inputs]
        check_names("inputs", names, self.inputs, ())
        for spec in self.inputs:
            tensor = tensors[spec.name]
            shape = tensor.data.shape
            # A loop over an empty axis crashes onnxruntime and the process.
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
        outputs = [each.name for each in request.outputs] or [spec.name for spec in self.outputs]
        feeds = {name: np.asarray(tensor.data, order="C") for name, tensor in tensors.items()}
        size, limit = sum(array.size for array in feeds.values()), self.engine.limits.queued_tokens
        if size > limit:
            raise ServiceError(
                "too_large",
                f"Argument `inputs` must have at most {limit} numbers. Received: {size}",
            )
        payloads, costs = [_GraphPayload(feeds, outputs)], [size]
        if self._search is not None:
            payloads, costs = self._split_search(self._search, feeds, outputs)
        lengths = [sum(array.size for array in inputs.values()) for inputs, _ in payloads]
        with argument_errors():
            timeout = timeout_seconds(request.parameters)
        async with self.engine.deadline(timeout):
            results = await self._run(self._job, payloads, lengths, costs)
        datatypes = {spec.name: spec.datatype for spec in self.outputs}
        return [
            Tensor(name, datatypes[name], _join([arrays[name] for arrays in results]))
            for name in outputs
        ]

    def _split_search(
        self, search: ManifestSearch, feeds: Mapping[str, NDArray[Any]], outputs: list[str]
    ) -> tuple[list[_GraphPayload], list[int]]:
        """Return payloads of few rows and their costs, so that others need not wait for long.

        Raises:
            ServiceError: "invalid" if the inputs differ in rows, "too_large" if the attention
                weights would be too many.
        """
        rows, width = feeds[TRANSLATE.inputs[0].name].shape
        for name, array in feeds.items():
            if len(array) != rows:
                raise ServiceError(
                    "invalid",
                    f"Argument `{name}` must have as many rows as the source, {rows}. "
                    f"Received: {len(array)}",
                    name,
                )
        weights = rows * search.num_returned * search.max_steps * width
        if "alignments" in outputs and weights > MAX_NUMBERS:
            raise ServiceError(
                "too_large",
                f"Argument `outputs` is limited to {MAX_NUMBERS} attention weights. Name the other "
                f"outputs only, or send fewer or shorter rows. Received: {weights} weights",
                "outputs",
            )
        cost = width * search.output_limit(width) * search.num_hypotheses
        step = rows if rows * cost <= BATCH_COST else max(1, BATCH_COST // cost)
        starts = range(0, rows, step)
        payloads = [
            _GraphPayload(
                {name: array[start : start + step] for name, array in feeds.items()}, outputs
            )
            for start in starts
        ]
        return payloads, [cost * min(step, rows - start) for start in starts]


class _GraphJob(ModelJob):
    """Run a graph, one payload at a time.

    Args:
        model: `GraphModel`.
    """

    def __init__(self, model: GraphModel) -> None:
        super().__init__(model)
        self._session, self._timeout = model.session, model.engine.limits.timeout

    def run(self, payloads: Sequence[_GraphPayload]) -> list[Any]:
        """Return the outputs of each payload by name."""
        return [run_arrays(self._session, *payload, self._timeout) for payload in payloads]


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join the rows of one output of several runs.

    Raises:
        ServiceError: "unprocessable" if the artifact is not a valid search.
    """
    if len({array.shape[1:] for array in arrays}) > 1:
        shapes = [array.shape for array in arrays]
        message = f"The model failed: its runs return different shapes. Received: {shapes!r:.200}"
        raise ServiceError("unprocessable", message)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _tensor_spec(value: Any) -> TensorSpec:
    """Return the spec of an input or output of an onnxruntime session."""
    if value.type not in _ONNX_DATATYPES:
        raise UnsupportedArtifactError(
            f"{value.name!r}: expected one of {sorted(_ONNX_DATATYPES)}. Received: {value.type}"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSpec(value.name, _ONNX_DATATYPES[value.type], shape)
