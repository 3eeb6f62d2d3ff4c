"""Callbacks that write alignment images and training figures for TensorBoard."""

import io

import keras

from keras_bahdanau.callbacks.event_file import EventFile
from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.optimizers import update_count
from keras_bahdanau.search import GreedySearch
from keras_bahdanau.search.base import check_is_search
from keras_bahdanau_runtime.checks import check_positive, checked_texts
from keras_bahdanau_runtime.pictures.plots import plot_alignment
from keras_bahdanau_runtime.pictures.words import word_alignment


class AlignmentImages(keras.callbacks.Callback):
    """Translates a few sentences after each epoch and draws their alignments for TensorBoard.

    TensorBoard shows them under "Images", with a slider over the epochs. It need not be installed
    where the model is trained, nor TensorFlow; matplotlib and protobuf must be.

    Args:
        log_dir: The folder that TensorBoard is given, or one in it; that of
            `keras.callbacks.TensorBoard`, for example.
        sources: List of `str`. The model must have a tokenizer.
        search: A `Search`; `GreedySearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        every: Number of epochs from one picture to the next.
        words: Whether to draw words; otherwise the pieces of the tokenizer.

    Raises:
        ValueError: If `sources` is not a list of `str`, or one is blank, or a number is not an int
            of at least 1.
        MissingDependencyError: When training begins, if protobuf is not installed; when it draws,
            if matplotlib is not.

    Example:

    ```python
    images = AlignmentImages("logs", ["a man on a bike"])
    model.fit(data, epochs=20, callbacks=[images])
    # tensorboard --logdir logs
    ```
    """

    def __init__(self, log_dir, sources, search=None, max_length=100, every=1, words=True):
        super().__init__()
        check_positive(max_length=max_length, every=every)
        self.log_dir = log_dir
        self.sources = checked_texts("sources", sources)
        if not self.sources or not all(text.strip() for text in self.sources):
            raise ValueError(
                f"Argument `sources` must hold sentences, none of them blank. Received: {sources!r}"
            )
        self.search = GreedySearch() if search is None else search
        check_is_search(self.search)
        self.max_length = max_length
        self.every = every
        self.words = words

    def on_train_begin(self, logs=None):
        check_tokenizer(self.model)
        self._file = EventFile(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        translations = self.model.translate(
            self.sources,
            search=self.search,
            max_length=self.max_length,
        )
        for number, found in enumerate(translations, start=1):
            panel = found.alignment, found.source_tokens, found.tokens
            png = io.BytesIO()
            plot_alignment(*(word_alignment(*panel) if self.words else panel), png)
            self._file.add_image(f"alignment/{number}", png.getvalue(), epoch + 1)


class TensorBoardScalars(keras.callbacks.Callback):
    """Writes the logs of each epoch, and the learning rate, for TensorBoard, by update.

    `keras.callbacks.TensorBoard` needs TensorFlow; this needs protobuf alone. Put it behind
    callbacks that add to the logs, such as `TranslationScore`.

    Args:
        log_dir: The folder that TensorBoard is given, or one in it.

    Raises:
        MissingDependencyError: When training begins, if protobuf is not installed.

    Example:

    ```python
    model.fit(data, epochs=20, callbacks=[score, TensorBoardScalars("logs")])
    # tensorboard --logdir logs
    ```
    """

    def __init__(self, log_dir):
        super().__init__()
        self.log_dir = log_dir

    def on_train_begin(self, logs=None):
        self._file = EventFile(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in (logs or {}).items()}
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if rate is not None:  # of a `MultiOptimizer` there is not one
            values["learning_rate"] = float(rate)
        self._file.add_scalars(values, step=update_count(self.model))
