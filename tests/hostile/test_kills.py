"""Writers who are killed, and readers while an artifact is replaced."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from copy_artifact import make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.translator import WINDOW

# Replaces an artifact again and again, each time by one of another size.
WRITER = """
import itertools, sys
from keras_bahdanau_runtime.artifact import publish, write_manifest
print("go", flush=True)
for n in itertools.count():
    with publish(sys.argv[1], overwrite=True) as folder:
        for name in ("a.bin", "b.bin", "c.bin"):
            (folder / name).write_bytes(bytes([n % 256]) * (1000 + n))
        write_manifest(folder, {"n": n})
"""


@contextlib.contextmanager
def writer(path):
    """A process that replaces the artifact as long as the block runs."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as started:
        try:
            assert started.stdout.readline() == b"go\n"
            yield started
        finally:
            started.kill()


def versions(path, count):
    """What so many readings of an artifact found, the last one first."""
    found = [read_manifest(path).other["n"] for _ in range(count)]
    assert found == sorted(found)
    return found[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="Other systems rename twice.")
def test_a_reader_always_finds_a_whole_artifact(tmp_path):
    with publish(tmp_path / "artifact") as folder:
        write_manifest(folder, {"n": -1})
    with writer(tmp_path / "artifact"):
        while versions(tmp_path / "artifact", 20) < 30:
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no SIGKILL.")
def test_a_killed_writer_leaves_an_artifact_and_the_next_one_tidies_up(tmp_path):
    rng = random.Random(0)
    with publish(tmp_path / "artifact") as folder:
        write_manifest(folder, {"n": -1})
    for _ in range(8):
        with writer(tmp_path / "artifact") as replacing:
            timer = threading.Timer(rng.uniform(0, 0.05), replacing.send_signal, [signal.SIGKILL])
            timer.start()
            replacing.wait()
        read_manifest(tmp_path / "artifact")
    make_anew = publish(tmp_path / "artifact", overwrite=True)
    with make_anew as folder:
        write_manifest(folder, {"n": -2})
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]
    assert read_manifest(tmp_path / "artifact").other == {"n": -2}


def test_a_writer_at_work_is_not_a_leftover(tmp_path):
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


TRANSLATE = [sys.executable, "-m", "keras_bahdanau_export.cli", "translate"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no SIGKILL.")
def test_a_translation_that_is_killed_again_and_again_is_that_of_an_unbroken_run(tmp_path):
    artifact = make(tmp_path / "artifact")
    (tmp_path / "out").mkdir()
    output, source = tmp_path / "out" / "a.txt", tmp_path / "texts"
    texts = [f"a {'dog ' * (n * 37 % 11)}{n}".rstrip() for n in range(WINDOW * 8 + 100)]
    source.write_text("".join(f"{text}\n" for text in texts))
    command = [*TRANSLATE, artifact, source, "-o", output, "--resume"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng, done = random.Random(0), [0]
    journal = output.with_name("a.txt.journal")
    while done[-1] < WINDOW * 4:  # killed some moment after a window or more
        with subprocess.Popen(command, env=environment) as writing:
            while not journal.exists() or rows_of(journal) < done[-1] + WINDOW:
                assert writing.poll() is None
            with contextlib.suppress(subprocess.TimeoutExpired):
                writing.wait(rng.uniform(0, 0.1))
            writing.kill()
        done.append(rows_of(journal))
        assert not output.exists() and done[-1] % WINDOW == 0
        with output.with_name("a.txt.partial").open("ab") as partial:
            partial.write(b"torn")  # as a machine leaves it that lost its power
    subprocess.run(command, env=environment, check=True)
    assert list(output.parent.iterdir()) == [output]
    assert output.read_bytes() == source.read_bytes()


def rows_of(journal):
    return json.loads(journal.read_text())["place"]["rows"]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def megabytes():
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux counts them.")
def test_a_thousand_openings_and_runs_hold_no_memory_and_no_file(tmp_path):
    artifact = make(tmp_path / "artifact")
    before = open_files(), megabytes()
    for number in range(1000):
        Translator(artifact, threads=1, megabytes=50).translate(["a man"])
        if number == 200:  # by then what there is once is there
            before = open_files(), megabytes()
    assert open_files() <= before[0] + 1
    assert megabytes() < before[1] + 20
    translator = Translator(artifact, threads=1)
    for number in range(1000):
        translator.translate(["a man on a bike " * (1 + number % 9)], truncate=True)
        if number == 200:
            before = open_files(), megabytes()
    assert open_files() <= before[0] + 1
    assert megabytes() < before[1] + 20
