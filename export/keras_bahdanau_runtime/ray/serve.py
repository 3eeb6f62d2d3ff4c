"""The service on Ray Serve: the same questions and answers, by as many replicas as they need.

    serve run keras_bahdanau_runtime.ray.serve:build dates=/models/dates

or, from Python, `serve.run(application(Settings({"dates": Path("/models/dates")})))`.

A replica is what `server` runs without its own doors: the models, and the queue that gathers
batches. Ray's proxy is the door of HTTP, and there is none of gRPC. `/metrics`, `load` and `unload`
are those of the replica that is asked; Ray adds up what it counts itself, and `serve deploy`
replaces artifacts.
"""

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.service.connections import LEFT
from keras_bahdanau_runtime.service.http import build_app
from keras_bahdanau_runtime.service.middleware import Middleware
from keras_bahdanau_runtime.service.server import Service, Settings

_FULL = 16  # batches of a thread that a replica takes; what comes beyond goes to another, or waits
_AUTOSCALING = {"min_replicas": 1, "max_replicas": 8}


def build(artifacts: Mapping[str, str]) -> Any:
    """The application for `serve run` and `serve build`: paths of artifacts by name.

    How many replicas there are, and of what, stands in Serve's own file of settings.

    Raises:
        ValueError: As `Settings`.
        MissingDependencyError: Ray is not installed.
    """
    return application(Settings({name: Path(path) for name, path in artifacts.items()}))


def application(settings: Settings, autoscaling: Mapping[str, Any] = _AUTOSCALING) -> Any:
    """A service as an application of Ray Serve.

    Args:
        settings: `Settings`, whose paths must lead to the same files on every machine. Of `threads`
            a replica has one if `None`, and as many processors. Host, ports, TLS and log are
            Ray's, and keys are asked for where there is a file of them.
        autoscaling: What Ray knows as `autoscaling_config`. A replica is meant to have a batch for
            each thread at once, if nothing else is said.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    serve = require("ray.serve", extra="ray")
    threads = settings.threads or 1
    settings = dataclasses.replace(settings, threads=threads, alone_threads=1)
    batches = settings.batch_size * threads
    deployment = serve.deployment(
        name="Translations",
        autoscaling_config={"target_ongoing_requests": batches, **autoscaling},
        max_ongoing_requests=_FULL * batches,
        ray_actor_options={"num_cpus": threads},
    )
    return deployment(serve.ingress(_Replica(settings))()).bind()


class _Replica:
    """An application of ASGI that opens its models when it begins.

    Args:
        settings: `Settings`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Any = None  # from its beginning on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or begins and ends, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        # Ray cancels the task of a client that leaves; nothing else has to be told.
        scope[LEFT] = asyncio.get_running_loop().create_future()
        await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        service = Service(self._settings)
        try:
            await asyncio.gather(*map(service.repository.load, self._settings.sources))
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        repository = service.repository
        app = build_app(repository)
        self._app = Middleware(
            app,
            service.keys,
            here_alone=False,
            metrics=service.engine.metrics,
            known=repository.knows,
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await service.engine.drain(self._settings.grace)
        service.engine.close()
        repository.close()
        await send({"type": "lifespan.shutdown.complete"})
