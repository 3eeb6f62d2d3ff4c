"""Open Inference Protocol, version 2: requests, responses, tensors, and their REST format.

A REST body is JSON, or JSON followed by raw tensors (Triton's binary tensor extension). Shapes,
lengths and counts in a request are checked before memory is allocated for them.
"""

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import parse_json
from keras_bahdanau_runtime.service.errors import ServiceError, refuse
from keras_bahdanau_runtime.version import __version__

# NumPy dtypes of the protocol's datatypes. Raw numbers are little-endian.
DATATYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BYTES": np.dtype(object),
}
MAX_NUMBERS = 2**22  # of one response in JSON, about 80 MB
_MAX_RAW_BYTES = 2**26  # of one response
_MAX_VALUES = 2**20  # of a JSON body; 500,000 arrays of one number have fewer
_NUMBERS_AT_ONCE = 2**14  # that are written without letting other threads run, about 1 ms
_MAX_AXES = 16  # numpy supports 64
_MAX_ITEMS = 2**40  # product of a shape without its axes of length 0
_LENGTH = struct.Struct("<I")  # precedes each item of a raw BYTES tensor
_HEADER_FIELD = "Inference-Header-Content-Length"
_UNSUPPORTED_PARAMETERS = (
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "classification",
)
# Types of JSON items by `dtype.kind`; integers have only int.
_JSON_TYPES: Mapping[str, set[type]] = {"b": {bool}, "f": {int, float}, "O": {str}}


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of a model's input or output.

    Args:
        name: str.
        datatype: str, a name of `DATATYPES`.
        shape: tuple of int; -1 for an axis of any length (at least 1 for inputs of a graph).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass
