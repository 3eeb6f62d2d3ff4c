"""A search as a layer: from annotations, of whatever encoder, to the words found."""

import keras
from keras import ops

from keras_bahdanau import BeamSearch

BOS = 2


@keras.saving.register_keras_serializable(package="examples")
class Decode(keras.layers.Layer):
    """Searches for the best output of an `AttentiveDecoder`.

    Args:
        decoder: The decoder.
        embedding: From the token before to the decoder's input.
        head: From the decoder's output to logits.
        search: The search; `BeamSearch()` if `None`.
        max_length: Number of tokens `T` after which an output is cut.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        annotations: `(B, Tx, D)` float tensor.

    Returns:
        Tokens `(B, T)` int32 and weights `(B, T, Tx)`.
    """

    def __init__(self, decoder, embedding, head, search=None, max_length=100, **kwargs):
        super().__init__(**kwargs)
        self.decoder = decoder
        self.embedding = embedding
        self.head = head
        self.search = BeamSearch() if search is None else search
        self.max_length = max_length

    def build(self, annotations_shape):
        inputs = (annotations_shape[0], self.max_length, self.embedding.output_dim)
        if not self.decoder.built:
            self.embedding.build()
            self.decoder.build(inputs, annotations_shape)
            self.head.build(self.decoder.compute_output_shape(inputs, annotations_shape))

    def call(self, annotations):
        memory = self.decoder.memory(annotations)

        def step(tokens, state):
            output, state, weights = self.decoder.step(self.embedding(tokens), state, memory)
            return self.head(output), state, weights

        start = ops.full((ops.shape(annotations)[0],), BOS, dtype="int32")
        found = self.search(
            step,
            self.decoder.initial_state(memory),
            start,
            ops.shape(annotations)[1],
            self.max_length,
        )
        return found.tokens[:, 0], found.alignments[:, 0]

    def compute_output_spec(self, annotations):
        batch, places, _ = annotations.shape
        return (
            keras.KerasTensor((batch, None), "int32"),
            keras.KerasTensor((batch, None, places), "float32"),
        )

    def get_config(self):
        parts = {name: getattr(self, name) for name in ("decoder", "embedding", "head", "search")}
        parts = {name: keras.saving.serialize_keras_object(part) for name, part in parts.items()}
        return {**super().get_config(), **parts, "max_length": self.max_length}

    @classmethod
    def from_config(cls, config):
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("decoder", "embedding", "head", "search")
        }
        return cls(**{**config, **parts})
