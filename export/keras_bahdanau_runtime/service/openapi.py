"""HTTP endpoints and the OpenAPI document that describes them."""

import functools
import http
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from keras_bahdanau_runtime.service.schemas import ErrorResponse
from keras_bahdanau_runtime.version import __version__

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
_SCHEMAS = "#/components/schemas/{model}"
_DOCS = """<!DOCTYPE html>
<title>keras_bahdanau</title>
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css">
<div id="swagger-ui"></div>
<script src="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true});
</script>
"""


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
    endpoints: Sequence[Endpoint], error_statuses: Collection[int]
) -> list[Endpoint]:
    """Return the endpoints `/openapi.json`, and `/docs` for people.

    Args:
        endpoints: The endpoints that the document describes.
        error_statuses: HTTP statuses of error responses.
    """
    document = functools.cache(lambda: _document(endpoints, error_statuses))

    async def openapi(request: Request) -> Response:
        return JSONResponse(document())

    async def docs(request: Request) -> Response:
        return HTMLResponse(_DOCS)

    return [
        Endpoint("GET", "/openapi.json", openapi, "This document"),
        Endpoint("GET", "/docs", docs, "This document as a web page", media=("text/html",)),
    ]


def _document(endpoints: Sequence[Endpoint], error_statuses: Collection[int]) -> dict[str, Any]:
    """Return the OpenAPI document; arguments as for `document_endpoints`."""
    models = dict.fromkeys(each.response or ErrorResponse for each in endpoints)
    _, schemas = models_json_schema(
        [(model, "serialization") for model in models], ref_template=_SCHEMAS
    )
    errors = {str(each): _response(each, [JSON], ErrorResponse) for each in sorted(error_statuses)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        method, schema = endpoint.method.lower(), endpoint.request
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": re.sub(
                r"\W", "_", f"{endpoint.function.__name__}{endpoint.path}_{method}"
            ),
            "parameters": [
                {"name": part, "in": "path", "required": True, "schema": {"type": "string"}}
                for part in re.findall(r"{(\w+)}", endpoint.path)
            ],
            "responses": {"200": _response(200, endpoint.media, endpoint.response), **errors},
        }
        if schema is not None:
            if not isinstance(schema, Mapping):
                schema = schema.model_json_schema()
            content = {JSON: {"schema": schema}}
            operation["requestBody"] = {"content": content, "required": "required" in schema}
        paths.setdefault(endpoint.path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "keras_bahdanau", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _response(status: int, media: Sequence[str], model: type[BaseModel] | None) -> dict[str, Any]:
    """Return the description of a response; of any content if `model` is `None`."""
    schema = {"$ref": _SCHEMAS.format(model=model.__name__)} if model else {}
    content = {each: {"schema": schema} for each in media}
    return {"description": http.HTTPStatus(status).phrase, "content": content}
