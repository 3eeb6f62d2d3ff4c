"""Measures of outputs against references."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_bahdanau_runtime.errors import argument_error, require
from keras_bahdanau_runtime.text.error_rates import compare, error_rates, shared_references


class Measure(NamedTuple):
    """A measure of a model on held-out text.

    Args:
        title: Name of the measure for people.
        mode: "max" if the largest value is the best, "min" if the smallest is.
        places: Number of decimal places to show.
    """

    title: str
    mode: str
    places: int

    def improvement(self, old: float, new: float) -> float:
        """Return by how much the new value is better than the old one; negative if it is worse."""
        return new - old if self.mode == "max" else old - new


# The keys are the names in options, in files and, after `val_`, in logs. All values but the loss
# are percentages.
MEASURES = {
    "loss": Measure("loss per token", "min", 3),
    "bleu": Measure("BLEU", "max", 2),
    "chrf": Measure("chrF", "max", 2),
    "exact": Measure("exact", "max", 1),
    "ser": Measure("symbol errors", "min", 1),
}


def corpus_scores(
    translations: Sequence[str],
    references: Sequence[str | Sequence[str]],
    tokenize: str = "13a",
    unit: str = "characters",
    sources: Sequence[str] | None = None,
) -> dict[str, float]:
    """Compute corpus BLEU (cased), chrF, exact matches and the symbol error rate, in percent.

    BLEU and chrF are those of sacreBLEU.

    Args:
        translations: List of `str`.
        references: A `str`, or a list of several, for each translation; any of them is right.
        tokenize: sacreBLEU's name of the tokenizer for BLEU: "13a" for raw text, "none" for
            tokenized text, "zh" and so on.
        unit: Symbols of the error rate: "characters", or "symbols" between spaces.
        sources: The sources. For `exact` and `ser`, translations of the same source share their
            references, such as the pronunciations of a word in several lines.

    Returns:
        `{"bleu": float, "chrf": float, "exact": float, "ser": float}`; see `error_rates`.

    Raises:
        ValueError: As `bleu_metric` and `compare`.
        MissingDependencyError: sacrebleu or rapidfuzz is not installed.
    """
    lists = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    shared = lists if sources is None else shared_references(sources, lists)
    comparisons = compare(translations, shared, unit)
    return {**bleu_and_chrf(translations, lists, tokenize), **error_rates(comparisons)}


def bleu_and_chrf(
    translations: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> dict[str, float]:
    """Return corpus BLEU (cased) and chrF in percent.

    Args:
        translations: List of `str`.
        references: A list of `str` for each translation.
        tokenize: As for `corpus_scores`.

    Raises:
        ValueError: As `bleu_metric`.
        MissingDependencyError: sacrebleu is not installed.
    """
    # sacreBLEU ignores `None` in its lists of the first, second, ... references.
    streams = list(itertools.zip_longest(*references))
    bleu = bleu_metric(tokenize)
    sacrebleu = require("sacrebleu", extra="text")
    return {
        "bleu": bleu.corpus_score(translations, streams).score,
        "chrf": sacrebleu.corpus_chrf(translations, streams).score,
    }


def bleu_metric(tokenize: str, is_for_sentences: bool = False) -> Any:
    """Return the `sacrebleu.BLEU` with this tokenizer.

    Args:
        tokenize: As for `corpus_scores`.
        is_for_sentences: bool. Whether it scores single sentences, in which short ones without
            4-grams are scored by their shorter n-grams.

    Raises:
        ValueError: `tokenize` is unknown, or needs a package that is not installed.
        MissingDependencyError: sacrebleu is not installed.
    """
    sacrebleu = require("sacrebleu", extra="text")
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise argument_error("tokenize", f"be one of {sorted(sacrebleu.BLEU.TOKENIZERS)}", tokenize)
    try:
        # `force` turns off a warning about text that looks tokenized.
        return sacrebleu.BLEU(
            tokenize=tokenize, force=tokenize == "none", effective_order=is_for_sentences
        )
    except (ImportError, RuntimeError) as error:
        raise argument_error(
            "tokenize",
            "name an installed tokenizer",
            received=f"{tokenize!r}, for which sacrebleu says: {' '.join(str(error).split())}",
        ) from error
