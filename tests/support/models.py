"""Small models that together use every part, and their teacher-forced log-probabilities."""

import functools

import keras
import numpy as np
from keras import ops

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DeepOutput,
    RNNEncoderDecoder,
    RNNSearch,
    Seq2Seq,
)
from keras_bahdanau.layers import LuongAttention, PointerGenerator
from keras_bahdanau_runtime.ids import BOS, EOS, PAD, UNK

SIZES = {"units": 16, "embedding_dim": 8, "attention_units": 10, "maxout_units": 6}
SOURCE_VOCABULARY, TARGET_VOCABULARY = 14, 12
VOCABULARIES = (SOURCE_VOCABULARY, TARGET_VOCABULARY)

# The texts and the sizes of the search that tests/export exports.
TEXTS = ["a man on a bike", "two dogs run", "a dog on a bike"]
SMALL = dict(units=6, embedding_dim=5, attention_units=4, maxout_units=5, initializer=None)
# The options of every exported search.
CONSTRAINTS = [
    "min_length",
    "max_length",
    "no_repeat_ngram",
    "repetition_penalty",
    "prefix",
    "completions",
    "suppressed",
]


def model_of_many_lengths(vocabulary):
    """Return an RNNSearch whose outputs end in different steps."""
    sizes = {"units": 6, "embedding_dim": 5, "attention_units": 4, "maxout_units": 5}
    model = RNNSearch(vocabulary, vocabulary, **sizes, reset_after=True)
    model.build()
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 1.2, weights.shape) for weights in model.get_weights()])
    bias = model.output_layer.bias
    bias.assign(bias + 28.0 * np.eye(vocabulary)[EOS])
    return model


def stacked_lstm():
    return Seq2Seq(
        *VOCABULARIES,
        embedding_dim=8,
        encoder=BidirectionalEncoder(8, cell="lstm", num_layers=2, residual=True, dropout=0.1),
        decoder=AttentiveDecoder(
            [keras.layers.LSTMCell(12), keras.layers.LSTMCell(10)],
            BahdanauAttention(9, use_bias=True),
            DeepOutput(7, activation="tanh"),
            query_state="current",
        ),
        bridge="mean",
        dropout=0.1,
    )


def plain_gru():
    return Seq2Seq(
        *VOCABULARIES,
        embedding_dim=9,
        encoder=keras.layers.GRU(11, return_sequences=True),
        decoder=AttentiveDecoder(keras.layers.GRUCell(9), BahdanauAttention(5)),
        bridge="last",
        tie_embeddings=True,
        join_embeddings=True,
        source_embedding_dim=7,
    )


def copying():
    """A model whose last two ids of both sides are words that are only copied."""
    words = 2
    pieces = SOURCE_VOCABULARY - words
    ids = [PAD] * 4 + [4 + i % 5 for i in range(pieces - 5)] + [UNK] * (1 + words)
    copy = PointerGenerator(ids, copied_words=words, attention=LuongAttention())
    return RNNSearch(*VOCABULARIES, **SIZES, initializer=None, copy=copy)


MODELS = {
    "rnnsearch": functools.partial(RNNSearch, *VOCABULARIES, **SIZES, initializer=None),
    "rnnencdec": functools.partial(RNNEncoderDecoder, *VOCABULARIES, **SIZES, initializer=None),
    "stacked_lstm": stacked_lstm,
    "plain_gru": plain_gru,
    "copying": copying,
}


def log_softmax(logits):
    logits = ops.convert_to_numpy(logits).astype("float64")
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def teacher_forced(model, source, tokens):
    """Log-probabilities and weights with `tokens` `(B, K, T)` as targets of `source` `(B, Tx)`.

    Returns `(B, K, T, V)` and `(B, K, T, Tx)`.
    """
    beams, steps = tokens.shape[1:]
    source = np.repeat(source, beams, axis=0)
    tokens = tokens.reshape(-1, steps)
    target = np.concatenate([np.full_like(tokens[:, :1], BOS), tokens[:, :-1]], axis=1)
    logits = model({"source": source, "target": target}, training=False)
    annotations, mask, cell_state = model.encode(ops.convert_to_tensor(source))
    target = np.where(target < model.target_embedding.input_dim, target, UNK)  # copied words
    _, weights = model.decoder(
        model.target_embedding(ops.convert_to_tensor(target)),
        annotations,
        annotations_mask=mask,
        initial_state=cell_state,
        return_attention_scores=True,
    )
    shape = (-1, beams, steps)
    weights = ops.convert_to_numpy(weights).reshape(*shape, source.shape[1])
    return log_softmax(logits).reshape(*shape, TARGET_VOCABULARY), weights


def model_of(encoder, attention=None, **arguments):
    decoder = AttentiveDecoder(keras.layers.GRUCell(4), attention or BahdanauAttention(3))
    return Seq2Seq(*VOCABULARIES, 5, encoder=encoder, decoder=decoder, **arguments)
