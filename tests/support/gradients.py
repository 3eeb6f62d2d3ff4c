"""Gradients of a layer by the automatic differentiation of the active backend."""

import keras
import numpy as np
from keras import ops, tree


def differentiate(layer, **arguments):
    """Return a function that runs the forward and the backward pass of a built layer.

    Args:
        layer: A built layer, called as `layer(*arrays, **arguments)`.
        **arguments: Keyword arguments of that call.

    Returns:
        A function `arrays -> (outputs, gradients)`, all in NumPy. The gradients are those of the
        sum of squared outputs: one for each array, then one for each trainable weight, zeros
        where the outputs do not depend on it.
    """
    backend = _BACKENDS[keras.backend.backend()](layer, arguments)

    def run(*arrays):
        tensors = [ops.convert_to_tensor(array) for array in arrays]
        outputs, derivatives = backend(tensors)
        gradients = [
            np.zeros(tuple(x.shape), "float32") if part is None else ops.convert_to_numpy(part)
            for part, x in zip(derivatives, tensors + layer.trainable_variables, strict=True)
        ]
        return tree.map_structure(ops.convert_to_numpy, outputs), gradients

    return run


def assert_slopes(loss, points, gradients, rng, directions=1):
    """Compare gradients with central differences of a loss, along random directions.

    Args:
        loss: A function from the list `points` to a float.
        points: float64 arrays.
        gradients: The gradients to check, one array per point.
        rng: A NumPy generator.
        directions: Number of directions per array.
    """
    for at, gradient in enumerate(gradients):
        for _ in range(directions):
            direction = rng.normal(size=points[at].shape)
            direction /= np.sqrt((direction**2).sum())
            up, down = (
                loss([p + sign * 1e-5 * direction if i == at else p for i, p in enumerate(points)])
                for sign in (1, -1)
            )
            slope = (gradient * direction).sum()
            np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-4, atol=1e-4)


def _loss(outputs):
    return sum(ops.sum(ops.square(ops.cast(part, "float32"))) for part in tree.flatten(outputs))


def _tensorflow(layer, arguments):
    import tensorflow as tf

    def run(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = layer(*tensors, **arguments)
            loss = _loss(outputs)
        weights = [variable.value for variable in layer.trainable_variables]
        return outputs, tape.gradient(loss, tensors + weights)

    return run


def _jax(layer, arguments):
    import jax

    fixed = [variable.value for variable in layer.non_trainable_variables]

    def loss(tensors, weights):
        outputs, _ = layer.stateless_call(weights, fixed, *tensors, **arguments)
        return _loss(outputs), outputs

    # Several calls with the same shapes are compiled once.
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))

    def run(tensors):
        weights = [variable.value for variable in layer.trainable_variables]
        (of_tensors, of_weights), outputs = compiled(tensors, weights)
        return outputs, of_tensors + of_weights

    return run


def _torch(layer, arguments):
    def run(tensors):
        for tensor in tensors:
            tensor.requires_grad_()
        layer.zero_grad()
        outputs = layer(*tensors, **arguments)
        _loss(outputs).backward()
        weights = [variable.value for variable in layer.trainable_variables]
        return outputs, [tensor.grad for tensor in tensors + weights]

    return run


_BACKENDS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
