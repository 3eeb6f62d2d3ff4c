"""The service under load, against direct calls of the same translator.

    python benchmarks/bench_service.py [ARTIFACT SOURCES]

Server, load and direct calls share the machine and alternate, so the ratios are meaningful even
where the times are not. Without arguments a graph that copies its source replaces the model, and
the result is the cost of the service itself.
"""

import asyncio
import functools
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]

from http_load import percentile_ms, run_load  # noqa: E402
from server_process import megabytes, read_texts, running_service, service_parser  # noqa: E402
from timing import median_seconds  # noqa: E402

from keras_bahdanau_runtime import Translator  # noqa: E402

PORT = 8765


def grpc_rate(clients, seconds):
    """Return the gRPC requests per second to the graph with several concurrent clients."""
    import numpy as np
    import tritonclient.grpc.aio as triton

    source = triton.InferInput("source", [1, 3], "INT32")
    source.set_data_from_numpy(np.array([[5, 6, 3]], np.int32))
    outputs = [triton.InferRequestedOutput("lengths")]

    async def run_clients():
        async with triton.InferenceServerClient(f"127.0.0.1:{PORT + 1}") as client:
            deadline, count = time.perf_counter() + seconds, 0

            async def run_client():
                nonlocal count
                while time.perf_counter() < deadline:
                    await client.infer("model-graph", [source], outputs=outputs)
                    count += 1

            await asyncio.gather(*(run_client() for _ in range(clients)))
            return count / seconds

    return asyncio.run(run_clients())


def report(server, seconds, artifact, texts, arguments):
    """Measure the started service and print the figures."""
    print(f"{os.cpu_count()} cores; ready after {seconds:.2f} s with {megabytes(server):.0f} MB")
    clients = arguments.clients
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    translator = Translator(artifact)
    translate = functools.partial(translator.translate, alignments=False)
    throughput_ratios, latency_ratios, tail_ratios = [], [], []
    for _ in range(arguments.rounds):
        bulk_rate = len(texts) / median_seconds(lambda: translate(texts), rounds=1, warmup=0)
        rate, times = run_load(PORT, clients, "/translate", bodies, 600)
        direct_times = [
            median_seconds(functools.partial(translate, [text]), rounds=1, warmup=0)
            for text in texts[:50]
        ]
        _, single_times = run_load(PORT, 1, "/translate", bodies[:50][::-1], 600)
        throughput_ratios.append(rate / bulk_rate)
        tail_ratios.append(percentile_ms(times, 0.99) / percentile_ms(times, 0.5))
        direct_ms = 1000 * statistics.median(direct_times)
        single_ms = percentile_ms(single_times, 0.5)
        latency_ratios.append((single_ms - 2) / direct_ms)
        print(
            f"{clients} clients {rate:.0f} texts/s, bulk {bulk_rate:.0f}: "
            f"{throughput_ratios[-1]:.2f}; "
            f"p50 {percentile_ms(times, 0.5):.0f} ms, p99 {percentile_ms(times, 0.99):.0f} ms; "
            f"1 client {single_ms:.1f} ms, direct {direct_ms:.1f} ms"
        )
    source = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 3]}
    body = json.dumps({"inputs": [source], "outputs": [{"name": "lengths"}]}).encode()
    http_rate, _ = run_load(PORT, 16, "/v2/models/model-graph/infer", [body] * 20_000, 5)
    print(
        f"medians: {clients} clients / bulk {statistics.median(throughput_ratios):.2f}, p99 / p50 "
        f"{statistics.median(tail_ratios):.1f}, (1 client - 2 ms) / direct "
        f"{statistics.median(latency_ratios):.2f}; graph {http_rate:.0f} requests/s from 16 "
        f"clients, {grpc_rate(16, 5):.0f} over gRPC; "
        f"{megabytes(server):.0f} MB at the end; the load used "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_utime:.0f} s of a core"
    )


def main():
    parser = service_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    arguments = parser.parse_args()
    texts = read_texts(arguments.sources)
    with tempfile.TemporaryDirectory() as folder:
        artifact = arguments.artifact
        if artifact is None:
            from copy_artifact import make

            artifact = make(Path(folder) / "copy")
        began = time.perf_counter()
        with running_service(artifact, PORT) as server:
            seconds = time.perf_counter() - began
            report(server, seconds, artifact, texts, arguments)


if __name__ == "__main__":
    main()