class Tensor:
    """An input or an output with its data.

    Args:
        name: str.
        datatype: str, a name of `DATATYPES`.
        data: Array of the dtype in `DATATYPES`; BYTES is an object array of bytes. It may be
            read-only.
        parameters: dict of str to str, int, float or bool.
    """

    name: str
    datatype: str
    data: NDArray[Any]
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class RequestedOutput:
    """An output that a request names.

    Args:
        name: str.
        parameters: As for `Tensor`; "binary_data" requests raw bytes.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class InferRequest:
    """An inference request.

    Args:
        inputs: list of `Tensor` with different names.
        outputs: list of `RequestedOutput` with different names; empty for all outputs.
        id: str, which the response repeats.
        parameters: As for `Tensor`.
    """

    inputs: list[Tensor]
    outputs: list[RequestedOutput]
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class InferResponse:
    """An inference response.

    Args:
        model_name: str.
        model_version: str.
        outputs: list of `Tensor`.
        id: str, of the request.
        parameters: As for `Tensor`.
    """

    model_name: str
    model_version: str
    outputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


class TensorHeader(NamedTuple):
    """A tensor in a request without its data; created by `check_header`.

    Args:
        name: str.
        datatype: str, a name of `DATATYPES`.
        shape: tuple of int, at least 0.
        parameters: As for `Tensor`.
        path: str, the position in the request, for messages.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any]
    path: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the data."""
        return DATATYPES[self.datatype]

    @property
    def size(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    def with_data(self, array: NDArray[Any]) -> Tensor:
        """Return the tensor with the items of an array."""
        return Tensor(self.name, self.datatype, array.reshape(self.shape), self.parameters)


@functools.cache
def server_metadata() -> dict[str, Any]:
    """Return name, version and extensions of the server."""
    return {
        "name": "keras_bahdanau",
        "version": __version__,
        "extensions": ["binary_tensor_data", "model_repository", "statistics"],
    }


def check_header(
    name: Any, datatype: Any, shape: Any, parameters: dict[str, Any], path: str
) -> TensorHeader:
    """Check a tensor in a request without its data.

    Args:
        name: Must be a str.
        datatype: Must be a name of `DATATYPES`.
        shape: Must be a list of int.
        parameters: Must not be for shared memory or classification.
        path: Position in the request, for messages.

    Raises:
        ServiceError: "invalid", or "unsupported" for the parameters.

    Example:

    >>> check_header("x", "INT8", [2, 3], {}, "inputs[0]").size
    6
    """
    if type(datatype) is not str or datatype not in DATATYPES:
        refuse(f"{path}.datatype", f"be one of {', '.join(DATATYPES)}", datatype)
    if (
        type(shape) is not list
        or len(shape) > _MAX_AXES
        or not set(map(type, shape)) <= {int}
        or min(shape, default=0) < 0
        or math.prod(filter(None, shape)) > _MAX_ITEMS
    ):
        expected = f"be a list of at most {_MAX_AXES} ints of at least 0, {_MAX_ITEMS} items in all"
        refuse(f"{path}.shape", expected, shape)
    name = check_str(name, f"{path}.name")
    _check_parameters(parameters, path)
    return TensorHeader(name, datatype, tuple(shape), parameters, path)


def check_str(value: Any, argument: str) -> str:
    """Return a value that is a str and can be encoded in UTF-8.

    Raises:
        ServiceError: "invalid".
    """
    try:
        if type(value) is str:
            value.encode()
            return value
    except UnicodeEncodeError:
        pass
    refuse(argument, "be a str without lone surrogates", value)


def _check_parameters(parameters: Mapping[str, Any], path: str) -> None:
    """Refuse parameters of an input or output for shared memory and classification."""
    for name in _UNSUPPORTED_PARAMETERS:
        if name in parameters:
            argument = f"{path}.parameters.{name}"
            message = (
                f"Argument `{argument}` must be left out: this server supports neither shared "
                "memory nor classification."
            )
            raise ServiceError("unsupported", message, argument)


def checked_request(
    inputs: list[Tensor], outputs: list[RequestedOutput], id: str, parameters: dict[str, Any]
) -> InferRequest:
    """Return the request with these parts; arguments as for `InferRequest`.

    Raises:
        ServiceError: "invalid" if two inputs or two outputs have the same name, "unsupported" for
            a parameter of an output.
    """
    for index, output in enumerate(outputs):
        _check_parameters(output.parameters, f"outputs[{index}]")
    for side, names in (
        ("inputs", [tensor.name for tensor in inputs]),
        ("outputs", [output.name for output in outputs]),
    ):
        if len(set(names)) < len(names):
            refuse(side, "have different names", names)
    return InferRequest(inputs, outputs, id, parameters)


def tensor_from_bytes(header: TensorHeader, raw: bytes) -> Tensor:
    r"""Return a tensor from raw bytes in the layout of Triton's binary tensor extension.

    Args:
        header: Created by `check_header`.
        raw: bytes; each item of BYTES is preceded by its length in 4 bytes.

    Raises:
        ServiceError: "invalid".

    Example:

    >>> header = check_header("x", "BYTES", [1], {}, "")
    >>> tensor_from_bytes(header, b"\x02\x00\x00\x00ab").data.tolist()
    [b'ab']
    """
    if header.datatype == "BYTES":
        array = np.array(_split_raw_items(header, raw), header.dtype)
    else:
        length = header.size * header.dtype.itemsize
        if len(raw) != length:
            expected = f"have {length} bytes of data, for {header.datatype} of shape {header.shape}"
            refuse(header.path, expected, len(raw))
        if header.datatype == "BOOL" and raw.count(0) + raw.count(1) < length:
            refuse(header.path, "have only bytes 0 and 1, for BOOL", raw[:8])
        array = np.frombuffer(raw, header.dtype)
    return header.with_data(array)


def tensor_from_list(header: TensorHeader, items: list[Any]) -> Tensor:
    """Return a tensor from a flat list of its items in row-major order.

    Args:
        header: Created by `check_header`.
        items: list of int, float or bool; list of bytes for BYTES.

    Raises:
        ServiceError: "invalid".

    Example:

    >>> tensor_from_list(check_header("x", "INT8", [2, 1], {}, ""), [3, 4]).data.tolist()
    [[3], [4]]
    """
    if len(items) != header.size:
        expected = f"have {header.size} items of data, for the shape {header.shape}"
        refuse(header.path, expected, len(items))
    try:
        with np.errstate(over="ignore"):
            array = np.array(items, header.dtype)
    except OverflowError:
        refuse(f"{header.path}.data", f"contain numbers of {header.datatype}", items)
    return header.with_data(array)


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor in the layout of `tensor_from_bytes`."""
    if tensor.datatype != "BYTES":
        return tensor.data.astype(DATATYPES[tensor.datatype], copy=False).tobytes()
    items = tensor.data.ravel().tolist()
    return b"".join(chain.from_iterable((_LENGTH.pack(len(item)), item) for item in items))


