"""A rolling update of two services under load, as in Kubernetes: is a request lost?

    python benchmarks/bench_rolling_update.py [ARTIFACT SOURCES] [--drain-delay 10]

The clients send requests over connections that they keep, through a load balancer of TCP
connections. Services are replaced one after the other: a new one starts, and the old one gets
SIGTERM. The load balancer, like that of Kubernetes, removes it some seconds later. The script
prints how many requests got which answer. `--drain-delay 0` shows what the delay is for. Without
arguments a graph that copies its source replaces the model.
"""

import collections
import contextlib
import itertools
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from server_process import ROOT, read_texts, running_service, service_parser

sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]

from copy_artifact import make  # noqa: E402
from load_balancer import balancing  # noqa: E402

PORT = 8795
REST_SECONDS = 3.0  # of load before, between and after the replacements
PAUSE_SECONDS = 0.2  # of a client between two requests


class Load:
    """Clients that send texts until the block ends.

    Attributes:
        answers: Number of requests by status, or by the class of the client's exception.
    """

    def __init__(self, port, texts, clients):
        self.answers, self._is_done = collections.Counter(), threading.Event()
        self._bodies = [json.dumps({"text": text}).encode() for text in texts]
        self._threads = [
            threading.Thread(target=self._send, args=(port, number)) for number in range(clients)
        ]

    def _send(self, port, number):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as web:
            for body in itertools.islice(itertools.cycle(self._bodies), number, None):
                if self._is_done.is_set():
                    return
                try:
                    answer = web.post("/translate", content=body).status_code
                except httpx.HTTPError as error:
                    answer = type(error).__name__
                self.answers[answer] += 1
                time.sleep(PAUSE_SECONDS)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._is_done.set()
        for thread in self._threads:
            thread.join()


def replace_services(artifact, texts, arguments):
    """Replace two services under load, and return the answers to the clients."""
    ports, options = itertools.count(PORT, 2), ("--drain-delay", str(arguments.drain_delay))
    with contextlib.ExitStack() as services:

        def start():
            port = next(ports)
            return port, services.enter_context(running_service(artifact, port, *options))

        running = [start() for _ in range(2)]
        backends = [("127.0.0.1", port) for port, _ in running]
        with balancing(backends) as balancer, Load(balancer.port, texts, arguments.clients) as load:
            for port, process in running:
                time.sleep(REST_SECONDS)
                new_port, _ = start()
                balancer.backends = [*balancer.backends, ("127.0.0.1", new_port)]
                process.terminate()
                time.sleep(arguments.removed_after)
                balancer.backends = [each for each in balancer.backends if each[1] != port]
                status = process.wait()
                print(f"port {port}: exit status {status}, {dict(load.answers)}", flush=True)
            time.sleep(REST_SECONDS)
        return load.answers


def main():
    parser = service_parser(__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--drain-delay", type=float, default=10.0, help="seconds")
    parser.add_argument(
        "--removed-after", type=float, default=5.0, help="seconds from SIGTERM to the removal"
    )
    arguments = parser.parse_args()
    texts = read_texts(arguments.sources)
    with tempfile.TemporaryDirectory() as folder:
        artifact = arguments.artifact or make(Path(folder) / "copy")
        answers = replace_services(artifact, texts, arguments)
    print(f"{arguments.clients} clients: {dict(answers)}")


if __name__ == "__main__":
    main()
