"""Callbacks that evaluate, save, resume and display training."""

from keras_bahdanau.callbacks.checkpoint import ResumableEpochs, RunCheckpoint
from keras_bahdanau.callbacks.evaluation import HeldOutLoss, TranslationScore
from keras_bahdanau.callbacks.progress import ProgressDisplay
from keras_bahdanau.callbacks.tensorboard import AlignmentImages, TensorBoardScalars

__all__ = [
    "AlignmentImages",
    "HeldOutLoss",
    "ProgressDisplay",
    "ResumableEpochs",
    "RunCheckpoint",
    "TensorBoardScalars",
    "TranslationScore",
]
