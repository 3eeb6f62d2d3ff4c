"""Time of one decoder step against the length of the source, measured and plotted.

A decoder of 32 steps runs over sources of 16 to 2,048 tokens on every backend. The time includes
the projection of the keys and is divided by the number of steps.
"""

import functools
import os

from timing import benchmark_parser, measure_in_processes, median_seconds, medians, run_as_case

BACKENDS = ("tensorflow", "jax", "torch")
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
BATCH, STEPS, UNITS = 4, 32, 256
ROUNDS, CALLS = 3, 7


def measure():
    """Median seconds of a step for each length of the source."""
    import keras
    import numpy as np

    from keras_bahdanau import AttentiveDecoder, BahdanauAttention

    decoder = AttentiveDecoder(keras.layers.GRUCell(UNITS), BahdanauAttention(UNITS))
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(BATCH, STEPS, UNITS)).astype("float32")
    figures = {}
    for length in LENGTHS:
        annotations = rng.normal(size=(BATCH, length, 2 * UNITS)).astype("float32")
        model_inputs = keras.Input(inputs.shape[1:]), keras.Input(annotations.shape[1:])
        model = keras.Model(model_inputs, decoder(*model_inputs))
        model.compile(jit_compile=keras.config.backend() == "jax")
        predict = functools.partial(model.predict_on_batch, [inputs, annotations])
        figures[str(length)] = median_seconds(predict, CALLS, warmup=2) / STEPS
    return figures


def draw(figures, path):
    """Plot the milliseconds of a step over the length of the source, with a fitted line."""
    import numpy as np

    from keras_bahdanau_runtime.pictures.style import saved_figure

    with saved_figure(path, 7, 4.5) as figure:
        axes = figure.add_subplot()
        for number, (backend, seconds) in enumerate(figures.items()):
            milliseconds = np.array([seconds[str(length)] * 1e3 for length in LENGTHS])
            slope, start = np.polyfit(LENGTHS, milliseconds, 1)
            label = f"{backend}: {start:.2f} ms + {slope * 1e3:.2f} µs per token"
            axes.plot(LENGTHS, milliseconds, f"C{number}o")
            axes.plot(LENGTHS, start + slope * np.array(LENGTHS), f"C{number}", label=label)
        axes.set(xlabel="source length Tx", ylabel="ms per decoder step")
        axes.set_title(f"B={BATCH}, units={UNITS}, {os.cpu_count()} cores")
        axes.legend()


def main():
    parser = benchmark_parser(__doc__, ROUNDS)
    parser.add_argument("plot", nargs="?", help="path of the plot, a PNG (default: no plot)")
    arguments = parser.parse_args()
    cases = [(backend,) for backend in BACKENDS]
    figures = medians(measure_in_processes(__file__, cases, arguments.rounds))
    figures = {backend: seconds for (backend,), seconds in figures.items()}
    print(f"{os.cpu_count()} cores, B={BATCH}, {STEPS} steps, {UNITS} units: ms per step")
    print("Tx          " + "".join(f"{length:>8}" for length in LENGTHS))
    for backend, seconds in figures.items():
        print(f"{backend:12}" + "".join(f"{seconds[str(n)] * 1e3:8.2f}" for n in LENGTHS))
    if arguments.plot:
        draw(figures, arguments.plot)


if __name__ == "__main__":
    run_as_case(measure) or main()
