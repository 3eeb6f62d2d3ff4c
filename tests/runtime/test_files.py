"""Files that appear whole or not at all, and folders that change places at one stroke."""

import errno
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_bahdanau_runtime.files import exchange, locked, written
from keras_bahdanau_runtime.stream import windows

if sys.platform != "win32":
    import fcntl


def test_a_file_appears_when_the_block_has_ended(tmp_path):
    path = tmp_path / "notes.txt"
    with written(path) as writing:
        writing.write_text("new")
        assert not path.exists() and writing.suffix == ".txt"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt(), ValueError()])
def test_a_block_that_fails_changes_nothing(tmp_path, error):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(type(error)), written(path) as writing:
        writing.write_text("ne")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="Other systems rename twice.")
def test_two_folders_change_places(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "name").read_text() == "other"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "missing")


def test_a_lock_is_held_once_and_ends_with_its_process(tmp_path):
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert first and second == (sys.platform == "win32")
    code = (
        "import os, sys, pathlib\n"
        "from keras_bahdanau_runtime.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])) as ours:\n"
        "    print(ours, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "True\n"
    with locked(tmp_path) as ours:
        assert ours == (sys.platform == "win32")
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with locked(tmp_path) as ours:
        assert ours


@pytest.mark.parametrize("names", [("a.json", "a.json"), ("a.journal", "a.de.journal")])
def test_writers_leave_each_other_alone(tmp_path, names):
    def write(name):
        for number in range(100):
            with written(tmp_path / name) as path:
                path.write_text(str(number))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, names))  # raises what they raised
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert all(path.read_text() == "99" for path in tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of these locks.")
def test_what_a_killed_writer_left_is_removed_and_what_may_not_be_is_passed_over(
    tmp_path, monkeypatch
):
    left = tmp_path / ".a.0123abcd.writing.json"
    left.touch()
    with written(tmp_path / "a.json") as path:
        path.touch()
        assert not left.exists()
    left.touch()
    opened = os.open

    def refused(path, *arguments, **options):
        if os.fspath(path) == str(left):
            raise PermissionError(errno.EACCES, "another user's")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    with written(tmp_path / "a.json") as path:
        path.write_text("new")
    assert (tmp_path / "a.json").read_text() == "new" and left.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of these locks.")
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to_and_nothing_is_taken_for_left(
    tmp_path, monkeypatch, number
):
    def unknown(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", unknown)
    with locked(tmp_path) as ours:
        assert ours
    with written(tmp_path / "a.json") as first:
        with written(tmp_path / "a.json") as second:
            second.write_text("second")
        first.write_text("first")
    assert (tmp_path / "a.json").read_text() == "first"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows opens no folders.")
def test_a_lock_of_a_file_is_taken_where_only_what_is_open_for_writing_has_one(
    tmp_path, monkeypatch
):
    flock = fcntl.flock

    def as_on_nfs(descriptor, how):
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    monkeypatch.setattr("fcntl.flock", as_on_nfs)
    with written(tmp_path / "a.json") as path, locked(path) as again:
        assert not again
        path.touch()


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    with written(tmp_path / "a.json") as path:
        path.write_text("new")
    assert (tmp_path / "a.json").read_text() == "new"


def test_windows_hold_what_has_come_and_no_more_than_their_size():
    asked = threading.Semaphore(0)

    def slow():
        for text in "abc":
            asked.acquire()
            yield text
        asked.acquire()
        yield from map(str, range(10))

    found = windows(slow(), size=4)
    for text in "abc":
        asked.release()
        assert next(found) == [text]  # although the source waits for the next
    asked.release()
    rest = list(found)
    assert [text for window in rest for text in window] == list(map(str, range(10)))
    assert max(map(len, rest)) <= 4


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_a_source_raises_comes_after_its_texts(error):
    def broken():
        yield "a"
        raise error("no more")

    found = windows(broken(), size=4)
    assert next(found) == ["a"]
    with pytest.raises(error, match="no more"):
        next(found)
    assert list(windows([], size=4)) == []


def test_no_thread_stays_behind_a_caller_who_leaves():
    found = windows(map(str, range(100)), size=2)
    next(found)
    found.close()
    for thread in threading.enumerate():
        if thread.name == "keras_bahdanau texts":
            thread.join(timeout=5)
            assert not thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a descriptor is.")
def test_a_file_is_on_the_disk_before_it_takes_its_place_and_its_folder_after(
    tmp_path, monkeypatch
):
    flushed, fsync = [], os.fsync

    def watched(descriptor):
        flushed.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "a").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with written(tmp_path / "a") as writing:
        writing.write_text("new")
    assert flushed == [(str(writing), False), (str(tmp_path), True)]
