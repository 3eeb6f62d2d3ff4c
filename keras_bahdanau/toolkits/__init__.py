"""Trained models and weights of other toolkits."""

from keras_bahdanau.toolkits.fairseq import import_fairseq
from keras_bahdanau.toolkits.joeynmt import import_joeynmt
from keras_bahdanau.toolkits.opennmt import import_opennmt
from keras_bahdanau.toolkits.tensorflow_addons import (
    bahdanau_from_tfa,
    luong_from_tfa,
    monotonic_from_tfa,
)

__all__ = [
    "bahdanau_from_tfa",
    "import_fairseq",
    "import_joeynmt",
    "import_opennmt",
    "luong_from_tfa",
    "monotonic_from_tfa",
]
