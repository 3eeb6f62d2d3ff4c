"""Atomic writing of files, locks, and streams of lines."""

import errno
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_bahdanau_runtime.files import atomic_folder, atomic_write, try_lock
from keras_bahdanau_runtime.text.batches import read_windows

if sys.platform != "win32":
    import fcntl


def test_file_appears_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "notes.txt"
    with atomic_write(path) as writing:
        writing.write_text("new")
        assert not path.exists() and writing.suffix == ".txt"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_exception_in_the_block_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(type(error)), atomic_write(path) as writing:
        writing.write_text("ne")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((errno.ENOSPC, "full"), "[Errno 28] full: '{path}'"),
        ((errno.ENOENT, "gone", "other"), "[Errno 2] gone: 'other'"),
        (("no number",), "no number"),
    ],
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_error_that_names_no_file_gets_the_name(tmp_path, arguments, message, is_folder):
    path = tmp_path / "new"
    writer = (
        atomic_folder(path, "a folder", lambda folder: False) if is_folder else atomic_write(path)
    )
    with pytest.raises(OSError) as caught, writer:
        raise OSError(*arguments)
    assert str(caught.value) == message.format(path=path)


def test_lock_is_exclusive_and_ends_with_its_process(tmp_path):
    with try_lock(tmp_path) as first, try_lock(tmp_path) as second:
        assert first and second == (sys.platform == "win32")
    code = (
        "import os, sys, pathlib\n"
        "from keras_bahdanau_runtime.files import try_lock\n"
        "with try_lock(pathlib.Path(sys.argv[1])) as acquired:\n"
        "    print(acquired, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout.readline() == "True\n"
        with try_lock(tmp_path) as acquired:
            assert acquired == (sys.platform == "win32")
        holder.kill()
    with try_lock(tmp_path) as acquired:
        assert acquired


@pytest.mark.parametrize("names", [("a.json", "a.json"), ("a.journal", "a.de.journal")])
def test_concurrent_writers_do_not_disturb_each_other(tmp_path, names):
    def write(name):
        for number in range(100):
            with atomic_write(tmp_path / name) as path:
                path.write_text(str(number))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, names))  # raises the exceptions of the threads
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert all(path.read_text() == "99" for path in tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks.")
def test_leftovers_of_a_killed_writer_are_removed_where_permitted(tmp_path, monkeypatch):
    leftover = tmp_path / ".a.0123abcd.writing.json"
    leftover.touch()
    with atomic_write(tmp_path / "a.json") as path:
        path.touch()
        assert not leftover.exists()
    leftover.touch()
    open_file = os.open

    def open_without_permission(path, *arguments, **options):
        if os.fspath(path) == str(leftover):
            raise PermissionError(errno.EACCES, "another user's")
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_without_permission)
    with atomic_write(tmp_path / "a.json") as path:
        path.write_text("new")
    assert (tmp_path / "a.json").read_text() == "new" and leftover.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks.")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_no_file_counts_as_a_leftover(tmp_path, monkeypatch, number):
    def unknown(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", unknown)
    with try_lock(tmp_path) as acquired:
        assert acquired
    with atomic_write(tmp_path / "a.json") as first:
        with atomic_write(tmp_path / "a.json") as second:
            second.write_text("second")
        first.write_text("first")
    assert (tmp_path / "a.json").read_text() == "first"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows opens no folders.")
def test_files_are_opened_for_writing_to_be_locked_as_nfs_requires(tmp_path, monkeypatch):
    flock = fcntl.flock

    def as_on_nfs(descriptor, how):
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    monkeypatch.setattr("fcntl.flock", as_on_nfs)
    with atomic_write(tmp_path / "a.json") as path, try_lock(path) as again:
        assert not again
        path.touch()


def test_folder_that_cannot_be_flushed_is_accepted(tmp_path, monkeypatch):
    fsync = os.fsync

    def fsync_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_files_only)
    with atomic_write(tmp_path / "a.json") as path:
        path.write_text("new")
    assert (tmp_path / "a.json").read_text() == "new"


def test_windows_have_the_texts_so_far_up_to_their_size():
    permits = threading.Semaphore(0)

    def slow_source():
        for text in "abc":
            permits.acquire()
            yield text
        permits.acquire()
        yield from map(str, range(10))

    stream = read_windows(slow_source(), size=4)
    for text in "abc":
        permits.release()
        assert next(stream) == [text]  # although the source waits for a permit
    permits.release()
    rest = list(stream)
    assert [text for window in rest for text in window] == list(map(str, range(10)))
    assert max(map(len, rest)) <= 4


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_exception_of_a_source_is_raised_after_its_texts(error):
    def broken():
        yield "a"
        raise error("no more")

    stream = read_windows(broken(), size=4)
    assert next(stream) == ["a"]
    with pytest.raises(error, match="no more"):
        next(stream)
    assert list(read_windows([], size=4)) == []


def test_closed_stream_ends_its_thread():
    stream = read_windows(map(str, range(100)), size=2)
    next(stream)
    stream.close()
    for thread in threading.enumerate():
        if thread.name == "keras_bahdanau texts":
            thread.join(timeout=5)
            assert not thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="The test reads /proc.")
def test_file_is_flushed_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def fsync_and_record(descriptor):
        flushed.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "a").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_and_record)
    with atomic_write(tmp_path / "a") as writing:
        writing.write_text("new")
    assert flushed == [(str(writing), False), (str(tmp_path), True)]
