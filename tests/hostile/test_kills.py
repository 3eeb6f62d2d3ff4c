"""Killed writers, concurrent readers and writers, and leaks of memory and open files."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from copy_artifact import make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.translator import WINDOW_SIZE

# Replaces an artifact again and again, each time by another one of another size.
WRITER = """
import itertools, sys
from keras_bahdanau_runtime.artifact import publish, write_manifest
print("started", flush=True)
for n in itertools.count():
    with publish(sys.argv[1], overwrite=True) as folder:
        for name in ("a.bin", "b.bin", "c.bin"):
            (folder / name).write_bytes(bytes([n % 256]) * (1000 + n))
        write_manifest(folder, {"n": n})
"""


@contextlib.contextmanager
def writer(path):
    """A process that replaces the artifact while the block runs."""
    command = [sys.executable, "-c", WRITER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"started\n"
            yield process
        finally:
            process.kill()


def latest_version(path, count):
    """Read the artifact `count` times, check that versions increase, and return the last one."""
    versions = [read_manifest(path).other["n"] for _ in range(count)]
    assert versions == sorted(versions)
    return versions[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="Other systems rename twice.")
def test_reader_always_finds_a_complete_artifact(tmp_path):
    with publish(tmp_path / "artifact") as folder:
        write_manifest(folder, {"n": -1})
    with writer(tmp_path / "artifact"):
        while latest_version(tmp_path / "artifact", 20) < 30:
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL.")
def test_killed_writer_leaves_an_artifact_and_the_next_one_removes_its_files(tmp_path):
    rng = random.Random(0)
    with publish(tmp_path / "artifact") as folder:
        write_manifest(folder, {"n": -1})
    for _ in range(8):
        with writer(tmp_path / "artifact") as process:
            threading.Timer(rng.uniform(0, 0.05), process.kill).start()
            process.wait()
        read_manifest(tmp_path / "artifact")
    with publish(tmp_path / "artifact", overwrite=True) as folder:
        write_manifest(folder, {"n": -2})
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]
    assert read_manifest(tmp_path / "artifact").other == {"n": -2}


def test_files_of_a_running_writer_are_not_leftovers(tmp_path):
    with publish(tmp_path / "artifact") as folder:
        (folder / "a.bin").write_bytes(b"a")
        with publish(tmp_path / "artifact") as other:
            write_manifest(other, {"n": 1})
        assert (folder / "a.bin").exists()
        write_manifest(folder, {"n": 2})
        with pytest.raises(ValueError, match="exists"):
            with publish(tmp_path / "artifact"):
                pytest.fail("the block must not run")
        shutil.rmtree(tmp_path / "artifact")
    assert read_manifest(tmp_path / "artifact").other == {"n": 2}


TRANSLATE = [sys.executable, "-m", "keras_bahdanau_cli", "translate"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL.")
def test_repeatedly_killed_translation_is_complete_after_resuming(tmp_path):
    artifact = make(tmp_path / "artifact")
    (tmp_path / "out").mkdir()
    output, source = tmp_path / "out" / "a.txt", tmp_path / "texts"
    texts = [f"a {'dog ' * (n * 37 % 11)}{n}".rstrip() for n in range(WINDOW_SIZE * 8 + 100)]
    source.write_text("".join(f"{text}\n" for text in texts))
    command = [*TRANSLATE, artifact, source, "-o", output, "--resume"]
    rng, rows = random.Random(0), 0
    journal = output.with_name("a.txt.journal")
    while rows < WINDOW_SIZE * 4:  # killed at a random time after one window or more
        with subprocess.Popen(command) as process:
            while not journal.exists() or rows_of(journal) < rows + WINDOW_SIZE:
                assert process.poll() is None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.1))
            process.kill()
        rows = rows_of(journal)
        assert not output.exists() and rows % WINDOW_SIZE == 0
        with output.with_name("a.txt.partial").open("ab") as partial:
            partial.write(b"torn")  # as after a loss of power
    subprocess.run(command, check=True)
    assert {path.name for path in output.parent.iterdir()} == {"a.txt", ".a.txt.journal"}
    assert output.read_bytes() == source.read_bytes()


def rows_of(journal):
    return json.loads(journal.read_text())["place"]["rows"]


def files_and_megabytes():
    """Number of open files and resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def assert_no_leak(call):
    """Call a function with 0 to 999, and compare the memory and open files after 200 calls."""
    for number in range(1000):
        call(number)
        if number == 200:  # caches and pools are full
            files, megabytes = files_and_megabytes()
    files_after, megabytes_after = files_and_megabytes()
    assert files_after <= files + 1
    assert megabytes_after < megabytes + 20


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="The test reads /proc.")
def test_opening_and_running_leaks_no_memory_and_no_file(tmp_path):
    artifact = make(tmp_path / "artifact")
    assert_no_leak(lambda n: Translator(artifact, threads=1, megabytes=50).translate(["a man"]))
    translator = Translator(artifact, threads=1)
    text = "a man on a bike "
    assert_no_leak(lambda n: translator.translate([text * (1 + n % 9)], truncate=True))
