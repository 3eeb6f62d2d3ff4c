"""A callback that scores translations of held-out sentences."""

import keras

from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.optimizers import ema_weights
from keras_bahdanau.search import GreedySearch
from keras_bahdanau.search.base import check_kind
from keras_bahdanau_runtime.checks import check_positive, checked_texts
from keras_bahdanau_runtime.text.scores import bleu_metric, corpus_scores


class TranslationScore(keras.callbacks.Callback):
    """Translates held-out sentences after each epoch: `val_bleu` and `val_chrf` in the logs.

    Put it before callbacks that read the logs, such as `EarlyStopping(monitor="val_bleu",
    mode="max")`. With an optimiser that keeps a running mean of the weights (`use_ema`), the mean
    translates.

    Args:
        sources: List of `str`.
        references: List of `str`, one for each source.
        tokenizer: A `Tokenizer` to attach to the model; `None` if it has one.
        search: A `BeamSearch` or `GreedySearch`; `GreedySearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        batch_size: Sentences searched at once.
        prefix: What the names in the logs begin with.
        tokenize: How BLEU splits words; see `corpus_scores`.

    Raises:
        ValueError: If there is no source, or not one reference for each, one of them is no `str`,
            another argument is of the wrong kind; when training begins, if there is no tokenizer.
        MissingDependencyError: If sacrebleu is not installed.
    """

    def __init__(
        self,
        sources,
        references,
        tokenizer=None,
        search=None,
        max_length=100,
        batch_size=64,
        prefix="val_",
        tokenize="13a",
    ):
        super().__init__()
        bleu_metric(tokenize)  # refuses it before an epoch is trained
        self.sources = checked_texts("sources", sources)
        self.references = checked_texts("references", references)
        if len(self.references) != len(self.sources):
            raise ValueError(
                f"Argument `references` must hold one for each of {len(self.sources)} sources. "
                f"Received: {len(self.references)}"
            )
        if not self.sources:
            raise ValueError("Argument `sources` must hold a sentence. Received: none")
        check_positive(batch_size=batch_size)
        if not callable(max_length):
            check_positive(max_length=max_length)
        self.tokenizer = tokenizer
        self.search = GreedySearch() if search is None else search
        check_kind(self.search)
        self.max_length = max_length
        self.batch_size = batch_size
        self.prefix = prefix
        self.tokenize = tokenize

    def set_model(self, model):
        super().set_model(model)
        if self.tokenizer is not None:
            model.tokenizer = self.tokenizer

    def on_train_begin(self, logs=None):
        check_tokenizer(self.model)

    def on_epoch_end(self, epoch, logs=None):
        scores = self.score(self.model)
        if logs is not None:
            logs.update({f"{self.prefix}{name}": score for name, score in scores.items()})

    def score(self, model):
        """The scores of a model on the held-out sentences, `{"bleu": float, "chrf": float}`."""
        with ema_weights(model):
            translations = model.translate(
                self.sources,
                search=self.search,
                max_length=self.max_length,
                batch_size=self.batch_size,
                alignments=False,
            )
        texts = [found.text for found in translations]
        return corpus_scores(texts, self.references, self.tokenize)
