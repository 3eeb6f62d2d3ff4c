"""Additive attention with many queries, against `keras.layers.AdditiveAttention`: time and memory.

`BahdanauAttention` and Keras's layer behind two Dense projections do the same work. Each runs
forward and backward in its own process on every backend; rounds are interleaved. Memory is the peak
of the process minus what it used before the first call, so it includes compilation.
"""

import os
import resource

from timing import benchmark_parser, measure_in_processes, median_seconds, medians, run_as_case

BACKENDS = ("tensorflow", "jax", "torch")
LAYERS = ("keras", "keras_bahdanau")
BATCH, LENGTH, UNITS = 4, 384, 256
ROUNDS, CALLS = 3, 5


def make_layer(name):
    """Return a layer called as `layer(query, value)`, both `(BATCH, LENGTH, UNITS)`."""
    import keras

    from keras_bahdanau import BahdanauAttention

    class Projected(keras.layers.Layer):
        """Keras's attention behind the two projections that it lacks."""

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
    """Return a function without arguments that runs the layer forward and backward."""
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

        return lambda: [gradient.numpy() for gradient in gradients()]
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
    """Median seconds of a forward and backward call, and the peak of memory in bytes."""
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
        memory_before = int(file.read().split()[1]) * resource.getpagesize()
    seconds = median_seconds(gradients, CALLS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "bytes": peak - memory_before}


def main():
    arguments = benchmark_parser(__doc__, ROUNDS).parse_args()
    cases = [(backend, layer) for backend in BACKENDS for layer in LAYERS]
    figures = medians(measure_in_processes(__file__, cases, arguments.rounds))
    print(f"{os.cpu_count()} cores, B={BATCH}, Tq=Tx={LENGTH}, U={UNITS}, forward and backward")
    print("backend      layer               ms   MB above start   time and memory against Keras's")
    for backend, layer in cases:
        ours, keras = figures[backend, layer], figures[backend, "keras"]
        print(
            f"{backend:12} {layer:15} {ours['seconds'] * 1e3:6.0f}   {ours['bytes'] / 1e6:14.0f}   "
            f"{ours['seconds'] / keras['seconds']:.2f}x  {ours['bytes'] / keras['bytes']:.3f}x"
        )


if __name__ == "__main__":
    run_as_case(measure) or main()
