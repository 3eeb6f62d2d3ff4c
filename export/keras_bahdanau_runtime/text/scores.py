"""How good translations are: BLEU and chrF."""

from collections.abc import Sequence

from keras_bahdanau_runtime.errors import require


def corpus_scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU (13a tokenisation, cased) and chrF of sacreBLEU, both in 0..100.

    Args:
        translations: List of `str`.
        references: List of `str`, one for each translation.

    Returns:
        `{"bleu": float, "chrf": float}`.

    Raises:
        ValueError: If the lists differ in length or are empty.
        MissingDependencyError: sacrebleu is not installed.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            "Arguments `translations` and `references` must be equally long and not empty. "
            f"Received: {len(translations)} and {len(references)}"
        )
    sacrebleu = require("sacrebleu", extra="text")
    return {
        "bleu": sacrebleu.corpus_bleu(translations, [references]).score,
        "chrf": sacrebleu.corpus_chrf(translations, [references]).score,
    }
