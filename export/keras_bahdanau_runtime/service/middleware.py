"""What happens to every request of HTTP: its id, its key, its line in the log."""

import hmac
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.http import problem
from keras_bahdanau_runtime.service.logs import Called, clean
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.router import Receive, Scope, Send

logger = logging.getLogger("keras_bahdanau_runtime")

_OPEN = {"/", "/v2/health/live", "/v2/health/ready"}  # paths that need no key


class Keys:
    """The keys that open the service.

    Args:
        keys: list of str; none where everybody may come in.

    Example:

    >>> Keys(["secret"]).check({"authorization": "Bearer secret"})
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = [key.encode("utf-8") for key in keys]

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """The keys of a file, one a line.

        Raises:
            ValueError: There are none.
        """
        keys = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        if not keys:
            raise ValueError(f"Argument `api_key_file` must hold a key. Received: {path}, empty")
        return cls(keys)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._keys)

    def check(self, headers: Mapping[str, str]) -> None:
        """Lets a request in by `Authorization: Bearer KEY` or `X-API-Key: KEY`.

        Raises:
            ServiceError: "unauthenticated".
        """
        if not self:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        sent = given.encode("utf-8", "replace")
        # All are compared, whichever fits, so that the time tells nothing.
        if not sum(hmac.compare_digest(sent, key) for key in self._keys):
            raise ServiceError(
                "unauthenticated",
                "Argument `Authorization` must be a Bearer key of this service. "
                f"Received: {'another' if given else 'none'}",
                "Authorization",
            )


class Middleware:
    """Wraps the application.

    A request keeps the id that it brought in `X-Request-ID`, or gets one; `traceparent` is handed
    back and logged. What nobody foresaw is logged and answered with status 500.

    Args:
        app: An application of ASGI.
        keys: `Keys`.
        metrics: `Metrics`.
    """

    def __init__(self, app: Any, keys: Keys, metrics: Metrics) -> None:
        self._app, self._keys, self._metrics = app, keys, metrics

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
            if scope["path"] not in _OPEN:
                self._keys.check(headers)
            await self._app(scope, receive, sent)
        except ServiceError as error:
            await problem(error)(scope, receive, sent)
        except Exception:
            logger.exception("The request %s failed.", called.id)
            if not status:
                failure = ServiceError("internal", "The service failed; its log says why.")
                await problem(failure)(scope, receive, sent)
        finally:
            call = scope.get("call", "")
            # A name that is none of ours, with these, would be counted for ever.
            model = scope.get("path_params", {}).get("name", "") if status not in (404, 405) else ""
            self._metrics.requests.labels(model, call, str(status)).inc()
            path = clean(scope["raw_path"].decode("latin-1"))  # nothing in it is decoded
            called.log(f"{scope['method']} {path}", status)
