"""Compiles a function of a model's weights for inference, the way each backend wants it."""

import keras


def compile_inference(model, function):
    """Compiles a function of arrays that reads the weights of `model`.

    TensorFlow traces it once for every shape that arrays of these ranks and dtypes can have; JAX
    compiles it once for each shape and gets the weights as arguments; torch runs it as it is,
    without gradients.

    Args:
        model: The `keras.Model` whose variables `function` reads.
        function: Takes tensors, returns a structure of tensors.

    Returns:
        A function of NumPy arrays.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
        return _for_tensorflow(model, function)
    if backend == "jax":
        import jax

        def stateless(values, *arrays):
            with keras.StatelessScope(state_mapping=zip(model.variables, values, strict=True)):
                return function(*arrays)

        compiled = jax.jit(stateless)
        return lambda *arrays: compiled([v.value for v in model.variables], *arrays)
    if backend == "torch":
        import torch

        def without_gradients(*arrays):
            with torch.no_grad():
                return function(*[keras.ops.convert_to_tensor(array) for array in arrays])

        return without_gradients
    raise ValueError(f"Backend {backend!r} is not supported: use tensorflow, jax or torch.")


def _for_tensorflow(model, function):
    import tensorflow as tf

    traced, held = {}, []

    def run(*arrays):
        variables = model.variables
        if list(map(id, variables)) != list(map(id, held)):  # since then quantized, for example
            traced.clear()
            held[:] = variables
        kinds = tuple((array.ndim, array.dtype.name) for array in arrays)
        if kinds not in traced:
            specs = [tf.TensorSpec([None] * rank, dtype) for rank, dtype in kinds]
            # Without autograph, which reads source files again while it traces: `keras.ops` needs
            # none.
            traced[kinds] = tf.function(function, input_signature=specs, autograph=False)
        return traced[kinds](*arrays)

    return run
