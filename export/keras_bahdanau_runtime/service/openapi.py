"""HTTP endpoints and the OpenAPI document that describes them.

FastAPI writes the document at its first request. Importing FastAPI takes longer than opening a
model, and no other request needs it.
"""

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.service.schemas import ErrorResponse

JSON = "application/json"
BINARY = "application/octet-stream"
_NAME_SCHEMAS = {"name": {"type": "string"}, "parameters": {"type": "object"}}
_TENSOR = {
    **_NAME_SCHEMAS,
    "datatype": {"type": "string", "description": 'such as "INT32", or "BYTES" for texts'},
    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "data": {"type": "array", "description": "the items, flat or nested as the shape"},
}
# `protocol.parse_rest` parses this body.
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
            "items": {"type": "object", "properties": _NAME_SCHEMAS, "required": ["name"]},
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
    """One method of one path.

    Args:
        method: "GET" or "POST".
        path: str, with the names of its variable parts in braces.
        function: From a request to a response. Its name is a label of the metrics.
        summary: str, one line.
        request: Schema of the body: a pydantic model or a JSON Schema; `None` for no body. A body
            without required properties is optional.
        response: Pydantic model of the response; `None` for any JSON.
        media: Media types of the response.
    """

    method: str
    path: str
    function: Callable[[Request], Awaitable[Response]]
    summary: str
    request: type[BaseModel] | Mapping[str, Any] | None = None
    response: type[BaseModel] | None = None
    media: Sequence[str] = (JSON,)


def document_endpoints(
    endpoints: Sequence[Endpoint], error_statuses: Collection[int], version: str
) -> list[Endpoint]:
    """Return the endpoints `/openapi.json`, and `/docs` for people.

    Args:
        endpoints: The endpoints that the document describes.
        error_statuses: HTTP statuses of error responses.
        version: str, of the package.
    """

    @functools.cache
    def app() -> Any:
        return _fastapi_app(endpoints, error_statuses, version)

    async def openapi(request: Request) -> Response:
        return JSONResponse(app().openapi())

    async def docs(request: Request) -> Response:
        module = require("fastapi.openapi.docs", extra="serve")
        page = module.get_swagger_ui_html(openapi_url="/openapi.json", title=app().title)
        return HTMLResponse(page.body)

    return [
        Endpoint("GET", "/openapi.json", openapi, "This document"),
        Endpoint("GET", "/docs", docs, "This document as a web page", media=("text/html",)),
    ]


def _fastapi_app(
    endpoints: Sequence[Endpoint], error_statuses: Collection[int], version: str
) -> Any:
    """Return a FastAPI application that only writes the document and answers no request."""
    errors = {status: {"model": ErrorResponse} for status in sorted(error_statuses)}
    app = require("fastapi", extra="serve").FastAPI(
        title="keras_bahdanau", version=version, responses=errors
    )
    for endpoint in endpoints:
        extra: dict[str, Any] = {
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", endpoint.path)
            ]
        }
        schema = endpoint.request
        if schema is not None:
            if not isinstance(schema, Mapping):
                schema = schema.model_json_schema()
            body = {JSON: {"schema": schema}}
            extra["requestBody"] = {"content": body, "required": "required" in schema}
        success: dict[str, Any] = {"content": {media: {"schema": {}} for media in endpoint.media}}
        if endpoint.response is not None:
            success = {"model": endpoint.response}
        app.add_api_route(
            endpoint.path,
            endpoint.function,
            methods=[endpoint.method],
            summary=endpoint.summary,
            response_class=JSONResponse if JSON in endpoint.media else Response,
            responses={200: success},
            openapi_extra=extra,
        )
    return app
