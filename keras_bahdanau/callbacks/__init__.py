"""Callbacks that evaluate, save, resume and display training."""

from keras_bahdanau.callbacks.held_out_loss import HeldOutLoss
from keras_bahdanau.callbacks.progress_display import ProgressDisplay
from keras_bahdanau.callbacks.resumable_epochs import ResumableEpochs
from keras_bahdanau.callbacks.run_checkpoint import RunCheckpoint
from keras_bahdanau.callbacks.tensorboard import AlignmentImages, TensorBoardScalars
from keras_bahdanau.callbacks.translation_score import TranslationScore

__all__ = [
    "AlignmentImages",
    "HeldOutLoss",
    "ProgressDisplay",
    "ResumableEpochs",
    "RunCheckpoint",
    "TensorBoardScalars",
    "TranslationScore",
]
