"""BLEU of held-out sentences for several length penalties of a beam search."""

import logging

from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.search.beam import BeamSearch
from keras_bahdanau_runtime.checks import checked_texts
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.text.scores import corpus_scores

logger = logging.getLogger("keras_bahdanau")


def length_penalty_scores(
    model,
    sources,
    references,
    penalties,
    beam_size=5,
    max_length=100,
    tokenize="13a",
    max_length_ratio=None,
):
    """Return BLEU of held-out sentences for each of several length penalties.

    Args:
        model: A `Seq2Seq` or an `Ensemble` with a tokenizer.
        sources: List of `str`. Do not use a test set.
        references: List of `str`, one translation for each source. Those that are split into
            pieces are joined like the translations.
        penalties: List of floats for `BeamSearch(length_penalty=)`.
        beam_size: Number of hypotheses in the beam.
        max_length: Largest number of tokens of a hypothesis.
        tokenize: BLEU tokenizer; see `corpus_scores`.
        max_length_ratio: Largest number of tokens per source token; see `Search`.

    Returns:
        A dict from penalties to BLEU (0 to 100), in the given order.

    Raises:
        ValueError: If `sources` or `penalties` is empty, `references` has a different length, a
            penalty is negative, or the model has no tokenizer.

    Example:

    ```python
    scores = length_penalty_scores(model, held_out, references, (0.6, 1.0, 1.5), beam_size=10)
    model.export("artifact", search=BeamSearch(10, max(scores, key=scores.get)))
    ```
    """
    sources, references = checked_texts("sources", sources), checked_texts("references", references)
    if not sources or len(sources) != len(references):
        raise argument_error(
            "references",
            "hold a translation of each of `sources`, of which there is at least one",
            received=f"{len(references)} of {len(sources)}",
        )
    searches = {
        penalty: BeamSearch(beam_size, penalty, max_length_ratio=max_length_ratio)
        for penalty in penalties
    }
    if not searches:
        raise argument_error("penalties", "hold at least one", received="none")
    check_tokenizer(model)
    references = [model.tokenizer.join_target(text) for text in references]
    scores = {}
    for penalty, search in searches.items():
        translations = model.translate(
            sources, search=search, max_length=max_length, alignments=False
        )
        texts = [translation.text for translation in translations]
        scores[penalty] = corpus_scores(texts, references, tokenize)["bleu"]
        logger.info("Length penalty %g: BLEU %.2f.", penalty, scores[penalty])
    return scores
