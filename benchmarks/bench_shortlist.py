"""Search time with a vocabulary shortlist and without it, on the exported graph of one model.

256 units, beam 5, all 30 steps, random weights, sources of 16 tokens. A batch is searched among
2,048 of 8,000 ids and among 4,096 of 30,000. The two graphs alternate in one process; the table has
the best time of each and the median ratio of the pairs.
"""

import functools
import statistics
import tempfile
from pathlib import Path

import numpy as np
from benchmark_model import BEAM, LENGTH, STEPS, make_model
from timing import benchmark_parser, interleaved_seconds

from keras_bahdanau import BeamSearch
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export import export
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.ids import EOS

SIZES = {8000: 2048, 30000: 4096}
BATCHES = (1, 8, 32)
ROUNDS = 15


def make_tied_model(vocabulary):
    """Return a model with tied embeddings whose hypotheses never end and never tie."""
    model = make_model(vocabulary, tie_embeddings=True)
    model.build()
    embeddings = model.target_embedding.embeddings
    values = np.random.default_rng(0).normal(0, 0.3, embeddings.shape)
    values[EOS] = 0  # the end is never likely
    embeddings.assign(values)
    return model


def main():
    arguments = benchmark_parser(__doc__, ROUNDS).parse_args()
    rng = np.random.default_rng(0)
    print("| V | ids | batch | all ids, best ms | shortlist, best ms | times (range) |")
    print("|---|---|---|---|---|---|")
    for vocabulary, size in SIZES.items():
        model = make_tied_model(vocabulary)
        table = rng.integers(4, vocabulary, (vocabulary, 50))
        shares = np.full(table.shape, 0.02)
        shortlists = {
            "all": None,
            "shortlist": Shortlist(table, shares, np.arange(vocabulary)[::-1], size),
        }
        with tempfile.TemporaryDirectory() as folder:
            translators = {}
            for name, shortlist in shortlists.items():
                path = Path(folder, name)
                export(model, path, search=BeamSearch(BEAM), max_length=STEPS, shortlist=shortlist)
                translators[name] = Translator(path)
            for batch in BATCHES:
                source = rng.integers(4, vocabulary, (batch, LENGTH)).astype("int32")
                calls = {
                    name: functools.partial(translator.translate_ids, source)
                    for name, translator in translators.items()
                }
                seconds = interleaved_seconds(calls, arguments.rounds)
                best = {name: 1e3 * min(times) for name, times in seconds.items()}
                ratios = sorted(
                    full / short
                    for full, short in zip(seconds["all"], seconds["shortlist"], strict=True)
                )
                print(
                    f"| {vocabulary:,} | {size:,} | {batch} | {best['all']:.1f} | "
                    f"{best['shortlist']:.1f} | "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
