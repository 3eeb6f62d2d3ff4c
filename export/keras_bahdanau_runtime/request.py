"""A request to translate texts, as HTTP, the Open Inference Protocol, gRPC and Triton send it.

Each of them converts its format into a `TranslationRequest`: `service/schemas.py` from JSON, and
`from_inputs` from the inputs and parameters of the protocol, for the other three. The conversion
checks types. The model that answers the request checks the values, because it has their limits.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bahdanau_runtime.checks import parse_json
from keras_bahdanau_runtime.errors import ArgumentError, argument_error
from keras_bahdanau_runtime.search_options import SearchOptions
from keras_bahdanau_runtime.search_settings import RANGES
from keras_bahdanau_runtime.signature import SETTINGS

NO_OPTIONS = SearchOptions()  # one object, so that the engine compares groups by identity
# Parameters of the protocol that a text model ignores.
_PROTOCOL_PARAMETERS = {"binary_data_output", "priority"}
_PROTOCOL_PREFIXES = ("sequence_", "triton_")
# Commas and opening brackets of the JSON lists of a request. While 16 MB of brackets are parsed,
# which takes seconds, no other request is answered.
_MAX_VALUES = 2**16
# Outputs of a calibrated model, and their value for a translation without a confidence: JSON has no
# NaN.
CONFIDENCES = ("confidence", "expected_errors")
NO_CONFIDENCE = -1.0
PARAMETERS = {
    *SETTINGS,
    *_PROTOCOL_PARAMETERS,
    *("n_best", "alignments", "timeout", "suppressed", "disable_unknown"),
}


@dataclass(frozen=True, kw_only=True)
class TranslationRequest:
    """Texts to translate, and how.

    Args:
        texts: The texts.
        n_best: int, most translations per text.
        alignments: bool. Whether to return the attention weights.
        timeout: float, seconds; `None` for the limit of the service.
        options: `SearchOptions`.
        prefixes: As for `Translator.translate`.
        suppressed: As for `Translator.translate`.
        disable_unknown: As for `Translator.translate`.
        required: As for `Translator.translate`.

    Example:

    >>> TranslationRequest.from_inputs({"text": ["a man"]}, {"beam_size": 2}).options.values()
    {'beam_size': 2}
    """

    texts: Sequence[str]
    n_best: int = 1
    alignments: bool = False
    timeout: float | None = None
    options: SearchOptions = NO_OPTIONS
    prefixes: Sequence[str | None] | None = None
    suppressed: Sequence[str | int] = ()
    disable_unknown: bool = False
    required: Sequence[Sequence[str] | None] | None = None

    @classmethod
    def from_inputs(
        cls,
        inputs: Mapping[str, Sequence[str]],
        parameters: Mapping[str, Any],
        alignments: bool = False,
    ) -> "TranslationRequest":
        """Return the request for inputs and parameters of the inference protocol.

        Args:
            inputs: Texts of the input "text" and, if the request has them, "prefix" and "required".
            parameters: Parameters of the request.
            alignments: The default of the parameter.

        Raises:
            ValueError: A parameter is unknown or of the wrong type, or `required` or `suppressed`
                is not a JSON list or has too many values.
        """
        for name in parameters:
            if name not in PARAMETERS and not name.startswith(_PROTOCOL_PREFIXES):
                raise unknown_argument(name, sorted(PARAMETERS))
        phrases = inputs.get("required")
        suppressed = get_parameter(parameters, "suppressed", (str,), "[]")
        _check_size("required", phrases or ())
        _check_size("suppressed", [suppressed])
        return cls(
            texts=inputs["text"],
            n_best=get_parameter(parameters, "n_best", (int,), 1),
            alignments=get_parameter(parameters, "alignments", (bool,), alignments),
            timeout=timeout_seconds(parameters),
            options=_search_options(parameters),
            prefixes=inputs.get("prefix"),
            suppressed=_json_list(suppressed, "suppressed", (str, int)),
            disable_unknown=get_parameter(parameters, "disable_unknown", (bool,), False),
            required=phrases and [_json_list(each or "[]", "required", (str,)) for each in phrases],
        )

    @property
    def constraints(self) -> dict[str, Any]:
        """The constraints that are set, with the names of `Translator.translate`."""
        values = {
            "prefixes": self.prefixes,
            "suppressed": self.suppressed,
            "disable_unknown": self.disable_unknown,
            "required": self.required,
        }
        return {name: value for name, value in values.items() if value}

    def check_n_best(self, num_returned: int) -> None:
        """Raise a `ValueError` if `n_best` is above the number of hypotheses, or below 1.

        Args:
            num_returned: int, hypotheses that the search returns.
        """
        limit = min(num_returned, self.options.beam_size or num_returned)
        if not 1 <= self.n_best <= limit:
            raise argument_error("n_best", f"be from 1 to {limit}", received=str(self.n_best))


def check_characters(name: str, texts: Sequence[str], limit: int) -> None:
    """Raise a `ValueError` if a text has more characters than `limit`."""
    for index, text in enumerate(texts):
        if len(text) > limit:
            raise argument_error(
                name,
                f"have at most {limit} characters each",
                received=f"{len(text)} at index {index}",
            )


def unknown_argument(name: str, known: Sequence[str]) -> ArgumentError:
    """Return the error of an unknown argument, such as a misspelled option."""
    name = name.encode("ascii", "backslashreplace").decode()
    error = ArgumentError(f"Argument `{name:.80}` is unknown. Use only {[*known]}.")
    error.name = name
    return error


def get_parameter(
    parameters: Mapping[str, Any], name: str, types: tuple[type, ...], default: Any
) -> Any:
    """Return a parameter of a request; raise a `ValueError` if it has another type."""
    value = parameters.get(name, default)
    if value is not default and type(value) not in types:
        expected = " or ".join(kind.__name__ for kind in types)
        raise argument_error(name, f"be {expected}", received=f"{value!r:.80}")
    return value


def timeout_seconds(parameters: Mapping[str, Any]) -> float | None:
    """Return the parameter `timeout` in seconds. Requests have it in microseconds, as in Triton."""
    microseconds = get_parameter(parameters, "timeout", (int,), None)
    if microseconds is None:
        return None
    if not 1 <= microseconds < 2**63:
        raise argument_error(
            "timeout",
            "be from 1 to 2**63 - 1 microseconds",
            received=reprlib.repr(microseconds),
        )
    return float(microseconds / 1e6)


def _search_options(parameters: Mapping[str, Any]) -> SearchOptions:
    """Return the search options among the parameters of a request.

    A number with a fraction may also be a str, because Triton's gRPC client refuses floats.
    """
    values = {}
    for name in parameters.keys() & {*SETTINGS}:
        if RANGES[name].kind is int:
            values[name] = get_parameter(parameters, name, (int,), None)
            continue
        value = get_parameter(parameters, name, (int, float, str), None)
        try:
            values[name] = float(value)
        except (ValueError, OverflowError) as error:
            raise argument_error(name, "be a number", received=f"{value!r:.80}") from error
    return SearchOptions(**values) if values else NO_OPTIONS


def _check_size(name: str, texts: Sequence[str]) -> None:
    """Raise a `ValueError` if JSON texts together have too many commas and opening brackets."""
    values = sum(text.count(",") + text.count("[") for text in texts)
    if values > _MAX_VALUES:
        raise argument_error(
            name,
            f"have at most {_MAX_VALUES} commas and opening brackets in a request",
            received=str(values),
        )


def _json_list(text: str, name: str, types: tuple[type, ...]) -> list[Any]:
    """Return a JSON list of items of these types, from a parameter or an item of an input."""
    try:
        items = parse_json(text)
    except ValueError:
        items = None
    if not isinstance(items, list) or not {type(item) for item in items} <= {*types}:
        expected = " or ".join(kind.__name__ for kind in types)
        raise argument_error(name, f"be a JSON list of {expected}", received=f"{text!r:.80}")
    return items
