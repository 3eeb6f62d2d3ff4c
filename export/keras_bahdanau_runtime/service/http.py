"""The HTTP server: translation, the Open Inference Protocol, the web page and the metrics."""

import asyncio
import contextlib
import functools
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from keras_bahdanau_runtime.pictures.page import assemble_page
from keras_bahdanau_runtime.service.connections import LEFT, Connection
from keras_bahdanau_runtime.service.engine import Limits
from keras_bahdanau_runtime.service.errors import KINDS, ServiceError
from keras_bahdanau_runtime.service.keys import Keys
from keras_bahdanau_runtime.service.middleware import Middleware
from keras_bahdanau_runtime.service.models import Model, parameter
from keras_bahdanau_runtime.service.openapi import (
    BINARY,
    INDEX,
    INFERENCE,
    JSON,
    LOAD,
    Endpoint,
    description,
)
from keras_bahdanau_runtime.service.protocol import (
    as_json,
    parse_json,
    parse_raw,
    parse_rest,
    render_rest,
    server_metadata,
)
from keras_bahdanau_runtime.service.questions import (
    PROBLEM,
    STREAM,
    TRANSLATE,
    TRANSLATIONS,
    StreamRequest,
    TranslateRequest,
    parse_question,
)
from keras_bahdanau_runtime.service.repository import Repository
from keras_bahdanau_runtime.service.tensors import refuse
from keras_bahdanau_runtime.service.text_model import TextModel
from keras_bahdanau_runtime.translation import Translation

