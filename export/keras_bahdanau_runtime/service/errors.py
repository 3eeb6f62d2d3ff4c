"""Errors of a request, with their HTTP status and gRPC code."""

import contextlib
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from keras_bahdanau_runtime.errors import ArgumentError


class Status(NamedTuple):
    """HTTP status and gRPC code of an error kind."""

    http: int
    grpc: str


KINDS = {
    "invalid": Status(400, "INVALID_ARGUMENT"),
    "unauthenticated": Status(401, "UNAUTHENTICATED"),
    "forbidden": Status(403, "PERMISSION_DENIED"),
    "not_found": Status(404, "NOT_FOUND"),
    "not_allowed": Status(405, "UNIMPLEMENTED"),
    "too_slow": Status(408, "DEADLINE_EXCEEDED"),
    "conflict": Status(409, "FAILED_PRECONDITION"),
    "too_large": Status(413, "OUT_OF_RANGE"),
    "too_costly": Status(413, "OUT_OF_RANGE"),  # more computation than one request may take
    "unsupported": Status(415, "INVALID_ARGUMENT"),
    "unprocessable": Status(422, "INVALID_ARGUMENT"),
    "overloaded": Status(429, "RESOURCE_EXHAUSTED"),
    "head_too_large": Status(431, "OUT_OF_RANGE"),
    "gone": Status(499, "CANCELLED"),  # the client disconnected: logged and counted, never sent
    "internal": Status(500, "INTERNAL"),
    "unavailable": Status(503, "UNAVAILABLE"),
    "timeout": Status(504, "DEADLINE_EXCEEDED"),
}


STOPPING = "The service is about to stop."


class ServiceError(Exception):
    """A request that failed, as the client sees it.

    Args:
        kind: One of `KINDS`.
        message: One sentence about the mistake, and one about the fix.
        argument: Name of the wrong argument; `None` if no argument is wrong.
        retry_after: int, seconds after which a retry may succeed; `None` if it cannot.
        allowed: list of str, the HTTP methods that the path supports.

    Example:

    >>> ServiceError("not_found", "There is no model 'x'.").to_json()["code"]
    'not_found'
    """

    def __init__(
        self,
        kind: str,
        message: str,
        argument: str | None = None,
        retry_after: int | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message
        self.argument, self.retry_after, self.allowed = argument, retry_after, allowed

    @property
    def status(self) -> int:
        """HTTP status."""
        return KINDS[self.kind].http

    @property
    def grpc_status(self) -> str:
        """Name of the gRPC status code."""
        return KINDS[self.kind].grpc

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers of the error response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.allowed:
            headers["Allow"] = ", ".join(self.allowed)
        if self.kind == "unauthenticated":
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def to_json(self) -> dict[str, Any]:
        """Return the body of the error response."""
        return {"error": self.message, "code": self.kind, "argument": self.argument}


def refuse(argument: str, expected: str, received: Any) -> NoReturn:
    """Raise a `ServiceError` of kind "invalid" for a wrong argument.

    Args:
        argument: Name of the argument.
        expected: The requirement, phrased to follow "must".
        received: The value, which the message abbreviates.
    """
    message = f"Argument `{argument}` must {expected}. Received: {reprlib.repr(received)}"
    raise ServiceError("invalid", message, argument)


@contextlib.contextmanager
def argument_errors(kind: str = "invalid") -> Iterator[None]:
    """Raise an `ArgumentError` of the block as a `ServiceError` with the name of the argument."""
    try:
        yield
    except ArgumentError as error:
        name = "prefix" if error.name == "prefixes" else error.name
        message = str(error).replace("`prefixes`", "`prefix`")
        raise ServiceError(kind, message, name) from error
