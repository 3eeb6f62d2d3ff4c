"""The service under load: against calls of the same translator, and one client against many.

    python benchmarks/bench_service.py [ARTIFACT SOURCES]

Server, load and the calls that they are compared with share the machine and take turns, so that
ratios mean something where times do not. Without arguments a graph that copies its source stands
for the model, which shows what the service itself costs.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]

from load import load, percentile  # noqa: E402
from running import ENVIRONMENT, megabytes, serve_command  # noqa: E402

from keras_bahdanau_runtime import Translator  # noqa: E402

PORT = 8765


def load_grpc(clients, seconds):
    """Requests a second of gRPC to the graph, by so many clients."""
    import numpy as np
    import tritonclient.grpc.aio as triton

    given = triton.InferInput("source", [1, 3], "INT32")
    given.set_data_from_numpy(np.array([[5, 6, 3]], np.int32))
    wanted = [triton.InferRequestedOutput("lengths")]

    async def go():
        async with triton.InferenceServerClient(f"127.0.0.1:{PORT + 1}") as client:
            until, count = time.perf_counter() + seconds, 0

            async def ask():
                nonlocal count
                while time.perf_counter() < until:
                    await client.infer("model-graph", [given], outputs=wanted)
                    count += 1

            await asyncio.gather(*(ask() for _ in range(clients)))
            return count / seconds

    return asyncio.run(go())


def start(artifact):
    began = time.perf_counter()
    server = subprocess.Popen(
        serve_command(artifact, PORT), stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}
    )
    while True:
        try:
            load(PORT, 1, "/v2/repository/index", [b""], 5)
            return server, time.perf_counter() - began
        except OSError:
            if server.poll() is not None:
                raise SystemExit(
                    f"{artifact}: the service has ended, see what serve says"
                ) from None
            time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", nargs="?")
    parser.add_argument("sources", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        artifact, texts = given.artifact, [f"a man on a bike {n}" for n in range(1000)]
        if artifact is None:
            from copy_artifact import make

            artifact = make(Path(folder) / "copy")
        if given.sources is not None:
            texts = Path(given.sources).read_text("utf-8").splitlines()
        server, seconds = start(artifact)
        try:
            report(server, seconds, artifact, texts, given)
        finally:
            server.terminate()
            server.wait()


def report(server, seconds, artifact, texts, given):
    print(f"{os.cpu_count()} cores; ready after {seconds:.2f} s with {megabytes(server):.0f} MB")
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    translator = Translator(artifact)
    ratios, singles, tails = [], [], []
    for _ in range(given.rounds):
        began = time.perf_counter()
        translator.translate(texts, alignments=False)
        bulk = len(texts) / (time.perf_counter() - began)
        many, times = load(PORT, given.clients, "/translate", bodies, 600)
        direct = []
        for text in texts[:50]:
            began = time.perf_counter()
            translator.translate([text], alignments=False)
            direct.append(time.perf_counter() - began)
        _, alone = load(PORT, 1, "/translate", bodies[:50][::-1], 600)
        ratios.append(many / bulk)
        tails.append(percentile(times, 0.99) / percentile(times, 0.5))
        one, other = 1000 * statistics.median(direct), percentile(alone, 0.5)
        singles.append((other - 2) / one)
        print(
            f"{given.clients} clients {many:.0f} texts/s, bulk {bulk:.0f}: {ratios[-1]:.2f}; "
            f"p50 {percentile(times, 0.5):.0f} ms, p99 {percentile(times, 0.99):.0f} ms; "
            f"1 client {other:.1f} ms, direct {one:.1f} ms"
        )
    source = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 3]}
    asked = json.dumps({"inputs": [source], "outputs": [{"name": "lengths"}]}).encode()
    rate, _ = load(PORT, 16, "/v2/models/model-graph/infer", [asked] * 20_000, 5)
    channel = load_grpc(16, 5)
    print(
        f"medians: {given.clients} clients / bulk {statistics.median(ratios):.2f}, p99 / p50 "
        f"{statistics.median(tails):.1f}, (1 client - 2 ms) / direct "
        f"{statistics.median(singles):.2f}; graph {rate:.0f} requests/s by 16 clients, "
        f"{channel:.0f} by gRPC; "
        f"{megabytes(server):.0f} MB in the end; load took "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_utime:.0f} s of a core"
    )


if __name__ == "__main__":
    main()