_GZIP, _ZLIB, _PLAIN = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request, unpacked.

    Args:
        request: The request.
        limits: `Limits`; `body` bounds the bytes before and after they are unpacked.

    Raises:
        ServiceError: "too_large", "gone" where it does not come, "unsupported" for an encoding that
            is not gzip or deflate, "invalid" for one that is broken, or that something follows.
    """
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told[:20]) > limits.body:
        raise _too_large(limits)
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()  # for so long as `Connection` allows
        if message["type"] == "http.disconnect":
            raise ServiceError("gone", "The client left before its request was whole.")
        parts.append(message["body"])
        size += len(parts[-1])
        if size > limits.body:
            raise _too_large(limits)
        more = message["more_body"]
    body = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return body if encoding in ("identity", "") else unpack(body, encoding, limits)


def unpack(body: bytes, encoding: str, limits: Limits) -> bytes:
    """What was packed by gzip or deflate, by zlib's header or without one.

    Raises:
        ServiceError: As `read_body`.

    Example:

    >>> unpack(zlib.compress(b"a man"), "deflate", Limits())
    b'a man'
    """
    ways = {"gzip": [_GZIP], "x-gzip": [_GZIP], "deflate": [_ZLIB, _PLAIN]}.get(encoding)
    if ways is None:
        raise ServiceError(
            "unsupported",
            f"Argument `Content-Encoding` must be gzip or deflate. Received: {encoding!r:.80}",
            "Content-Encoding",
        )
    for way in ways:
        unpacking = zlib.decompressobj(way)
        try:
            found = unpacking.decompress(body, limits.body + 1)
        except zlib.error:
            continue
        if len(found) > limits.body:
            raise _too_large(limits)
        if unpacking.eof and not unpacking.unused_data:
            return found
    raise ServiceError(
        "invalid",
        f"The body must be one whole stream of {encoding}, and nothing after it. "
        f"Received: {len(body)} bytes",
    )


def _too_large(limits: Limits) -> ServiceError:
    return ServiceError("too_large", f"The body must have at most {limits.body} bytes, unpacked.")


class Router:
    """An application of ASGI that hands a request to its endpoint.

    Starlette's own has four layers between a request and its function, a tenth of the time of a
    small one; here errors are told in one place, by `Middleware`.

    Args:
        endpoints: list of `Endpoint`, those that are asked for most first.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        functions: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            functions.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        self._paths = [(compile_path(path)[0], by) for path, by in functions.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request; the name of its function and the parts of its path stay in `scope`.

        Raises:
            ServiceError: "not_found", or "not_allowed".
        """
        path, method = scope["path"], scope["method"]
        for regex, endpoints in self._paths:
            match = regex.fullmatch(path)  # its "$" would let a newline follow
            if match is None:
                continue
            endpoint = endpoints.get("GET" if method == "HEAD" else method)
            if endpoint is None:
                allowed = [*endpoints, "HEAD"] if "GET" in endpoints else list(endpoints)
                said = f"{method:.20} {path!r:.200} is not to be had: {', '.join(allowed)} is."
                raise ServiceError("not_allowed", said, allowed=allowed)
            scope["call"], scope["path_params"] = endpoint.function.__name__, match.groupdict()
            response: Response = await endpoint.function(Request(scope, receive))
            await response(scope, receive, send)
            return
        raise ServiceError("not_found", f"There is no {path!r:.200}.")


_PAGE = assemble_page(Path(__file__).with_name("page.html")).encode("utf-8")
_NOT_DESCRIBED = {405, 499, 500}
_EVENTS = "text/event-stream"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_SMALL = 64 * 2**10  # bytes of a body that is parsed at once
_Asked = TypeVar("_Asked", bound=StreamRequest)
_Found = TypeVar("_Found")


def build_app(repository: Repository) -> Router:
    """The application of ASGI that answers for the models of a repository.

    Args:
        repository: `Repository`.
    """
    problems = {kind.http for kind in KINDS.values()} - _NOT_DESCRIBED
    # Most requests look for the first of these, so they are found first.
    endpoints = [
        *_translation(repository),
        *_server(repository),  # among its paths one that would be the model "stats"
        *_model(repository, "/v2/models/{name}"),
        *_model(repository, "/v2/models/{name}/versions/{version}"),
    ]
    endpoints += description(endpoints, PROBLEM, problems, server_metadata()["version"])
    return Router([*endpoints, Endpoint("GET", "/", _page, "The page", media=("text/html",))])


def _translation(repository: Repository) -> list[Endpoint]:
    """What people call."""

    async def translate(request: Request) -> Response:
        asked = await _asked(request, repository, TranslateRequest)
        model = _text_model(request, repository, asked.model)
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        found = await _while_there(
            request, model.translate(texts, asked.n_best, asked.alignments, asked.timeout)
        )
        plain = [[_plain(one) for one in best] for best in found]
        answer = plain if asked.n_best > 1 else [best[0] for best in plain]
        return _json({"translations": answer})

    async def stream(request: Request) -> Response:
        asked = await _asked(request, repository, StreamRequest)
        pieces = _text_model(request, repository, asked.model).stream(asked.text)
        # What goes wrong before the first piece has a status of its own.
        first = await _while_there(request, anext(pieces, None))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = _events(first, pieces)
        if request.scope["http_version"] == "1.0":  # which has no answers whose length is not told
            whole = b"".join([event async for event in events])
            return Response(whole, media_type=_EVENTS, headers=headers)
        return StreamingResponse(events, media_type=_EVENTS, headers=headers)

    async def models(request: Request) -> Response:
        versions, most = dict(repository.names()), repository.engine.limits.characters
        found = [
            {
                "name": model.name,
                "versions": versions[model.name],
                "streams": model.streams,
                "max_characters": most,
                "n_best": model.most,
            }
            for model in _text_models(repository)
        ]
        return _json({"models": found})

    return [
        Endpoint(
            "POST",
            "/translate",
            translate,
            "Translate one text or several",
            takes=TRANSLATE,
            gives=TRANSLATIONS,
        ),
        Endpoint(
            "POST",
            "/translate/stream",
            stream,
            "Translate one text, piece by piece, as server-sent events",
            takes=STREAM,
            media=(_EVENTS,),
        ),
        Endpoint("GET", "/models", models, "The models of texts"),
    ]


async def _asked(request: Request, repository: Repository, kind: type[_Asked]) -> _Asked:
    """The question that the body is."""
    limits = repository.engine.limits
    return await _parsed(await read_body(request, limits), parse_question, kind, limits)


async def _parsed(body: bytes, parse: Callable[..., _Found], *more: Any) -> _Found:
    """What a function makes of a body; of a large one in a thread, while others are answered."""
    if len(body) <= _SMALL:
        return parse(body, *more)
    return await asyncio.to_thread(parse, body, *more)


def _text_models(repository: Repository) -> list[TextModel]:
    models = [repository.get(name) for name, _ in repository.names()]
    return [model for model in models if isinstance(model, TextModel)]


def _text_model(request: Request, repository: Repository, name: str | None) -> TextModel:
    """The model of texts of a name, the first one where none is named, for the metrics, too."""
    known = _text_models(repository) if name is None else [repository.get(name)]
    if not known and not repository.whole:
        raise ServiceError("unavailable", "There is no model of texts just now.", "model", 1)
    if not known or not isinstance(known[0], TextModel):
        raise ServiceError(
            "conflict",
            f"Argument `model` must name a model of texts. Received: {name!r:.200}",
            "model",
        )
    request.scope["model"] = known[0].name
    return known[0]


async def _events(first: str | None, pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """The events of a translation whose first piece is there; `None` where it is blank."""
    said = []
    try:
        if first is not None:
            said.append(first)
            yield _event({"delta": first})
        async for piece in pieces:
            said.append(piece)
            yield _event({"delta": piece})
        yield _event({"text": "".join(said)})
    except ServiceError as error:
        yield _event(error.to_json())


async def _page(request: Request) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    policy += "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return Response(_PAGE, media_type="text/html; charset=utf-8", headers=headers)


def _model(repository: Repository, prefix: str) -> list[Endpoint]:
    """What the protocol asks of one model."""

    def asked(request: Request) -> Model:
        given = request.path_params
        return repository.get(given["name"], given.get("version", ""))

    async def infer(request: Request) -> Response:
        model = asked(request)
        given = await read_body(request, repository.engine.limits)
        length = request.headers.get("inference-header-content-length")
        if length is not None and not (length.isascii() and length.isdigit() and len(length) < 12):
            raise ServiceError(
                "invalid",
                "Argument `Inference-Header-Content-Length` must be a number of bytes. "
                f"Received: {length!r:.80}",
                "Inference-Header-Content-Length",
            )
        if length is not None and int(length) == 0:
            wanted = parse_raw(given, model.inputs)
        else:
            wanted = await _parsed(given, parse_rest, None if length is None else int(length))
        answer = await _while_there(request, model.infer(wanted))
        rendered, header = render_rest(answer, wanted)
        if header is None:
            return Response(rendered, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(header)}
        return Response(rendered, media_type="application/octet-stream", headers=headers)

    async def metadata(request: Request) -> Response:
        model = asked(request)
        tensors = {
            side: [
                {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
                for spec in getattr(model, side)
            ]
            for side in ("inputs", "outputs")
        }
        told = {"name": model.name, "versions": model.versions, "platform": model.platform}
        return _json({**told, **tensors})

    async def ready(request: Request) -> Response:
        if repository.draining:
            raise ServiceError("unavailable", "The service is about to stop.", retry_after=1)
        return _json({"name": asked(request).name, "ready": True})

    async def statistics(request: Request) -> Response:
        given = request.path_params
        counted = repository.statistics(given["name"], given.get("version", ""))
        return _json({"model_stats": counted})

    return [
        Endpoint(
            "POST",
            f"{prefix}/infer",
            infer,
            "Tensors in, tensors out",
            INFERENCE,
            media=(JSON, BINARY),
        ),
        Endpoint("GET", prefix, metadata, "The inputs and outputs of a model"),
        Endpoint("GET", f"{prefix}/ready", ready, "Whether a model answers"),
        Endpoint("GET", f"{prefix}/stats", statistics, "Counts and times of a model"),
    ]


def _server(repository: Repository) -> list[Endpoint]:
    """What the protocol asks of the server, and its metrics."""
    server = server_metadata()

    async def given_by(request: Request) -> dict[str, Any]:
        """The object that the body is, where there is one."""
        body = await read_body(request, repository.engine.limits)
        return parse_json(body) if body else {}

    async def metadata(request: Request) -> Response:
        return _json(server)

    async def live(request: Request) -> Response:
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        if not repository.ready:
            raise ServiceError("unavailable", "Not every model is ready.", retry_after=1)
        return _json({"ready": True})

    async def statistics(request: Request) -> Response:
        return _json({"model_stats": repository.statistics()})

    async def index(request: Request) -> Response:
        given = await given_by(request)
        return _json(repository.index(parameter(given, "ready", (bool,), False)))

    async def load(request: Request) -> Response:
        if (given := await given_by(request)).get("parameters"):
            refuse("parameters", "be empty: an artifact is loaded as it is", given["parameters"])
        repository.check_alone()
        await repository.load(request.path_params["name"])
        return _json({})

    async def unload(request: Request) -> Response:
        repository.check_alone()
        await repository.unload(request.path_params["name"])
        return _json({})

    async def metrics(request: Request) -> Response:
        return Response(repository.engine.metrics.render(), media_type=_METRICS)

    models = "/v2/repository/models/{name}"
    return [
        Endpoint("GET", "/v2", metadata, "What this server is"),
        Endpoint("GET", "/v2/", metadata, "What this server is, by the path of the protocol"),
        Endpoint("GET", "/v2/health/live", live, "Whether the process answers"),
        Endpoint("GET", "/v2/health/ready", ready, "Whether every model answers"),
        Endpoint("GET", "/v2/models/stats", statistics, "Counts and times of every model"),
        Endpoint("POST", "/v2/repository/index", index, "Every model and its state", takes=INDEX),
        Endpoint("POST", f"{models}/load", load, "Open a model, or open it anew", takes=LOAD),
        Endpoint("POST", f"{models}/unload", unload, "Take a model away"),
        Endpoint("GET", "/metrics", metrics, "What Prometheus reads", media=(_METRICS,)),
    ]


async def _while_there(request: Request, answer: Awaitable[_Found]) -> _Found:
    """The answer, which is taken back when the client leaves."""
    task, left = cast("asyncio.Task[Any]", asyncio.current_task()), request.scope[LEFT]
    waiting = True

    def leave(_: "asyncio.Future[None]") -> None:
        if waiting:
            task.cancel()

    left.add_done_callback(leave)
    try:
        return await answer
    except asyncio.CancelledError:
        if not left.done():
            raise
        task.uncancel()
        raise ServiceError("gone", "The client left.") from None
    finally:
        waiting = False
        left.remove_done_callback(leave)


def _plain(one: Translation) -> dict[str, Any]:
    return {
        "text": one.text,
        "score": one.score,
        "tokens": one.tokens,
        "source_tokens": one.source_tokens,
        "alignment": one.alignment,
        "error": one.error,
    }


def _json(value: Any) -> Response:
    return Response(as_json(value), media_type="application/json")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + as_json(value) + b"\n\n"


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
