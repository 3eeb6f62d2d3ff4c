"""The service against other ways to serve the same translator: FastAPI, LitServe, MLServer, Ray.

    python benchmarks/bench_servers.py ARTIFACT SOURCES [--rounds 5] [--seconds 10] [--only NAMES]

Each of the others is installed into an environment of its own, outside the repository, when it is
first needed. Server and load share the machine; the servers take turns, one alive at a time, in an
order that moves with each round. A rival has several settings (so many processes, so many threads
for a batch): a trial keeps those that are its best for one of the numbers of clients.
"""

import argparse
import collections
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ROOT / "benchmarks" / "servers"
sys.path.insert(0, str(ROOT / "export"))

from load import load, percentile  # noqa: E402
from running import Running, serve_command  # noqa: E402

from keras_bahdanau_runtime import Translator  # noqa: E402

PORT = 8775
CLIENTS = [1, 16, 64]
MAX_WAIT = 0.005  # seconds, the default of the service
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NEEDS = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["runtime"]]
WARM_UP = 3  # seconds


class Rival(NamedTuple):
    """Another way to serve.

    Args:
        packages: What pip installs; the first one is what it is called by.
        settings: list of (processes, threads of a batch).
        protocol: "plain", or "v2" for the Open Inference Protocol.
    """

    packages: list
    settings: list
    protocol: str = "plain"


# In one process a pool of threads runs batches at once; LitServe's processes have no such pool, and
# MLServer has it in the process of the server, too (no other).
RIVALS = {
    "fastapi": Rival(["fastapi", "uvicorn[standard]"], [(1, 1), (1, 2), (2, 1)]),
    "litserve": Rival(["litserve"], [(1, 2), (2, 1)]),
    # MLServer 1.7 asks for an event loop that uvloop no longer makes.
    "mlserver": Rival(["mlserver", "uvloop<0.22"], [(0, 1), (0, 2), (2, 1)], "v2"),
    "ray": Rival(["ray[serve]"], [(1, 1), (1, 2), (2, 1)]),
}
OURS = "ours"


class Server(NamedTuple):
    """A server that can be started.

    Args:
        name: As the table calls it.
        command: list of str.
        protocol: As in `Rival`.
    """

    name: str
    command: list
    protocol: str


class Figures(NamedTuple):
    """One measurement.

    Args:
        rate: Texts a second.
        middle: Milliseconds, the median.
        tail: Milliseconds, the 99th percentile.
        cpu: Milliseconds of processor time that the server takes for a text.
        wrong: Number of answers that are not the translator's.
    """

    rate: float
    middle: float
    tail: float
    cpu: float
    wrong: int


def request(protocol, text):
    """Path and body."""
    if protocol == "plain":
        return "/translate", json.dumps({"text": text}).encode()
    given = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return "/v2/models/model/infer", json.dumps({"inputs": [given]}).encode()


def translation(protocol, content):
    """The text that was answered."""
    found = json.loads(content)
    if protocol == "plain":
        return found["translations"][0]["text"]
    [data] = [one["data"] for one in found["outputs"] if one["name"] == "translation"]
    return data[0]


def python_of(name, folder):
    """The interpreter of the environment of a rival, which is made if need be.

    Raises:
        RuntimeError: It cannot be installed; with the last that pip said.
    """
    home = folder / name
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists():
        print(f"{name}: making {home}", flush=True)
        packages = [*RIVALS[name].packages, *NEEDS]
        for command in (
            [sys.executable, "-m", "venv", "--clear", home],
            [python, "-m", "pip", "install", "--quiet", *packages],
        ):
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError((run.stderr.strip() or run.stdout.strip())[-600:])
        done.touch()
    return python


def versions(python, packages):
    """Names and versions, as they are installed."""
    names = [re.split(r"[\[<]", package)[0] for package in [*packages, "onnxruntime"]]
    code = (
        "import sys; from importlib.metadata import version\n"
        "print(*(f'{name} {version(name)}' for name in sys.argv[1:]), sep=', ')"
    )
    return subprocess.check_output([python, "-c", code, *names], text=True).strip()


def servers(given, folder):
    """The `Server`s to measure, the service first; says which rivals there are and which not."""
    found = [Server(OURS, serve_command(given.artifact, PORT), "plain")]
    for name, rival in RIVALS.items():
        settings = {f"{name} {p}x{t}": (p, t) for p, t in rival.settings}
        wanted = [one for one in settings if given.only is None or {one, name} & given.only]
        if not wanted:
            continue
        try:
            python = python_of(name, folder)
        except RuntimeError as error:
            print(f"{name}: is left out, as it does not install: {error}", flush=True)
            continue
        print(f"{name}: {versions(python, rival.packages)}", flush=True)
        script = [str(python), str(SERVERS / f"on_{name}.py"), str(given.artifact), str(PORT)]
        for one in wanted:
            numbers = [*settings[one], given.batch_size, MAX_WAIT]
            command = [*script, *map(str, numbers)]
            found.append(Server(one, command, rival.protocol))
    return found


