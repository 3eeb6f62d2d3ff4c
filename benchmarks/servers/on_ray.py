"""A translator behind Ray Serve, with its dynamic batches."""

import asyncio
import os
import signal

import ray
from common import answer, given
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
