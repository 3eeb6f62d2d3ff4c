"""Files and folders that are written completely or not at all, and survive a power failure.

with atomic_write("translations.txt") as path:   # a temporary file in the same folder
    path.write_text("ein Mann")                  # renamed when the block succeeds
"""

import contextlib
import ctypes
import errno
import glob
import hashlib
import json
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import argument_error

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("keras_bahdanau_runtime")

_LINUX = sys.platform == "linux"
_AT_FDCWD = -100  # Linux: paths are relative to the working directory
_RENAME_EXCHANGE = 2  # Linux
_RANDOM = "[0-9a-f]" * 8  # in the names of temporary files and folders
# Errors of file systems without locks, and of those that do not flush folders (for this user).
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
_NO_FLUSH = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EACCES}


def folder_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a folder; for a link, its own name and not that of its target.

    >>> folder_name("models/en-de/")
    'en-de'
    """
    return os.path.basename(os.path.abspath(path))


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the block succeeds.

    After any exception, including `KeyboardInterrupt` and a full disk, `path` is unchanged.
    Temporary files of killed writers of the same path are removed if the system has locks.

    Args:
        path: The file to create or replace. The temporary file is empty, in the same folder, and
            has the same suffix.

    Example:

    >>> with atomic_write("notes.txt") as path:
    ...     _ = path.write_text("hello")
    """
    path = Path(path)
    with temporary_file(path) as temporary, add_path_to_errors(path):
        yield temporary
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield a new empty file in the folder of `path`, with the same suffix.

    It is removed after the block. Those of killed writers of the same path are removed before it,
    if the system has locks.
    """
    stem, suffix = glob.escape(path.stem), glob.escape(path.suffix)
    for stale in path.parent.glob(f".{stem}.{_RANDOM}.writing{suffix}"):
        _remove_stale(stale, Path.unlink)
    with _new_locked_path(lambda: _random_name(path), Path.touch) as temporary:
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], values: Any) -> None:
    """Write a JSON file with `atomic_write`."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str],
    kind: str,
    is_replaceable: Callable[[Path], bool],
    overwrite: bool = False,
) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block succeeds.

    The folder is flushed to the disk and renamed; missing parent folders of `path` are created.
    After any exception, including `KeyboardInterrupt` and a full disk, the temporary folder is
    removed and `path` is unchanged. Temporary folders of killed writers of the same path are
    removed if the system has locks.

    Args:
        path: The folder to create or replace.
        kind: Description for messages, such as "an artifact".
        is_replaceable: Returns whether a folder is of this kind. Only such a folder, or an empty
            one, is ever replaced.
        overwrite: bool. Whether an existing folder at `path` may be replaced.

    Raises:
        ValueError: `path` exists and may not be replaced.

    Example:

    >>> with atomic_folder("notes", "a folder of notes", lambda folder: False) as folder:
    ...     _ = (folder / "notes.txt").write_text("hello")
    """
    destination = Path(os.path.abspath(path))
    check_new_folder(destination, kind, is_replaceable, overwrite)
    destination.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_folders(destination)
    published = False
    with _new_locked_path(lambda: _temporary_folder(destination), Path.mkdir) as temporary:
        try:
            with add_path_to_errors(destination):
                yield temporary
                fsync(*temporary.rglob("*"), temporary)
            # Check again: the block may have taken minutes.
            check_new_folder(destination, kind, is_replaceable, overwrite)
            replaced = _move_into_place(temporary, destination)
            published = True
            fsync(destination.parent)
            if replaced is not None:
                _remove_replaced(replaced, destination)
        except BaseException:
            if not published and temporary.exists():
                shutil.rmtree(temporary)
                logger.warning("%s was not written; the partial files were removed.", destination)
            raise


@contextlib.contextmanager
def add_path_to_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add `path` to an `OSError` of the block that names no file, such as that of a full disk.

    Example:

    >>> with add_path_to_errors("out.txt"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'out.txt'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def fsync(*paths: Path) -> None:
    """Wait until files, and folders if the system allows it, are on the disk."""
    for path in paths:
        if os.name == "nt" and path.is_dir():  # Windows opens no folders
            continue
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FLUSH or not path.is_dir():
                raise
        finally:
            os.close(descriptor)


def exchange(first: Path, second: Path) -> bool:
    """Swap two existing paths atomically; return whether the system supports it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if _LINUX else None
    if rename is None:
        return False
    arguments = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    if rename(*arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):  # an old kernel, or an unsupported file system
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Lock a file or folder for the duration of the block; yield whether that succeeded.

    The system releases the lock of a process that dies. Windows and some file systems have no such
    locks: the result is always True there.
    """
    with _flock(path) as is_locked:
        yield is_locked is not False


@contextlib.contextmanager
def _flock(path: Path) -> Iterator[bool | None]:
    """`try_lock`, but yield `None` if there are no locks."""
    if fcntl is None:
        yield None
        return
    # NFS locks only files that are open for writing, and folders cannot be.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        is_locked: bool | None = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            is_locked = None
        yield is_locked
    finally:
        os.close(descriptor)


def _remove_stale(path: Path, remove: Callable[[Path], None]) -> bool:
    """Remove a temporary path unless a running writer uses it; return whether it was removed."""
    try:
        with _flock(path) as is_locked:
            if is_locked is True and path.exists():
                remove(path)
                return True
    except OSError as error:  # another user's file, or another writer removes it
        logger.info("%s is not removed here: %s", path, error)
    return False


@contextlib.contextmanager
def _new_locked_path(name: Callable[[], Path], make: Callable[[Path], None]) -> Iterator[Path]:
    """Create a file or folder and lock it before another writer can take it for a stale one."""
    with contextlib.ExitStack() as locks:
        while True:
            path = name()
            make(path)
            with contextlib.suppress(FileNotFoundError):  # removed before it was locked
                if locks.enter_context(try_lock(path)) and path.exists():
                    break
        yield path


def _random_name(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.writing{path.suffix}")


def _temporary_folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@contextlib.contextmanager
def claim_folder(folder: Path, action: str) -> Iterator[None]:
    """Create and lock a folder for the duration of the block; remove it if it is still empty.

    Args:
        folder: The caller's argument `output`.
        action: Action of this process, for the message, such as "trains in".

    Raises:
        ValueError: Another process has locked the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with try_lock(folder) as is_locked:
        if not is_locked:
            raise argument_error(
                "output", f"be a folder that no other process {action}", str(folder)
            )
        try:
            yield
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()


