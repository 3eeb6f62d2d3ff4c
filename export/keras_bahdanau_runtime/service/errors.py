"""What a request may be answered with when it fails, over HTTP and over gRPC."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Status(NamedTuple):
    """How a kind of error is told: the status of HTTP, and the name of gRPC's."""

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
    "unsupported": Status(415, "INVALID_ARGUMENT"),
    "unprocessable": Status(422, "INVALID_ARGUMENT"),
    "overloaded": Status(429, "RESOURCE_EXHAUSTED"),
    "head_too_large": Status(431, "OUT_OF_RANGE"),
    "gone": Status(499, "CANCELLED"),  # of a client that left: it is logged, and nobody receives it
    "internal": Status(500, "INTERNAL"),
    "unavailable": Status(503, "UNAVAILABLE"),
    "timeout": Status(504, "DEADLINE_EXCEEDED"),
}


class ServiceError(Exception):
    """A request that is not answered as asked.

    Args:
        kind: One of `KINDS`.
        message: What is wrong: what was expected and what came.
        argument: Name of the argument that is wrong; `None` where it is none's fault.
        retry_after: int, seconds after which it may be tried again; `None` if never.
        allowed: list of str, the methods of HTTP that may be used instead.

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
        """The status of HTTP."""
        return KINDS[self.kind].http

    @property
    def grpc_status(self) -> str:
        """The name of gRPC's status."""
        return KINDS[self.kind].grpc

    def headers(self) -> dict[str, str]:
        """What the answer of HTTP has to say beside its body."""
        told = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.allowed:
            told["Allow"] = ", ".join(self.allowed)
        if self.kind == "unauthenticated":
            told["WWW-Authenticate"] = "Bearer"
        return told

    def to_json(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": self.message, "code": self.kind, "argument": self.argument}
