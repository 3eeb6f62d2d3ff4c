"""Checkpoints of PyTorch as plain values, read without torch and without running code of the file.

A checkpoint is a pickle with references to storages, the numbers of tensors. Since torch 1.6 it is
a zip file of uncompressed members, before that a file of pickles followed by the storages.
"""

import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_bahdanau.toolkits.unpickling import (
    MAX_BYTES,
    UNREAD,
    Namespace,
    UnpicklingError,
    unpickle,
)
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.zip_files import open_zip, read_member

# Types of storages whose numbers can be weights; NumPy has no bfloat16, the upper half of float32.
_FLOATS = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),
}
_BFLOAT16 = _FLOATS["BFloat16Storage"]
# Sizes of the numbers of other storages.
_SIZES = {
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8,
    "UntypedStorage": 1,
}
# The first two values of the older form of files.
_MAGIC_NUMBER, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# Names that occur in checkpoints, for values that no importer reads.
_UNREAD_GLOBALS = re.compile(
    r"numpy\.(dtype|ndarray|_?core\.multiarray\.(scalar|_reconstruct))"
    r"|(builtins|__builtin__)\.(set|bytearray|complex)"
    r"|collections\.Counter|_codecs\.encode"
    r"|torch\.(Size|device|Tensor|nn\.parameter\.Parameter|serialization\._get_layout)"
    r"|torch\.(bool|q?u?int\d+|float\d+\w*|bfloat16|complex\d+|per_(tensor|channel)_\w+)"
    r"|torch\.(storage\.)?\w*(Storage|Tensor)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2"
)
_MAX_RANK = 8
_MAX_STRIDE = 2**48  # of an axis of size 1, whose stride is not used; NumPy counts bytes in int64
_MAX_SHARING = 4  # names of weights that share one embedding, at most


class _ForbiddenNameError(Exception):
    """A checkpoint names a class or function that is not one of a list."""


@dataclass(frozen=True)
class StorageType:
    """Type of the numbers in a storage.

    Args:
        name: Such as "FloatStorage".
        item_size: Bytes of a number.
    """

    name: str
    item_size: int


