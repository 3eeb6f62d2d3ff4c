"""Compiles a function of a model's weights for inference, the way each backend wants it."""

import keras


def compile_inference(model, function):
    """Compiles `function(source)` that reads the weights of `model`.

    TensorFlow traces it once for every batch and length; JAX compiles it once for each shape and
    gets the weights as arguments; torch runs it as it is, without gradients.

    Args:
        model: The `keras.Model` whose variables `function` reads.
        function: Takes an int32 `(B, Tx)` tensor, returns a structure of tensors.

    Returns:
        A function of an int32 `(B, Tx)` array.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # Without autograph, which reads source files again while it traces: `keras.ops` needs none.
        return tf.function(
            function,
            input_signature=[tf.TensorSpec((None, None), tf.int32)],
            autograph=False,
        )
    if backend == "jax":
        import jax

        def stateless(values, source):
            with keras.StatelessScope(state_mapping=zip(model.variables, values, strict=True)):
                return function(source)

        compiled = jax.jit(stateless)
        return lambda source: compiled([v.value for v in model.variables], source)
    if backend == "torch":
        import torch

        def without_gradients(source):
            with torch.no_grad():
                return function(keras.ops.convert_to_tensor(source))

        return without_gradients
    raise ValueError(f"Backend {backend!r} is not supported: use tensorflow, jax or torch.")
