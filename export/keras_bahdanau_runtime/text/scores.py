"""How good translations are: BLEU and chrF."""


def corpus_scores(translations, references):
    """Corpus BLEU (13a tokenisation, cased) and chrF of sacreBLEU, both in 0..100.

    Args:
        translations: List of `str`.
        references: List of `str`, one for each translation.

    Returns:
        `{"bleu": float, "chrf": float}`.

    Raises:
        ValueError: If the lists differ in length or are empty.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            "Arguments `translations` and `references` must be equally long and not empty. "
            f"Received: {len(translations)} and {len(references)}"
        )
    try:
        import sacrebleu
    except ImportError as error:
        raise ImportError('Scoring needs sacrebleu: pip install "keras-bahdanau[text]"') from error
    return {
        "bleu": sacrebleu.corpus_bleu(translations, [references]).score,
        "chrf": sacrebleu.corpus_chrf(translations, [references]).score,
    }