def parse_rest(body: bytes, json_length: int | None) -> InferRequest:
    """Parse the body of a REST request.

    Args:
        body: bytes, uncompressed.
        json_length: int, bytes of JSON before raw tensors, from the header
            `Inference-Header-Content-Length`; `None` if the whole body is JSON.

    Raises:
        ServiceError: "invalid", or "unsupported" for shared memory and classification.

    Example:

    >>> body = b'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [2], "data": [3, 4]}]}'
    >>> parse_rest(body, None).inputs[0].data.tolist()
    [3, 4]
    """
    end = len(body) if json_length is None else json_length
    if not 0 <= end <= len(body):
        refuse(_HEADER_FIELD, f"be at most {len(body)}, the bytes of the body", end)
    document = parse_object(body[:end])
    inputs = []
    for index, entry in enumerate(_objects(document.get("inputs"), "inputs")):
        path = f"inputs[{index}]"
        parameters = _parameters(entry, path)
        name, datatype, shape = map(entry.get, ("name", "datatype", "shape"))
        header = check_header(name, datatype, shape, parameters, path)
        if "binary_data_size" in parameters:
            size = parameters.pop("binary_data_size")
            if type(size) is not int or not 0 <= size <= len(body) - end:
                expected = f"be an int from 0 to {len(body) - end}, the remaining bytes"
                refuse(f"{path}.parameters.binary_data_size", expected, size)
            if "data" in entry:
                refuse(f"{path}.data", "be left out if `binary_data_size` is set", entry["data"])
            inputs.append(tensor_from_bytes(header, body[end : end + size]))
            end += size
        else:
            inputs.append(_tensor_from_json(header, entry.get("data")))
    if end < len(body):
        refuse("body", f"end with the inputs, after {end} bytes", f"{len(body)} bytes")
    outputs = _requested_outputs(document)
    id = document.get("id")
    parameters = _parameters(document)
    _check_bool(parameters, "binary_data_output")
    return checked_request(inputs, outputs, "" if id is None else check_str(id, "id"), parameters)


def parse_raw(body: bytes, inputs: Sequence[TensorSpec]) -> InferRequest:
    """Parse a REST request without JSON, whose body is the data of the only input.

    Triton calls this a raw binary request. The shape follows from the number of bytes. If the first
    axis and one other axis are dynamic (-1), the first one has length 1. A BYTES tensor has one
    item, the body. All outputs are returned as raw bytes.

    Args:
        body: bytes, uncompressed.
        inputs: list of `TensorSpec`, the inputs of the model.

    Raises:
        ServiceError: "invalid", also if the shape does not follow from the body.

    Example:

    >>> parse_raw(b"a man", [TensorSpec("text", "BYTES", (-1,))]).inputs[0].data.tolist()
    [b'a man']
    """
    if len(inputs) != 1:
        refuse(
            _HEADER_FIELD,
            f"be the length of a JSON document, because the model has {len(inputs)} inputs",
            0,
        )
    [spec] = inputs
    shape, free = list(spec.shape), [axis for axis, size in enumerate(spec.shape) if size == -1]
    if spec.datatype == "BYTES":
        for axis in free:
            shape[axis] = 1
        tensor = tensor_from_list(check_header(spec.name, "BYTES", shape, {}, spec.name), [body])
    else:
        if len(free) == 2 and free[0] == 0:
            shape[free.pop(0)] = 1
        if len(free) > 1:
            refuse(
                _HEADER_FIELD,
                "be the length of a JSON document, because the body does not determine the shape "
                f"{list(spec.shape)} of the input",
                0,
            )
        for axis in free:
            shape[axis] = 1
            shape[axis] = len(body) // max(1, math.prod(shape) * DATATYPES[spec.datatype].itemsize)
        header = check_header(spec.name, spec.datatype, shape, {}, spec.name)
        tensor = tensor_from_bytes(header, body)
    return InferRequest([tensor], [], parameters={"binary_data_output": True})


