"""The server of HTTP: uvicorn, as this service runs it."""

import contextlib
import functools
from pathlib import Path

import uvicorn

from keras_bahdanau_runtime.service.connections import Connection
from keras_bahdanau_runtime.service.http import build_app
from keras_bahdanau_runtime.service.keys import Keys
from keras_bahdanau_runtime.service.middleware import Middleware
from keras_bahdanau_runtime.service.repository import Repository


def server(
    repository: Repository,
    keys: Keys,
    here_alone: bool,
    max_connections: int | None,
    certificate: Path | None,
    key: Path | None,
) -> uvicorn.Server:
    """What answers for the models of a repository, on a socket that it is given.

    Args:
        repository: `Repository`.
        keys: `Keys`.
        here_alone: Whether it answers only to this machine's own names.
        max_connections: int, most connections at once; one more is told so. `None` for any number.
        certificate: File of the certificate chain; with `key`, for TLS.
        key: File of its key.
    """
    app, metrics = build_app(repository), repository.engine.metrics
    config = uvicorn.Config(
        Middleware(app, keys, here_alone, metrics, repository.knows),
        http=functools.partial(Connection, most=max_connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_keep_alive=30,
    )
    made = uvicorn.Server(config)
    made.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return made
