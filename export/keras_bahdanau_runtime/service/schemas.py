"""Schemas of the JSON bodies of the text endpoints, such as `/translate`, and of errors."""

import dataclasses
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from keras_bahdanau_runtime.checks import check_text
from keras_bahdanau_runtime.request import NO_OPTIONS, TranslationRequest, unknown_argument
from keras_bahdanau_runtime.search_options import SearchOptions
from keras_bahdanau_runtime.search_settings import SearchSettings
from keras_bahdanau_runtime.service.errors import KINDS, ServiceError, argument_errors, refuse
from keras_bahdanau_runtime.service.models import MAX_ALTERNATIVES
from keras_bahdanau_runtime.service.protocol import parse_object
from keras_bahdanau_runtime.service.settings import Limits


def _check_encodable(text: str) -> str:
    """Raise a `ValueError` for a lone surrogate, which JSON can escape and UTF-8 cannot encode."""
    check_text("text", text)
    return text


_Text = Annotated[str, AfterValidator(_check_encodable)]
RequestBody = TypeVar("RequestBody", bound="_TextBody")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# A description completes the sentence "Argument `name` must be" of an error message.
class _TextBody(_Body):
    """Body of a request with one text."""

    text: _Text = Field(description="one text")
    model: _Text | None = Field(
        None, description="the name of a text model, or null for the first one"
    )


class StreamRequest(_TextBody):
    """Body of a request to `/translate/stream`."""

    prefix: _Text | None = Field(
        None, description="a text, the beginning of the translation, or null"
    )


class _TextsBody(_TextBody):
    """Body of a request with one text or several."""

    text: _Text | list[_Text] = Field(  # type: ignore[assignment]
        description="one text, or a list of texts"
    )
    timeout: float | None = Field(
        None, gt=0, description="a positive number of seconds, or null for the service's limit"
    )

    @property
    def texts(self) -> list[str]:
        """The text, or the texts, as a list."""
        return [self.text] if isinstance(self.text, str) else self.text

    def for_each_text(self, name: str) -> list[Any] | None:
        """Return the value of a field for each text, or `None` if it is not set.

        Raises:
            ServiceError: "invalid" for a list of texts without a list of values, or the reverse.
        """
        value, has_list = getattr(self, name), isinstance(self.text, list)
        if value is None:
            return None
        is_list = isinstance(value, list)
        if name == "required":  # the value for one text is a list, too
            is_list = not isinstance(value[0], str) if value else has_list
        if is_list != has_list:
            refuse(name, f"be {type(self).model_fields[name].description}", value)
        return value if has_list else [value]


