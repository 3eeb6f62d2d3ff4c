"""The Open Inference Protocol, version 2: its requests and answers, and how REST writes them.

A body is JSON, or JSON that Triton's binary tensor extension lets raw tensors follow.
"""

import functools
import importlib.metadata
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.tensors import (
    DATATYPES,
    Head,
    Tensor,
    checked_head,
    checked_str,
    listed_tensor,
    raw_bytes,
    raw_tensor,
    refuse,
)

__all__ = [
    "DATATYPES",
    "InferRequest",
    "InferResponse",
    "Tensor",
    "TensorSpec",
    "Wanted",
    "as_json",
    "check_distinct",
    "check_parameters",
    "parse_raw",
    "parse_rest",
    "render_rest",
    "server_metadata",
]

_HEADER_FIELD = "Inference-Header-Content-Length"
_NOT_SERVED = (
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "classification",
)

_IN_JSON: Mapping[str, set[type]] = {"b": {bool}, "f": {int, float}, "O": {str}}  # by dtype.kind


@dataclass(frozen=True)
class TensorSpec:
    """What a model takes or gives.

    Args:
        name: str.
        datatype: str, a name of `DATATYPES`.
        shape: tuple of int; -1 for an axis of any length, of a graph's inputs at least 1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass
class Wanted:
    """An output that a request asks for.

    Args:
        name: str.
        parameters: As for `Tensor`; "binary_data" says whether it is wanted as raw bytes.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class InferRequest:
    """What a model is asked.

    Args:
        inputs: list of `Tensor`, of different names.
        outputs: list of `Wanted`, of different names; empty for all that the model gives.
        id: str, which the answer repeats.
        parameters: As for `Tensor`.
    """

    inputs: list[Tensor]
    outputs: list[Wanted]
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class InferResponse:
    """What a model answers.

    Args:
        model_name: str.
        model_version: str.
        outputs: list of `Tensor`.
        id: str, the request's.
        parameters: As for `Tensor`.
    """

    model_name: str
    model_version: str
    outputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@functools.cache
def server_metadata() -> dict[str, Any]:
    """Name, version and extensions of the server, as both doors tell them."""
    return {
        "name": "keras_bahdanau",
        "version": importlib.metadata.version("keras-bahdanau"),
        "extensions": ["binary_tensor_data", "model_repository", "statistics"],
    }


def parse_rest(body: bytes, header_length: int | None) -> InferRequest:
    """Reads the body of an inference request.

    Args:
        body: bytes, uncompressed.
        header_length: int, number of bytes of JSON, from the header field
            `Inference-Header-Content-Length`; `None` if the body is JSON alone.

    Raises:
        ServiceError: "invalid", or "unsupported" for shared memory and classification.

    Example:

    >>> body = b'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [2], "data": [3, 4]}]}'
    >>> parse_rest(body, None).inputs[0].data.tolist()
    [3, 4]
    """
    end = len(body) if header_length is None else header_length
    if not 0 <= end <= len(body):
        refuse(_HEADER_FIELD, f"be at most {len(body)}, the bytes of the body", end)
    message = parse_json(body[:end])
    inputs = []
    for place, value in enumerate(_objects(message.get("inputs"), "inputs")):
        at = f"inputs[{place}]"
        head = checked_head(value.get("name"), value.get("datatype"), value.get("shape"), at)
        parameters = _parameters(value, at)
        check_parameters(parameters, at)
        if "binary_data_size" in parameters:
            size = parameters.pop("binary_data_size")
            if type(size) is not int or not 0 <= size <= len(body) - end:
                expected = f"be an int from 0 to {len(body) - end}, the bytes that are left"
                refuse(f"{at}.parameters.binary_data_size", expected, size)
            if "data" in value:
                refuse(f"{at}.data", "be left out beside `binary_data_size`", value["data"])
            inputs.append(raw_tensor(head, body[end : end + size], parameters))
            end += size
        else:
            inputs.append(_json_tensor(head, value.get("data"), parameters))
    if end < len(body):
        refuse("body", f"end with the inputs, after {end} bytes", f"{len(body)} bytes")
    outputs = _wanted(message)
    name = message.get("id")
    request = InferRequest(
        inputs, outputs, "" if name is None else checked_str(name, "id"), _parameters(message)
    )
    _check_bool(request.parameters, "binary_data_output")
    check_distinct(request)
    return request


