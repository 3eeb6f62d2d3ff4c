r"""Sources of several columns: a text, and symbols such as tags.

The columns are joined by tabs: "talo\tN;PL". The text before the first tab is split like any text.
Later columns are split into symbols before each tab, semicolon and space: "\tN" and ";PL". A symbol
is one piece, and its id is never that of a piece of the first column.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_bahdanau_runtime.ids import UNK

SEPARATOR = "\t"
# First character of a symbol in a vocabulary. Other pieces are spelled with printable letters.
MARK = "\t"
_SYMBOL = re.compile("[\t; ][^\t; ]*")


def join_columns(columns: Sequence[str]) -> str:
    r"""Return the text of several columns, whose own tabs become spaces; a single one as it is.

    Example:

    >>> join_columns(["talo", "N;PL"])
    'talo\tN;PL'
    """
    if len(columns) == 1:
        return columns[0]
    return SEPARATOR.join(text.replace(SEPARATOR, " ") for text in columns)


def first_column(text: str) -> str:
    """Return the text before the first tab."""
    return text.partition(SEPARATOR)[0]


def frequent_symbols(
    texts: Iterable[str], normalization: str | None, limit: int, min_frequency: int
) -> list[str]:
    r"""Return the symbols of the later columns, the most frequent first.

    Args:
        texts: Texts of several columns.
        normalization: Unicode form, as for `Tokenizer.train`.
        limit: Largest number of symbols.
        min_frequency: Number of times that a symbol must occur.

    Example:

    >>> frequent_symbols(["a\tN;PL", "b\tN;SG", "c\tN;PL"], None, 10, min_frequency=2)
    ['\tN', ';PL']
    """
    counts = Counter(symbol for text in texts for symbol in _split(text, normalization)[1])
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [symbol for symbol, count in order[:limit] if count >= min_frequency]


class SymbolEncoder:
    """Encoder of the later columns of sources.

    Args:
        ids: Ids of the symbols.
        normalization: Unicode form, as for `Tokenizer.train`.
    """

    def __init__(self, ids: Mapping[str, int], normalization: str | None) -> None:
        self._ids, self._normalization = ids, normalization

    def split(self, text: str) -> tuple[str, list[int]]:
        """Return the first column and the ids of the symbols; that of an unknown one is `UNK`."""
        first, symbols = _split(text, self._normalization)
        return first, [self._ids.get(symbol, UNK) for symbol in symbols]


def _split(text: str, normalization: str | None) -> tuple[str, list[str]]:
    """Return the first column and the symbols of the later ones."""
    first, tab, later = text.partition(SEPARATOR)
    if normalization is not None:
        form: Any = normalization.upper()
        later = unicodedata.normalize(form, later)
    return first, _SYMBOL.findall(tab + later)
