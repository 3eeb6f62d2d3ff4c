"""A folder translated by two machines of Ray, of which a worker, one, and the driver are lost.

Needs the extra `ray`, which is not among those of the tests: it is skipped without.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from copy_artifact import make, spinning_graph

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed."
)

COMMAND = [sys.executable, "-m", "keras_bahdanau_export.cli", "translate"]
SMALL = {"object_store_memory": 100 * 2**20}
FILES, LINES = 12, 400
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(sys.path),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_niceness": "5",
    # A machine that is lost is missed after seconds, not after half a minute.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture(scope="module")
def cluster():
    """A head that works on nothing, and two machines of one processor each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # it reads them now

        head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            made.add_node(num_cpus=1, **SMALL)
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """One that takes some milliseconds for a batch."""
    return make(tmp_path_factory.mktemp("ray") / "artifact", spinning_graph(20_000))


@pytest.fixture
def folders(tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(FILES):
        texts = [f"a {'dog ' * (line * 37 % 11)}{number} {line}" for line in range(LINES)]
        (source / f"{number:05d}.txt").write_text("".join(f"{text}\n" for text in texts))
    return source, output


@contextlib.contextmanager
def driver(cluster, artifact, source, output):
    """The command, and its end."""
    command = [*COMMAND, artifact, source, "-o", output, "--engine", "ray", "--actors", "2"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


def done(output):
    return [path for path in output.glob("*.txt")]


def wait_for(output, count, started):
    """Waits until so many files are done, and another one is under way."""
    while len(done(output)) < count or not list(output.glob(".*.partial")):
        assert started.poll() is None, started.stderr.read().decode()
        time.sleep(0.01)


def actors_of(node):
    """The processes of the actors on a machine."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return [
        int(child) for child in children if b"_Files" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def assert_whole(source, output):
    """Every line of every file is there, once and in order, and nothing else is."""
    names = [path.name for path in source.iterdir()]
    assert sorted(path.name for path in output.iterdir()) == sorted([*names, ".journal"])
    for name in names:
        assert (output / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="Processes are found as on Linux.")
def test_a_worker_and_a_machine_are_lost(cluster, artifact, folders):
    source, output = folders
    with driver(cluster, artifact, source, output) as started:
        wait_for(output, 2, started)
        [worker] = actors_of(cluster.list_all_nodes()[1])
        os.kill(worker, signal.SIGKILL)
        wait_for(output, 5, started)
        cluster.remove_node(cluster.list_all_nodes()[2], allow_graceful=False)
        said = started.communicate()[1].decode()
    cluster.add_node(num_cpus=1, **SMALL)
    assert started.returncode == 0, said
    assert_whole(source, output)


def test_the_driver_is_lost(cluster, artifact, folders):
    source, output = folders
    with driver(cluster, artifact, source, output) as first:
        wait_for(output, 3, first)
    kept = {path: path.stat().st_mtime_ns for path in done(output)}
    with driver(cluster, artifact, source, output) as second:
        said = second.communicate()[1].decode()
    assert second.returncode == 0, said
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert_whole(source, output)


def test_what_went_wrong_is_said_by_file_and_the_others_are_there(cluster, artifact, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("a man\n")
    (source / "b.txt").write_bytes(b"a man\n\xff\n")
    (source / "c.txt").write_text("a man\n" + "a dog on a boat " * 30 + "\n")
    with driver(cluster, artifact, source, output) as started:
        said = started.communicate()[1].decode()
    assert started.returncode == 1
    assert "b.txt, line 2: not UTF-8" in said and "c.txt: 1 rows could not be translated" in said
    assert "error: 2 files are not whole; the others are in " in said
    assert (output / "a.txt").read_text() == "a man\n"
    assert (output / "c.txt").read_text() == "a man\n\n"
    assert sorted(path.name for path in output.iterdir()) == [".journal", "a.txt", "c.txt"]
    command = [*COMMAND, artifact, source, "-o", output, "--engine", "ray", "--batch-size", "8"]
    other = subprocess.run(command, capture_output=True)
    assert other.returncode == 1 and b"`batch_size` must be what" in other.stderr


def test_folders_that_cannot_be_are_refused(artifact, tmp_path):
    for source, words in (
        (tmp_path, b"`source` must be a folder of files"),
        (artifact, b"`output` must be another folder"),
    ):
        command = [*COMMAND, artifact, source, "-o", source, "--engine", "ray"]
        finished = subprocess.run(command, capture_output=True)
        assert finished.returncode == 1 and words in finished.stderr, finished.stderr
