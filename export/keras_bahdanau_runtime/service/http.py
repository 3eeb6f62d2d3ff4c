"""HTTP server: translation, the Open Inference Protocol, the web page and the metrics."""

import asyncio
import contextlib
import dataclasses
import functools
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import uvicorn
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router

from keras_bahdanau_runtime.pictures.page import translator_page
from keras_bahdanau_runtime.request import get_parameter
from keras_bahdanau_runtime.scoring import TargetScore
from keras_bahdanau_runtime.service.connection import DISCONNECTED, Connection, Server
from keras_bahdanau_runtime.service.engine import Engine
from keras_bahdanau_runtime.service.errors import (
    KINDS,
    STOPPING,
    ServiceError,
    argument_errors,
    refuse,
)
from keras_bahdanau_runtime.service.middleware import ApiKeys, Middleware
from keras_bahdanau_runtime.service.models import Model, TextModel
from keras_bahdanau_runtime.service.openapi import (
    BINARY,
    INDEX,
    INFERENCE,
    JSON,
    LOAD,
    Endpoint,
    document_endpoints,
)
from keras_bahdanau_runtime.service.protocol import (
    as_json,
    count_numbers,
    json_array,
    parse_object,
    parse_raw,
    parse_rest,
    render_rest,
    server_metadata,
)
from keras_bahdanau_runtime.service.repository import Repository
from keras_bahdanau_runtime.service.request_log import Tracer
from keras_bahdanau_runtime.service.schemas import (
    AlignRequest,
    AlignResponse,
    AlternativesRequest,
    AlternativesResponse,
    RequestBody,
    ScoreRequest,
    ScoreResponse,
    StreamRequest,
    TranslateRequest,
    TranslateResponse,
    parse_request,
)
from keras_bahdanau_runtime.service.settings import Limits
from keras_bahdanau_runtime.translation import Translation, confidence_fields

# `wbits` arguments of zlib for gzip, zlib and raw deflate data.
_GZIP, _ZLIB, _DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_PAGE = translator_page(Path(__file__).with_name("client.js").read_text("utf-8")).encode("utf-8")
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
)
_UNDOCUMENTED_STATUSES = {405, 499, 500}
_EVENTS = "text/event-stream"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_SMALL_BODY = 64 * 2**10  # bytes that are parsed in the event loop
_FEW_NUMBERS = 10_000  # that are rendered in the event loop
_Result = TypeVar("_Result")


