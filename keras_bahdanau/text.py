"""Tokenizers and word alignments."""

from keras_bahdanau_runtime.pictures.words import word_alignment
from keras_bahdanau_runtime.text.alignment import (
    hard_alignment,
    phrase_spans,
    replace_unknowns,
    text_links,
    to_pharaoh,
)
from keras_bahdanau_runtime.text.corpus import read_alignments
from keras_bahdanau_runtime.text.pieces import Spelling
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

__all__ = [
    "Spelling",
    "Tokenizer",
    "hard_alignment",
    "phrase_spans",
    "read_alignments",
    "replace_unknowns",
    "text_links",
    "to_pharaoh",
    "word_alignment",
]
