"""Settings of a search: the only place that states their types, ranges and meanings.

From `SearchSettings` come the optional inputs of graphs, the options of a call and of a request,
the flags of the commands and the tables of the documentation. `RANGES` also has the settings that
only searches in Keras have.

A graph computes with int32 and float32. Within the ranges no setting overflows there, none becomes
0 that is not, and every score is finite.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.option_fields import option

_INT32_MAX = 2**31 - 1
_LONGEST = 2**20  # tokens of an output
_STEPS = 100  # of a search whose manifest does not have `max_length`
_WIDEST = 10_000  # hypotheses of a text


class Range(NamedTuple):
    """Range of a setting.

    Attributes:
        kind: `int`, or `float`, which accepts ints too.
        low: Smallest value.
        high: Largest value.
    """

    kind: type[int] | type[float]
    low: float
    high: float

    @property
    def noun(self) -> str:
        """Noun for a value in messages: "an int" or "a number"."""
        return "an int" if self.kind is int else "a number"

    @property
    def dtype(self) -> str:
        """NumPy name of the dtype of the graph's input."""
        return "int32" if self.kind is int else "float32"


def _setting(
    kind: type[int] | type[float], low: float, high: float, meaning: str, on_page: bool = False
) -> Any:
    """Return the field of a setting.

    Args:
        kind: Type of its values.
        low: Smallest value.
        high: Largest value.
        meaning: Completes "the", and is the help text.
        on_page: Whether the web pages have a field for it.
    """
    help = f"{meaning[0].upper()}{meaning[1:]}."
    allowed = Range(kind, low, high)
    return option(None, help, range=allowed, meaning=meaning, on_page=on_page, panel="Search")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search that a call may change; `None` keeps the one of the export or of a run.

    Their order is that of the inputs in graphs.

    Example:

    >>> SearchSettings(beam_size=2).top_k is None
    True
    """

    beam_size: int | None = _setting(
        int,
        1,
        _WIDEST,
        "number of live hypotheses, from 1 (greedy) to the beam of the export",
        on_page=True,
    )
    # With 5, the length of an output is divided by at most 1e32 for 2 * `_LONGEST` tokens.
    length_penalty: float | None = _setting(
        float, 0, 5, "exponent of the length penalty", on_page=True
    )
    coverage_penalty: float | None = _setting(float, 0, 1000, "weight of the coverage penalty")
    temperature: float | None = _setting(
        float, 1e-6, 1_000_000, "temperature of sampling (more is more random)"
    )
    top_k: int | None = _setting(
        int, 0, _INT32_MAX, "number of most probable tokens to sample from (0 for all)"
    )
    top_p: float | None = _setting(float, 1e-6, 1, "probability mass of the tokens to sample from")
    min_length: int | None = _setting(
        int, 0, _LONGEST, "smallest number of output tokens, with the end of sentence"
    )
    max_length: int | None = _setting(
        int, 1, _LONGEST, "largest number of output tokens, at most that of the export"
    )
    no_repeat_ngram: int | None = _setting(
        int, 0, _LONGEST, "length of n-grams that may not occur twice (0 for no limit)"
    )
    repetition_penalty: float | None = _setting(
        float, 1, 1000, "factor of the log-probability of a repeated token (1 for none)"
    )


# Names of settings in the JSON of a manifest, if they differ. Earlier versions read them.
JSON_KEYS = {"beam_size": "size", "name": "class"}


@dataclass(frozen=True, kw_only=True)
class ManifestSearch(SearchSettings):
    """Settings of the search in a graph, as its manifest has them; `None` for those that it lacks.

    Args:
        name: str, class of the search.
        n: int, number of samples.
        n_best: int, number of returned hypotheses.
        seed: int, of the samples.
        max_length_ratio: float, largest number of output tokens for each source token.
        forbidden: Ids that the search never chooses.
        document: The JSON object, with all settings of the class.

    Example:

    >>> ManifestSearch.from_json({"class": "BeamSearch", "size": 5, "n_best": 2}).num_hypotheses
    5
    """

    name: str = "search"
    n: int | None = None
    n_best: int | None = None
    seed: int | None = None
    max_length_ratio: float | None = None
    forbidden: tuple[int, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ManifestSearch":
        """Return the settings of a JSON object whose values are valid."""
        names = {each.name for each in fields(cls)} - {"document", "forbidden"}
        values: dict[str, Any] = {
            name: value
            for name in names
            if (value := document.get(JSON_KEYS.get(name, name))) is not None
        }
        return cls(document=document, forbidden=tuple(document.get("forbidden") or ()), **values)

    @property
    def num_hypotheses(self) -> int:
        """Number of hypotheses that the search keeps per sentence."""
        return self.beam_size or self.n or 1

    @property
    def num_returned(self) -> int:
        """Number of hypotheses that the search returns per sentence."""
        return self.n_best or self.num_hypotheses

    @property
    def max_steps(self) -> int:
        """Largest number of output tokens for any source."""
        return self.max_length or _STEPS

    def output_limit(self, source_length: int) -> int:
        """Return the largest number of output tokens for a source of this many tokens."""
        if self.max_length_ratio is None:
            return self.max_steps
        limit = int(_float32(_float32(self.max_length_ratio) * source_length))  # as in the graph
        return min(self.max_steps, max(1, limit))

    def max_batch_size(self, vocabulary: int) -> int:
        """Return the largest batch, because a graph counts candidates and steps in int32."""
        return _INT32_MAX // (self.num_hypotheses * max(vocabulary, self.max_steps))


def _float32(value: float) -> float:
    """Return the float32 nearest to a number, without NumPy, so that commands start sooner."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


