"""A translator behind Ray Serve, with its dynamic batches."""

import asyncio
import os
import signal

from common import answer, given

# Ray's own settings for throughput, without which a text took three times the processor's time. Its
# workers are as nice as the other servers, and its files go with the folder.
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

QUIET = LoggingConfig(enable_access_log=False, log_level="WARNING")
SETTINGS = given()


@serve.deployment(
    num_replicas=SETTINGS.processes,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": SETTINGS.threads},
)
class Translate:
    """Batches of texts to their translations."""

    def __init__(self):
        self.translator = SETTINGS.open()

    @serve.batch(
        max_batch_size=SETTINGS.batch_size,
        batch_wait_timeout_s=SETTINGS.max_wait,
        max_concurrent_batches=SETTINGS.at_once,
    )
    async def translate(self, texts: list[str]):
        return await asyncio.to_thread(self.translator.translate, texts, alignments=False)

    async def __call__(self, request: Request):
        asked = await request.json()
        return answer(await self.translate(asked["text"]))


if __name__ == "__main__":
    ray.init(
        num_cpus=len(os.sched_getaffinity(0)),
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        _temp_dir=os.getcwd(),
    )
    serve.start(http_options={"host": "127.0.0.1", "port": SETTINGS.port}, logging_config=QUIET)
    serve.run(Translate.options(logging_config=QUIET).bind(), route_prefix="/translate")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    ray.shutdown()
