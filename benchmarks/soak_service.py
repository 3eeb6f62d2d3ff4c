"""The service under minutes of mixed load, with its memory.

    python benchmarks/soak_service.py [ARTIFACT SOURCES] [--minutes 10]

Clients of every kind ask at once: texts with and without alignments, streams, graphs in JSON and
binary, gRPC, broken requests, and clients that leave before their answer. Each minute the service's
memory is printed, and in the end what it grew by after the first two. Without arguments a graph
that copies its source stands for the model.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio
from running import ENVIRONMENT, megabytes, serve_command

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]

PORT = 8755
ADDRESS, GRPC_ADDRESS = f"127.0.0.1:{PORT}", f"127.0.0.1:{PORT + 1}"
LEARNED = 2  # minutes until everything has been used once
TOKENS = np.array([[5, 6, 3]], np.int32)
BROKEN = [
    (b"{", {}),
    (b'{"text": 3}', {}),
    (b'{"text": "a", "n_best": 99}', {}),
    (b"\x1f\x8b broken", {"Content-Encoding": "gzip"}),
    (json.dumps({"text": "a" * 20_000}).encode(), {}),
    (b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1000000, 1000000]}]}', {}),
]


class Load:
    """What the clients share.

    Args:
        texts: list of str to translate.
        until: When to end, as `time.monotonic` counts.
    """

    def __init__(self, texts, until):
        self.texts, self.until = texts, until
        self.counts = collections.Counter()

    def some(self, most=4):
        return random.sample(self.texts, random.randint(1, most))

    async def keep(self, name, ask):
        """Asks again and again, and counts."""
        while time.monotonic() < self.until:
            await ask()
            self.counts[name] += 1

    async def run(self):
        async with (
            httpx.AsyncClient(base_url=f"http://{ADDRESS}", timeout=120) as web,
            tritonclient.http.aio.InferenceServerClient(ADDRESS) as triton,
            tritonclient.grpc.aio.InferenceServerClient(GRPC_ADDRESS) as rpc,
        ):
            asks = {
                "texts": lambda: self.translate(web),
                "alignments": lambda: self.translate(web, alignments=True),
                "streams": lambda: self.stream(web),
                "graph, JSON": lambda: self.graph(triton, tritonclient.http, binary_data=False),
                "graph, binary": lambda: self.graph(triton, tritonclient.http, binary_data=True),
                "graph, gRPC": lambda: self.graph(rpc, tritonclient.grpc),
                "broken": lambda: self.broken(web),
                "left": self.leave,
                "metrics": lambda: self.metrics(web),
            }
            await asyncio.gather(*(self.keep(name, ask) for name, ask in asks.items()))

    async def translate(self, web, **options):
        texts = self.some()
        answer = await web.post("/translate", json={"text": texts, **options})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["translations"]) == len(texts)

    async def stream(self, web):
        answer = await web.post("/translate/stream", json={"text": self.some()[0]})
        assert answer.status_code in (200, 409), answer.text  # 409: an artifact without steps

    async def graph(self, client, module, **options):
        given = module.InferInput("source", list(TOKENS.shape), "INT32")
        given.set_data_from_numpy(TOKENS, **options)
        answer = await client.infer("model-graph", [given])
        assert answer.as_numpy("tokens").shape[0] == 1

    async def broken(self, web):
        body, headers = random.choice(BROKEN)
        path = "/v2/models/model/infer" if b"inputs" in body else "/translate"
        answer = await web.post(path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500, answer.text

    async def leave(self):
        """Asks, and closes the connection before the answer, or within it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        path = random.choice(["/translate", "/translate/stream"])
        text = self.some()[0]
        body = json.dumps({"text": text}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), random.choice([0.001, 0.01, 1]))
        writer.transport.abort()

    async def metrics(self, web):
        for path in ("/metrics", "/", "/v2/models/model/stats", f"/v2/models/x{time.time_ns()}"):
            answer = await web.get(path)
            assert answer.status_code in (200, 404), answer.text
        await asyncio.sleep(1)


async def measure(process, load, minutes):
    """Prints the memory each minute; its growth after the first ones."""
    found = []
    for minute in range(1, minutes + 1):
        await asyncio.sleep(load.until - 60 * (minutes - minute) - time.monotonic())
        found.append(megabytes(process))
        counts = sum(load.counts.values())
        print(f"minute {minute}: {found[-1]:.1f} MB, {counts} requests", flush=True)
    if minutes > LEARNED:
        grown = found[-1] - found[LEARNED - 1]
        print(f"growth after the first {LEARNED} minutes: {grown:.1f} MB")


async def soak(process, texts, minutes):
    async with httpx.AsyncClient(base_url=f"http://{ADDRESS}") as web:
        ready = False
        while not ready:
            assert process.poll() is None, "the service ended"
            with contextlib.suppress(httpx.TransportError):
                ready = (await web.get("/v2/health/ready")).status_code == 200
            await asyncio.sleep(0.05)
    load = Load(texts, time.monotonic() + 60 * minutes)
    await asyncio.gather(load.run(), measure(process, load, minutes))
    print(", ".join(f"{name}: {count}" for name, count in load.counts.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", nargs="?")
    parser.add_argument("sources", nargs="?")
    parser.add_argument("--minutes", type=int, default=10)
    given = parser.parse_args()
    texts = [f"a man on a bike {n}" for n in range(1000)]
    if given.sources is not None:
        texts = Path(given.sources).read_text("utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        artifact = given.artifact
        if artifact is None:
            from copy_artifact import COPY_STEPS, make

            artifact = make(Path(folder) / "copy", steps=COPY_STEPS)
        process = subprocess.Popen(
            serve_command(artifact, PORT),
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
        )
        try:
            asyncio.run(soak(process, texts, given.minutes))
        finally:
            process.terminate()
            print(f"the service ended with {process.wait()}")


if __name__ == "__main__":
    main()
