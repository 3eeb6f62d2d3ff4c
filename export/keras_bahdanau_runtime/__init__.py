"""Run artifacts with onnxruntime and without Keras: text in, translations out."""

from keras_bahdanau_runtime.errors import (
    ArtifactError,
    CorruptArtifactError,
    LimitError,
    MissingDependencyError,
    ParityError,
    PrecisionError,
    RunError,
    UnsupportedArtifactError,
    UnsupportedModelError,
)
from keras_bahdanau_runtime.scoring import Scorer, TargetScore
from keras_bahdanau_runtime.search_options import SearchOptions
from keras_bahdanau_runtime.stepper import Stepper
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.translation import Alternative, Translation
from keras_bahdanau_runtime.translator import Translator
from keras_bahdanau_runtime.version import __version__ as __version__

__all__ = [
    "Alternative",
    "ArtifactError",
    "CorruptArtifactError",
    "LimitError",
    "MissingDependencyError",
    "ParityError",
    "PrecisionError",
    "RunError",
    "Scorer",
    "SearchOptions",
    "Stepper",
    "TargetScore",
    "Tokenizer",
    "Translation",
    "Translator",
    "UnsupportedArtifactError",
    "UnsupportedModelError",
]
