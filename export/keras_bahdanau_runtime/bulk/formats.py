"""How translations of a file are written: as text, as Moses n-best lists, or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keras_bahdanau_runtime.bulk.records import one_line
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option

if TYPE_CHECKING:
    from keras_bahdanau_runtime.translation import Translation

ALIGNMENTS = ("pharaoh", "json")
# Fields of a translation that only `as_json` adds to a JSON object.
_JSON_FIELDS = (
    "source_tokens",
    "confidence",
    "expected_errors",
    "token_confidences",
    "uncalibrated",
)
_SPACE = "▁"  # in a list of tokens, as in SentencePiece


@dataclass(frozen=True)
class OutputFormat:
    """Format of the translations of one row.

    Without arguments, a row is the best translation. With any argument but `as_json`, a row has one
    line per translation, `0 ||| text ||| score`, as in Moses: the number of the row from 0, then
    the tokens, separated by spaces and with ▁ for a space in a token, and the alignment, if
    requested. A blank text has no score. With `as_json`, a row is one JSON object with all
    fields of its translations. Rows of JSON lines get further keys; see `keys`.

    Raises:
        ValueError: `n_best` is not positive, or `alignments` is unknown.

    Example:

    >>> from keras_bahdanau_runtime import Translation
    >>> translation = Translation("ein Mann", -0.5, ["ein", " Mann", "</s>"], [], None)
    >>> OutputFormat(scores=True, tokens=True).lines(0, [translation])
    ['0 ||| ein Mann ||| -0.500000 ||| ein ▁Mann </s>']
    """

    n_best: int | None = option(
        None,
        "Write this many translations per line, as '0 ||| text ||| score'.",
        panel="Output",
    )
    scores: bool = option(False, "Add the score.", flags="--scores", panel="Output")
    tokens: bool = option(False, "Add the tokens.", flags="--tokens", panel="Output")
    alignments: str | None = option(
        None,
        "Add pharaoh links between words, or the attention weights as json.",
        panel="Output",
    )
    as_json: bool = option(
        False, "Write JSON lines with all of these.", flags="--json", panel="Output"
    )

    def __post_init__(self) -> None:
        if self.n_best is not None:
            check_positive(n_best=self.n_best)
        if self.alignments not in (None, *ALIGNMENTS):
            raise argument_error("alignments", f"be one of {ALIGNMENTS}", self.alignments)

    @property
    def is_plain(self) -> bool:
        """Whether a row is only the text of the best translation."""
        return not (self.n_best or self.scores or self.tokens or self.alignments or self.as_json)

    def lines(self, row: int, translations: "Sequence[Translation]") -> list[str]:
        """Return the lines for a row, without line breaks.

        A failed row has a blank line in plain text, none in an n-best list, and an "error" in JSON.
        A row without translations, which are in a `Review`, has no "error".

        Args:
            row: int, number of the row from 0.
            translations: Its translations, best first.
        """
        if self.as_json:
            return [json.dumps({"row": row, **self.value(translations)}, ensure_ascii=False)]
        if self.is_plain:
            return [one_line(translations[0].text) if translations else ""]
        if translations and translations[0].error is not None:
            return []
        return [self._line(row, translation) for translation in translations]

    def value(self, translations: "Sequence[Translation]") -> dict[str, Any]:
        """Return the translations of a row as JSON values."""
        error = translations[0].error if translations else None
        if error is not None:
            return {"translations": [], "error": error}
        return {"translations": list(map(self._fields, translations)), "error": None}

    @property
    def key_suffixes(self) -> tuple[str, ...]:
        """The ends of the keys that `keys` adds to that of the translation."""
        names = self._hypothesis_fields
        names += ("n_best",) if self.n_best else ()
        return names + (("error",) if self.as_json else ())

    @property
    def _hypothesis_fields(self) -> tuple[str, ...]:
        flags = {"score": self.scores, "tokens": self.tokens, "alignment": bool(self.alignments)}
        if self.as_json:
            flags |= dict.fromkeys(("score", "tokens", *_JSON_FIELDS), True)
        return tuple(name for name, is_set in flags.items() if is_set)

    def keys(self, name: str, translations: "Sequence[Translation]") -> dict[str, Any]:
        """Return the keys that a JSON object gets: a translation, and one for each further value.

        A key has a value of the same type in each row, or null: for example, the text of the best
        translation as `translation`, its score as `translation_score`, and a list of objects as
        `translation_n_best`.

        Args:
            name: Key of the translation.
            translations: As for `lines`.

        Example:

        >>> from keras_bahdanau_runtime import Translation
        >>> translation = Translation("ein Mann", -0.5, ["ein", " Mann", "</s>"], [], None)
        >>> OutputFormat(scores=True).keys("translation", [translation])
        {'translation': 'ein Mann', 'translation_score': -0.5}
        """
        error = translations[0].error if translations else None
        hypotheses = [] if error is not None else list(map(self._fields, translations))
        best = hypotheses[0] if hypotheses else {}
        names = self._hypothesis_fields
        values = {name: best.get("text")}
        values |= {f"{name}_{field}": best.get(field) for field in names}
        if self.n_best:
            fields = dict.fromkeys(("text", "score", *names))
            values[f"{name}_n_best"] = [
                {field: each.get(field) for field in fields} for each in hypotheses
            ] or None
        if self.as_json:
            values[f"{name}_error"] = error
        return values

    def _fields(self, translation: "Translation") -> dict[str, Any]:
        from keras_bahdanau_runtime.translation import confidence_fields  # needs NumPy

        fields = {
            "text": translation.text,
            "score": translation.score,
            "tokens": translation.tokens,
            "source_tokens": translation.source_tokens,
            **confidence_fields(translation),
        }
        return fields | ({"alignment": self._alignment(translation)} if self.alignments else {})

    def _alignment(self, translation: "Translation") -> Any:
        weights = translation.alignment
        if weights is None or not weights.size:
            return "" if self.alignments == "pharaoh" else []
        from keras_bahdanau_runtime.text.alignment import text_links, to_pharaoh

        if self.alignments == "pharaoh":
            return to_pharaoh(text_links(weights, translation.source_tokens, translation.tokens))
        return [[round(float(weight), 6) for weight in row] for row in weights]

    def _line(self, row: int, translation: "Translation") -> str:
        columns = [str(row), one_line(translation.text)]
        if self.scores or self.n_best:
            columns.append("" if translation.score is None else f"{translation.score:.6f}")
        if self.tokens:
            tokens = (token.replace(" ", _SPACE) for token in translation.tokens)
            columns.append(one_line(" ".join(token for token in tokens if token)))
        if self.alignments:
            alignment = self._alignment(translation)
            columns.append(alignment if isinstance(alignment, str) else json.dumps(alignment))
        return " ||| ".join(columns)
