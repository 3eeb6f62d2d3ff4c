"""The service against other servers for the same translator: FastAPI, LitServe, MLServer, Ray.

    python benchmarks/bench_servers.py ARTIFACT SOURCES [--rounds 5] [--seconds 10] [--only NAMES]

Each of the others is installed into its own environment outside the repository when it is first
needed. Server and load share the machine. One server runs at a time, and their order rotates with
each round. The others have several settings (processes x threads per batch): a trial keeps the best
one for each number of clients.
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

from http_load import percentile_ms, run_load  # noqa: E402
from server_process import ServerProcess, serve_command  # noqa: E402

from keras_bahdanau_runtime import Translator  # noqa: E402

PORT = 8775
CLIENTS = [1, 16, 64]
MAX_WAIT = 0.005  # seconds, the default of the service
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["runtime"]]
WARMUP = 3  # seconds


class Framework(NamedTuple):
    """Another framework that can serve the translator.

    Args:
        packages: Packages for pip, the framework itself first.
        settings: list of (processes, threads per batch).
        protocol: "plain", or "v2" for the Open Inference Protocol.
    """

    packages: list
    settings: list
    protocol: str = "plain"


# FastAPI, MLServer and Ray run several batches of one process concurrently in a thread pool, so one
# process with one thread per batch can use all cores. LitServe cannot. With 0 processes MLServer
# runs the model in the process of the server.
FRAMEWORKS = {
    "fastapi": Framework(["fastapi", "uvicorn[standard]"], [(1, 1), (1, 2), (2, 1)]),
    "litserve": Framework(["litserve"], [(1, 2), (2, 1)]),
    # MLServer 1.7 uses an event loop that uvloop 0.22 removed.
    "mlserver": Framework(["mlserver", "uvloop<0.22"], [(0, 1), (0, 2), (2, 1)], "v2"),
    "ray": Framework(["ray[serve]"], [(1, 1), (1, 2), (2, 1)]),
}
OURS = "ours"


class Server(NamedTuple):
    """A server that can be started.

    Args:
        name: Its name in the table.
        command: list of str.
        protocol: As in `Framework`.
    """

    name: str
    command: list
    protocol: str


class Figures(NamedTuple):
    """One measurement.

    Args:
        rate: Texts per second.
        median_ms: Median latency in milliseconds.
        p99_ms: 99th percentile of the latency in milliseconds.
        cpu_ms: Milliseconds of processor time of the server per text.
        errors: Number of responses that differ from the translator's.
    """

    rate: float
    median_ms: float
    p99_ms: float
    cpu_ms: float
    errors: int


def make_request(protocol, text):
    """Return the path and the body of a request."""
    if protocol == "plain":
        return "/translate", json.dumps({"text": text}).encode()
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return "/v2/models/model/infer", json.dumps({"inputs": [tensor]}).encode()


def parse_response(protocol, content):
    """Return the translation from the body of a response."""
    document = json.loads(content)
    if protocol == "plain":
        return document["translations"][0]["text"]
    [data] = [output["data"] for output in document["outputs"] if output["name"] == "translation"]
    return data[0]


def make_environment(name, folder):
    """Install a framework into its own environment, unless it is there; return its interpreter.

    Raises:
        RuntimeError: The installation failed. The message is the end of pip's output.
    """
    home = folder / name
    python, marker = home / "bin" / "python", home / "installed"
    if not marker.exists():
        print(f"{name}: installing into {home}", flush=True)
        packages = [*FRAMEWORKS[name].packages, *REQUIREMENTS]
        for command in (
            [sys.executable, "-m", "venv", "--clear", home],
            [python, "-m", "pip", "install", "--quiet", *packages],
        ):
            process = subprocess.run(command, capture_output=True, text=True)
            if process.returncode:
                raise RuntimeError((process.stderr.strip() or process.stdout.strip())[-600:])
        marker.touch()
    return python


def installed_versions(python, packages):
    """Return the names and installed versions of packages as one line."""
    names = [re.split(r"[\[<]", package)[0] for package in [*packages, "onnxruntime"]]
    code = (
        "import sys; from importlib.metadata import version\n"
        "print(*(f'{name} {version(name)}' for name in sys.argv[1:]), sep=', ')"
    )
    return subprocess.check_output([python, "-c", code, *names], text=True).strip()


def make_servers(arguments, folder):
    """Return the servers to measure, the service first, and print the installed versions."""
    servers = [Server(OURS, serve_command(arguments.artifact, PORT), "plain")]
    for name, framework in FRAMEWORKS.items():
        settings = {
            f"{name} {processes}x{threads}": (processes, threads)
            for processes, threads in framework.settings
        }
        if arguments.only is not None and name not in arguments.only:
            settings = {key: value for key, value in settings.items() if key in arguments.only}
        if not settings:
            continue
        try:
            python = make_environment(name, folder)
        except RuntimeError as error:
            print(f"{name}: skipped, because the installation failed: {error}", flush=True)
            continue
        print(f"{name}: {installed_versions(python, framework.packages)}", flush=True)
        script = [str(python), str(SERVERS / f"{name}_server.py")]
        for setting, (processes, threads) in settings.items():
            options = [arguments.artifact, PORT, processes, threads, arguments.batch_size, MAX_WAIT]
            command = [*script, *map(str, options)]
            servers.append(Server(setting, command, framework.protocol))
    return servers


def measure(server, translations, seconds):
    """Measure one server with every number of clients.

    Args:
        server: `Server`.
        translations: dict from a text to its expected translation.
        seconds: Duration of each measurement.

    Returns:
        A dict from the number of clients to `Figures`.

    Raises:
        RuntimeError: The server does not become ready, or a request fails.
    """
    requests = {make_request(server.protocol, text): text for text in translations}
    path = next(iter(requests))[0]
    texts = {body: text for (_, body), text in requests.items()}
    bodies = list(texts) * (1 + int(1000 * seconds) // len(texts))
    figures = {}
    with ServerProcess(
        server.command,
        PORT,
        lambda: run_load(PORT, max(CLIENTS), path, bodies, WARMUP),
        {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "export", SERVERS)))},
    ) as process:
        for clients in CLIENTS:
            responses, cpu_before = [], process.processor_seconds()
            try:
                rate, times = run_load(PORT, clients, path, bodies, seconds, responses)
            except (OSError, EOFError, AssertionError) as error:
                raise RuntimeError(f"failed with {clients} clients: {error!r:.300}") from error
            cpu_ms = 1000 * (process.processor_seconds() - cpu_before) / len(times)
            errors = sum(
                parse_response(server.protocol, content) != translations[texts[body]]
                for body, content in responses
            )
            median_ms, p99_ms = percentile_ms(times, 0.5), percentile_ms(times, 0.99)
            figures[clients] = Figures(rate, median_ms, p99_ms, cpu_ms, errors)
    return figures


def measure_and_print(title, server, translations, seconds):
    """Return the result of `measure` and print it; print the error and return `None` on failure."""
    try:
        figures = measure(server, translations, seconds)
    except RuntimeError as error:
        print(f"{title} {server.name}: {error}", flush=True)
        return None
    columns = [
        f"{clients}: {row.rate:.1f}/s p50 {row.median_ms:.1f} p99 {row.p99_ms:.1f} "
        f"cpu {row.cpu_ms:.1f} ms" + (f", {row.errors} WRONG" if row.errors else "")
        for clients, row in figures.items()
    ]
    print(f"{title} {server.name}  {'; '.join(columns)}", flush=True)
    return figures


def keep_best_settings(servers, seconds, translations):
    """Return the servers whose setting is a framework's best for some number of clients."""
    groups = collections.defaultdict(list)
    for server in servers:
        groups[server.name.partition(" ")[0]].append(server)
    best_servers = []
    for group in groups.values():
        if len(group) == 1:
            best_servers += group
            continue
        trials = {
            server.name: measure_and_print("trial", server, translations, seconds)
            for server in group
        }
        trials = {name: figures for name, figures in trials.items() if figures}
        best_names = {
            max(trials, key=lambda name: trials[name][clients].rate)
            for clients in CLIENTS
            if trials
        }
        best_servers += [server for server in group if server.name in best_names]
    return best_servers


