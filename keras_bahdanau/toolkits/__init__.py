"""Trained recurrent models of other toolkits as `Seq2Seq` models."""

from keras_bahdanau.toolkits.fairseq import import_fairseq
from keras_bahdanau.toolkits.joeynmt import import_joeynmt
from keras_bahdanau.toolkits.opennmt import import_opennmt

__all__ = ["import_fairseq", "import_joeynmt", "import_opennmt"]
