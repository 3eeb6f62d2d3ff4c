"""The service on Ray Serve, with as many replicas as the load requires.

    serve run keras_bahdanau_runtime.ray.serve:build dates=/models/dates

or, from Python, `serve.run(application(Settings({"dates": Path("/models/dates")})))`.

A replica has the models and the request queue of `service.server`, but no servers: Ray's proxy is
the HTTP server, and there is no gRPC. `/metrics` and the calls to load and unload models reach only
one replica. Use Ray's own metrics, and `serve deploy` to replace artifacts.
"""

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.service.connection import DISCONNECTED
from keras_bahdanau_runtime.service.http import create_app
from keras_bahdanau_runtime.service.middleware import Middleware
from keras_bahdanau_runtime.service.server import Service
from keras_bahdanau_runtime.service.settings import Settings

_MAX_BATCHES = 16  # per thread of a replica; further requests go to another replica, or wait
_AUTOSCALING = {"min_replicas": 1, "max_replicas": 8}


def build(artifacts: Mapping[str, str]) -> Any:
    """Return the application for `serve run` and `serve build`.

    Serve's config file sets the number of replicas and their resources.

    Args:
        artifacts: Paths of artifacts by model name.

    Raises:
        ValueError: As `Settings`.
        MissingDependencyError: Ray is not installed.
    """
    return application(Settings({name: Path(path) for name, path in artifacts.items()}))


def application(settings: Settings, autoscaling: Mapping[str, Any] = _AUTOSCALING) -> Any:
    """Return a service as an application of Ray Serve.

    Args:
        settings: `Settings`. Its paths must be valid on every machine. A replica runs
            `parallel_batches` batches at once, by default one, and has as many CPUs. Ray sets host,
            ports, TLS and log. Requests need a key if there is a file of keys.
        autoscaling: Ray's `autoscaling_config`. The default target is the number of requests that
            fill the parallel batches of a replica.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    serve = require("ray.serve", extra="ray")
    parallel_batches = settings.parallel_batches or 1
    settings = dataclasses.replace(settings, parallel_batches=parallel_batches, model_threads=1)
    batch_requests = settings.batch_size * parallel_batches
    deployment = serve.deployment(
        name="Translations",
        autoscaling_config={"target_ongoing_requests": batch_requests, **autoscaling},
        max_ongoing_requests=_MAX_BATCHES * batch_requests,
        ray_actor_options={"num_cpus": parallel_batches},
    )
    return deployment(serve.ingress(_Replica(settings))()).bind()


class _Replica:
    """ASGI application that opens its models at startup.

    Args:
        settings: `Settings`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Any = None  # set at startup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or handle the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        # Never done: Ray cancels the task of a client that disconnects.
        scope[DISCONNECTED] = asyncio.get_running_loop().create_future()
        await self._app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        service = Service(self._settings)
        try:
            await asyncio.gather(*map(service.repository.load, self._settings.sources))
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        repository = service.repository
        self._app = Middleware(
            create_app(repository),
            service.keys,
            only_local_hosts=False,
            metrics=service.engine.metrics,
            is_model=repository.may_have,
            tracer=service.tracing,
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        repository.is_terminating = True
        await service.engine.drain(self._settings.grace)
        if service.tracing is not None:
            await asyncio.to_thread(service.tracing.close, self._settings.grace)
        service.engine.close()
        repository.close()
        await send({"type": "lifespan.shutdown.complete"})