def measure(server, expected, seconds):
    """A dict from the number of clients to `Figures`.

    Args:
        server: `Server`.
        expected: dict from a text to its translation.
        seconds: Of each measurement.

    Raises:
        RuntimeError: The server does not become ready, or fails to answer.
    """
    asked = {request(server.protocol, text): text for text in expected}
    path = next(iter(asked))[0]
    texts = {body: text for (_, body), text in asked.items()}
    bodies = list(texts) * (1 + int(1000 * seconds) // len(texts))
    found = {}
    with Running(
        server.command,
        PORT,
        lambda: load(PORT, max(CLIENTS), path, bodies, WARM_UP),
        {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "export", SERVERS)))},
    ) as running:
        for clients in CLIENTS:
            answers, before = [], running.cpu()
            try:
                rate, times = load(PORT, clients, path, bodies, seconds, answers)
            except (OSError, EOFError, AssertionError) as error:
                raise RuntimeError(f"fails with {clients} clients: {error!r:.300}") from error
            cpu = 1000 * (running.cpu() - before) / len(times)
            wrong = sum(
                translation(server.protocol, content) != expected[texts[body]]
                for body, content in answers
            )
            middle, tail = percentile(times, 0.5), percentile(times, 0.99)
            found[clients] = Figures(rate, middle, tail, cpu, wrong)
    return found


def turn(title, server, expected, seconds):
    """`measure`, told in a line; `None` if it fails, and why."""
    try:
        found = measure(server, expected, seconds)
    except RuntimeError as error:
        print(f"{title} {server.name}: {error}", flush=True)
        return None
    told = [
        f"{clients}: {one.rate:.1f}/s p50 {one.middle:.1f} p99 {one.tail:.1f} cpu {one.cpu:.1f} ms"
        + (f", {one.wrong} WRONG" if one.wrong else "")
        for clients, one in found.items()
    ]
    print(f"{title} {server.name}  {'; '.join(told)}", flush=True)
    return found


def best_settings(found, seconds, expected):
    """The servers without the settings that are not the best of a rival for any load."""
    groups = collections.defaultdict(list)
    for server in found:
        groups[server.name.partition(" ")[0]].append(server)
    kept = []
    for group in groups.values():
        if len(group) == 1:
            kept += group
            continue
        tried = [(turn("trial", server, expected, seconds), server) for server in group]
        tried = [(figures, server) for figures, server in tried if figures]
        best = {
            max(tried, key=lambda one: one[0][clients].rate)[1].name for clients in CLIENTS if tried
        }
        kept += [server for server in group if server.name in best]
    return kept


def report(results):
    """Prints a table for each number of clients; `results` by server, a list of rounds each."""
    columns = ["texts/s", "best", "p50 ms", "p99 ms", "CPU ms", "ours / theirs", "lowest"]
    for clients in CLIENTS:
        print(f"\n| clients: {clients} | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
        for name, rounds in results.items():
            mine = [one[clients] for one in rounds if one]
            if not mine:
                print(f"| {name} | failed |{' |' * (len(columns) - 1)}")
                continue
            ratios = [
                our[clients].rate / their[clients].rate
                for our, their in zip(results[OURS], rounds, strict=True)
                if our and their
            ]
            rate, middle, tail, cpu, _ = map(statistics.median, zip(*mine, strict=True))
            numbers = [rate, max(one.rate for one in mine), middle, tail, cpu]
            told = [f"{number:.1f}" for number in numbers]
            if ratios:
                told += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}"]
            print(f"| {name} | {' | '.join(told)} |")
    for name, rounds in results.items():
        answered = [one for found in rounds if found for one in found.values()]
        wrong, failed = sum(one.wrong for one in answered), rounds.count(None)
        if wrong or failed:
            print(f"{name}: {wrong} answers are not the translator's, {failed} turns failed")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=lambda path: Path(path).resolve())
    parser.add_argument("sources", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="of one measurement")
    parser.add_argument("--trial", type=float, default=5, help="seconds; 0 keeps all settings")
    parser.add_argument("--batch-size", type=int, default=16, help="of the rivals")
    parser.add_argument(
        "--only",
        type=lambda names: set(names.split(",")),
        help='rivals, or settings of them, as in "fastapi,ray 2x1"',
    )
    parser.add_argument("--environments", type=Path, default="~/.cache/keras-bahdanau-rivals")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no server is left behind
    texts = list(dict.fromkeys(filter(None, given.sources.read_text("utf-8").splitlines())))
    right = Translator(given.artifact).translate(texts, alignments=False)
    expected = {text: one.text for text, one in zip(texts, right, strict=True)}
    found = servers(given, given.environments.expanduser().resolve())
    if given.trial:
        found = best_settings(found, given.trial, expected)
    print(f"{os.cpu_count()} cores; {len(texts)} texts; {', '.join(one.name for one in found)}")
    results = {server.name: [] for server in found}
    for number in range(given.rounds):
        first = number % len(found)
        for server in found[first:] + found[:first]:
            title = f"round {number + 1}/{given.rounds}"
            results[server.name].append(turn(title, server, expected, given.seconds))
    report(results)


if __name__ == "__main__":
    main()
