"""Serve a translator with Ray Serve and its dynamic batching."""

import asyncio
import os
import signal

from server_options import parse_options, response_body

# Ray's throughput mode: without it a text took three times the processor time. The workers have the
# same niceness as the other servers, and HAProxy's files are deleted with the working folder.
os.environ |= {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": str(len(os.sched_getaffinity(0))),
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": os.path.abspath("haproxy/haproxy.cfg"),
    "RAY_SERVE_HAPROXY_SOCKET_PATH": os.path.abspath("haproxy/admin.sock"),
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": os.path.abspath("haproxy/metrics.sock"),
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": os.path.abspath("haproxy"),
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": os.path.abspath("haproxy/server-state"),
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}

import ray
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request

LOGGING = LoggingConfig(enable_access_log=False, log_level="WARNING")
OPTIONS = parse_options()


@serve.deployment(
    num_replicas=OPTIONS.processes,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": OPTIONS.threads},
)
class Translate:
    """Translation of batches of texts."""

    def __init__(self):
        self.translator = OPTIONS.open_translator()

    @serve.batch(
        max_batch_size=OPTIONS.batch_size,
        batch_wait_timeout_s=OPTIONS.max_wait,
        max_concurrent_batches=OPTIONS.concurrent_batches,
    )
    async def translate(self, texts: list[str]):
        return await asyncio.to_thread(self.translator.translate, texts, alignments=False)

    async def __call__(self, request: Request):
        body = await request.json()
        return response_body(await self.translate(body["text"]))


if __name__ == "__main__":
    ray.init(
        num_cpus=len(os.sched_getaffinity(0)),
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        _temp_dir=os.getcwd(),
    )
    serve.start(http_options={"host": "127.0.0.1", "port": OPTIONS.port}, logging_config=LOGGING)
    serve.run(Translate.options(logging_config=LOGGING).bind(), route_prefix="/translate")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    ray.shutdown()
