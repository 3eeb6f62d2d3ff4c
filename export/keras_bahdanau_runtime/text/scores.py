"""How good translations are: BLEU and chrF."""

from collections.abc import Sequence

from keras_bahdanau_runtime.errors import require


def corpus_scores(
    translations: Sequence[str], references: Sequence[str], tokenize: str = "13a"
) -> dict[str, float]:
    """Corpus BLEU (cased) and chrF of sacreBLEU, both in 0..100.

    Args:
        translations: List of `str`.
        references: List of `str`, one for each translation.
        tokenize: How BLEU splits words, by sacreBLEU's name: "13a" for raw text, "none" for text
            that is tokenised, "zh" and so on.

    Returns:
        `{"bleu": float, "chrf": float}`.

    Raises:
        ValueError: If the lists differ in length or are empty, or `tokenize` is unknown.
        MissingDependencyError: sacrebleu is not installed.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            "Arguments `translations` and `references` must be equally long and not empty. "
            f"Received: {len(translations)} and {len(references)}"
        )
    sacrebleu = require("sacrebleu", extra="text")
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(
            f"Argument `tokenize` must be one of {sorted(sacrebleu.BLEU.TOKENIZERS)}. "
            f"Received: {tokenize!r}"
        )
    # Otherwise it warns on standard error of text that looks tokenised.
    bleu = sacrebleu.BLEU(tokenize=tokenize, force=tokenize == "none")
    return {
        "bleu": bleu.corpus_score(translations, [references]).score,
        "chrf": sacrebleu.corpus_chrf(translations, [references]).score,
    }