def check_new_folder(
    path: str | os.PathLike[str],
    kind: str,
    is_replaceable: Callable[[Path], bool],
    overwrite: bool,
) -> None:
    """Raise the `ValueError` of `atomic_folder` for the same arguments, without writing."""
    destination = Path(os.path.abspath(path))
    if not os.path.lexists(destination):
        return
    if not overwrite:
        raise argument_error(
            "path",
            "be a new folder, or `overwrite` be True",
            received=f"{destination}, which exists.",
        )
    # overwrite=True with a mistyped path must never delete a home directory.
    is_plain_folder = destination.is_dir() and not destination.is_symlink()
    if not is_plain_folder or (any(destination.iterdir()) and not is_replaceable(destination)):
        raise argument_error(
            "path",
            f"be {kind} or an empty folder to overwrite",
            received=f"{destination}, which is neither.",
        )


def _move_into_place(temporary: Path, destination: Path) -> Path | None:
    """Rename `temporary` to `destination`; return the new path of a replaced folder."""
    if not destination.exists():
        temporary.rename(destination)
        return None
    if exchange(temporary, destination):
        return temporary
    # The destination is missing for a moment. A process killed now leaves both folders next to it.
    replaced = temporary.with_suffix(".replaced")
    try:
        destination.rename(replaced)
        temporary.rename(destination)
    except BaseException:
        if replaced.exists() and not destination.exists():
            replaced.rename(destination)
        raise
    return replaced


def _remove_replaced(replaced: Path, destination: Path) -> None:
    logger.info("Replaced the folder %s.", destination)
    try:
        shutil.rmtree(replaced)
    except FileNotFoundError:
        logger.info("Another writer removes %s.", replaced)
    except OSError as error:  # the new folder is in place, so this is not a failure
        logger.warning("Could not remove the replaced folder %s: %s", replaced, error)


def _remove_stale_folders(destination: Path) -> None:
    """Remove the temporary folders of killed writers of the same path."""
    for path in destination.parent.glob(f".{glob.escape(destination.name)}.{_RANDOM}.*"):
        if path.suffix not in (".partial", ".replaced") or path.is_symlink() or not path.is_dir():
            continue
        if path.suffix == ".replaced" and not destination.exists():
            continue  # the only copy
        if _remove_stale(path, shutil.rmtree):
            logger.warning("Removed %s, left by a writer that was killed.", path)