@dataclass(frozen=True)
class Storage:
    """Numbers that tensors share.

    Args:
        type: The `StorageType`.
        key: Name of the storage in the file.
        count: Number of numbers.
    """

    type: StorageType
    key: str
    count: int

    @property
    def size(self):
        """Number of bytes."""
        return self.count * self.type.item_size


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, whose numbers are not read yet.

    Args:
        storage: Its `Storage`.
        offset: Index of its first number.
        shape: Tuple of sizes.
        strides: For each axis the distance of neighbors in the storage.
    """

    storage: Storage
    offset: int
    shape: tuple
    strides: tuple

    @property
    def is_float(self):
        """Whether the numbers are floats of a type that weights have."""
        return self.storage.type.name in _FLOATS

    @property
    def count(self):
        """Number of numbers."""
        return int(np.prod(self.shape, dtype=object))

    def view(self, contents):
        """Return a float32 array, with infinity for numbers outside the range of float32.

        Args:
            contents: The bytes of the storage.
        """
        dtype = _FLOATS[self.storage.type.name]
        numbers = np.frombuffer(contents, dtype, self.storage.count)
        strides = [stride * dtype.itemsize for stride in self.strides]
        array = np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, strides)
        if dtype == _BFLOAT16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            return array.astype(np.float32)


class Checkpoint:
    """A checkpoint of PyTorch.

    The class reads only what PyTorch's own files need: tensors, plain Python values, and
    `argparse.Namespace`, in which two of the toolkits store their options, as a dict. Scalars and
    arrays of NumPy, such as a best score, become `UNREAD`. Numbers of tensors are read later, by
    `read`, and the sizes that the file declares are compared with its own size before.

    Args:
        path: The file.

    Attributes:
        path: The file.
        values: The stored dict, with a `StoredTensor` for each tensor.

    Raises:
        ValueError: If the file is missing, is no checkpoint, or contains other classes.
    """

    def __init__(self, path):
        self.path = path = Path(path)
        if not path.is_file():
            reason = "is a folder" if path.is_dir() else "does not exist"
            raise argument_error(
                "path", "be a checkpoint", received=f"{str(path)!r}, which {reason}"
            )
        self._storages = {}  # by key
        self._folder = None  # in a zip file, with a slash
        self._offsets = {}  # in other files, by key of storages
        self._file_size = path.stat().st_size
        try:
            if zipfile.is_zipfile(path):
                self.values = self._open_zip()
            else:
                self.values = self._open_pickles()
        except _ForbiddenNameError as error:
            raise self._error(f"which contains {error}") from error
        except (zipfile.BadZipFile, UnpicklingError) as error:
            raise self._error(f"which is incomplete or another file: {error!s:.200}") from error
        if not isinstance(self.values, dict):
            raise argument_error(
                "path",
                "be a checkpoint, which is a dict",
                received=f"{str(path)!r}, which contains {type(self.values).__name__}",
            )

    def _error(self, problem):
        return argument_error(
            "path",
            "be a PyTorch checkpoint of only tensors, plain values and argparse.Namespace, "
            "because other classes and functions can run any code",
            received=f"{str(self.path)!r}, {problem}",
        )

    def check_size(self, tensors):
        """Raise a `ValueError` if tensors declare more numbers than the file can have.

        Args:
            tensors: Collection of `StoredTensor`s, some of which may share a storage.
        """
        size = sum(tensor.count * tensor.storage.type.item_size for tensor in tensors)
        stored = sum(storage.size for storage in {tensor.storage for tensor in tensors})
        # Members of a zip file may overlap.
        if size > _MAX_SHARING * self._file_size or stored > self._file_size:
            size = max(size, stored)
            raise self._error(f"whose weights have {size} bytes and the file {self._file_size}")

    def read(self, tensors):
        """Return the bytes of the storages of tensors.

        Args:
            tensors: Iterable of `StoredTensor`s.

        Returns:
            Dict of bytes by `Storage`.
        """
        storages = dict.fromkeys(tensor.storage for tensor in tensors)
        try:
            if self._folder is None:
                with open(self.path, "rb") as file:
                    for storage in storages:
                        file.seek(self._offsets[storage.key])
                        storages[storage] = file.read(storage.size)
            else:
                with open_zip(self.path) as archive:
                    for storage in storages:
                        name = f"{self._folder}data/{storage.key}"
                        storages[storage] = read_member(archive, name, storage.size)
        except zipfile.BadZipFile as error:
            raise self._error(f"which is damaged: {error!s:.200}") from error
        return storages

    # --- The two forms of files -------------------------------------------------------------------

    def _open_zip(self):
        with open_zip(self.path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise zipfile.BadZipFile(f"{len(names)} members data.pkl")
            self._folder = names[0].removesuffix("data.pkl")
            order = f"{self._folder}byteorder"
            if order in archive.namelist() and read_member(archive, order, 16) != b"little":
                raise zipfile.BadZipFile("numbers in the byte order of another processor")
            pickle = io.BytesIO(read_member(archive, names[0], MAX_BYTES))
            values = unpickle(pickle, _find_global, self._find_storage)
            for storage in self._storages.values():
                self._check_member(archive, storage)
        return values

    def _check_member(self, archive, storage):
        name = f"{self._folder}data/{storage.key}"
        member = archive.NameToInfo.get(name)
        if member is None:
            raise zipfile.BadZipFile(f"no member {name!r:.80}")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != storage.size:
            raise zipfile.BadZipFile(
                f"member {name!r:.80} does not have {storage.size} bytes without compression"
            )

    def _open_pickles(self):
        with open(self.path, "rb") as file:
            start = io.BytesIO(file.read(MAX_BYTES))
        head = [unpickle(start, _find_global, self._find_storage) for _ in range(3)]
        if head[:2] != [_MAGIC_NUMBER, _PROTOCOL]:
            raise UnpicklingError("another magic number")
        values = unpickle(start, _find_global, self._find_storage)
        keys = unpickle(start, _find_global, self._find_storage)
        if not isinstance(keys, list) or len(keys) != len(self._storages):
            raise UnpicklingError("no list of storages")
        position = start.tell()
        with open(self.path, "rb") as file:
            for key in keys:
                storage = self._storages.get(key) if isinstance(key, str) else None
                file.seek(position)
                count = int.from_bytes(file.read(8), "little")
                if storage is None or count != storage.count:
                    raise UnpicklingError("a storage of another size than its tensors")
                self._offsets[key] = position + 8
                position += 8 + storage.size
                if position > self._file_size:
                    raise UnpicklingError("fewer numbers than its tensors")
        if len(self._offsets) != len(self._storages):
            raise UnpicklingError("a storage without numbers")
        return values

    def _find_storage(self, reference):
        match reference:
            case ("storage", StorageType() as kind, str(key), str(), int(count), *view):
                storage = Storage(kind, key, count)
            case _:
                raise UnpicklingError("a reference to another value than a storage")
        if view not in ([], [None]) or not 0 <= storage.size <= self._file_size:
            raise UnpicklingError(f"a storage of {count} numbers")
        if self._storages.setdefault(key, storage) != storage:
            raise UnpicklingError("a storage of two types or sizes")
        return storage


# --- Values of a pickle ---------------------------------------------------------------------------


def _find_global(name):
    """Return the function or `StorageType` for a name in a pickle."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    kind = name.removeprefix("torch.").removeprefix("storage.")
    if name.startswith("torch.") and kind in _FLOATS:
        return StorageType(kind, _FLOATS[kind].itemsize)
    if name.startswith("torch.") and kind in _SIZES:
        return StorageType(kind, _SIZES[kind])
    if _UNREAD_GLOBALS.fullmatch(name):
        return _unread
    raise _ForbiddenNameError(ascii(name)[1:81].rstrip("'"))


