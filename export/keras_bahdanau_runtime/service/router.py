"""Which function answers a request of HTTP."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.openapi import Endpoint

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


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