def create_server(
    repository: Repository,
    keys: ApiKeys | None,
    only_local_hosts: bool,
    max_connections: int | None,
    certificate: Path | None,
    key: Path | None,
    tracer: Tracer | None,
) -> uvicorn.Server:
    """Return a server that serves the models of a repository on an existing socket.

    Args:
        repository: `Repository`.
        keys: `ApiKeys`, or `None` if no request needs a key.
        only_local_hosts: Whether the header `Host` must be localhost or an IP address.
        max_connections: int, connections at once; `None` for any number.
        certificate: File of the certificate chain for TLS; `None` for no TLS.
        key: File of the certificate's key.
        tracer: `Tracer` of POST requests; `None` for no spans.
    """
    app, metrics = create_app(repository), repository.engine.metrics

    def is_stopping() -> bool:
        return server.should_exit

    config = uvicorn.Config(
        Middleware(app, keys, only_local_hosts, metrics, repository.may_have, tracer),
        http=functools.partial(  # type: ignore[arg-type]
            Connection,
            max_connections=max_connections,
            is_terminating=lambda: repository.is_terminating,
            is_stopping=is_stopping,
        ),
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
    server = Server(config)
    return server


def create_app(repository: Repository) -> Router:
    """Return the ASGI application that serves the models of a repository, for `Middleware`."""
    error_statuses = {kind.http for kind in KINDS.values()} - _UNDOCUMENTED_STATUSES
    # The router tries endpoints in this order, so the most frequent ones are first.
    # "/v2/models/stats" must precede "/v2/models/{name}", which matches it with the name "stats".
    endpoints = [
        *_translation_endpoints(repository),
        *_server_endpoints(repository),
        *_model_endpoints(repository, "/v2/models/{name}"),
        *_model_endpoints(repository, "/v2/models/{name}/versions/{version}"),
    ]
    endpoints += document_endpoints(endpoints, error_statuses)
    endpoints.append(Endpoint("GET", "/", _page, "The web page", media=("text/html",)))
    routes = [
        Route(endpoint.path, endpoint.function, methods=[endpoint.method]) for endpoint in endpoints
    ]
    return Router(routes, redirect_slashes=False)


def _translation_endpoints(repository: Repository) -> list[Endpoint]:
    """Return the endpoints of text models: translation, scores, alignment, and their list."""

    async def parse(request: Request, schema: type[RequestBody]) -> RequestBody:
        async with _read_body(request, repository.engine) as body:
            return await _parse(body, parse_request, schema, repository.engine.limits)

    async def translate(request: Request) -> Response:
        body = await parse(request, TranslateRequest)
        model = _text_model(request, repository, body.model)
        result = model.translate(body.to_request())
        results = await _cancel_on_disconnect(request, result)

        def render() -> Response:
            translations = [[_translation(each) for each in hypotheses] for hypotheses in results]
            if body.n_best > 1:
                return _json({"translations": translations})
            return _json({"translations": [best for [best, *_] in translations]})

        return await _render([each for hypotheses in results for each in hypotheses], render)

    async def score(request: Request) -> Response:
        body = await parse(request, ScoreRequest)
        model = _text_model(request, repository, body.model)
        result = model.score(
            body.texts, body.for_each_text("target") or [], body.alignments, body.timeout
        )
        results = await _cancel_on_disconnect(request, result)
        return await _render(results, lambda: _json({"scores": [_score(each) for each in results]}))

    async def align(request: Request) -> Response:
        body = await parse(request, AlignRequest)
        model = _text_model(request, repository, body.model)
        result = model.align(
            body.texts,
            body.for_each_text("target") or [],
            body.threshold,
            body.pieces,
            body.timeout,
        )
        return _json({"links": await _cancel_on_disconnect(request, result)})

    async def alternatives(request: Request) -> Response:
        body = await parse(request, AlternativesRequest)
        model = _text_model(request, repository, body.model)
        result = model.alternatives(body.text, body.prefix, body.count, body.timeout)
        words = await _cancel_on_disconnect(request, result)
        return _json({"alternatives": [vars(word) for word in words]})

    async def stream(request: Request) -> Response:
        body = await parse(request, StreamRequest)
        pieces = _text_model(request, repository, body.model).stream(body.text, body.prefix)
        # An error before the first piece sets the HTTP status. A later error is sent as an event.
        first = await _cancel_on_disconnect(request, anext(pieces, None))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = _events(first, pieces)
        if request.scope["http_version"] == "1.0":  # it has no chunked responses
            content = b"".join([event async for event in events])
            return Response(content, media_type=_EVENTS, headers=headers)
        return StreamingResponse(events, media_type=_EVENTS, headers=headers)

    async def models(request: Request) -> Response:
        versions = dict(repository.names())
        entries = [
            {
                "name": model.name,
                "versions": versions[model.name],
                "streams": model.streams,
                "max_characters": repository.engine.limits.characters,
                "n_best": model.max_n_best,
                "options": model.options,
                "max_beam_size": model.max_beam_size,
            }
            for model in _text_models(repository)
        ]
        return _json({"models": entries})

    return [
        Endpoint(
            "POST",
            "/translate",
            translate,
            "Translate one text or several",
            TranslateRequest,
            TranslateResponse,
        ),
        Endpoint(
            "POST",
            "/translate/stream",
            stream,
            "Translate one text piece by piece, as server-sent events",
            StreamRequest,
            media=(_EVENTS,),
        ),
        Endpoint(
            "POST",
            "/score",
            score,
            "Log-probabilities of given translations",
            ScoreRequest,
            ScoreResponse,
        ),
        Endpoint(
            "POST",
            "/align",
            align,
            "Links between texts and given translations",
            AlignRequest,
            AlignResponse,
        ),
        Endpoint(
            "POST",
            "/alternatives",
            alternatives,
            "Most probable words after the beginning of a translation",
            AlternativesRequest,
            AlternativesResponse,
        ),
        Endpoint("GET", "/models", models, "Text models"),
    ]


def _model_endpoints(repository: Repository, prefix: str) -> list[Endpoint]:
    """Return the endpoints of the protocol for one model."""

    def get_model(request: Request) -> Model:
        path = request.path_params
        return repository.get(path["name"], path.get("version", ""))

    async def infer(request: Request) -> Response:
        model = get_model(request)
        async with _read_body(request, repository.engine) as body:
            length = request.headers.get("inference-header-content-length")
            is_number = length is None or (length.isascii() and length.isdigit())
            if not is_number or len(length or "") >= 12:
                refuse("Inference-Header-Content-Length", "be a number of bytes", length)
            if length is not None and int(length) == 0:
                inference = await _parse(body, parse_raw, model.inputs)
            else:
                inference = await _parse(body, parse_rest, None if length is None else int(length))
        result = await _cancel_on_disconnect(request, model.infer(inference))
        if count_numbers(result) <= _FEW_NUMBERS:
            content, json_length = render_rest(result, inference)
        else:
            content, json_length = await asyncio.to_thread(render_rest, result, inference)
        if json_length is None:
            return Response(content, media_type=JSON)
        headers = {"Inference-Header-Content-Length": str(json_length)}
        return Response(content, media_type=BINARY, headers=headers)

    async def metadata(request: Request) -> Response:
        model = get_model(request)
        tensors = {
            side: [
                {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
                for spec in specs
            ]
            for side, specs in (("inputs", model.inputs), ("outputs", model.outputs))
        }
        names = {"name": model.name, "versions": model.versions, "platform": model.platform}
        return _json({**names, **tensors})

    async def ready(request: Request) -> Response:
        if repository.is_terminating:
            raise ServiceError("unavailable", STOPPING, retry_after=1)
        return _json({"name": get_model(request).name, "ready": True})

    async def statistics(request: Request) -> Response:
        path = request.path_params
        counts = repository.statistics(path["name"], path.get("version", ""))
        return _json({"model_stats": counts})

    return [
        Endpoint(
            "POST",
            f"{prefix}/infer",
            infer,
            "Run a model on tensors",
            INFERENCE,
            media=(JSON, BINARY),
        ),
        Endpoint("GET", prefix, metadata, "Inputs and outputs of a model"),
        Endpoint("GET", f"{prefix}/ready", ready, "Whether a model is ready"),
        Endpoint("GET", f"{prefix}/stats", statistics, "Counts and times of a model"),
    ]


def _server_endpoints(repository: Repository) -> list[Endpoint]:
    """Return the endpoints of the protocol for the server, and the metrics."""

    async def read_options(request: Request) -> dict[str, Any]:
        """Return the JSON object in the body, which may be empty."""
        async with _read_body(request, repository.engine) as body:
            return await _parse(body, parse_object) if body else {}

    async def metadata(request: Request) -> Response:
        return _json(server_metadata())

    async def live(request: Request) -> Response:
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        if not repository.is_ready:
            reason = STOPPING if repository.is_terminating else "Not every model is ready."
            raise ServiceError("unavailable", reason, retry_after=1)
        return _json({"ready": True})

    async def statistics(request: Request) -> Response:
        return _json({"model_stats": repository.statistics()})

    async def index(request: Request) -> Response:
        options = await read_options(request)
        with argument_errors():
            only_ready = get_parameter(options, "ready", (bool,), False)
        return _json(repository.index(only_ready))

    async def load(request: Request) -> Response:
        options = await read_options(request)
        if options.get("parameters"):
            refuse("parameters", "be empty: an artifact has no options", options["parameters"])
        repository.check_single_process()
        await repository.load(request.path_params["name"])
        return _json({})

    async def unload(request: Request) -> Response:
        repository.check_single_process()
        await repository.unload(request.path_params["name"])
        return _json({})

    async def metrics(request: Request) -> Response:
        return Response(repository.engine.metrics.render(), media_type=_METRICS)

    models = "/v2/repository/models/{name}"
    return [
        Endpoint("GET", "/v2", metadata, "Name and version of the server"),
        Endpoint("GET", "/v2/", metadata, "Name and version of the server"),
        Endpoint("GET", "/v2/health/live", live, "Whether the process is running"),
        Endpoint("GET", "/v2/health/ready", ready, "Whether every model is ready"),
        Endpoint("GET", "/v2/models/stats", statistics, "Counts and times of every model"),
        Endpoint("POST", "/v2/repository/index", index, "Every model and its state", INDEX),
        Endpoint("POST", f"{models}/load", load, "Load or reload a model", LOAD),
        Endpoint("POST", f"{models}/unload", unload, "Unload a model"),
        Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus", media=(_METRICS,)),
    ]


async def _page(request: Request) -> Response:
    headers = {"Content-Security-Policy": _PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(_PAGE, media_type="text/html; charset=utf-8", headers=headers)


@contextlib.asynccontextmanager
async def _read_body(request: Request, engine: Engine) -> AsyncIterator[bytes]:
    """Yield the uncompressed body of a request, whose memory is counted until the block ends.

    `Connection` limits the time for its arrival.
    """
    limits, length = engine.limits, request.headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > limits.body:
        raise _too_large(limits)
    with engine.bodies.hold() as add:
        received, more = bytearray(), True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ServiceError("gone", "The client disconnected during the request.")
            if len(received) + len(message["body"]) > limits.body:
                raise _too_large(limits)
            add(len(message["body"]))
            received += message["body"]
            more = message["more_body"]
        body = bytes(received)
        del received, message
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            body = decompress(body, encoding, limits)
            add(len(body))
        yield body


def decompress(body: bytes, encoding: str, limits: Limits) -> bytes:
    """Decompress a body of gzip or deflate; the latter with or without zlib's header.

    Args:
        body: bytes.
        encoding: Value of the header `Content-Encoding`.
        limits: `Limits`; `body` limits the bytes of the result.

    Raises:
        ServiceError: "unsupported", "too_large" or "invalid".

    Example:

    >>> decompress(zlib.compress(b"a man"), "deflate", Limits())
    b'a man'
    """
    formats = {"gzip": [_GZIP], "x-gzip": [_GZIP], "deflate": [_ZLIB, _DEFLATE]}.get(encoding)
    if formats is None:
        raise ServiceError(
            "unsupported",
            f"Argument `Content-Encoding` must be gzip or deflate. Received: {encoding!r:.80}",
            "Content-Encoding",
        )
    for wbits in formats:
        decompressor = zlib.decompressobj(wbits)
        try:
            result = decompressor.decompress(body, limits.body + 1)
        except zlib.error:
            continue
        if len(result) > limits.body:
            raise _too_large(limits)
        if decompressor.eof and not decompressor.unused_data:
            return result
    raise ServiceError(
        "invalid",
        f"The body must be one complete {encoding} stream and no further bytes. "
        f"Received: {len(body)} bytes",
    )


def _too_large(limits: Limits) -> ServiceError:
    message = f"The body must have at most {limits.body} bytes after decompression."
    return ServiceError("too_large", message)


async def _parse(body: bytes, parse: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return the result of a parser. A large body is parsed in a thread."""
    if len(body) <= _SMALL_BODY:
        return parse(body, *arguments)
    return await asyncio.to_thread(parse, body, *arguments)


def _text_models(repository: Repository) -> list[TextModel]:
    models = [repository.get(name) for name, _ in repository.names()]
    return [model for model in models if isinstance(model, TextModel)]


def _text_model(request: Request, repository: Repository, name: str | None) -> TextModel:
    """Return a text model, by default the first one.

    Its name is stored in the scope, where `Middleware` reads it for the metrics.
    """
    models = _text_models(repository) if name is None else [repository.get(name)]
    if not models and not repository.is_complete:
        raise ServiceError("unavailable", "No text model is ready.", "model", 1)
    if not models or not isinstance(models[0], TextModel):
        raise ServiceError(
            "conflict",
            f"Argument `model` must be the name of a text model. Received: {name!r:.200}",
            "model",
        )
    request.scope["model"] = models[0].name
    return models[0]


async def _cancel_on_disconnect(request: Request, result: Awaitable[_Result]) -> _Result:
    """Await a result, and cancel it if the client disconnects."""
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    disconnected, is_waiting = request.scope[DISCONNECTED], True

    def cancel(_: "asyncio.Future[None]") -> None:
        if is_waiting:
            task.cancel()

    disconnected.add_done_callback(cancel)
    try:
        return await result
    except asyncio.CancelledError:
        if not disconnected.done():
            raise
        task.uncancel()
        raise ServiceError("gone", "The client disconnected.") from None
    finally:
        is_waiting = False
        disconnected.remove_done_callback(cancel)


async def _events(first: str | None, pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Yield the events of a translation. If it is empty, `first` is `None`."""
    text = []
    try:
        if first is not None:
            text.append(first)
            yield _event({"delta": first})
        async for piece in pieces:
            text.append(piece)
            yield _event({"delta": piece})
        yield _event({"text": "".join(text)})
    except ServiceError as error:
        yield _event(error.to_json())


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + as_json(value) + b"\n\n"


def _translation(translation: Translation) -> dict[str, Any]:
    """Return a `schemas.Hypothesis` as a dict."""
    return {
        "text": translation.text,
        "score": translation.score,
        "tokens": translation.tokens,
        "source_tokens": translation.source_tokens,
        "alignment": _alignment(translation),
        "error": translation.error,
        **confidence_fields(translation),
    }


def _score(score: TargetScore) -> dict[str, Any]:
    """Return a `schemas.Score` as a dict."""
    names = [field.name for field in dataclasses.fields(score) if field.name != "error"]
    return {**{name: getattr(score, name) for name in names}, "alignment": _alignment(score)}


def _alignment(result: Translation | TargetScore) -> Any:
    return None if result.alignment is None else json_array(result.alignment)


async def _render(
    results: Sequence[Translation | TargetScore], render: Callable[[], Response]
) -> Response:
    """Return the response that a function renders; in a thread if it has many weights."""
    alignments = [each.alignment for each in results if each.alignment is not None]
    if sum(alignment.size for alignment in alignments) <= _FEW_NUMBERS:
        return render()
    return await asyncio.to_thread(render)


def _json(value: Any) -> Response:
    return Response(as_json(value), media_type=JSON)
