"""Bulk translation: memory against size, kills against an unbroken run, Ray against one process.

    python benchmarks/bench_bulk.py memory [ARTIFACT]
    python benchmarks/bench_bulk.py kills [ARTIFACT]
    python benchmarks/bench_bulk.py ray [ARTIFACT]       # needs the extra ray

Without an artifact a graph that copies its source stands for the model, so that sizes and not
searches are measured. The text is made up: 25 words a line.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]
COMMAND = [sys.executable, "-m", "keras_bahdanau_export.cli", "translate"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT / "export"), str(ROOT)]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # on top of that of this process
    "RAY_raylet_start_wait_time_s": "300",
}
WORDS = "a man on bike dog boat the runs two women stand near water and old house".split()


def write_texts(path, lines, words=25, seed=0):
    """Writes a file of made-up sentences; returns it."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(lines):
            file.write(" ".join(rng.choices(WORDS, k=words)) + "\n")
    return path


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(*arguments, **environment):
    """Runs the command; returns its greatest memory in MB, its processor time and its time."""
    began = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], env={**ENVIRONMENT, **environment})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"translate ended with {process.returncode}")
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, time.perf_counter() - began


def memory(artifact, folder, sizes):
    print("| lines | greatest memory | processor time for 1,000 lines |\n|---|---|---|")
    for lines in sizes:
        source = write_texts(folder / f"{lines}.txt", lines)
        most, seconds, _ = run(artifact, source, "-o", folder / "out")
        (folder / "out").unlink()
        print(f"| {lines:,} | {most:.0f} MB | {1000 * seconds / lines:.2f} s |", flush=True)


def kills(artifact, folder, lines, count):
    """Kills a run at random moments until it has been killed so often, and compares its output."""
    source, output = write_texts(folder / "in.txt", lines), folder / "out.txt"
    _, _, seconds = run(artifact, source, "-o", folder / "whole.txt")
    rng, journal = random.Random(0), folder / "out.txt.journal"
    command = [*COMMAND, artifact, source, "-o", output, "--resume"]
    for number in range(1, count + 1):
        process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT)
        moment = rng.uniform(0, seconds / count + 3)  # the start takes some of it
        try:
            process.wait(moment)
            print(f"{number:2d}: was done before", flush=True)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        rows = json.loads(journal.read_text())["place"]["rows"] if journal.exists() else 0
        print(f"{number:2d}: killed after {moment:4.1f} s; {rows:6d} lines are kept", flush=True)
    if not output.exists():
        run(artifact, source, "-o", output, "--resume")
    same = digest(output) == digest(folder / "whole.txt")
    print("byte-equal" if same else "NOT EQUAL", digest(output), sorted(os.listdir(folder)))


def on_ray(artifact, folder, files, lines):
    """Lines a second of two machines of one processor, of a cluster here, and of one process."""
    os.environ.update(ENVIRONMENT)
    import ray
    from ray.cluster_utils import Cluster

    from keras_bahdanau_runtime import Translator
    from keras_bahdanau_runtime.bulk.file import translate_file
    from keras_bahdanau_runtime.ray.bulk import translate_folder

    (folder / "in").mkdir()
    for number in range(files):
        write_texts(folder / "in" / f"{number:05d}.txt", lines, seed=number)
    translator = Translator(artifact, threads=1)
    began = time.perf_counter()
    for number in range(4):
        translate_file(translator, folder / "in" / f"{number:05d}.txt", folder / f"{number}")
    alone = 4 * lines / (time.perf_counter() - began)
    small = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, **small)
    os.environ["RAY_ADDRESS"] = cluster.address
    failed = translate_folder(Path(artifact), folder / "in", folder / "out", actors=2)
    assert not failed, failed
    times = sorted(path.stat().st_mtime for path in (folder / "out").glob("*.txt"))
    together = (len(times) - 2) * lines / (times[-1] - times[1])  # without the start of the actors
    share = together / 2 / alone
    print(f"one process {alone:.1f} lines/s, two actors {together:.1f}, {share:.2f} each")
    ray.shutdown()
    cluster.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["memory", "kills", "ray"])
    parser.add_argument("artifact", nargs="?")
    parser.add_argument("--lines", type=int, nargs="+", help="Of each file.")
    parser.add_argument("--count", type=int, default=20, help="Kills, or files for Ray.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, artifact = Path(place), given.artifact
        if artifact is None:
            from copy_artifact import make

            artifact = make(Path(tempfile.mkdtemp()) / "artifact", max_source_length=None)
        if given.what == "memory":
            memory(artifact, folder, given.lines or [10_000, 100_000, 1_000_000])
        elif given.what == "kills":
            kills(artifact, folder, *(given.lines or [200_000]), given.count)
        else:
            on_ray(artifact, folder, given.count, *(given.lines or [2000]))


if __name__ == "__main__":
    main()