def parse_raw(body: bytes, inputs: Sequence[TensorSpec]) -> InferRequest:
    """Reads an inference request without JSON: its body is the data of the only input.

    Triton calls it a raw binary request. The shape follows from the number of bytes. Where two axes
    have any length and one of them is the first, the request has one row. A BYTES tensor has one
    item, the body. All outputs are returned as raw bytes.

    Args:
        body: bytes, uncompressed.
        inputs: list of `TensorSpec`, the inputs of the model.

    Raises:
        ServiceError: "invalid", also for a model whose inputs do not follow from a body.

    Example:

    >>> parse_raw(b"a man", [TensorSpec("text", "BYTES", (-1,))]).inputs[0].data.tolist()
    [b'a man']
    """
    if len(inputs) != 1:
        refuse(_HEADER_FIELD, f"be above 0 for a model with {len(inputs)} inputs", 0)
    [spec] = inputs
    shape, free = list(spec.shape), [axis for axis, size in enumerate(spec.shape) if size == -1]
    if spec.datatype == "BYTES":
        for axis in free:
            shape[axis] = 1
        tensor = listed_tensor(checked_head(spec.name, "BYTES", shape, spec.name), [body], {})
    else:
        if len(free) == 2 and free[0] == 0:
            shape[free.pop(0)] = 1
        if len(free) > 1:
            refuse(_HEADER_FIELD, f"be above 0 for an input of shape {list(spec.shape)}", 0)
        for axis in free:
            shape[axis] = 1
            shape[axis] = len(body) // max(1, math.prod(shape) * DATATYPES[spec.datatype].itemsize)
        tensor = raw_tensor(checked_head(spec.name, spec.datatype, shape, spec.name), body, {})
    return InferRequest([tensor], [], parameters={"binary_data_output": True})


def render_rest(response: InferResponse, request: InferRequest) -> tuple[bytes, int | None]:
    """Writes the body of an answer.

    Args:
        response: The model's.
        request: That it answers; it says which outputs are wanted as raw bytes.

    Returns:
        The body, and the number of its bytes of JSON if raw tensors follow them.

    Raises:
        ServiceError: "unprocessable", for an output that JSON cannot say: NaN, infinity, or bytes
            that are no UTF-8.

    Example:

    >>> response = InferResponse("m", "1", [Tensor("y", "INT8", np.array([3, 4], np.int8))])
    >>> json.loads(render_rest(response, InferRequest([], []))[0])["outputs"]
    [{'name': 'y', 'datatype': 'INT8', 'shape': [2], 'data': [3, 4]}]
    """
    usual = request.parameters.get("binary_data_output", False)
    binary = {one.name: one.parameters.get("binary_data", usual) for one in request.outputs}
    message: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if response.id:
        message["id"] = response.id
    if response.parameters:
        message["parameters"] = response.parameters
    outputs: list[dict[str, Any]] = []
    raws: list[bytes] = []
    for tensor in response.outputs:
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.data.shape,
        }
        parameters = tensor.parameters
        if binary.get(tensor.name, usual):
            raws.append(raw_bytes(tensor))
            parameters = {**parameters, "binary_data_size": len(raws[-1])}
        else:
            output["data"] = _json_data(tensor)
        if parameters:
            output["parameters"] = parameters
        outputs.append(output)
    message["outputs"] = outputs
    header = as_json(message)
    return (b"".join([header, *raws]), len(header)) if raws else (header, None)


def check_parameters(parameters: Mapping[str, Any], at: str) -> None:
    """Raises a `ServiceError`, "unsupported", for shared memory and classification.

    Args:
        parameters: Of an input, or of an output that is wanted.
        at: Where it stands in the request, for messages.
    """
    for name in _NOT_SERVED:
        if name in parameters:
            argument = f"{at}.parameters.{name}"
            message = (
                f"Argument `{argument}` must be left out: this server has neither shared memory "
                "nor classification."
            )
            raise ServiceError("unsupported", message, argument)


def check_distinct(request: InferRequest) -> None:
    """Raises a `ServiceError`, "invalid", if two inputs or two outputs have one name."""
    for side in ("inputs", "outputs"):
        names = [one.name for one in getattr(request, side)]
        if len(set(names)) < len(names):
            refuse(side, "have different names", names)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no number of JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ. Of two values, two readers may take different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!a:.80} twice")
            seen.add(key)
    return found


_DECODER = json.JSONDecoder(parse_constant=_constant, object_pairs_hook=_distinct)