def _unread(*_):
    return UNREAD


def _rebuild_tensor(*arguments):
    """Return the `StoredTensor` of the arguments of `torch._utils._rebuild_tensor_v2`."""
    match arguments:
        case (Storage() as storage, int(offset), tuple(shape), tuple(strides), *flags):
            tensor = StoredTensor(storage, offset, shape, strides)
        case _:
            raise UnpicklingError("a tensor without its storage")
    # The flags are `requires_grad`, hooks and metadata, such as {"neg": True}: the numbers are
    # stored with the other sign.
    if any(flags[2:]):
        raise UnpicklingError("a tensor with metadata, such as a negative or conjugate view")
    sizes = (offset, *shape, *strides)
    if (
        len(shape) != len(strides)
        or len(shape) > _MAX_RANK
        or not all(type(size) is int and size >= 0 for size in sizes)
        or max(strides, default=0) > _MAX_STRIDE
    ):
        raise UnpicklingError("a tensor of an invalid shape")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if tensor.count and (last >= storage.count or tensor.count > storage.count):
        raise UnpicklingError(f"a tensor with more numbers than its storage of {storage.count}")
    return tensor


def _rebuild_parameter(*arguments):
    return arguments[0] if arguments else UNREAD


def _rebuild_from_type(*arguments):
    """Return the tensor of a `Parameter` that has attributes."""
    match arguments:
        case (function, _, tuple(inner), *_) if function in (_rebuild_tensor, _rebuild_parameter):
            return function(*inner)
    return UNREAD


def _make_dict(*arguments):
    return {} if not arguments else UNREAD


def _make_namespace(*_):
    return Namespace()


_FUNCTIONS = {
    "collections.OrderedDict": _make_dict,
    "argparse.Namespace": _make_namespace,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
}