def check_size(tensors: Sequence[Tensor], is_binary: Sequence[bool]) -> None:
    """Refuse a response that takes too much memory.

    Args:
        tensors: Outputs.
        is_binary: For each output, whether its numbers are raw bytes and not JSON.

    Raises:
        ServiceError: "too_large".
    """
    numbers = size = 0
    for tensor, raw in zip(tensors, is_binary, strict=True):
        if tensor.datatype != "BYTES":
            numbers += 0 if raw else tensor.data.size
            size += tensor.data.nbytes if raw else 0
    if numbers > MAX_NUMBERS or size > _MAX_RAW_BYTES:
        raise ServiceError(
            "too_large",
            f"Argument `outputs` is limited to {MAX_NUMBERS} numbers in JSON and {_MAX_RAW_BYTES} "
            f"bytes of binary data. Name fewer outputs, or send less. Received: {numbers} numbers "
            f"and {size} bytes",
            "outputs",
        )


def count_numbers(response: InferResponse) -> int:
    """Return the number of items of all outputs."""
    return sum(tensor.data.size for tensor in response.outputs)


def render_rest(response: InferResponse, request: InferRequest) -> tuple[bytes, int | None]:
    """Return the body of a REST response.

    Args:
        response: `InferResponse`.
        request: Its `InferRequest`, which names the outputs to return as raw bytes.

    Returns:
        The body, and its number of bytes of JSON if raw tensors follow them, otherwise `None`.

    Raises:
        ServiceError: "unprocessable" for an output that JSON cannot represent: NaN, infinity, or
            bytes that are not UTF-8. "too_large".

    Example:

    >>> response = InferResponse("m", "1", [Tensor("y", "INT8", np.array([3, 4], np.int8))])
    >>> render_rest(response, InferRequest([], []))[0][-68:]
    b'"outputs":[{"name":"y","datatype":"INT8","shape":[2],"data":[3,4]}]}'
    """
    default = request.parameters.get("binary_data_output", False)
    binary = {each.name: each.parameters.get("binary_data", default) for each in request.outputs}
    document: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = response.parameters
    outputs: list[dict[str, Any]] = []
    raws: list[bytes] = []
    is_binary = [binary.get(tensor.name, default) for tensor in response.outputs]
    check_size(response.outputs, is_binary)
    for tensor, raw in zip(response.outputs, is_binary, strict=True):
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.data.shape,
        }
        parameters = tensor.parameters
        if raw:
            raws.append(raw_bytes(tensor))
            parameters = {**parameters, "binary_data_size": len(raws[-1])}
        else:
            output["data"] = _json_data(tensor)
        if parameters:
            output["parameters"] = parameters
        outputs.append(output)
    document["outputs"] = outputs
    header = as_json(document)
    return (b"".join([header, *raws]), len(header)) if raws else (header, None)


def _objects(value: Any, argument: str) -> list[dict[str, Any]]:
    if type(value) is not list or not set(map(type, value)) <= {dict}:
        refuse(argument, "be a list of objects", value)
    return value


def _requested_outputs(document: Mapping[str, Any]) -> list[RequestedOutput]:
    outputs: list[RequestedOutput] = []
    if document.get("outputs") is None:
        return outputs
    for index, entry in enumerate(_objects(document["outputs"], "outputs")):
        path = f"outputs[{index}]"
        parameters = _parameters(entry, path)
        _check_bool(parameters, "binary_data", path)
        outputs.append(RequestedOutput(check_str(entry.get("name"), f"{path}.name"), parameters))
    return outputs


