"""Callbacks that write alignment images and training values for TensorBoard."""

import io
import os
import secrets
import struct
import time
import weakref
from pathlib import Path

import keras

from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.optimizers import update_count
from keras_bahdanau.search.base import check_is_search
from keras_bahdanau.search.beam import GreedySearch
from keras_bahdanau_runtime.checks import check_positive, checked_texts
from keras_bahdanau_runtime.errors import argument_error, require
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.pictures.plots import plot_alignment
from keras_bahdanau_runtime.pictures.words import readable_alignment

_RGBA = 4


class AlignmentImages(keras.callbacks.Callback):
    """Translates a few sentences after each epoch and draws their alignments for TensorBoard.

    TensorBoard shows them under "Images", with a slider over the epochs. Training needs matplotlib
    and tensorboardX, but neither TensorBoard nor TensorFlow.

    Args:
        log_dir: The folder that is passed to TensorBoard, or a subfolder of it. It may be that of
            `keras.callbacks.TensorBoard`.
        sources: List of `str`. The model must have a tokenizer.
        search: A `Search`; `GreedySearch()` if `None`.
        max_length: Largest number of tokens of a hypothesis.
        every: Number of epochs between two images.
        words: Whether to draw words instead of the tokenizer's pieces. Sentences with one word at
            a side are drawn by pieces in any case.

    Raises:
        ValueError: If `sources` is not a non-empty list of non-blank `str`, or a number is not a
            positive int.
        MissingDependencyError: When training begins, if tensorboardX is not installed; when an
            image is drawn, if matplotlib is not.

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
            raise argument_error("sources", "hold sentences, none of them blank", sources)
        self.search = GreedySearch() if search is None else search
        check_is_search(self.search)
        self.max_length = max_length
        self.every = every
        self.words = words

    def on_train_begin(self, logs=None):
        check_tokenizer(self.model)
        self._file = _EventFile(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        translations = self.model.translate(
            self.sources,
            search=self.search,
            max_length=self.max_length,
        )
        for number, translation in enumerate(translations, start=1):
            panel = translation.alignment, translation.source_tokens, translation.tokens
            png = io.BytesIO()
            plot_alignment(*(readable_alignment(*panel) if self.words else panel), png)
            self._file.add_image(f"alignment/{number}", png.getvalue(), epoch + 1)


class TensorBoardScalars(keras.callbacks.Callback):
    """Writes the logs of each epoch and the learning rate for TensorBoard, by update.

    `keras.callbacks.TensorBoard` needs TensorFlow; this callback needs only tensorboardX. Place it
    after callbacks that add to the logs, such as `TranslationScore`.

    Args:
        log_dir: The folder that is passed to TensorBoard, or a subfolder of it.

    Raises:
        MissingDependencyError: When training begins, if tensorboardX is not installed.

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
        self._file = _EventFile(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in (logs or {}).items()}
        learning_rate = getattr(self.model.optimizer, "learning_rate", None)
        if learning_rate is not None:  # a `MultiOptimizer` has several
            values["learning_rate"] = float(learning_rate)
        self._file.add_scalars(values, step=update_count(self.model))


class _EventFile:
    """A file of TensorBoard events that is complete on disk after each call.

    tensorboardX's `SummaryWriter` writes in a thread, and its `flush` does not wait for that: a
    killed run loses its last events. Two of its writers that open in one second overwrite one
    another. Its `EventsWriter`, which this class uses, is synchronous and takes a suffix.

    Args:
        folder: The folder of the file, which is created if it does not exist.
    """

    def __init__(self, folder):
        require("tensorboardX", extra="plot")
        from tensorboardX.event_file_writer import EventsWriter

        self._prefix = Path(folder) / "events"
        suffix = f".{secrets.token_hex(4)}.{os.getpid()}"
        with add_path_to_errors(self._prefix):
            self._prefix.parent.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(self._prefix), suffix)
        # Keras calls no callback when training ends with an error.
        weakref.finalize(self, self._writer.close)

    def add_scalars(self, values, step):
        """Add one point to the curve of each name in `values`, a mapping to floats."""
        self._write(step, [{"tag": tag, "simple_value": value} for tag, value in values.items()])

    def add_image(self, tag, png, step):
        """Add an image, the bytes of a PNG with an alpha channel."""
        width, height = struct.unpack(">II", png[16:24])  # in the first chunk of a PNG
        image = dict(height=height, width=width, colorspace=_RGBA, encoded_image_string=png)
        self._write(step, [{"tag": tag, "image": image}])

    def _write(self, step, values):
        from tensorboardX.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=step, summary={"value": values})
        with add_path_to_errors(self._prefix):
            self._writer.write_event(event)
            self._writer.flush()