# The settings of `SearchSettings`, and those that only searches in Keras have, by name.
RANGES: dict[str, Range] = {
    **{setting.name: setting.metadata["range"] for setting in fields(SearchSettings)},
    "n": Range(int, 1, _WIDEST),
    "n_best": Range(int, 1, _WIDEST),
    "groups": Range(int, 1, _WIDEST),
    "max_length_ratio": Range(float, 0.001, 1000),
    "length_offset": Range(int, 0, _LONGEST),
    "diversity": Range(float, 0, 1000),
    "seed": Range(int, 0, _INT32_MAX),
    "forbidden": Range(int, 0, _INT32_MAX),
}


def check_setting(
    name: str, value: Any, low: float | None = None, high: float | None = None
) -> None:
    """Raise a `ValueError` unless a setting is in its range.

    Args:
        name: A name of `RANGES`.
        value: Value of the setting.
        low: A smallest value in place of that of the range.
        high: A largest value in place of that of the range.

    Example:

    >>> check_setting("top_p", 1e-46)
    Traceback (most recent call last):
    ValueError: Argument `top_p` must be a number of at least 1e-06 and at most 1. Received: 1e-46
    """
    kind, lowest, highest = RANGES[name]
    check_range(
        name, value, kind, lowest if low is None else low, highest if high is None else high
    )


@dataclass(frozen=True, kw_only=True)
class ExportedSearch:
    """Settings of the beam search that an artifact contains.

    Raises:
        ValueError: A setting is outside its range.

    Example:

    >>> ExportedSearch(beam_size=3).length_penalty
    (1.0,)
    """

    beam_size: int = option(5, "Beam size of the search; 1 is greedy.", panel="Search")
    length_penalty: tuple[float, ...] = option(
        (1.0,),
        "Exponent of the GNMT length penalty, 1 by default. If repeated, the one with the best "
        "BLEU on --source and --reference is used.",
        panel="Search",
    )
    max_length_ratio: float | None = option(
        None,
        "Maximum number of output tokens per source token; no limit by default.",
        panel="Search",
    )

    def __post_init__(self) -> None:
        check_setting("beam_size", self.beam_size)
        for penalty in self.length_penalty:
            check_setting("length_penalty", penalty)
        if self.max_length_ratio is not None:
            check_setting("max_length_ratio", self.max_length_ratio)
