"""Quality that a reduced precision or a vocabulary shortlist costs, measured on texts."""

import logging
import time
from dataclasses import asdict, dataclass

import numpy as np

from keras_bahdanau_export.parity import as_targets
from keras_bahdanau_runtime.errors import PrecisionError
from keras_bahdanau_runtime.search import checked_noise
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.text.scores import corpus_scores

logger = logging.getLogger("keras_bahdanau_export")

_BATCH_SIZE = 32


@dataclass(frozen=True)
class PrecisionLoss:
    """Savings and cost of a reduced precision, compared with the float32 graph of the model.

    Attributes:
        precision: "float16" or "int8".
        size: Bytes of the ONNX files, as a fraction of those in float32.
        time: Duration of a search, as a fraction of that in float32, on the exporting machine.
        equal: Fraction of the compared sources with the same best tokens.
        log_prob_difference: Mean absolute difference of the log-probability of a token of the
            float32 translations.
        bleu: BLEU of the translated texts against the references, or `None`.
        bleu_loss: BLEU in float32 minus `bleu`, or `None`.
    """

    precision: str
    size: float
    time: float
    equal: float
    log_prob_difference: float
    bleu: float | None
    bleu_loss: float | None

    def enforce(self, max_bleu_loss):
        """Raise `PrecisionError` if the loss of BLEU is above `max_bleu_loss`."""
        _enforce(self.precision, self.bleu, self.bleu_loss, max_bleu_loss)

    def to_json(self):
        """Return the figures as a plain dict, for the manifest."""
        return asdict(self)


@dataclass(frozen=True)
class ShortlistLoss:
    """Cost of a shortlist, compared with a search over all target ids.

    Attributes:
        ids: Number of target ids that the search of one batch is limited to.
        equal: Fraction of the texts with the same translation, or `None`.
        bleu: BLEU of the translated texts against the references, or `None`.
        bleu_loss: BLEU with all ids minus `bleu`, or `None`.
    """

    ids: int
    equal: float | None = None
    bleu: float | None = None
    bleu_loss: float | None = None

    def enforce(self, max_bleu_loss):
        """Raise `PrecisionError` if the loss of BLEU is above `max_bleu_loss`."""
        _enforce("the shortlist", self.bleu, self.bleu_loss, max_bleu_loss)

    def to_json(self):
        """Return the figures as a plain dict, for the manifest."""
        return asdict(self)


def measure_precision_loss(
    full, reduced, precision, size, sources, texts=(), references=(), rounds=5
):
    """Search the same sources with a float32 artifact and one in reduced precision.

    Args:
        full: A `Translator` of the float32 artifact.
        reduced: A `Translator` of the reduced artifact.
        precision: "float16" or "int8".
        size: Bytes of the reduced graphs, as a fraction of those in float32.
        sources: Lists of source ids.
        texts: Sentences to translate.
        references: A reference translation of each text.
        rounds: Number of timed searches of each artifact, in turn; the medians are compared.

    Returns:
        A `PrecisionLoss`.
    """
    translators = (full, reduced)
    batches = [pad(sources[i : i + _BATCH_SIZE]) for i in range(0, len(sources), _BATCH_SIZE)]
    equal, differences, tokens = 0, 0.0, 0
    for batch in batches:
        noise = None
        if full.manifest.is_sampling():  # both artifacts use the same random numbers
            noise = checked_noise(None, full.manifest.search, len(batch))
        full_tokens, reduced_tokens = (
            translator.search(batch, False, noise)["tokens"][:, 0] for translator in translators
        )
        equal += int((full_tokens == reduced_tokens).all(axis=1).sum())
        target = as_targets(full_tokens)
        scores = [translator.score_ids(batch, target) for translator in translators]
        full_log_probs, reduced_log_probs = (score["log_probs"] for score in scores)
        differences += float(np.abs(full_log_probs - reduced_log_probs).sum())
        tokens += int(scores[0]["lengths"].sum())
    durations = ([], [])
    for _ in range(rounds):
        for translator, durations_of_one in zip(translators, durations, strict=True):
            start = time.perf_counter()
            translator.translate_ids(batches[0])
            durations_of_one.append(time.perf_counter() - start)
    bleu = loss = None
    if references:
        full_bleu, bleu = (
            _bleu([t.text for t in translator.translate(texts)], references, full)
            for translator in translators
        )
        loss = full_bleu - bleu
    return PrecisionLoss(
        precision=precision,
        size=size,
        time=float(np.median(durations[1]) / np.median(durations[0])),
        equal=equal / len(sources),
        log_prob_difference=differences / tokens,
        bleu=bleu,
        bleu_loss=loss,
    )


def measure_shortlist_loss(model, translator, search, max_length, ids, texts=(), references=()):
    """Translate texts with the model, which searches all ids, and with the artifact.

    Args:
        model: The Keras model.
        translator: A `Translator` of the artifact.
        search: The search in the artifact.
        max_length: The `max_length` of the artifact.
        ids: Number of ids in the artifact's shortlist.
        texts: Sentences to translate.
        references: A reference translation of each text.

    Returns:
        A `ShortlistLoss`.
    """
    if not texts:
        return ShortlistLoss(ids)
    full, reduced = (
        [translation.text for translation in translations]
        for translations in (
            model.translate(texts, search, max_length, alignments=False),
            translator.translate(texts, alignments=False),
        )
    )
    equal = sum(map(str.__eq__, full, reduced)) / len(texts)
    if not references:
        return ShortlistLoss(ids, equal)
    full_bleu, bleu = (
        _bleu(translations, references, translator) for translations in (full, reduced)
    )
    return ShortlistLoss(ids, equal, bleu, full_bleu - bleu)


def _bleu(translations, references, translator):
    """Return BLEU; references that are split into pieces are joined like the translations."""
    join = translator.require_tokenizer().join_target
    return corpus_scores(translations, [join(text) for text in references])["bleu"]


def _enforce(cause, bleu, loss, max_bleu_loss):
    """Raise `PrecisionError` if a loss of BLEU is above the limit; warn if it was not measured.

    Args:
        cause: The reason of the loss, for the message.
        bleu: BLEU after the reduction, or `None`.
        loss: The loss of BLEU, or `None`.
        max_bleu_loss: The limit.
    """
    if loss is None:
        logger.warning(
            "The loss of quality by %s was not measured: pass texts and references.", cause
        )
    elif loss > max_bleu_loss:
        raise PrecisionError(
            f"With {cause} the model must lose at most {max_bleu_loss} BLEU (`max_bleu_loss`). "
            f"Received: a loss of {loss:.2f}, to {bleu:.2f}"
        )
