"""The RNNsearch and its sources, shared by the benchmarks of training, search and export.

Keras is imported only inside the functions, so that a process can choose its backend first.
"""

UNITS, VOCABULARY, BEAM, STEPS, LENGTH = 256, 8000, 5, 30, 16
EOS_BIAS = -1e4  # no hypothesis ends before the last step, so every run does the same work


def make_model(vocabulary=VOCABULARY, **options):
    """Return an RNNsearch with random weights, all widths `UNITS`, not built yet."""
    import keras

    from keras_bahdanau import RNNSearch

    keras.utils.set_random_seed(0)
    return RNNSearch(
        vocabulary,
        vocabulary,
        units=UNITS,
        embedding_dim=UNITS,
        attention_units=UNITS,
        maxout_units=UNITS,
        reset_after=True,
        initializer=None,
        **options,
    )


def make_endless_model():
    """Return a built model that never predicts the end of a sentence."""
    import numpy as np

    from keras_bahdanau_runtime.ids import EOS

    model = make_model()
    model.build()
    model.output_layer.bias.assign(np.where(np.arange(VOCABULARY) == EOS, EOS_BIAS, 0.0))
    return model


def make_tokenizer():
    """Return a tokenizer with `VOCABULARY` pieces of random words."""
    import random

    from keras_bahdanau import Tokenizer

    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrst", k=8)) for _ in range(20_000)]
    return Tokenizer.train(words, words, vocabulary_size=VOCABULARY)


def random_source(batch):
    """Return random source ids, `(batch, LENGTH)` int32, the same ones at every call."""
    import numpy as np

    return np.random.default_rng(0).integers(4, VOCABULARY, (batch, LENGTH)).astype("int32")