def _option(setting: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """Return the type and the field of a search option.

    Its range is checked later, because it depends on the model. The OpenAPI document has the range
    of all models.
    """
    kind, low, high = setting.metadata["range"]
    description = f"{setting.metadata['range'].noun}, the {setting.metadata['meaning']}, or null"
    limits: dict[str, Any] = {"minimum": low, "maximum": high}
    return kind | None, Field(None, description=description, json_schema_extra=limits)


_OPTIONS: dict[str, Any] = {
    setting.name: _option(setting) for setting in dataclasses.fields(SearchSettings)
}
_OptionsBody: Any = create_model("_OptionsBody", __base__=_TextsBody, **_OPTIONS)


class TranslateRequest(_OptionsBody):  # type: ignore[misc]
    """Body of a request to `/translate`."""

    n_best: int = Field(
        1, ge=1, description="an int of at least 1, the maximum number of translations per text"
    )
    alignments: bool = Field(False, description="a bool, whether to return the attention weights")
    prefix: _Text | list[_Text | None] | None = Field(
        None,
        description="a text, the beginning of the translation, or null; with a list of texts, a "
        "list with one for each",
    )
    suppressed: list[_Text | int] = Field(
        [], description="a list of tokens, as texts or ids, that no translation contains"
    )
    disable_unknown: bool = Field(
        False, description="a bool, whether to suppress the unknown token"
    )
    required: list[_Text] | list[list[_Text] | None] | None = Field(
        None,
        description="a list of phrases that the translation contains, or null; with a list of "
        "texts, a list with one for each",
    )

    def to_request(self) -> TranslationRequest:
        """Return the request; raises as `for_each_text`."""
        names = self.model_fields_set & _OPTIONS.keys()
        options = SearchOptions(**{name: getattr(self, name) for name in names})
        return TranslationRequest(
            texts=self.texts,
            n_best=self.n_best,
            alignments=self.alignments,
            timeout=self.timeout,
            options=options if names else NO_OPTIONS,
            prefixes=self.for_each_text("prefix"),
            suppressed=self.suppressed,
            disable_unknown=self.disable_unknown,
            required=self.for_each_text("required"),
        )


class ScoreRequest(_TextsBody):
    """Body of a request to `/score`."""

    target: _Text | list[_Text] = Field(
        description="a text, the given translation; with a list of texts, a list with one for each"
    )
    alignments: bool = Field(False, description="a bool, whether to return the attention weights")


class AlignRequest(_TextsBody):
    """Body of a request to `/align`."""

    target: _Text | list[_Text] = Field(
        description="a text, the given translation; with a list of texts, a list with one for each"
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="a number above 0 and at most 1, the smallest weight of a link, or null for "
        "the largest weight of each word",
    )
    pieces: bool = Field(False, description="a bool, whether to link tokens instead of words")


class AlternativesRequest(StreamRequest):
    """Body of a request to `/alternatives`."""

    count: int = Field(
        5, ge=1, le=MAX_ALTERNATIVES, description=f"an int from 1 to {MAX_ALTERNATIVES}"
    )
    timeout: float | None = Field(
        None, gt=0, description="a positive number of seconds, or null for the service's limit"
    )


class Hypothesis(_Body):
    """One translation of a text."""

    text: str
    score: float | None = Field(description="null for a blank text")
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[list[float]] | None
    error: str | None
    confidence: float | None = Field(
        None,
        description="the probability that the text is right; only for the best translation of a "
        "calibrated model",
    )
    expected_errors: float | None = Field(
        None, description="the expected share of wrong symbols; null without a confidence"
    )
    token_confidences: list[float] | None = Field(
        None, description="the probability of each token that it is right"
    )
    uncalibrated: str | None = Field(
        None, description="why a calibrated model gives no confidence, such as another beam size"
    )


class TranslateResponse(_Body):
    """Body of a response of `/translate`."""

    translations: list[Hypothesis] | list[list[Hypothesis]] = Field(
        description="one entry per text; with n_best above 1, each is a list, best first"
    )


class Score(_Body):
    """Log-probability of a translation."""

    total: float
    log_probs: list[float]
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[list[float]] | None


class ScoreResponse(_Body):
    """Body of a response of `/score`."""

    scores: list[Score] = Field(description="one entry per text")


class AlignResponse(_Body):
    """Body of a response of `/align`."""

    links: list[list[tuple[int, int]]] = Field(
        description="per text a list of (source position, target position), counted from 0"
    )


class Alternative(_Body):
    """A word that may follow a prefix."""

    text: str = Field(description="the text after the prefix; empty for the end of sentence")
    probability: float


class AlternativesResponse(_Body):
    """Body of a response of `/alternatives`."""

    alternatives: list[Alternative] = Field(description="the most probable first")


class ErrorResponse(_Body):
    """Body of an error response."""

    error: str = Field(description="the mistake and the fix")
    code: str = Field(json_schema_extra={"enum": list(KINDS)})
    argument: str | None = Field(description="the wrong argument")


def parse_request(body: bytes, schema: type[RequestBody], limits: Limits) -> RequestBody:
    """Parse and validate the body of a request.

    Args:
        body: bytes, uncompressed.
        schema: Model of the body, such as `TranslateRequest`.
        limits: `Limits`; only the number of texts is checked here.

    Raises:
        ServiceError: "invalid" if the body is not a JSON object, "unprocessable" for an unknown
            name or a wrong value, "too_large" for too many texts.

    Example:

    >>> parse_request(b'{"text": "a man", "n_best": 2}', TranslateRequest, Limits()).n_best
    2
    """
    document = parse_object(body)
    for name in document:
        if name not in schema.model_fields:
            with argument_errors("unprocessable"):
                raise unknown_argument(name, [*schema.model_fields])
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
