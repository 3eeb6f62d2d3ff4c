"""Translating whole texts with a Keras model."""

import numpy as np

from keras_bahdanau.search import GreedySearch
from keras_bahdanau_runtime.ids import PAD
from keras_bahdanau_runtime.text.batches import length_sorted_batches, pad


def translate(model, tokenizer, texts, search=None, max_length=100, batch_size=64):
    """Translates sentences with a Keras model, in batches of like length.

    Args:
        model: A `Seq2Seq`.
        tokenizer: The `Tokenizer` it was trained with.
        texts: Sequence of `str`; a blank one gives an empty translation.
        search: A `BeamSearch` or `GreedySearch`; `GreedySearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        batch_size: Sentences searched at once.

    Returns:
        A list with the best translation of each text, in the order of `texts`.
    """
    search = GreedySearch() if search is None else search
    translations = [""] * len(texts)
    filled = [i for i, text in enumerate(texts) if text.strip()]
    encoded = [tokenizer.encode_source(texts[i]) for i in filled]
    for batch in length_sorted_batches([len(ids) for ids in encoded], batch_size):
        source = pad([encoded[i] for i in batch])
        # A short last batch repeats its first row, so that no new shape is compiled for it.
        missing = batch_size - len(batch) if len(encoded) > batch_size else 0
        source = np.concatenate([source, np.repeat(source[:1], missing, axis=0)])
        found = model.generate(source, search=search, max_length=max_length)
        for i, tokens in zip(batch, found.tokens[:, 0], strict=False):
            translations[filled[i]] = tokenizer.decode([int(t) for t in tokens if t != PAD])
    return translations
