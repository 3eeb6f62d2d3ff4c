"""Tensors of the Open Inference Protocol, from what came over the wire and back to it.

What a stranger sends is measured before room is made for it: no shape, length or count is believed.
"""

import math
import reprlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.service.errors import ServiceError

# On the wire, numbers are little-endian.
DATATYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BYTES": np.dtype(object),
}
_MOST_AXES = 16  # numpy has 64
_LARGEST = 2**40  # numbers in a tensor, were there no axis of length 0
_LENGTH = struct.Struct("<I")  # before each item of a raw BYTES tensor


@dataclass
class Tensor:
    """An input or an output.

    Args:
        name: str.
        datatype: str, a name of `DATATYPES`.
        data: Array of the tensor's shape and of the dtype of `DATATYPES`; BYTES are an object
            array of bytes. It may be read-only.
        parameters: dict of str to str, int, float or bool.
    """

    name: str
    datatype: str
    data: NDArray[Any]
    parameters: dict[str, Any] = field(default_factory=dict)


class Head(NamedTuple):
    """What is said of a tensor before its data; made by `checked_head`.

    Args:
        name: str.
        datatype: str, a name of `DATATYPES`.
        shape: tuple of int, at least 0.
        at: str. Where the tensor stands in the request, for messages.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    at: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the data."""
        return DATATYPES[self.datatype]

    @property
    def size(self) -> int:
        """The number of items."""
        return math.prod(self.shape)


def checked_head(name: Any, datatype: Any, shape: Any, at: str) -> Head:
    """The head of a tensor that a request holds.

    Args:
        name: What should be a str.
        datatype: What should be a name of `DATATYPES`.
        shape: What should be a list of int.
        at: Where the tensor stands in the request, for messages.

    Raises:
        ServiceError: "invalid".

    Example:

    >>> checked_head("x", "INT8", [2, 3], "inputs[0]").size
    6
    """
    if type(datatype) is not str or datatype not in DATATYPES:
        refuse(f"{at}.datatype", f"be one of {', '.join(DATATYPES)}", datatype)
    if (
        type(shape) is not list
        or len(shape) > _MOST_AXES
        or not set(map(type, shape)) <= {int}
        or min(shape, default=0) < 0
        or math.prod(filter(None, shape)) > _LARGEST
    ):
        expected = f"be a list of at most {_MOST_AXES} ints of at least 0, {_LARGEST} items in all"
        refuse(f"{at}.shape", expected, shape)
    return Head(checked_str(name, f"{at}.name"), datatype, tuple(shape), at)


def checked_str(value: Any, argument: str) -> str:
    """The value, if it is a str that UTF-8 can say.

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


def raw_tensor(head: Head, raw: bytes, parameters: dict[str, Any]) -> Tensor:
    r"""A tensor from its raw bytes, in the layout of Triton's binary tensor extension.

    Args:
        head: Of `checked_head`.
        raw: bytes; for BYTES, each item after its length in 4 bytes.
        parameters: The tensor's.

    Raises:
        ServiceError: "invalid".

    Example:

    >>> raw_tensor(Head("x", "BYTES", (1,), ""), b"\x02\x00\x00\x00ab", {}).data.tolist()
    [b'ab']
    """
    if head.datatype == "BYTES":
        array = np.array(_raw_items(head, raw), head.dtype)
    else:
        length = head.size * head.dtype.itemsize
        if len(raw) != length:
            expected = f"have {length} bytes of data, for {head.datatype} of shape {head.shape}"
            refuse(head.at, expected, len(raw))
        if head.datatype == "BOOL" and raw.count(0) + raw.count(1) < length:
            refuse(head.at, "have bytes of 0 and 1 only, for BOOL", raw[:8])
        array = np.frombuffer(raw, head.dtype)
    return Tensor(head.name, head.datatype, array.reshape(head.shape), parameters)


def listed_tensor(head: Head, items: list[Any], parameters: dict[str, Any]) -> Tensor:
    """A tensor from a flat list of its items, in row-major order.

    Args:
        head: Of `checked_head`.
        items: list of int, float or bool, as the datatype has them; for BYTES, of bytes.
        parameters: The tensor's.

    Raises:
        ServiceError: "invalid".

    Example:

    >>> listed_tensor(Head("x", "INT8", (2, 1), ""), [3, 4], {}).data.tolist()
    [[3], [4]]
    """
    if len(items) != head.size:
        expected = f"have {head.size} items of data, for the shape {head.shape}"
        refuse(head.at, expected, len(items))
    try:
        with np.errstate(over="ignore"):
            array = np.array(items, head.dtype)
    except OverflowError:
        refuse(f"{head.at}.data", f"hold numbers of {head.datatype}", items)
    return Tensor(head.name, head.datatype, array.reshape(head.shape), parameters)


def raw_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor in the layout that `raw_tensor` reads."""
    if tensor.datatype != "BYTES":
        return tensor.data.astype(DATATYPES[tensor.datatype], copy=False).tobytes()
    items = tensor.data.ravel().tolist()
    return b"".join(chain.from_iterable((_LENGTH.pack(len(item)), item) for item in items))


def refuse(argument: str, expected: str, received: Any) -> NoReturn:
    """Raises a `ServiceError`, "invalid", in the words that all of them have.

    Args:
        argument: Name of the argument.
        expected: What it must do, after "must".
        received: What came, shown in short.
    """
    message = f"Argument `{argument}` must {expected}. Received: {reprlib.repr(received)}"
    raise ServiceError("invalid", message, argument)


def _raw_items(head: Head, raw: bytes) -> list[bytes]:
    """The items of a raw BYTES tensor."""
    items: list[bytes] = []
    offset = 0
    while len(items) < head.size and offset + _LENGTH.size <= len(raw):
        start = offset + _LENGTH.size
        offset = start + _LENGTH.unpack_from(raw, offset)[0]
        items.append(raw[start:offset])
    if len(items) < head.size or offset != len(raw):
        expected = f"have {head.size} items, each after its length in 4 bytes, and no byte more"
        refuse(head.at, expected, f"{len(raw)} bytes")
    return items
