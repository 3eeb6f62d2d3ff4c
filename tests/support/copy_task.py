"""The task that small models learn in the tests: copying the source."""

import keras
import numpy as np

from keras_bahdanau import TokenCrossentropy
from keras_bahdanau_runtime.ids import BOS, EOS
from keras_bahdanau_runtime.text.batches import pad

LETTERS = range(4, 12)  # the ids that occur


def copy_task(rows=48, longest=5, seed=0):
    """Inputs and labels of `rows` sentences of up to `longest` letters."""
    rng = np.random.default_rng(seed)
    sentences = [rng.choice(LETTERS, size=rng.integers(2, longest + 1)) for _ in range(rows)]
    source = pad([[*ids, EOS] for ids in sentences])
    target = pad([[BOS, *ids] for ids in sentences])
    return {"source": source, "target": target}, source.copy()


def compile_to_copy(model):
    """Compile for quick learning, without XLA on TensorFlow, where it takes long to start."""
    model.compile(
        keras.optimizers.Adam(0.02),
        loss=TokenCrossentropy(),
        jit_compile=keras.config.backend() == "jax",
    )
    return model


class Scores(keras.layers.Layer):
    """A minimal model for batches of sentence pairs."""

    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(300, 4)
        self.dense = keras.layers.Dense(300)

    def call(self, inputs):
        context = keras.ops.mean(self.embed(inputs["source"]), axis=1, keepdims=True)
        return self.dense(self.embed(inputs["target"]) + context)
