"""A client with one short text next to clients with long requests, and the rate of many clients.

    python benchmarks/bench_fairness.py [ARTIFACT SOURCES] [--baseline TREE]

A long request has 256 texts of about 980 tokens, less than a kilobyte after compression. The short
text is the first source. With `--baseline`, the folder of another version of this repository, the
rate of 64 clients of both services is measured alternately. Without arguments a graph replaces the
model that copies its source and multiplies matrices for two steps per token, at most 100.
"""

import contextlib
import gzip
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from http_load import percentile_ms, run_load
from server_process import ROOT, read_texts, running_service, service_parser

PORT, BASELINE_PORT = 8775, 8785
LONG_CLIENTS, POLITE_CLIENTS, TEXTS, TOKENS = 4, 64, 256, 980
SEARCH = {"class": "BeamSearch", "size": 2, "max_length": 100, "max_length_ratio": 2.0}
HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


def make_artifact(path):
    """Write an artifact whose graph takes as long as a decoder of 256 units and 8,000 tokens."""
    sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]
    from copy_artifact import copy_graph, make

    loop = """source_shape = Shape (source)
    source_width = Gather (source_shape, second)
    source_rows = Gather (source_shape, first)
    doubled = Add (source_width, source_width)
    limited = Min (doubled, hundred)
    turns = Squeeze (limited)
    beams = Mul (source_rows, five)
    state_shape = Concat <axis = 0> (beams, units)
    start = ConstantOfShape <value = float[1] {0.5}> (state_shape)
    up_shape = Concat <axis = 0> (units, words)
    up = ConstantOfShape <value = float[1] {0.0001}> (up_shape)
    down_shape = Concat <axis = 0> (words, units)
    down = ConstantOfShape <value = float[1] {0.0001}> (down_shape)
    scalar = ReduceSum <keepdims = 0> (one)
    yes = Cast <to = 9> (scalar)
    state = Loop <body = step (int64 i, bool go, float[n, u] x) => (bool still, float[n, u] y) {
        still = Identity (go)
        logits = MatMul (x, up)
        back = MatMul (logits, down)
        y = Tanh (back)
    }> (turns, yes, start)
    summed = ReduceSum <keepdims = 0> (state)
    none = Mul (summed, zero)
    is_pad = Equal"""
    constants = """int64[1] two = {2}, int64[1] hundred = {100}, int64[1] five = {5},
 int64[1] units = {256}, int64[1] words = {8000}, float zero = {0.0}"""
    graph = copy_graph().replace("is_pad = Equal", loop).replace("int64[1] two = {2}", constants)
    score = "length_score = Neg (float_count)\n    score = Add (length_score, none)"
    graph = graph.replace("score = Neg (float_count)", score)
    return make(path, graph, max_source_length=None, search=SEARCH)


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
    long_text = "a b " * (TOKENS // 4 * 2) if text is None else text
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
    parser.add_argument("--long-text", help="text of long requests (default: two letters)")
    parser.add_argument("--requests", type=int, default=100, help="short requests (default: 100)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-cost", default=str(10**9), help="as of serve (default: no limit)")
    parser.add_argument("--serve", nargs="*", default=[], help="more options of serve, without --")
    arguments = parser.parse_args()
    texts = read_texts(arguments.sources)
    options = ["--max-cost", arguments.max_cost, *(f"--{each}" for each in arguments.serve)]
    with contextlib.ExitStack() as stack:
        artifact = arguments.artifact
        if artifact is None:
            artifact = make_artifact(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "a")
        stack.enter_context(running_service(artifact, PORT, *options))
        ports = [PORT]
        if arguments.baseline:
            service = running_service(artifact, BASELINE_PORT, tree=arguments.baseline)
            stack.enter_context(service)
            ports.append(BASELINE_PORT)
        measure(PORT, texts, arguments.long_text, arguments.requests)
        if arguments.rounds:
            compare_rates(ports, texts, arguments.rounds)


if __name__ == "__main__":
    main()
