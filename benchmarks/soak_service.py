"""Memory of the service under minutes of mixed load.

    python benchmarks/soak_service.py [ARTIFACT SOURCES] [--minutes 10]

Clients of every kind run at the same time: texts with and without alignments, streams, graphs as
JSON and binary, gRPC, invalid requests, and clients that disconnect before their response. The
script prints the service's memory every minute, and its growth after the first two minutes. Without
arguments a graph that copies its source replaces the model.
"""

import asyncio
import collections
import contextlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio
from server_process import megabytes, read_texts, running_service, service_parser

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]

PORT = 8755
ADDRESS, GRPC_ADDRESS = f"127.0.0.1:{PORT}", f"127.0.0.1:{PORT + 1}"
WARMUP = 2  # minutes until every kind of request has been used
TOKENS = np.array([[5, 6, 3]], np.int32)
INVALID_REQUESTS = [
    (b"{", {}),
    (b'{"text": 3}', {}),
    (b'{"text": "a", "n_best": 99}', {}),
    (b"\x1f\x8b broken", {"Content-Encoding": "gzip"}),
    (json.dumps({"text": "a" * 20_000}).encode(), {}),
    (b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1000000, 1000000]}]}', {}),
]


class MixedLoad:
    """Concurrent clients, one per kind of request.

    Args:
        texts: list of str to translate.
        deadline: End of the load, in seconds of `time.monotonic`.
    """

    def __init__(self, texts, deadline):
        self.texts, self.deadline = texts, deadline
        self.counts = collections.Counter()

    def sample_texts(self, maximum=4):
        return random.sample(self.texts, random.randint(1, maximum))

    async def repeat(self, name, send):
        """Call `send` until the deadline and count the calls."""
        while time.monotonic() < self.deadline:
            await send()
            self.counts[name] += 1

    async def run(self):
        async with (
            httpx.AsyncClient(base_url=f"http://{ADDRESS}", timeout=120) as web,
            tritonclient.http.aio.InferenceServerClient(ADDRESS) as triton,
            tritonclient.grpc.aio.InferenceServerClient(GRPC_ADDRESS) as rpc,
        ):
            senders = {
                "texts": lambda: self.translate(web),
                "alignments": lambda: self.translate(web, alignments=True),
                "streams": lambda: self.stream(web),
                "graph, JSON": lambda: self.infer(triton, tritonclient.http, binary_data=False),
                "graph, binary": lambda: self.infer(triton, tritonclient.http, binary_data=True),
                "graph, gRPC": lambda: self.infer(rpc, tritonclient.grpc),
                "invalid": lambda: self.send_invalid(web),
                "disconnected": self.disconnect,
                "metrics": lambda: self.read_metrics(web),
            }
            await asyncio.gather(*(self.repeat(name, send) for name, send in senders.items()))

    async def translate(self, web, **options):
        texts = self.sample_texts()
        response = await web.post("/translate", json={"text": texts, **options})
        assert response.status_code == 200, response.text
        assert len(response.json()["translations"]) == len(texts)

    async def stream(self, web):
        response = await web.post("/translate/stream", json={"text": self.sample_texts()[0]})
        # 409: the artifact has no step graph.
        assert response.status_code in (200, 409), response.text

    async def infer(self, client, module, **options):
        source = module.InferInput("source", list(TOKENS.shape), "INT32")
        source.set_data_from_numpy(TOKENS, **options)
        response = await client.infer("model-graph", [source])
        assert response.as_numpy("tokens").shape[0] == 1

    async def send_invalid(self, web):
        body, headers = random.choice(INVALID_REQUESTS)
        path = "/v2/models/model/infer" if b"inputs" in body else "/translate"
        response = await web.post(path, content=body, headers=headers)
        assert 400 <= response.status_code < 500, response.text

    async def disconnect(self):
        """Send a request and close the connection before or during the response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        path = random.choice(["/translate", "/translate/stream"])
        text = self.sample_texts()[0]
        body = json.dumps({"text": text}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), random.choice([0.001, 0.01, 1]))
        writer.transport.abort()

    async def read_metrics(self, web):
        for path in ("/metrics", "/", "/v2/models/model/stats", f"/v2/models/x{time.time_ns()}"):
            response = await web.get(path)
            assert response.status_code in (200, 404), response.text
        await asyncio.sleep(1)


async def print_memory(process, load, minutes):
    """Print the memory after each minute, and its growth after the warm-up."""
    memory = []
    for minute in range(1, minutes + 1):
        await asyncio.sleep(load.deadline - 60 * (minutes - minute) - time.monotonic())
        memory.append(megabytes(process))
        count = sum(load.counts.values())
        print(f"minute {minute}: {memory[-1]:.1f} MB, {count} requests", flush=True)
    if minutes > WARMUP:
        growth = memory[-1] - memory[WARMUP - 1]
        print(f"growth after the first {WARMUP} minutes: {growth:.1f} MB")


async def soak(process, texts, minutes):
    """Run the load and print the memory."""
    load = MixedLoad(texts, time.monotonic() + 60 * minutes)
    await asyncio.gather(load.run(), print_memory(process, load, minutes))
    print(", ".join(f"{name}: {count}" for name, count in load.counts.items()))


def main():
    parser = service_parser(__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    arguments = parser.parse_args()
    texts = read_texts(arguments.sources)
    with tempfile.TemporaryDirectory() as folder:
        artifact = arguments.artifact
        if artifact is None:
            from copy_artifact import COPY_STEPS, make

            artifact = make(Path(folder) / "copy", steps=COPY_STEPS)
        with running_service(artifact, PORT) as process:
            asyncio.run(soak(process, texts, arguments.minutes))
        print(f"the service ended with {process.returncode}")


if __name__ == "__main__":
    main()
