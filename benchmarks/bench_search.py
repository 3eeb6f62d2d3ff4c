"""Speed of the beam search inside a model, on every backend.

Beam 5, 30 steps, a vocabulary of 8,000. No hypothesis ends before the last step, so every run does
the same work. Each backend runs in its own process; rounds are interleaved and medians printed.
"""

import functools
import os

from benchmark_model import BEAM, STEPS, UNITS, VOCABULARY, make_endless_model, random_source
from timing import benchmark_parser, measure_in_processes, median_seconds, medians, run_as_case

BACKENDS = ("tensorflow", "jax", "torch")
BATCHES = (1, 32)
ROUNDS, CALLS = 3, 9


def measure():
    """Median seconds of `generate` for each batch size."""
    from keras_bahdanau import BeamSearch

    model = make_endless_model()
    search = BeamSearch(BEAM)
    figures = {}
    for batch in BATCHES:
        generate = functools.partial(model.generate, random_source(batch), search, max_length=STEPS)
        figures[f"batch {batch}"] = median_seconds(generate, CALLS)
    return figures


def main():
    arguments = benchmark_parser(__doc__, ROUNDS).parse_args()
    cases = [(backend,) for backend in BACKENDS]
    figures = medians(measure_in_processes(__file__, cases, arguments.rounds))
    print(
        f"{os.cpu_count()} cores, {UNITS} units, V={VOCABULARY}, beam {BEAM}, {STEPS} steps: "
        "ms for generate"
    )
    for (backend,), seconds in figures.items():
        columns = "   ".join(f"{name}: {value * 1e3:6.1f}" for name, value in seconds.items())
        print(f"{backend:12} {columns}")


if __name__ == "__main__":
    run_as_case(measure) or main()
