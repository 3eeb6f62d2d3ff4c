"""Schemas of the JSON bodies of `/translate`, `/translate/stream` and error responses."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from keras_bahdanau_runtime.checks import check_text
from keras_bahdanau_runtime.service.engine import Limits
from keras_bahdanau_runtime.service.errors import KINDS, ServiceError
from keras_bahdanau_runtime.service.protocol import parse_json


def _check_encodable(text: str) -> str:
    """Raise a `ValueError` for a lone surrogate, which JSON can escape and UTF-8 cannot encode."""
    check_text("text", text)
    return text


_Text = Annotated[str, AfterValidator(_check_encodable)]
_Request = TypeVar("_Request", bound="StreamRequest")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# A description completes the sentence "Argument `name` must be" of an error message.
class StreamRequest(_Body):
    """Body of a request to `/translate/stream`."""

    text: _Text = Field(description="one text")
    model: _Text | None = Field(
        None, description="the name of a text model, or null for the first one"
    )


class TranslateRequest(StreamRequest):
    """Body of a request to `/translate`."""

    text: _Text | list[_Text] = Field(  # type: ignore[assignment]
        description="one text, or a list of texts"
    )
    n_best: int = Field(
        1, ge=1, description="an int of at least 1, the maximum number of translations per text"
    )
    alignments: bool = Field(False, description="a bool, whether to return the attention weights")
    timeout: float | None = Field(
        None, gt=0, description="a positive number of seconds, or null for the service's limit"
    )


class Hypothesis(_Body):
    """One translation of a text."""

    text: str
    score: float
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[list[float]] | None
    error: str | None


class TranslateResponse(_Body):
    """Body of a response of `/translate`."""

    translations: list[Hypothesis] | list[list[Hypothesis]] = Field(
        description="one entry per text; with n_best above 1, each is a list, best first"
    )


class ErrorResponse(_Body):
    """Body of an error response."""

    error: str = Field(description="the mistake and the fix")
    code: str = Field(json_schema_extra={"enum": list(KINDS)})
    argument: str | None = Field(description="the wrong argument")


def parse_request(body: bytes, schema: type[_Request], limits: Limits) -> _Request:
    """Parse and validate the body of a request.

    Args:
        body: bytes, uncompressed.
        schema: `TranslateRequest` or `StreamRequest`.
        limits: `Limits`; only the number of texts is checked here.

    Raises:
        ServiceError: "invalid" if the body is not a JSON object, "unprocessable" for an unknown
            name or a wrong value, "too_large" for too many texts.

    Example:

    >>> parse_request(b'{"text": "a man", "n_best": 2}', TranslateRequest, Limits()).n_best
    2
    """
    document = parse_json(body)
    for name in document:
        if name not in schema.model_fields:
            name = name.encode("ascii", "backslashreplace").decode()
            message = f"Argument `{name:.80}` is unknown. Use only {[*schema.model_fields]}."
            raise ServiceError("unprocessable", message, name)
    if type(document.get("text")) is list:
        limits.check_texts(len(document["text"]))  # before each of them is validated
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        name = str(first["loc"][0])
        if first["type"] == "missing":
            message = f"Argument `{name}` is missing. Add it to the body."
        else:
            expected = schema.model_fields[name].description
            message = f"Argument `{name}` must be {expected}. Received: {document[name]!r:.80}"
        raise ServiceError("unprocessable", message, name) from error
