"""Parallel corpora, and datasets of padded batches."""

from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.prepared_dataset import PreparedDataset
from keras_bahdanau.data.translation_dataset import TranslationDataset
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare
from keras_bahdanau_runtime.text.parallel import TextFormat

__all__ = [
    "BPEDropout",
    "PreparedCorpus",
    "PreparedDataset",
    "TextFormat",
    "TranslationDataset",
    "prepare",
]
