"""Many queries of additive attention against `keras.layers.AdditiveAttention`: time and memory.

`BahdanauAttention` and Keras's layer fed through two Dense projections do the same work, forwards
and backwards, each in a process of its own on every backend; rounds are interleaved. Memory is the
peak of the process above what it held before the first call, compilation included.
"""

import os
import resource
import statistics
import time

from processes import in_turns, result

BACKENDS = ("tensorflow", "jax", "torch")
LAYERS = ("keras", "keras_bahdanau")
BATCH, LENGTH, UNITS = 4, 384, 256
ROUNDS, CALLS = 3, 5


def make_layer(name):
    """A layer called as `layer(query, value)`, both `(BATCH, LENGTH, UNITS)`."""
    import keras

    from keras_bahdanau import BahdanauAttention

    class Projected(keras.layers.Layer):
        """Keras's layer, which has no projections of its own, with two."""

        def build(self, query_shape, value_shape):
            self.query = keras.layers.Dense(UNITS, use_bias=False)
            self.key = keras.layers.Dense(UNITS, use_bias=False)
            self.attention = keras.layers.AdditiveAttention()
            self.query.build(query_shape)
            self.key.build(value_shape)
            self.attention.build([query_shape, value_shape, value_shape])

        def call(self, query, value):
            return self.attention([self.query(query), value, self.key(value)])

    layer = BahdanauAttention(UNITS) if name == "keras_bahdanau" else Projected()
    layer.build((BATCH, LENGTH, UNITS), (BATCH, LENGTH, UNITS))
    return layer


def make_gradients(layer, query, value):
    """A function of no arguments: the layer forwards and backwards, in this process's backend."""
    import keras
    from keras import ops

    weights = [variable.value for variable in layer.trainable_variables]
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def gradients():
            with tf.GradientTape() as tape:
                tape.watch([query, value])
                loss = tf.reduce_sum(tf.square(layer(query, value)))
            return tape.gradient(loss, [query, value, *weights])

        return lambda: [part.numpy() for part in gradients()]
    if keras.config.backend() == "jax":
        import jax

        def loss(query, value, weights):
            return ops.sum(ops.square(layer.stateless_call(weights, [], query, value)[0]))

        gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        return lambda: jax.block_until_ready(gradients(query, value, weights))

    def gradients():
        layer.zero_grad()
        loss = ops.sum(ops.square(layer(query.requires_grad_(), value.requires_grad_())))
        loss.backward()

    return gradients


def measure(name):
    """Median seconds of a call forwards and backwards, and the peak of memory in bytes."""
    import keras
    import numpy as np
    from keras import ops

    keras.utils.set_random_seed(0)
    layer = make_layer(name)
    rng = np.random.default_rng(0)
    query, value = (
        ops.convert_to_tensor(rng.normal(size=(BATCH, LENGTH, UNITS)).astype("float32"))
        for _ in range(2)
    )
    gradients = make_gradients(layer, query, value)
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[1]) * resource.getpagesize()
    gradients()
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        gradients()
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(seconds), "bytes": peak - held}


def main():
    """Runs every layer on every backend in turn, round after round, and prints the table."""
    cases = [(backend, layer) for backend in BACKENDS for layer in LAYERS]
    found = in_turns(__file__, cases, ROUNDS)
    print(f"{os.cpu_count()} cores, B={BATCH}, Tq=Tx={LENGTH}, U={UNITS}, forwards and backwards")
    print("backend      layer               ms   MB above start   time and memory against Keras's")
    for backend, layer in cases:
        mine, theirs = found[backend, layer], found[backend, "keras"]
        print(
            f"{backend:12} {layer:15} {mine['seconds'] * 1e3:6.0f}   {mine['bytes'] / 1e6:14.0f}   "
            f"{mine['seconds'] / theirs['seconds']:.2f}x  {mine['bytes'] / theirs['bytes']:.3f}x"
        )


if __name__ == "__main__":
    result(measure) or main()
