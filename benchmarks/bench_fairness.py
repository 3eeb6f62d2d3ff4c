"""A client with one short text next to clients with long requests, and the rate of many clients.

    python benchmarks/bench_fairness.py ARTIFACT SOURCES [--baseline TREE]

A long request has 256 texts of about 980 tokens, less than a kilobyte after compression. The short
text is the first source. With `--baseline`, the folder of another version of this repository, the
rate of 64 clients of both services is measured alternately, and so is a part of the other figures.
"""

import contextlib
import gzip
import http.client
import json
import statistics
import threading
import time

from http_load import percentile_ms, run_load
from server_process import ROOT, read_texts, running_service, service_parser

PORT, BASELINE_PORT = 8775, 8785
LONG_CLIENTS, POLITE_CLIENTS, TEXTS, TOKENS = 4, 64, 256, 980
HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


def post(connection, body, headers):
    """Send a request to `/translate` and return its status."""
    connection.request("POST", "/translate", body, headers)
    response = connection.getresponse()
    response.read()
    return response.status


def short_seconds(port, text, count, pause=0.0):
    """Return the sorted seconds of requests with one text."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=120), []
    body = json.dumps({"text": text})
    for _ in range(count):
        time.sleep(pause)
        began = time.perf_counter()
        status = post(connection, body, {"Content-Type": "application/json"})
        assert status == 200, status
        seconds.append(time.perf_counter() - began)
    connection.close()
    return sorted(seconds)


@contextlib.contextmanager
def long_clients(port, body, statuses):
    """Send long requests from several clients until the block ends."""
    stopped = threading.Event()

    def run():
        while not stopped.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            with contextlib.suppress(OSError, http.client.HTTPException), connection_of(connection):
                status = post(connection, body, HEADERS)
                statuses[status] = statuses.get(status, 0) + 1
                if status != 200:
                    stopped.wait(0.5)

    def connection_of(connection):
        connections.append(connection)
        return contextlib.closing(connection)

    connections = []
    threads = [threading.Thread(target=run, daemon=True) for _ in range(LONG_CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(2)  # until their texts are encoded
    try:
        yield
    finally:
        stopped.set()
        for connection in connections:
            with contextlib.suppress(OSError, AttributeError):  # it is closed
                connection.sock.shutdown(2)
        for thread in threads:
            thread.join()


def long_body(text):
    """Return a compressed request with texts of about `TOKENS` tokens."""
    long_text = "a " * (TOKENS // 2) if text is None else text
    return gzip.compress(json.dumps({"text": [long_text] * TEXTS}).encode(), 9)


def measure(port, texts, long_text, requests):
    """Print the seconds of short requests on an idle service and next to long requests."""
    body, statuses = long_body(long_text), {}
    short_seconds(port, texts[0], 5)
    idle = short_seconds(port, texts[0], requests)
    with long_clients(port, body, statuses):
        busy = short_seconds(port, texts[0], requests)
    idle_ms, busy_ms = percentile_ms(idle, 0.5), percentile_ms(busy, 0.5)
    print(
        f"long request of {len(body)} bytes; short request: idle median {idle_ms:.1f} ms, maximum "
        f"{1000 * idle[-1]:.1f} ms; busy median {busy_ms:.1f} ms ({busy_ms / idle_ms:.2f} times), "
        f"maximum {1000 * busy[-1]:.1f} ms ({1000 * busy[-1] / idle_ms:.1f} times); answers to "
        f"long requests by status: {statuses}",
        flush=True,
    )


def compare_rates(ports, texts, rounds):
    """Print the rates of polite clients, measured alternately."""
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    rates = {port: [] for port in ports}
    for port in ports:
        run_load(port, POLITE_CLIENTS, "/translate", bodies[:200], 600)
    for turn in range(rounds):
        for port in ports if turn % 2 == 0 else ports[::-1]:
            rates[port].append(run_load(port, POLITE_CLIENTS, "/translate", bodies, 600)[0])
    for port in ports:
        values = ", ".join(f"{rate:.1f}" for rate in rates[port])
        print(f"port {port}: {statistics.median(rates[port]):.1f} texts/s ({values})")
    if len(ports) > 1:
        ratios = [new / old for new, old in zip(*rates.values(), strict=True)]
        print(f"this version / baseline: median {statistics.median(ratios):.3f}")


def main():
    parser = service_parser(__doc__)
    parser.add_argument("--baseline", help="folder of another version")
    parser.add_argument("--long-text", help="text of the long requests (default: of one letter)")
    parser.add_argument("--requests", type=int, default=100, help="short requests (default: 100)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-cost", default=str(10**9), help="as of serve (default: no limit)")
    parser.add_argument("--serve", nargs="*", default=[], help="more options of serve, without --")
    arguments = parser.parse_args()
    texts = read_texts(arguments.sources)
    options = ["--max-cost", arguments.max_cost, *(f"--{each}" for each in arguments.serve)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running_service(arguments.artifact, PORT, *options, tree=ROOT))
        ports = [PORT]
        if arguments.baseline:
            service = running_service(arguments.artifact, BASELINE_PORT, tree=arguments.baseline)
            stack.enter_context(service)
            ports.append(BASELINE_PORT)
        measure(PORT, texts, arguments.long_text, arguments.requests)
        if arguments.rounds:
            compare_rates(ports, texts, arguments.rounds)


if __name__ == "__main__":
    main()
