"""Bodies of requests: read within a limit of size, and unpacked within the same."""

import zlib

from starlette.requests import Request

from keras_bahdanau_runtime.service.engine import Limits
from keras_bahdanau_runtime.service.errors import ServiceError

_GZIP, _ZLIB, _PLAIN = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request, unpacked.

    Args:
        request: The request.
        limits: `Limits`; `body` bounds the bytes before and after they are unpacked.

    Raises:
        ServiceError: "too_large", "gone" where it does not come, "unsupported" for an encoding that
            is not gzip or deflate, "invalid" for one that is broken, or that something follows.
    """
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told[:20]) > limits.body:
        raise _too_large(limits)
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()  # for so long as `Connection` allows
        if message["type"] == "http.disconnect":
            raise ServiceError("gone", "The client left before its request was whole.")
        parts.append(message["body"])
        size += len(parts[-1])
        if size > limits.body:
            raise _too_large(limits)
        more = message["more_body"]
    body = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    return body if encoding in ("identity", "") else unpack(body, encoding, limits)


def unpack(body: bytes, encoding: str, limits: Limits) -> bytes:
    """What was packed by gzip or deflate, by zlib's header or without one.

    Raises:
        ServiceError: As `read_body`.

    Example:

    >>> unpack(zlib.compress(b"a man"), "deflate", Limits())
    b'a man'
    """
    ways = {"gzip": [_GZIP], "x-gzip": [_GZIP], "deflate": [_ZLIB, _PLAIN]}.get(encoding)
    if ways is None:
        raise ServiceError(
            "unsupported",
            f"Argument `Content-Encoding` must be gzip or deflate. Received: {encoding!r:.80}",
            "Content-Encoding",
        )
    for way in ways:
        unpacking = zlib.decompressobj(way)
        try:
            found = unpacking.decompress(body, limits.body + 1)
        except zlib.error:
            continue
        if len(found) > limits.body:
            raise _too_large(limits)
        if unpacking.eof and not unpacking.unused_data:
            return found
    raise ServiceError(
        "invalid",
        f"The body must be one whole stream of {encoding}, and nothing after it. "
        f"Received: {len(body)} bytes",
    )


def _too_large(limits: Limits) -> ServiceError:
    return ServiceError("too_large", f"The body must have at most {limits.body} bytes, unpacked.")
