"""Parallel corpora, and datasets of padded batches."""

from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.prepared_dataset import PreparedDataset
from keras_bahdanau.data.translation_dataset import TranslationDataset
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare

__all__ = [
    "BPEDropout",
    "PreparedCorpus",
    "PreparedDataset",
    "TranslationDataset",
    "prepare",
]