def report(results):
    """Print a table per number of clients; `results` is a list of rounds for each server."""
    columns = ["texts/s", "best", "p50 ms", "p99 ms", "CPU ms", "ours / theirs", "lowest"]
    for clients in CLIENTS:
        print(f"\n| clients: {clients} | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
        for name, rounds in results.items():
            rows = [figures[clients] for figures in rounds if figures]
            if not rows:
                print(f"| {name} | failed |{' |' * (len(columns) - 1)}")
                continue
            ratios = [
                ours[clients].rate / theirs[clients].rate
                for ours, theirs in zip(results[OURS], rounds, strict=True)
                if ours and theirs
            ]
            rate, median_ms, p99_ms, cpu_ms, _ = map(statistics.median, zip(*rows, strict=True))
            numbers = [rate, max(row.rate for row in rows), median_ms, p99_ms, cpu_ms]
            cells = [f"{number:.1f}" for number in numbers]
            if ratios:
                cells += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}"]
            print(f"| {name} | {' | '.join(cells)} |")
    for name, rounds in results.items():
        errors = sum(row.errors for figures in rounds if figures for row in figures.values())
        failures = rounds.count(None)
        if errors or failures:
            print(f"{name}: {errors} wrong responses, {failures} failed rounds")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=lambda path: Path(path).resolve())
    parser.add_argument("sources", type=Path, help="text file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="duration of one measurement")
    parser.add_argument(
        "--trial", type=float, default=5, help="seconds per trial; 0 keeps all settings"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="of the other servers")
    parser.add_argument(
        "--only",
        type=lambda names: set(names.split(",")),
        help='frameworks or single settings, such as "fastapi,ray 2x1"',
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default="~/.cache/keras-bahdanau-rivals",
        help="folder of the other servers' environments",
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the running server on exit
    texts = list(dict.fromkeys(filter(None, arguments.sources.read_text("utf-8").splitlines())))
    expected = Translator(arguments.artifact).translate(texts, alignments=False)
    translations = {text: best.text for text, best in zip(texts, expected, strict=True)}
    servers = make_servers(arguments, arguments.environments.expanduser().resolve())
    if arguments.trial:
        servers = keep_best_settings(servers, arguments.trial, translations)
    names = ", ".join(server.name for server in servers)
    print(f"{os.cpu_count()} cores; {len(texts)} texts; {names}")
    results = {server.name: [] for server in servers}
    for number in range(arguments.rounds):
        first = number % len(servers)
        for server in servers[first:] + servers[:first]:
            title = f"round {number + 1}/{arguments.rounds}"
            figures = measure_and_print(title, server, translations, arguments.seconds)
            results[server.name].append(figures)
    report(results)


if __name__ == "__main__":
    main()
