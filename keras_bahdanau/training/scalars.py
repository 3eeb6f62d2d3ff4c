"""A callback that draws a run's figures in TensorBoard."""

import keras

from keras_bahdanau.training.devices import updates_done
from keras_bahdanau.training.event_file import EventFile


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
        self._file.add_scalars(values, step=updates_done(self.model))
