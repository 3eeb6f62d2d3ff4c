"""Listening sockets that close without resetting connections, even if processes share them.

A system resets the connections that wait in the queue of a listening socket when its last copy
closes. Accepting all of them first is not enough: another may arrive before the socket closes.
"""

import contextlib
import ctypes
import socket
import struct
import sys

if sys.platform == "linux":
    import fcntl

_SO_ATTACH_FILTER = 26
# A classic BPF program. An instruction has a code, two jumps (if true, if false) and an operand.
_DISCARD_FIRST_SEGMENTS = (
    (0x30, 0, 0, 13),  # load the byte of the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # is it SYN alone, the first segment of a connection?
    (0x06, 0, 0, 0),  # discard the segment
    (0x06, 0, 0, 0xFFFFFFFF),  # keep it
)


def hold(listener: socket.socket) -> None:
    """Record that this process accepts the connections of a listening socket, until it closes it.

    Locks count the processes because the system releases those of a process that dies.

    Args:
        listener: A listening socket.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.lockf(listener, fcntl.LOCK_SH)


def close(listener: socket.socket) -> list[socket.socket]:
    """Close a listening socket and return the connections that were waiting.

    On Linux, the last process that holds the socket stops new connections first. Their clients wait
    until the socket is closed, and are then refused.

    Args:
        listener: A listening socket that does not block.

    Returns:
        list of connected sockets.
    """
    waiting = []
    with listener, contextlib.suppress(BlockingIOError):
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # another process accepts the new connections
                # Release the own lock first. Otherwise, of two processes that close the socket at
                # the same time, each would take the other for the last.
                fcntl.lockf(listener, fcntl.LOCK_UN)
                fcntl.lockf(listener, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _discard_first_segments(listener)
        while True:
            waiting.append(listener.accept()[0])
    return waiting


def _discard_first_segments(listener: socket.socket) -> None:
    """Discard the first segment of each new connection. Clients send it again after a second."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DISCARD_FIRST_SEGMENTS)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(_DISCARD_FIRST_SEGMENTS), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
