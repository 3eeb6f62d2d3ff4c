"""Translation of a folder on two Ray nodes, with lost workers, nodes and drivers.

Skipped without the extra `ray`, which `make test-ray` installs in an environment of its own.
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

COMMAND = [sys.executable, "-m", "keras_bahdanau_cli", "translate"]
SMALL = {"object_store_memory": 100 * 2**20}
FILES, LINES = 12, 400
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(sys.path),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_niceness": "5",
    # A lost node is detected after seconds instead of half a minute.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture(scope="module")
def cluster():
    """A head node without processors, and two nodes with one processor each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # reads the environment when it is imported

        head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
        ray_cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            ray_cluster.add_node(num_cpus=1, **SMALL)
        yield ray_cluster
        ray_cluster.shutdown()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """An artifact that takes a few milliseconds for a batch."""
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
    """Run the command, and kill it at the end of the block."""
    command = [*COMMAND, artifact, source, "-o", output, "--engine", "ray", "--actors", "2"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(output, count, process):
    """Wait until `count` files are finished and another one is in progress."""
    while len(list(output.glob("*.txt"))) < count or not list(output.glob(".*.partial")):
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.01)


def actors_of(node):
    """Process ids of the actors on a node."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"_FileTranslator" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def assert_complete(source, output):
    """Check that the output has all lines of all files and no other files."""
    names = [path.name for path in source.iterdir()]
    records = [f".{name}.journal" for name in names]
    found = sorted(path.name for path in output.iterdir())
    assert found == sorted([*names, *records])
    for name in names:
        assert (output / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="The test reads /proc.")
def test_lost_worker_and_lost_node_are_replaced(cluster, artifact, folders):
    source, output = folders
    with driver(cluster, artifact, source, output) as process:
        wait_for(output, 2, process)
        [worker] = actors_of(cluster.list_all_nodes()[1])
        os.kill(worker, signal.SIGKILL)
        wait_for(output, 5, process)
        cluster.remove_node(cluster.list_all_nodes()[2], allow_graceful=False)
        error = process.communicate()[1].decode()
    cluster.add_node(num_cpus=1, **SMALL)
    assert process.returncode == 0, error
    assert_complete(source, output)


def test_translation_is_resumed_after_the_driver_was_killed(cluster, artifact, folders):
    source, output = folders
    with driver(cluster, artifact, source, output) as first:
        wait_for(output, 3, first)
    times = {path: path.stat().st_mtime_ns for path in output.glob("*.txt")}
    with driver(cluster, artifact, source, output) as second:
        error = second.communicate()[1].decode()
    assert second.returncode == 0, error
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert_complete(source, output)


def test_errors_are_reported_by_file_and_other_files_are_translated(cluster, artifact, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("a man\n")
    (source / "b.txt").write_bytes(b"BZh91AY&SY\n")
    (source / "c.txt").write_bytes(b"a man\n" + b"a dog on a boat " * 30 + b"\n\xff\n")
    with driver(cluster, artifact, source, output) as process:
        error = process.communicate()[1].decode()
    assert process.returncode == 3
    assert "b.txt: expected text" in error and "Received: bzip2" in error
    assert "c.txt: 2 rows could not be translated" in error
    assert "error: 2 files are not translated completely; the others are in " in error
    assert (output / "a.txt").read_text() == "a man\n"
    assert (output / "c.txt").read_text() == "a man\n\n\n"
    files = [".a.txt.journal", ".c.txt.journal", "a.txt", "c.txt"]
    assert sorted(path.name for path in output.iterdir()) == files
    (source / "a.txt").write_text("two dogs\n")
    with driver(cluster, artifact, source, output) as process:
        error = process.communicate()[1].decode()
    assert process.returncode == 3 and (output / "a.txt").read_text() == "two dogs\n"
    assert "a.txt" not in error and "c.txt: 2 rows could not be translated" in error
    (output / "a.txt").write_text("edited\n")
    command = [*COMMAND, artifact, source, "-o", output, "--engine", "ray", "--batch-size", "8"]
    other = subprocess.run(command, capture_output=True)
    assert other.returncode == 3 and (output / "a.txt").read_text() == "edited\n"
    assert b"a.txt', which has changed" in other.stderr


def test_invalid_folders_are_refused(artifact, tmp_path):
    for source, words in (
        (tmp_path, b"`sources` must contain a file"),
        (artifact, b"`output` must be another folder"),
    ):
        command = [*COMMAND, artifact, source, "-o", source, "--engine", "ray"]
        finished = subprocess.run(command, capture_output=True)
        assert finished.returncode == 2 and words in finished.stderr, finished.stderr
