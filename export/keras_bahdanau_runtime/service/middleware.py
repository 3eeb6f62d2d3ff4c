"""Access checks, and the middleware of HTTP."""

import hmac
import ipaddress
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.request_log import RequestLog, Tracer

logger = logging.getLogger("keras_bahdanau_runtime")

_PATHS_WITHOUT_KEY = {"/", "/v2/health/live", "/v2/health/ready"}
# Values of `Sec-Fetch-Site`. "none": the user typed the address.
_SAME_SITE = ("same-origin", "none")


class ApiKeys:
    """The keys that clients authenticate with.

    Args:
        keys: list of str.

    Example:

    >>> ApiKeys(["secret"]).check({"authorization": "Bearer secret"})
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode("utf-8") for key in keys]

    @classmethod
    def read(cls, path: Path) -> "ApiKeys":
        """Read the keys of a file, one per line.

        Raises:
            ValueError: The file has no key, or a key that an HTTP header cannot contain.
        """
        try:
            lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
        except UnicodeDecodeError as error:
            raise argument_error("api_key_file", "be UTF-8", received=f"{path}, {error}") from error
        for number, line in enumerate(lines, 1):
            if not (line.isascii() and line.isprintable()):
                raise argument_error(
                    "api_key_file",
                    "contain keys of printable ASCII characters",
                    received=f"{path}, with other characters in line {number}",
                )
        keys = [line for line in lines if line]
        if not keys:
            raise argument_error("api_key_file", "contain a key", received=f"{path}, empty")
        return cls(keys)

    def check(self, headers: Mapping[str, str]) -> None:
        """Accept a request with `Authorization: Bearer KEY` or `X-API-Key: KEY`.

        Raises:
            ServiceError: "unauthenticated".
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        encoded = key.encode("utf-8", "replace")
        # Every key is compared, so that the time does not depend on which one matches.
        if not sum(hmac.compare_digest(encoded, other) for other in self._keys):
            raise ServiceError(
                "unauthenticated",
                "Argument `Authorization` must be a Bearer key of this service. "
                f"Received: {'another key' if key else 'no key'}",
                "Authorization",
            )


class Middleware:
    """ASGI middleware that checks, logs and counts each HTTP request and answers its errors.

    `X-Request-ID` and `traceparent` are returned with the response. An unexpected exception is
    logged and answered with status 500.

    Args:
        app: ASGI application.
        keys: `ApiKeys`, or `None` if no request needs a key.
        only_local_hosts: bool. Whether the header `Host` must be localhost or an IP address.
        metrics: `Metrics` that count the requests.
        is_model: Function that returns whether there is a model of a name.
        tracer: `Tracer` of POST requests; `None` for no spans.
    """

    def __init__(
        self,
        app: Any,
        keys: ApiKeys | None,
        only_local_hosts: bool,
        metrics: Metrics,
        is_model: Callable[[str], bool],
        tracer: Tracer | None = None,
    ) -> None:
        self._app, self._keys, self._metrics, self._is_model = app, keys, metrics, is_model
        self._tracer = tracer
        self._only_local_hosts = only_local_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        log = RequestLog.begin(headers, self._tracer if scope["method"] == "POST" else None)
        status = 0

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(b"x-request-id", log.id.encode("ascii"))]
                if log.trace:
                    ids.append((b"traceparent", log.trace.encode("ascii")))
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        self._metrics.in_flight.inc()
        try:
            self._check_access(scope, headers)
            scope["app"] = self  # makes Starlette's router raise `HTTPException`
            await self._app(scope, receive, send_with_id)
        except (HTTPException, ServiceError) as error:
            failure = error if isinstance(error, ServiceError) else _routing_error(scope, error)
            log.error = failure.kind
            await _response(failure)(scope, receive, send_with_id)
        except Exception:
            logger.exception("The request %s failed.", log.id)
            log.error = "internal"
            if not status:
                failure = ServiceError("internal", "The service failed. Its log has the reason.")
                await _response(failure)(scope, receive, send_with_id)
        finally:
            name = scope.get("path_params", {}).get("name", "")
            # Clients may send any name, and Prometheus keeps every value of a label.
            log.model = scope.get("model", name if self._is_model(name) else "")
            call = getattr(scope.get("endpoint"), "__name__", "")
            self._metrics.in_flight.dec()
            self._metrics.requests.labels(log.model, call, str(status)).inc()
            path = scope["raw_path"].decode("latin-1")
            log.write(f"{scope['method']} {path}", call, status)

    def _check_access(self, scope: Scope, headers: Mapping[str, str]) -> None:
        # The pattern of a Starlette route ends in "$", which also matches before a final newline.
        if "\n" in scope["path"]:
            raise HTTPException(404)
        host = _single_host(scope)
        if self._only_local_hosts:
            _check_local_host(host)
        if scope["method"] not in ("GET", "HEAD"):
            _check_same_site(headers)
        if self._keys is not None and scope["path"] not in _PATHS_WITHOUT_KEY:
            self._keys.check(headers)


def _single_host(scope: Scope) -> str:
    """Return the header `Host`, or localhost for HTTP/1.0 without one.

    Several are refused, because a proxy could use a different one than this service. A request of
    HTTP/1.1 without one is refused, too (RFC 9112, 3.2).
    """
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(hosts) > 1 or (not hosts and scope["http_version"] != "1.0"):
        raise ServiceError(
            "invalid",
            f"A request must have one header `Host`. Received: {len(hosts)}: {hosts!r:.80}",
            "Host",
        )
    return hosts[0] if hosts else "localhost"


def _check_local_host(host: str) -> None:
    """Refuse a host name other than localhost (DNS rebinding).

    The owner of a web page can point its host name to this machine. A browser then takes this
    service for the page's own site, and lets the page call it.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost":
            ipaddress.ip_address(name)
    except ValueError as error:
        raise ServiceError(
            "forbidden",
            "Header `Host` must be localhost or an IP address. Start the service with keys, or "
            f"with no_auth, to allow host names. Received: {host!r:.80}",
            "Host",
        ) from error


def _check_same_site(headers: Mapping[str, str]) -> None:
    """Refuse requests from pages of other sites, which could unload models without a key."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site is None and origin is not None:  # browsers omit `Sec-Fetch-Site` over plain HTTP
        site = "none" if _netloc(origin) == headers.get("host") else "cross-site"
    if site not in (None, *_SAME_SITE):
        raise ServiceError("forbidden", "Pages of other sites may not call this service.")


def _netloc(origin: str) -> str:
    """Return host and port of an origin, or "" if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _routing_error(scope: Scope, error: HTTPException) -> ServiceError:
    """Return the error for an unknown path, or for a wrong method."""
    if error.status_code == 404:
        return ServiceError("not_found", f"There is no path {scope['path']!r:.200}.")
    allowed = sorted((error.headers or {})["Allow"].split(", "))
    message = f"{scope['path']!r:.200} supports {', '.join(allowed)}. "
    message += f"Received: {scope['method']:.20}"
    return ServiceError("not_allowed", message, allowed=allowed)


def _response(error: ServiceError) -> JSONResponse:
    return JSONResponse(error.to_json(), error.status, error.headers())
