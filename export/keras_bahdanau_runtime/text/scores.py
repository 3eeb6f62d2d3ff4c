"""Scores of translations: BLEU and chrF."""

from collections.abc import Sequence
from typing import Any

from keras_bahdanau_runtime.errors import argument_error, require


def corpus_scores(
    translations: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    more_references: Sequence[Sequence[str]] = (),
) -> dict[str, float]:
    """Compute corpus BLEU (cased) and chrF with sacreBLEU, both from 0 to 100.

    Args:
        translations: List of `str`.
        references: List of `str`, one for each translation.
        tokenize: sacreBLEU's name of the tokenizer for BLEU: "13a" for raw text, "none" for
            tokenized text, "zh" and so on.
        more_references: Further lists like `references`.

    Returns:
        `{"bleu": float, "chrf": float}`.

    Raises:
        ValueError: The lists differ in length or are empty; or as `bleu_metric`.
        MissingDependencyError: sacrebleu is not installed.
    """
    for texts in (references, *more_references):
        if len(translations) != len(texts) or not texts:
            raise argument_error(
                ("translations", "references"),
                "have the same length, at least 1",
                received=f"{len(translations)} and {len(texts)}",
            )
    streams = [references, *more_references]
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
