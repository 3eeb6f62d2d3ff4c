"""A file that TensorBoard reads, of numbers and images, written without it or TensorFlow.

The file is a TFRecord of `Event` messages (tensorflow/core/util/event.proto): for each its length,
a checksum of that, the message, and a checksum of it.
"""

import functools
import os
import secrets
import struct
import time
from pathlib import Path

from keras_bahdanau_runtime import protobuf
from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.files import add_path_to_errors

_MESSAGES = {
    "Event": "1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary",
    "Summary": "1 value *Value",
    "Value": "1 tag string, 2 simple_value float, 4 image Image",
    "Image": "1 height int32, 2 width int32, 3 colorspace int32, 4 encoded_image_string bytes",
}
_RGBA = 4


class EventFile:
    """One file of a run's folder, to which numbers and images are added while the run goes on.

    Args:
        folder: Where the file is made, with a name that no other has; TensorBoard's `--logdir`, or
            a folder in it.

    Raises:
        MissingDependencyError: protobuf is not installed.
    """

    def __init__(self, folder):
        require("google.protobuf", extra="runtime")
        self._event = protobuf.message_class(
            protobuf.pool_of(protobuf.file_of("events", _MESSAGES)), "events.Event"
        )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{secrets.token_hex(4)}.{os.getpid()}"
        self.path = folder / name
        self._write(file_version="brain.Event:2")

    def add_scalars(self, values, step):
        """Adds numbers.

        Args:
            values: Mapping of tags, the names under which TensorBoard draws a line, to floats.
            step: Int, what the numbers are of: an update, for example.
        """
        summary = [{"tag": tag, "simple_value": value} for tag, value in values.items()]
        self._write(step=step, summary={"value": summary})

    def add_image(self, tag, png, step):
        """Adds an image.

        Args:
            tag: Str, the name under which TensorBoard shows the images of all steps.
            png: Bytes of a PNG with an alpha channel.
            step: Int, what the image is of: an epoch, for example.
        """
        width, height = struct.unpack(">II", png[16:24])  # of the PNG's first chunk
        image = dict(height=height, width=width, colorspace=_RGBA, encoded_image_string=png)
        self._write(step=step, summary={"value": [{"tag": tag, "image": image}]})

    def _write(self, **fields):
        message = self._event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(message))
        with add_path_to_errors(self.path), self.path.open("ab") as file:
            file.write(length + _masked(crc32c(length)) + message + _masked(crc32c(message)))


def crc32c(data):
    """The Castagnoli checksum of bytes, an int.

    Example:

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(crc):
    # As a TFRecord has it: a checksum of data that holds checksums would be weak.
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _table():
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table
