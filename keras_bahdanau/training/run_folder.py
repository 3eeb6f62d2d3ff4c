"""The models in the folder of a training run."""

import keras

from keras_bahdanau.models.ensemble import Ensemble
from keras_bahdanau_runtime.runs.folder import best_file


def load_best(*runs):
    """The best model of a run, with its tokenizer and without its optimiser.

    Args:
        *runs: A run's folder, as `train` leaves it; of several, an `Ensemble` of their models.

    Raises:
        ValueError: If a folder holds no best model yet, or one without a tokenizer; or the models
            have other vocabularies.
    """
    models = [load(best_file(run), compile=False) for run in runs]
    return models[0] if len(models) == 1 else Ensemble(models)


def load(path, compile):
    """A model of a run, which must hold its tokenizer."""
    model = keras.saving.load_model(path, compile=compile)
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "Argument `run` must be the folder of a run of this version of keras_bahdanau. "
            f"Received: {str(path.parent)!r}, whose {path.name} holds no tokenizer: set "
            "`model.tokenizer` and save it again, or train anew"
        )
    return model
