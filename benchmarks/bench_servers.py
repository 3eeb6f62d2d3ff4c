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
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ROOT / "benchmarks" / "servers"
sys.path.insert(0, str(ROOT / "export"))

from load import load, percentile  # noqa: E402

from keras_bahdanau_runtime import Translator  # noqa: E402

PORT = 8775
CLIENTS = [1, 16, 64]
MAX_WAIT = 0.005  # seconds, the default of the service
NEEDS = ["numpy>=2.0", "onnxruntime>=1.31", "protobuf>=6", "tokenizers>=0.23"]
MARK = "KERAS_BAHDANAU_BENCHMARK"  # in the environment of all processes of a server
READY, STOP = 60, 20  # seconds at most


class Rival(NamedTuple):
    """Another way to serve.

    Args:
        packages: What pip installs; the first one is what it is called by.
        settings: list of (processes, threads of a batch).
        protocol: "plain", or "v2" for the Open Inference Protocol.
        environment: dict of variables for its processes.
    """

    packages: list
    settings: list
    protocol: str = "plain"
    environment: dict = MappingProxyType({})


# In one process a pool of threads runs batches at once; LitServe's processes have no such pool.
RIVALS = {
    "fastapi": Rival(["fastapi", "uvicorn[standard]"], [(1, 1), (1, 2), (2, 1)]),
    "litserve": Rival(["litserve"], [(1, 2), (2, 1)]),
    # MLServer 1.7 asks for an event loop that uvloop no longer makes.
    "mlserver": Rival(["mlserver", "uvloop<0.22"], [(1, 1), (1, 2), (2, 1)], "v2"),
    "ray": Rival(
        ["ray[serve]"],
        [(1, 1), (1, 2), (2, 1)],
        environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
    ),
}
OURS = "ours"


class Server(NamedTuple):
    """A server that can be started.

    Args:
        name: As the table calls it.
        command: list of str.
        protocol: As in `Rival`.
        environment: As in `Rival`.
    """

    name: str
    command: list
    protocol: str
    environment: dict


class Figures(NamedTuple):
    """One measurement: texts a second, milliseconds, and how many answers were wrong."""

    rate: float
    middle: float
    tail: float
    wrong: int


# Requests and answers


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


# Environments


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
    serve = [sys.executable, "-m", "keras_bahdanau_export.cli", "serve"]
    address = [f"model={given.artifact}", "--port", str(PORT), "--grpc-port", str(PORT + 1)]
    found = [Server(OURS, [*serve, *address], "plain", {})]
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
            found.append(Server(one, command, rival.protocol, rival.environment))
    return found


# Life of a server


class Running:
    """A server from its start to the end of the last of its processes.

    Raises:
        RuntimeError: It does not become ready; with the last that it said.
    """

    def __init__(self, server, text):
        self._server, self._text = server, text
        self._mark = secrets.token_hex(8)

    def __enter__(self):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                raise RuntimeError(f"port {PORT} is taken")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        began = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._server.command,
                stdout=log,
                stderr=log,
                cwd=self._folder.name,
                env=self._environment(),
            )
        try:
            self._wait(began)
        except BaseException:
            self.__exit__()
            raise
        self.seconds = time.perf_counter() - began
        return self

    def _environment(self):
        paths = os.pathsep.join(map(str, (ROOT / "export", SERVERS)))
        kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        return {**kept, **self._server.environment, "PYTHONPATH": paths, MARK: self._mark}

    def _wait(self, began):
        path, body = request(self._server.protocol, self._text)
        while True:
            try:
                load(PORT, 1, path, [body], READY)
                return
            except (OSError, EOFError, AssertionError, ValueError):
                late = time.perf_counter() - began > READY
                if late or self._process.poll() is not None:
                    said = self._log.read_text("utf-8", "replace").strip()[-1500:]
                    raise RuntimeError(f"does not become ready:\n{said}") from None
                time.sleep(0.05)

    def __exit__(self, *error):
        self._process.terminate()
        try:
            self._process.wait(STOP)
        except subprocess.TimeoutExpired:
            pass
        while left := marked(self._mark):  # daemons of their own, as Ray's
            for number in left:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._process.poll()
            time.sleep(0.1)
        self._process.wait()
        self._folder.cleanup()


def marked(mark):
    """Numbers of the living processes that have this mark in their environment."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # gone, or another's
            continue
    return found


# Measurements


def measure(server, expected, seconds):
    """A dict from the number of clients to `Figures`, and the seconds until it was ready.

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
    found = {}
    with Running(server, next(iter(expected))) as running:
        load(PORT, max(CLIENTS), path, list(texts), min(seconds, 3))
        for clients in CLIENTS:
            answers = []
            bodies = list(texts) * (1 + int(1000 * seconds) // len(texts))
            try:
                rate, times = load(PORT, clients, path, bodies, seconds, answers)
            except (OSError, EOFError, AssertionError, ValueError) as error:
                raise RuntimeError(f"fails with {clients} clients: {error!r:.300}") from error
            wrong = sum(
                translation(server.protocol, content) != expected[texts[body]]
                for body, content in answers
            )
            found[clients] = Figures(rate, percentile(times, 0.5), percentile(times, 0.99), wrong)
    return found, running.seconds


def turn(title, server, expected, seconds):
    """`measure`, told in a line; `None` if it fails, and why."""
    try:
        found, ready = measure(server, expected, seconds)
    except RuntimeError as error:
        print(f"{title} {server.name}: {error}", flush=True)
        return None
    told = [
        f"{clients}: {one.rate:.1f}/s p50 {one.middle:.1f} p99 {one.tail:.1f} ms"
        + (f", {one.wrong} WRONG" if one.wrong else "")
        for clients, one in found.items()
    ]
    print(f"{title} {server.name} (ready {ready:.1f} s) {'; '.join(told)}", flush=True)
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
    for clients in CLIENTS:
        print(
            f"\n| {clients} clients | texts/s | best | p50 ms | p99 ms | ours / theirs | lowest |"
        )
        print("|---|---|---|---|---|---|---|")
        for name, rounds in results.items():
            mine = [one[clients] for one in rounds if one]
            if not mine:
                print(f"| {name} | failed | | | | | |")
                continue
            rates = [one.rate for one in mine]
            middle, tail = (
                statistics.median(getattr(one, field) for one in mine)
                for field in ("middle", "tail")
            )
            ratios = [
                our[clients].rate / their[clients].rate
                for our, their in zip(results[OURS], rounds, strict=True)
                if our and their
            ]
            compared = f"{statistics.median(ratios):.2f} | {min(ratios):.2f}" if ratios else "|"
            print(
                f"| {name} | {statistics.median(rates):.1f} | {max(rates):.1f} "
                f"| {middle:.1f} | {tail:.1f} | {compared} |"
            )
    wrong = {
        name: sum(one.wrong for found in rounds if found for one in found.values())
        for name, rounds in results.items()
    }
    print(f"\nanswers that are not the translator's: {wrong}")


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
