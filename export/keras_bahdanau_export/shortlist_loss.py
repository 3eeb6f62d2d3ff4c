"""What a vocabulary shortlist costs in quality."""

from dataclasses import asdict, dataclass

from keras_bahdanau_export.bleu_loss import enforce_bleu
from keras_bahdanau_runtime.text.scores import corpus_scores


@dataclass(frozen=True)
class ShortlistLoss:
    """What a shortlist costs, against the search among all ids.

    Attributes:
        ids: Number of target ids that a batch is searched among.
        equal: Share of the given texts that got the same translation; or `None`.
        bleu: BLEU of their translations against the references; or `None`.
        bleu_loss: How much lower that is than with all ids; or `None`.
    """

    ids: int
    equal: float | None = None
    bleu: float | None = None
    bleu_loss: float | None = None

    def enforce(self, max_bleu_loss):
        """Raises `PrecisionError` if more BLEU was lost than `max_bleu_loss`."""
        enforce_bleu("the shortlist", self.bleu, self.bleu_loss, max_bleu_loss)

    def to_json(self):
        """The figures as a plain dict, for the manifest."""
        return asdict(self)


def shortlist_loss(model, translator, search, max_length, ids, texts=(), references=()):
    """Translates texts with the model, which knows all ids, and with the artifact.

    Args:
        model: The Keras model.
        translator: A `Translator` of the artifact.
        search: The search inside it.
        max_length: The length limit inside it.
        ids: Number of ids that its shortlist leaves.
        texts: Sentences to translate.
        references: A translation of each of them.

    Returns:
        A `ShortlistLoss`.
    """
    if not len(texts):
        return ShortlistLoss(ids)
    all_ids = model.translate(texts, search, max_length, alignments=False)
    few = translator.translate(texts, alignments=False)
    found = [[one.text for one in translations] for translations in (all_ids, few)]
    equal = sum(map(str.__eq__, *found)) / len(texts)
    if not len(references):
        return ShortlistLoss(ids, equal)
    full, reduced = (corpus_scores(some, references)["bleu"] for some in found)
    return ShortlistLoss(ids, equal, reduced, full - reduced)