def _parameters(entry: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the parameters of a request, an input or an output: a flat dict of scalars."""
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    argument = f"{path}.parameters".lstrip(".")
    if type(parameters) is not dict:
        refuse(argument, "be an object", parameters)
    for name, value in parameters.items():
        check_str(name, argument)
        if type(value) is str:
            check_str(value, argument)
        # A number too large for a float is parsed as infinity.
        elif type(value) not in (int, float, bool) or abs(value) == math.inf:
            refuse(argument, "contain a str, a number or a bool for each name", {name: value})
    return parameters


def _check_bool(parameters: Mapping[str, Any], name: str, path: str = "") -> None:
    if type(parameters.get(name, False)) is not bool:
        refuse(f"{path}.parameters.{name}".lstrip("."), "be a bool", parameters[name])


def _tensor_from_json(header: TensorHeader, data: Any) -> Tensor:
    """Return a tensor whose data is a JSON list, flat or nested as its shape."""
    argument, kind = f"{header.path}.data", header.dtype.kind
    if type(data) is not list:
        refuse(argument, "be a list", data)
    items = _flatten(data, header.shape, argument) if data and type(data[0]) is list else data
    if not set(map(type, items)) <= _JSON_TYPES.get(kind, {int}):
        refuse(argument, f"contain items of {header.datatype}", data)
    if kind == "O":
        try:
            items = [item.encode() for item in items]
        except UnicodeEncodeError:
            refuse(argument, "contain str without lone surrogates", data)
    tensor = tensor_from_list(header, items)
    if kind == "f" and not np.isfinite(tensor.data).all():
        refuse(argument, f"contain numbers of {header.datatype}", data)
    return tensor


def _flatten(nested: list[Any], shape: tuple[int, ...], argument: str) -> list[Any]:
    """Return the items of nested lists, whose lengths must match the shape."""
    rows: list[Any] = [nested]
    for size in shape:
        if not set(map(type, rows)) <= {list} or not set(map(len, rows)) <= {size}:
            refuse(argument, f"be flat, or nested as the shape {shape}", nested)
        rows = list(chain.from_iterable(rows))
    return rows


def _split_raw_items(header: TensorHeader, raw: bytes) -> list[bytes]:
    """Return the items of a raw BYTES tensor."""
    items: list[bytes] = []
    offset = 0
    while len(items) < header.size and offset + _LENGTH.size <= len(raw):
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(raw, offset)[0]
        items.append(raw[start:offset])
    if len(items) < header.size or offset != len(raw):
        expected = f"have {header.size} items, each after its length in 4 bytes, and nothing else"
        refuse(header.path, expected, f"{len(raw)} bytes")
    return items


def _json_data(tensor: Tensor) -> Any:
    """Return the items of a tensor for `as_json`."""
    items = tensor.data.ravel()
    try:
        if tensor.datatype == "BYTES":
            return [str(item, "utf-8") for item in items]
        if items.dtype.kind != "f" or np.isfinite(items).all():
            return json_array(items)
    except UnicodeDecodeError:
        pass
    message = (
        f"The output {tensor.name!r} has values that JSON cannot represent: NaN, infinity, or "
        'bytes that are not UTF-8. Request it with its parameter "binary_data" true.'
    )
    raise ServiceError("unprocessable", message)


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse the JSON object in a body.

    Raises:
        ServiceError: "invalid", or "too_large" for too many values.
    """
    # The parser keeps Python's global lock, for 3 seconds with 16 MB of brackets.
    values = text.count(b",") + text.count(b"[")
    if values > _MAX_VALUES:
        raise ServiceError(
            "too_large",
            f"The body must have at most {_MAX_VALUES} commas and opening brackets. Send less. "
            f"Received: {values}",
            "body",
        )
    try:
        document = parse_json(str(text, "utf-8"), constants=False)
    except ValueError as error:
        message = f"The body must be a JSON object in UTF-8. Received: {error}"
        raise ServiceError("invalid", message, "body") from error
    if type(document) is not dict:
        refuse("body", "be a JSON object", document)
    return document


def as_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8, with arrays as lists and numbers in their shortest form.

    Example:

    >>> as_json({"score": np.float32(0.1), "weights": np.eye(2, dtype="float32")})
    b'{"score":0.1,"weights":[[1.0,0.0],[0.0,1.0]]}'
    """
    return orjson.dumps(value, default=_contiguous, option=orjson.OPT_SERIALIZE_NUMPY)


def json_array(array: NDArray[Any]) -> Any:
    """Return an array for `as_json`, a large one as JSON that is already written.

    orjson keeps Python's global lock while it writes an array, so a large one is written in parts.

    Example:

    >>> as_json({"weights": json_array(np.zeros((1, 2), "float32"))})
    b'{"weights":[[0.0,0.0]]}'
    """
    return array if array.size <= _NUMBERS_AT_ONCE else orjson.Fragment(_write(array))


def _write(array: NDArray[Any]) -> bytes:
    if array.size <= _NUMBERS_AT_ONCE:
        return as_json(array)
    if array.ndim > 1:
        return b"[" + b",".join(map(_write, array)) + b"]"
    starts = range(0, len(array), _NUMBERS_AT_ONCE)
    return b"[" + b",".join(as_json(array[i : i + _NUMBERS_AT_ONCE])[1:-1] for i in starts) + b"]"


def _contiguous(value: Any) -> NDArray[Any]:
    """Return an array that orjson accepts."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is not a JSON value")
    return np.ascontiguousarray(value)
