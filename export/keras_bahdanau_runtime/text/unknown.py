"""Share of unknown pieces in a text, such as raw text for a model of split text."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from keras_bahdanau_runtime.ids import EOS, UNK

logger = logging.getLogger("keras_bahdanau_runtime")

_MAX_SHARE = 0.5  # of unknown pieces without a warning
_NAMED_SYMBOLS = 5  # in a warning


def unknown_share(encoded: Sequence[list[int]]) -> float:
    """Return the share of unknown pieces in encoded texts; 0 if there are no pieces.

    Example:

    >>> unknown_share([[7, 1, 3], [1, 3], []])
    0.6666666666666666
    """
    unknown = pieces = 0
    for ids in encoded:
        unknown += ids.count(UNK)
        pieces += len(ids) - ids.count(EOS)
    return unknown / pieces if pieces else 0.0


def warn_about_unknown(name: str, encoded: Sequence[list[int]]) -> None:
    """Log a warning with the share of unknown pieces if it is above a half.

    Args:
        name: Name of the argument, or description of the texts.
        encoded: Ids of each text.
    """
    share = unknown_share(encoded)
    if share > _MAX_SHARE:
        logger.warning(
            "%.1f %% of the pieces of `%s` are unknown to the tokenizer, so the results are those "
            "of another text. A model of split text needs text that is split in the same way.",
            100 * share,
            name,
        )


def warn_about_unseen(
    name: str, side: Any, texts: Sequence[str], symbols: Iterable[str] = ()
) -> None:
    """Log a warning with the first symbols of texts that a tokenizer does not have.

    Args:
        name: Name of the argument.
        side: `tokenizers.Tokenizer` of the language, which learned characters or symbols.
        texts: The texts, of which only the first column.
        symbols: Unknown symbols of the other columns; see `Tokenizer.unknown_symbols`.
    """
    counts = Counter(symbols)
    for text, encoding in zip(texts, side.encode_batch(list(texts)), strict=True):
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        counts.update(
            text[begin:end].strip() or " " for index, (begin, end) in spans if index == UNK
        )
    if counts:
        names = ", ".join(repr(symbol) for symbol in islice(counts, _NAMED_SYMBOLS))
        rest = len(counts) - _NAMED_SYMBOLS
        logger.warning(
            "%d different symbols of `%s` are not among those that the tokenizer has learned, each "
            "of which occurs at least twice: %s%s.",
            len(counts),
            name,
            names,
            f" and {rest} more" if rest > 0 else "",
        )
