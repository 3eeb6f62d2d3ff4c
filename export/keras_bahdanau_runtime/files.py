"""Files and folders that appear whole or not at all, and are still there after a loss of power.

with written("translations.txt") as path:       # another file, beside it
    path.write_text("ein Mann")                 # renamed when the block has ended well
"""

import contextlib
import ctypes
import errno
import glob
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LINUX = sys.platform == "linux"
_HERE = -100  # AT_FDCWD of Linux: paths are relative to the working directory
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux


@contextlib.contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a path to write to, which takes the place of `path` when the block ends well.

    On any exception, `KeyboardInterrupt` and a full disk included, `path` is as it was. What a
    writer of the same file left who was killed is removed, where the system has locks.

    Args:
        path: The file to make or replace. The other one stands beside it, empty, with the same
            suffix.

    Example:

    >>> with written("notes.txt") as path:
    ...     _ = path.write_text("hello")
    """
    path = Path(path)
    for left in path.parent.glob(f".{glob.escape(path.stem)}.*.writing{glob.escape(path.suffix)}"):
        with locked(left) as ours:
            if ours and fcntl is not None:
                left.unlink()
    writing = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.writing{path.suffix}")
    try:
        writing.touch(exist_ok=False)
        with locked(writing):
            yield writing
        flush(writing)
        os.replace(writing, path)
        flush(path.parent)
    finally:
        writing.unlink(missing_ok=True)


def flush(*paths: Path) -> None:
    """Waits until files, and folders where the system allows it, are on the disk."""
    for path in paths:
        if os.name == "nt" and path.is_dir():  # Windows opens no folders
            continue
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def exchange(one: Path, other: Path) -> bool:
    """Lets two existing paths change places, at one stroke; says whether the system can."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if _LINUX else None
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):  # an old kernel, or a file system that cannot
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Holds the lock of a folder or a file as long as the block runs, and says whether it got it.

    The system takes the lock from a process that dies. Where it has no such locks, on Windows, the
    answer is always True.
    """
    if fcntl is None:
        yield True
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            got = True
        except BlockingIOError:
            got = False
        yield got
    finally:
        os.close(descriptor)
