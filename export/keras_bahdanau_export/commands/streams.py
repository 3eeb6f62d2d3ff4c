"""Standard input and output as the commands use them."""

import sys
from pathlib import Path
from typing import Any, BinaryIO

_DASH = Path("-")


def is_dash(path: Path | None) -> bool:
    """Whether a path is `-`, which names standard input or output."""
    return path == _DASH


def text_source(path: Path) -> Path | BinaryIO:
    """What to read a text from: standard input where the path is `-`."""
    return standard_input() if is_dash(path) else path


def standard_input() -> BinaryIO:
    """The bytes of standard input.

    In a buffer of their own: a thread may still wait for a line when the command ends, and Python
    aborts where it cannot close `sys.stdin`.
    """
    return open(standard("stdin").fileno(), "rb", closefd=False)


def standard(name: str) -> Any:
    """A standard stream, which must be open."""
    stream = getattr(sys, name)
    if stream is None:
        raise ValueError(f"Argument `{name}` must be open. Received: a closed standard stream")
    return stream
