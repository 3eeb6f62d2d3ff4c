"""The length penalty by which a beam search translates held-out sentences best."""

import logging

from keras_bahdanau.search.beam import BeamSearch
from keras_bahdanau_runtime.checks import checked_texts
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
    """BLEU of held-out sentences for each of several length penalties.

    Args:
        model: A `Seq2Seq` or an `Ensemble`, with a tokenizer.
        sources: List of `str`, sentences that are in no test set.
        references: List of `str`, a translation of each.
        penalties: List of float, as `BeamSearch(length_penalty=)` takes them.
        beam_size: Hypotheses that the search keeps.
        max_length: Number of tokens after which a hypothesis is cut.
        tokenize: How BLEU splits words; see `corpus_scores`.
        max_length_ratio: Tokens for each source token after which it is cut, too; see `Search`.

    Returns:
        A dict of BLEU (0 to 100) by penalty, in the order given.

    Raises:
        ValueError: If there are no sentences, not as many references, or no penalties, one is
            negative, or the model has no tokenizer.

    Example:

    ```python
    scores = length_penalty_scores(model, held_out, references, (0.6, 1.0, 1.5), beam_size=10)
    model.export("artifact", search=BeamSearch(10, max(scores, key=scores.get)))
    ```
    """
    sources, references = checked_texts("sources", sources), checked_texts("references", references)
    if not sources or len(sources) != len(references):
        raise ValueError(
            "Argument `references` must hold a translation of each of `sources`, of which there is "
            f"one at least. Received: {len(references)} of {len(sources)}"
        )
    searches = {
        penalty: BeamSearch(beam_size, penalty, max_length_ratio=max_length_ratio)
        for penalty in penalties
    }
    if not searches:
        raise ValueError("Argument `penalties` must hold at least one. Received: none")
    scores = {}
    for penalty, search in searches.items():
        found = model.translate(sources, search=search, max_length=max_length, alignments=False)
        texts = [translation.text for translation in found]
        scores[penalty] = corpus_scores(texts, references, tokenize)["bleu"]
        logger.info("Length penalty %g: BLEU %.2f.", penalty, scores[penalty])
    return scores
