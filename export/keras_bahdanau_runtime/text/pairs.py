"""Warnings of parallel texts that cannot be right."""

import logging
import unicodedata

logger = logging.getLogger("keras_bahdanau_runtime")

_MOST = 0.5  # share of identical or tabbed lines from which on the files are likely to be wrong


class PairCheck:
    """Counts what looks like a mistake in two files whose lines translate each other.

    Args:
        source: str. The name of the file of sources.
        target: str. The name of the file of their translations.
        forms: bool. Whether lines that are not in Unicode's form NFC are counted, too.
    """

    def __init__(self, source: str, target: str, forms: bool = False) -> None:
        self._names, self._forms = (source, target), forms
        self._pairs = self._identical = 0
        self._tabbed, self._other_forms = [0, 0], [0, 0]

    def add(self, source: str, target: str) -> None:
        """Takes notice of one pair."""
        # Written out for both sides: a loop takes twice the time, for each of many million pairs.
        self._pairs += 1
        if source == target:
            self._identical += 1
        if "\t" in source:
            self._tabbed[0] += 1
        if "\t" in target:
            self._tabbed[1] += 1
        if self._forms:
            if not (source.isascii() or unicodedata.is_normalized("NFC", source)):
                self._other_forms[0] += 1
            if not (target.isascii() or unicodedata.is_normalized("NFC", target)):
                self._other_forms[1] += 1

    def warn(self) -> None:
        """Warns in the log of what was found, with the names of the files and shares of lines."""
        least = max(1.0, _MOST * self._pairs)
        if self._identical >= least:
            logger.warning(
                "%s and %s: %s pairs are identical. Expected two languages.",
                *self._names,
                self._share(self._identical),
            )
        for name, tabbed, other_forms in zip(
            dict.fromkeys(self._names), self._tabbed, self._other_forms, strict=False
        ):
            if tabbed >= least:
                logger.warning(
                    "%s: %s lines hold a tab. Expected one language a file: `cut -f 1` and "
                    "`cut -f 2` take the columns of a table apart.",
                    name,
                    self._share(tabbed),
                )
            if other_forms:
                logger.warning(
                    "%s: %s lines are not in Unicode's form NFC. Texts that look the same in "
                    'another form are translated otherwise, unless `normalization` is "nfc".',
                    name,
                    self._share(other_forms),
                )

    def _share(self, count: int) -> str:
        return f"{count:,} of {self._pairs:,} ({count / self._pairs:.1%})"
