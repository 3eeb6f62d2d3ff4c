"""Whole training runs, and averages of their checkpoints."""

from keras_bahdanau.models.rnn_search import PaperTraining, paper_training
from keras_bahdanau.training.averaging import average_checkpoints
from keras_bahdanau.training.length_penalty import length_penalty_scores
from keras_bahdanau.training.run import load_best, train
from keras_bahdanau_runtime.runs.options import TrainingOptions

__all__ = [
    "PaperTraining",
    "TrainingOptions",
    "average_checkpoints",
    "length_penalty_scores",
    "load_best",
    "paper_training",
    "train",
]