def as_json(value: Any) -> bytes:
    """The JSON of a value in UTF-8; arrays in it as lists, each number in its shortest form.

    Example:

    >>> as_json({"score": np.float32(0.1), "weights": np.eye(2, dtype="float32")})
    b'{"score":0.1,"weights":[[1.0,0.0],[0.0,1.0]]}'
    """
    return orjson.dumps(value, default=_contiguous, option=orjson.OPT_SERIALIZE_NUMPY)


def _contiguous(value: Any) -> NDArray[Any]:
    """A part of an array as orjson takes it, whole."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is nothing that JSON says")
    return np.ascontiguousarray(value)


def parse_json(text: bytes) -> dict[str, Any]:
    """The object of JSON that a body is.

    Raises:
        ServiceError: "invalid".
    """
    try:
        message = _DECODER.decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        said = f"The body must be a JSON object in UTF-8. Received: {error}"
        raise ServiceError("invalid", said, "body") from error
    if type(message) is not dict:
        refuse("body", "be a JSON object", message)
    return message


def _objects(value: Any, argument: str) -> list[dict[str, Any]]:
    if type(value) is not list or not set(map(type, value)) <= {dict}:
        refuse(argument, "be a list of objects", value)
    return value


def _wanted(message: Mapping[str, Any]) -> list[Wanted]:
    """The outputs that a request asks for."""
    found: list[Wanted] = []
    if message.get("outputs") is None:
        return found
    for place, value in enumerate(_objects(message["outputs"], "outputs")):
        at = f"outputs[{place}]"
        parameters = _parameters(value, at)
        check_parameters(parameters, at)
        _check_bool(parameters, "binary_data", at)
        found.append(Wanted(checked_str(value.get("name"), f"{at}.name"), parameters))
    return found


def _parameters(value: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The parameters of a request, an input or an output: one level of scalars."""
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    argument = f"{at}.parameters".lstrip(".")
    if type(parameters) is not dict:
        refuse(argument, "be an object", parameters)
    for key, given in parameters.items():
        checked_str(key, argument)
        if type(given) is str:
            checked_str(given, argument)
        # A number that is too large for a float is infinity.
        elif type(given) not in (int, float, bool) or abs(given) == math.inf:
            refuse(argument, "hold a str, a number or a bool for each name", {key: given})
    return parameters


def _check_bool(parameters: Mapping[str, Any], name: str, at: str = "") -> None:
    if type(parameters.get(name, False)) is not bool:
        refuse(f"{at}.parameters.{name}".lstrip("."), "be a bool", parameters[name])


def _json_tensor(head: Head, data: Any, parameters: dict[str, Any]) -> Tensor:
    """A tensor whose data stand in JSON: flat, or nested as its shape."""
    argument, kind = f"{head.at}.data", head.dtype.kind
    if type(data) is not list:
        refuse(argument, "be a list", data)
    items = _flat(data, head.shape, argument) if data and type(data[0]) is list else data
    if not set(map(type, items)) <= _IN_JSON.get(kind, {int}):
        refuse(argument, f"hold what is {head.datatype} in JSON", data)
    if kind == "O":
        try:
            items = [item.encode() for item in items]
        except UnicodeEncodeError:
            refuse(argument, "hold str without lone surrogates", data)
    tensor = listed_tensor(head, items, parameters)
    if kind == "f" and not np.isfinite(tensor.data).all():
        refuse(argument, f"hold numbers of {head.datatype}", data)
    return tensor


def _flat(nested: list[Any], shape: tuple[int, ...], argument: str) -> list[Any]:
    """The items of lists in lists, which must be as long as the shape says."""
    rows: list[Any] = [nested]
    for size in shape:
        if not set(map(type, rows)) <= {list} or not set(map(len, rows)) <= {size}:
            refuse(argument, f"be flat, or nested as the shape {shape}", nested)
        rows = list(chain.from_iterable(rows))
    return rows


def _json_data(tensor: Tensor) -> list[str] | NDArray[Any]:
    """The items of a tensor, as `as_json` takes them."""
    items = tensor.data.ravel()
    try:
        if tensor.datatype == "BYTES":
            return [str(item, "utf-8") for item in items]
        if items.dtype.kind != "f" or np.isfinite(items).all():
            return items
    except UnicodeDecodeError:
        pass
    message = (
        f"The output {tensor.name!r} holds what JSON cannot say: NaN, infinity, or bytes that are "
        'no UTF-8. Ask for it with its parameter "binary_data" true.'
    )
    raise ServiceError("unprocessable", message)
