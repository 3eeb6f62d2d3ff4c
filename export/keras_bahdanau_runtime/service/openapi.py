"""What there is to ask over HTTP, and the OpenAPI document that tells of it.

FastAPI writes the document when it is first asked for. Its import takes longer than the opening of
a model, and no request needs it.
"""

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from keras_bahdanau_runtime.errors import require

JSON = "application/json"
BINARY = "application/octet-stream"
_NAMED = {"name": {"type": "string"}, "parameters": {"type": "object"}}
_TENSOR = {
    **_NAMED,
    "datatype": {"type": "string", "description": 'Such as "INT32", or "BYTES" for texts.'},
    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "data": {"type": "array", "description": "Its items, nested or not."},
}
# The body of an inference in JSON; `protocol.parse_rest` reads it.
INFERENCE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object"},
        "inputs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": _TENSOR,
                "required": ["name", "datatype", "shape"],
            },
        },
        "outputs": {
            "type": "array",
            "items": {"type": "object", "properties": _NAMED, "required": ["name"]},
        },
    },
    "required": ["inputs"],
}

INDEX = {"type": "object", "properties": {"ready": {"type": "boolean", "default": False}}}
LOAD = {
    "type": "object",
    "properties": {"parameters": {"type": "object", "maxProperties": 0}},
}


@dataclass(frozen=True)
class Endpoint:
    """A function behind a path.

    Args:
        method: "GET" or "POST".
        path: str, with the names of its variable parts in braces.
        function: From a request to a response. Its name stands in the metrics.
        summary: str, a line on what it does.
        takes: The JSON Schema of its body, or `None` for no body. Where it requires nothing, there
            may be none.
        gives: The JSON Schema of its answer, or `None` for any.
        media: Media types that its answer may have.
    """

    method: str
    path: str
    function: Callable[[Request], Awaitable[Response]]
    summary: str
    takes: Mapping[str, Any] | None = None
    gives: Mapping[str, Any] | None = None
    media: Sequence[str] = (JSON,)


def description(
    endpoints: Sequence[Endpoint],
    problem: Mapping[str, Any],
    statuses: Collection[int],
    version: str,
) -> list[Endpoint]:
    """The endpoints that describe others: `/openapi.json`, and `/docs` for people.

    Args:
        endpoints: Those that are described.
        problem: The JSON Schema of an answer that is none.
        statuses: Those that it may have.
        version: str, of the package.
    """

    @functools.cache
    def document() -> Any:
        return _described(endpoints, problem, statuses, version)

    async def openapi(request: Request) -> Response:
        return JSONResponse(document().openapi())

    async def people(request: Request) -> Response:
        docs = require("fastapi.openapi.docs", extra="serve")
        page = docs.get_swagger_ui_html(openapi_url="/openapi.json", title=document().title)
        return HTMLResponse(page.body)

    return [
        Endpoint("GET", "/openapi.json", openapi, "This document"),
        Endpoint("GET", "/docs", people, "This document, for people", media=("text/html",)),
    ]


def _described(
    endpoints: Sequence[Endpoint],
    problem: Mapping[str, Any],
    statuses: Collection[int],
    version: str,
) -> Any:
    """An application of FastAPI that is only asked what it would answer."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"content": {JSON: {"schema": problem}}} for status in sorted(statuses)
    }
    app = require("fastapi", extra="serve").FastAPI(
        title="keras_bahdanau", version=version, responses=responses
    )
    for endpoint in endpoints:
        names = re.findall(r"{(\w+)}", endpoint.path)
        extra: dict[str, Any] = {
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
        }
        if endpoint.takes is not None:
            body = {JSON: {"schema": endpoint.takes}}
            extra["requestBody"] = {"content": body, "required": "required" in endpoint.takes}
        answers: dict[str, Any] = {
            media: {"schema": (endpoint.gives or {}) if media == JSON else {}}
            for media in endpoint.media
        }
        app.add_api_route(
            endpoint.path,
            endpoint.function,
            methods=[endpoint.method],
            summary=endpoint.summary,
            response_class=JSONResponse if JSON in endpoint.media else Response,
            responses={200: {"content": answers}},
            openapi_extra=extra,
        )
    return app
