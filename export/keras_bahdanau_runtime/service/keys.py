"""Who may come in."""

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_bahdanau_runtime.service.errors import ServiceError


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
            ValueError: There are none, or one that no header can carry.
        """
        try:
            lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Argument `api_key_file` must be UTF-8. Received: {path}, {error}"
            ) from error
        for number, line in enumerate(lines, 1):
            if not (line.isascii() and line.isprintable()):
                raise ValueError(
                    "Argument `api_key_file` must hold keys of printable ASCII characters. "
                    f"Received: {path}, other ones in line {number}"
                )
        keys = [line for line in lines if line]
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
