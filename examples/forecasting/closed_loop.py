"""A decoder that reads its own outputs, as a layer: training, export and forecast are one call."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="examples")
class ClosedLoop(keras.layers.Layer):
    """Runs an `AttentiveDecoder` for a number of steps, each of which reads the output before it.

    Args:
        decoder: The decoder; its outputs are as wide as its inputs.
        steps: Number of steps `T`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        first: `(B, M)` float tensor, what the first step reads.
        annotations: `(B, Tx, D)` float tensor.
        initial_state: List of the cell's first state tensors, `(B, size)` each.

    Returns:
        Outputs `(B, T, M)` and weights `(B, T, Tx)`.
    """

    def __init__(self, decoder, steps, **kwargs):
        super().__init__(**kwargs)
        self.decoder = decoder
        self.steps = steps

    def build(self, first_shape, annotations_shape, initial_state_shape):
        self.decoder.build((first_shape[0], self.steps, first_shape[-1]), annotations_shape)

    def call(self, first, annotations, initial_state):
        inputs = ops.repeat(ops.expand_dims(first, 1), self.steps, axis=1)

        def feedback(t, x, output):
            return ops.where(ops.equal(t, 0), x, output)

        return self.decoder(
            inputs,
            annotations,
            initial_state=initial_state,
            feedback=feedback,
            return_attention_scores=True,
        )

    def get_config(self):
        decoder = keras.saving.serialize_keras_object(self.decoder)
        return {**super().get_config(), "decoder": decoder, "steps": self.steps}

    @classmethod
    def from_config(cls, config):
        decoder = keras.saving.deserialize_keras_object(config["decoder"])
        return cls(**{**config, "decoder": decoder})
