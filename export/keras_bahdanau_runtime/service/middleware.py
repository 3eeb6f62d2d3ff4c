"""What happens to every request of HTTP: its id, its key, its line in the log."""

import ipaddress
import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.keys import Keys
from keras_bahdanau_runtime.service.logs import Called, clean
from keras_bahdanau_runtime.service.metrics import Metrics

logger = logging.getLogger("keras_bahdanau_runtime")

_OPEN = {"/", "/v2/health/live", "/v2/health/ready"}  # paths that need no key
_OWN = ("same-origin", "none")  # where browsers say that a request comes from


class Middleware:
    """Wraps the application.

    A request keeps the id that it brought in `X-Request-ID`, or gets one; `traceparent` is handed
    back and logged. What nobody foresaw is logged and answered with status 500.

    Args:
        app: An application of ASGI.
        keys: `Keys`.
        here_alone: Whether requests must name this machine, or its address, as their host.
        metrics: `Metrics`.
        known: Whether a name is that of a model.
    """

    def __init__(
        self,
        app: Any,
        keys: Keys,
        here_alone: bool,
        metrics: Metrics,
        known: Callable[[str], bool],
    ) -> None:
        self._app, self._keys, self._metrics, self._known = app, keys, metrics, known
        self._here_alone = here_alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): of.decode("latin-1") for name, of in scope["headers"]}
        called = Called(headers)
        status = 0

        async def sent(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-request-id", called.id.encode("ascii"))]
                if called.trace:
                    added.append((b"traceparent", called.trace.encode("ascii")))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            host = _one_host(scope)
            if self._here_alone:
                _check_host(host)
            if scope["method"] not in ("GET", "HEAD"):
                _check_site(headers)
            if scope["path"] not in _OPEN:
                self._keys.check(headers)
            await self._app(scope, receive, sent)
        except ServiceError as error:
            await _response(error)(scope, receive, sent)
        except Exception:
            logger.exception("The request %s failed.", called.id)
            if not status:
                failure = ServiceError("internal", "The service failed; its log says why.")
                await _response(failure)(scope, receive, sent)
        finally:
            call = scope.get("call", "")
            named = scope.get("path_params", {}).get("name", "")
            # A name that is none of ours would be counted for ever.
            named = named if self._known(named) else ""
            self._metrics.requests.labels(scope.get("model", named), call, str(status)).inc()
            path = clean(scope["raw_path"].decode("latin-1"))  # nothing in it is decoded
            called.log(f"{scope['method']} {path}", status)


def _place(origin: str) -> str:
    """The host and port of an origin; nothing of what is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _one_host(scope: Scope) -> str:
    """The host that a request names; this one where HTTP/1.0 names none.

    Raises a `ServiceError`, "invalid", for several, of which what stands in front of the service
    may go by another one, and for none (RFC 9112, 3.2).
    """
    hosts = [of.decode("latin-1") for name, of in scope["headers"] if name == b"host"]
    if len(hosts) > 1 or (not hosts and scope["http_version"] != "1.0"):
        raise ServiceError(
            "invalid",
            f"A request must have one header `Host`. Received: {len(hosts)}: {hosts!r:.80}",
            "Host",
        )
    return hosts[0] if hosts else "localhost"


def _check_host(host: str) -> None:
    """Raises a `ServiceError`, "forbidden", for a name that is not this machine's own.

    A page may give its own name this machine's address, and is then of this site to a browser.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost":
            ipaddress.ip_address(name)
    except ValueError as error:
        raise ServiceError(
            "forbidden",
            "Header `Host` must be localhost or an address, unless the service has keys or was "
            f"told no_auth. Received: {host!r:.80}",
            "Host",
        ) from error


def _check_site(headers: Mapping[str, str]) -> None:
    """Raises a `ServiceError`, "forbidden", for a page of another site.

    Any page that is open on the machine could else unload the models of a service without keys.
    """
    origin, asked = headers.get("origin"), headers.get("sec-fetch-site")
    if asked is None and origin is not None:  # browsers say no more to a plain address of a network
        asked = "none" if _place(origin) == headers.get("host") else "cross-site"
    if asked not in (None, *_OWN):
        raise ServiceError("forbidden", "Pages of other sites may not ask this service.")


def _response(error: ServiceError) -> JSONResponse:
    """Return the response for an error."""
    return JSONResponse(error.to_json(), error.status, error.headers())
