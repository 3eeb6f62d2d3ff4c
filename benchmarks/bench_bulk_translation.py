"""Bulk translation: peak memory by file size, killed runs against a whole one, Ray's throughput.

    python benchmarks/bench_bulk_translation.py memory [ARTIFACT]
    python benchmarks/bench_bulk_translation.py kills [ARTIFACT]
    python benchmarks/bench_bulk_translation.py ray [ARTIFACT]       # needs the extra `ray`

Without ARTIFACT a graph that copies its source replaces the model, so the search costs nothing. The
text is generated, 25 words per line.
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
COMMAND = [sys.executable, "-m", "keras_bahdanau_cli", "translate"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT / "export"), str(ROOT)]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # added to the niceness of this process
    "RAY_raylet_start_wait_time_s": "300",
}
WORDS = "a man on bike dog boat the runs two women stand near water and old house".split()


def write_texts(path, lines, words=25, seed=0):
    """Write a file of random sentences; return its path."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(lines):
            file.write(" ".join(rng.choices(WORDS, k=words)) + "\n")
    return path


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def translate(*arguments):
    """Run `keras-bahdanau translate`; return its peak MB, processor seconds and wall seconds."""
    began = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"translate ended with {process.returncode}")
    return usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def measure_memory(artifact, folder, line_counts):
    """Print the peak memory of `translate` for files of different sizes."""
    print("| lines | peak memory | processor time per 1,000 lines |\n|---|---|---|")
    for lines in line_counts:
        source = write_texts(folder / f"{lines}.txt", lines)
        peak, seconds, _ = translate(artifact, source, "-o", folder / "out")
        (folder / "out").unlink()
        print(f"| {lines:,} | {peak:.0f} MB | {1000 * seconds / lines:.2f} s |", flush=True)


def kill_and_resume(artifact, folder, lines, kills):
    """Kill a run at `kills` random moments, resume it, and compare its output with a whole run."""
    source, output = write_texts(folder / "in.txt", lines), folder / "out.txt"
    _, _, seconds = translate(artifact, source, "-o", folder / "whole.txt")
    rng, journal = random.Random(0), folder / "out.txt.journal"
    command = [*COMMAND, artifact, source, "-o", output, "--resume"]
    for number in range(1, kills + 1):
        process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT)
        delay = rng.uniform(0, seconds / kills + 3)  # 3 s more, because the start takes time
        try:
            process.wait(delay)
            print(f"{number:2d}: finished before the kill", flush=True)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        rows = json.loads(journal.read_text())["place"]["rows"] if journal.exists() else 0
        print(
            f"{number:2d}: killed after {delay:4.1f} s; {rows:6d} lines in the journal", flush=True
        )
    if not output.exists():
        translate(artifact, source, "-o", output, "--resume")
    is_equal = digest(output) == digest(folder / "whole.txt")
    print("byte-equal" if is_equal else "NOT EQUAL", digest(output), sorted(os.listdir(folder)))


def compare_ray(artifact, folder, files, lines):
    """Print lines/s of one process, and of two Ray actors on a local cluster of two nodes."""
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
    single_rate = 4 * lines / (time.perf_counter() - began)
    small_store = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 0, "include_dashboard": False, **small_store}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, **small_store)
    os.environ["RAY_ADDRESS"] = cluster.address
    failed = translate_folder(Path(artifact), folder / "in", folder / "out", actors=2)
    assert not failed, failed
    # The first two files include the start of the actors, so the clock starts after them.
    times = sorted(path.stat().st_mtime for path in (folder / "out").glob("*.txt"))
    ray_rate = (len(times) - 2) * lines / (times[-1] - times[1])
    ratio = ray_rate / 2 / single_rate
    print(f"one process {single_rate:.1f} lines/s, two actors {ray_rate:.1f}, {ratio:.2f} each")
    ray.shutdown()
    cluster.shutdown()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=["memory", "kills", "ray"])
    parser.add_argument("artifact", nargs="?", help="default: a graph that copies its source")
    parser.add_argument("--lines", type=int, nargs="+", help="lines of each file")
    parser.add_argument("--count", type=int, default=20, help="number of kills, or files for Ray")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder, artifact = Path(path), arguments.artifact
        if artifact is None:
            from copy_artifact import make

            artifact = make(Path(tempfile.mkdtemp()) / "artifact", max_source_length=None)
        if arguments.case == "memory":
            measure_memory(artifact, folder, arguments.lines or [10_000, 100_000, 1_000_000])
        elif arguments.case == "kills":
            kill_and_resume(artifact, folder, *(arguments.lines or [200_000]), arguments.count)
        else:
            compare_ray(artifact, folder, arguments.count, *(arguments.lines or [2000]))


if __name__ == "__main__":
    main()
