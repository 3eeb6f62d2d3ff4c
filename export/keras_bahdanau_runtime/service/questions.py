"""What people ask: the bodies of `/translate` and `/translate/stream`, and those of the answers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from keras_bahdanau_runtime.checks import check_text
from keras_bahdanau_runtime.service.engine import Limits
from keras_bahdanau_runtime.service.errors import KINDS, ServiceError
from keras_bahdanau_runtime.service.protocol import parse_json


@dataclass(frozen=True)
class StreamRequest:
    """The body of `/translate/stream`.

    Args:
        text: str.
        model: str, the name of a model of texts; the first one if `None`.

    Raises:
        ServiceError: "unprocessable", for a value of another type.
    """

    text: Any
    model: str | None = None

    def __post_init__(self) -> None:
        _expect("text", self.text, _is_text(self.text), "one text")
        self._check_model()

    def _check_model(self) -> None:
        _expect("model", self.model, self.model is None or _is_text(self.model), "a name, or null")


@dataclass(frozen=True)
class TranslateRequest(StreamRequest):
    """The body of `/translate`.

    Args:
        text: str or list of str.
        model: As for `StreamRequest`.
        n_best: int, most hypotheses for a text.
        alignments: bool. Whether to give the attention weights.
        timeout: float, seconds; the service's limit if `None`.

    Raises:
        ServiceError: "unprocessable", for a value of another type or out of range.
    """

    n_best: int = 1
    alignments: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        texts = self.text if type(self.text) is list else [self.text]
        _expect("text", self.text, all(map(_is_text, texts)), "one text, or a list of them")
        self._check_model()
        whole = type(self.n_best) is int and self.n_best >= 1
        _expect("n_best", self.n_best, whole, "an int of at least 1")
        _expect("alignments", self.alignments, type(self.alignments) is bool, "a bool")
        seconds = self.timeout is None or (type(self.timeout) in (int, float) and self.timeout > 0)
        _expect("timeout", self.timeout, seconds, "a positive number of seconds, or null")


_Asked = TypeVar("_Asked", bound=StreamRequest)


def parse_question(body: bytes, kind: type[_Asked], limits: Limits) -> _Asked:
    """The question of a body.

    Args:
        body: bytes, uncompressed.
        kind: `TranslateRequest` or `StreamRequest`.
        limits: `Limits`, of which `texts` is looked at.

    Raises:
        ServiceError: "invalid" for what is no object of JSON, "unprocessable" for a name or a value
            that is none of a question, "too_large" for too many texts.

    Example:

    >>> parse_question(b'{"text": "a man", "n_best": 2}', TranslateRequest, Limits()).n_best
    2
    """
    given = parse_json(body)
    known = [field.name for field in fields(kind)]
    for name in given:
        plain = name.encode("ascii", "backslashreplace").decode()
        _expect(plain, given[name], name in known, f"left out: there are {known}")
    if "text" not in given:
        raise ServiceError("unprocessable", "Argument `text` must be given.", "text")
    if type(given["text"]) is list:
        limits.check_texts(len(given["text"]))  # before each of them is looked at
    return kind(**given)


def _is_text(value: Any) -> bool:
    """Whether a value is a str that UTF-8 can say: JSON has escapes for half a character."""
    try:
        check_text("text", value)
    except ValueError:
        return False
    return True


def _expect(name: str, value: Any, holds: bool, expected: str) -> None:
    if not holds:
        message = f"Argument `{name:.80}` must be {expected}. Received: {value!r:.80}"
        raise ServiceError("unprocessable", message, name)


def _object(required: list[str], **properties: Any) -> Mapping[str, Any]:
    """The JSON Schema of an object that has these and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _or_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_STR = {"type": "string"}
_NUMBER = {"type": "number"}
_STRS = {"type": "array", "items": _STR}
_MODEL = {**_or_null(_STR), "description": "Name of the model; the first one if absent."}
STREAM = _object(["text"], text={**_STR, "description": "One text."}, model=_MODEL)
TRANSLATE = _object(
    ["text"],
    text={"anyOf": [_STR, _STRS], "description": "One text, or several."},
    model=_MODEL,
    n_best={
        "type": "integer",
        "minimum": 1,
        "default": 1,
        "description": "Most hypotheses for a text.",
    },
    alignments={
        "type": "boolean",
        "default": False,
        "description": "Whether to give the attention weights.",
    },
    timeout={
        **_or_null({**_NUMBER, "exclusiveMinimum": 0}),
        "description": "Longest time in seconds.",
    },
)
_HYPOTHESIS = _object(
    ["text", "score", "tokens", "source_tokens", "alignment", "error"],
    text=_STR,
    score=_NUMBER,
    tokens=_STRS,
    source_tokens=_STRS,
    alignment=_or_null({"type": "array", "items": {"type": "array", "items": _NUMBER}}),
    error=_or_null(_STR),
)
_BEST = {"type": "array", "items": _HYPOTHESIS}
# One for each text; with `n_best` above 1 a list for each.
TRANSLATIONS = _object(
    ["translations"], translations={"anyOf": [_BEST, {"type": "array", "items": _BEST}]}
)
PROBLEM = _object(
    ["error", "code", "argument"],
    error={**_STR, "description": "What was expected and what came."},
    code={**_STR, "enum": list(KINDS)},
    argument={**_or_null(_STR), "description": "The argument that is wrong."},
)
