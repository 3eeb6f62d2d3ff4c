"""Files and folders that appear whole or not at all, and are still there after a loss of power.

with written("translations.txt") as path:       # another file, beside it
    path.write_text("ein Mann")                 # renamed when the block has ended well
"""

import contextlib
import ctypes
import errno
import glob
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("keras_bahdanau_runtime")

_LINUX = sys.platform == "linux"
_HERE = -100  # AT_FDCWD of Linux: paths are relative to the working directory
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux
_RANDOM = "[0-9a-f]" * 8  # in the names of what is being written
# How a file system says that it has no locks; and that it flushes no folders, or not for this user.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
_NO_FLUSH = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EACCES}


def given_name(path: str | os.PathLike[str]) -> str:
    """The name of a folder as it was given: that of a link, not of what it leads to.

    >>> given_name("models/en-de/")
    'en-de'
    """
    return os.path.basename(os.path.abspath(path))


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
    stem, suffix = glob.escape(path.stem), glob.escape(path.suffix)
    for left in path.parent.glob(f".{stem}.{_RANDOM}.writing{suffix}"):
        _remove_left(left, Path.unlink)
    with _claimed_name(lambda: _writing(path), Path.touch) as writing:
        try:
            with naming(path):
                yield writing
                flush(writing)
                os.replace(writing, path)
                flush(path.parent)
        finally:
            writing.unlink(missing_ok=True)


@contextlib.contextmanager
def written_folder(
    path: str | os.PathLike[str],
    kind: str,
    is_one: Callable[[Path], bool],
    overwrite: bool = False,
) -> Iterator[Path]:
    """Yields a new folder beside `path`, which takes its place when the block ends well.

    The folder is then flushed to the disk and renamed; missing parent folders of `path` are made.
    On any exception, `KeyboardInterrupt` and a full disk included, the new folder is removed and
    `path` is as it was. What a writer of the same folder left who was killed is removed, where the
    system has locks.

    Args:
        path: The folder to make or replace.
        kind: What it is to be, for messages: "an artifact".
        is_one: Whether a folder is of this kind. Only such a one, or an empty one, is ever
            replaced.
        overwrite: bool. Whether an older one at `path` may be replaced.

    Raises:
        ValueError: `path` exists and may not be replaced.

    Example:

    >>> with written_folder("notes", "a folder of notes", lambda folder: False) as folder:
    ...     _ = (folder / "notes.txt").write_text("hello")
    """
    destination = Path(os.path.abspath(path))
    check_new_folder(destination, kind, is_one, overwrite)
    destination.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(destination)
    published = False
    with _claimed_name(lambda: _partial(destination), Path.mkdir) as temporary:
        try:
            with naming(destination):
                yield temporary
                flush(*temporary.rglob("*"), temporary)
            # Again: the block may have taken minutes.
            check_new_folder(destination, kind, is_one, overwrite)
            replaced = _move_into_place(temporary, destination)
            published = True
            flush(destination.parent)
            if replaced is not None:
                _remove_replaced(replaced, destination)
        except BaseException:
            if not published and temporary.exists():
                shutil.rmtree(temporary)
                logger.warning("%s was not written; the partial files were removed.", destination)
            raise


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds the path to an `OSError` of the block that names no file, such as that of a full disk.

    Example:

    >>> with naming("out.txt"):
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


def flush(*paths: Path) -> None:
    """Waits until files, and folders where the system allows it, are on the disk."""
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

    The system takes the lock from a process that dies. Where it has no such locks, on Windows and
    on some file systems, the answer is always True.
    """
    with _lock(path) as got:
        yield got is not False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool | None]:
    """As `locked`; says `None` where there are no locks."""
    if fcntl is None:
        yield None
        return
    # NFS locks only what is open for writing, and no folder is.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        got: bool | None = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            got = False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            got = None
        yield got
    finally:
        os.close(descriptor)


def _remove_left(path: Path, remove: Callable[[Path], None]) -> bool:
    """Removes what a killed writer left, unless it is in use; says whether it did."""
    try:
        with _lock(path) as got:
            if got is True and path.exists():
                remove(path)
                return True
    except OSError as error:  # another user's, or another writer removes it
        logger.info("%s is left to others: %s", path, error)
    return False


@contextlib.contextmanager
def _claimed_name(name: Callable[[], Path], make: Callable[[Path], None]) -> Iterator[Path]:
    """A new file or folder, locked from before any other writer can take it for left behind."""
    with contextlib.ExitStack() as held:
        while True:
            path = name()
            make(path)
            with contextlib.suppress(FileNotFoundError):  # removed before it was locked
                if held.enter_context(locked(path)) and path.exists():
                    break
        yield path


def _writing(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.writing{path.suffix}")


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


@contextlib.contextmanager
def claimed(folder: Path, does: str) -> Iterator[None]:
    """Makes a folder and keeps other processes out; takes it away again if it stays empty.

    Args:
        folder: The argument `output` of the caller.
        does: What no other process must do there, for the message: "trains in".

    Raises:
        ValueError: Another process has claimed it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) as ours:
        if not ours:
            raise ValueError(
                f"Argument `output` must be a folder that no other process {does}. "
                f"Received: {str(folder)!r}"
            )
        try:
            yield
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()


def check_new_folder(
    path: str | os.PathLike[str], kind: str, is_one: Callable[[Path], bool], overwrite: bool
) -> None:
    """Raises the `ValueError` of `written_folder`, with its arguments, and writes nothing."""
    destination = Path(os.path.abspath(path))
    if not os.path.lexists(destination):
        return
    if not overwrite:
        raise ValueError(
            "Argument `path` must be a new folder, or `overwrite` be True. "
            f"Received: {destination}, which exists."
        )
    # overwrite=True on a mistyped path must never delete a home directory.
    plain = destination.is_dir() and not destination.is_symlink()
    if not plain or (any(destination.iterdir()) and not is_one(destination)):
        raise ValueError(
            f"Argument `path` must be {kind} or an empty folder to overwrite. "
            f"Received: {destination}, which is neither."
        )


def _move_into_place(temporary: Path, destination: Path) -> Path | None:
    """Gives `temporary` its name; returns where the replaced folder stands now, if there was."""
    if not destination.exists():
        temporary.rename(destination)
        return None
    if exchange(temporary, destination):
        return temporary
    # For a moment there is none; a process that is killed then leaves both beside it.
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
    logger.info("Replaced the folder that stood at %s.", destination)
    try:
        shutil.rmtree(replaced)
    except FileNotFoundError:
        logger.info("Another writer removes %s.", replaced)
    except OSError as error:  # the new folder stands; failing now would claim that it does not
        logger.warning("Could not remove the replaced folder %s: %s", replaced, error)


def _remove_leftovers(destination: Path) -> None:
    """Removes what writers of the same folder left who were killed."""
    for path in destination.parent.glob(f".{glob.escape(destination.name)}.{_RANDOM}.*"):
        if path.suffix not in (".partial", ".replaced") or path.is_symlink() or not path.is_dir():
            continue
        if path.suffix == ".replaced" and not destination.exists():
            continue  # the only copy there is
        if _remove_left(path, shutil.rmtree):
            logger.warning("Removed %s, which a writer that was killed left there.", path)
