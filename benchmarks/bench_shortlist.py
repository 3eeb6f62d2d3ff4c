"""What a vocabulary shortlist saves: the same model's graph with it and without, in turns.

256 units, beam 5, 30 steps, all of which are run, random weights; sources of 16 tokens. A batch is
searched among 2,048 of 8,000 ids, and among 4,096 of 30,000. Medians of the ratios of pairs, and
the best time of each.
"""

import statistics
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from keras_bahdanau import BeamSearch, RNNSearch
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export import export
from keras_bahdanau_runtime import Translator

UNITS, BEAM, STEPS, LENGTH = 256, 5, 30, 16
SIZES = {8000: 2048, 30000: 4096}
BATCHES = (1, 8, 32)
PAIRS = 15


def model(vocabulary):
    """A model whose hypotheses never end and never tie."""
    keras.utils.set_random_seed(0)
    found = RNNSearch(
        vocabulary, vocabulary, units=UNITS, embedding_dim=UNITS, attention_units=UNITS,
        maxout_units=UNITS, reset_after=True, initializer=None, tie_embeddings=True,
    )  # fmt: skip
    found.build()
    embeddings = found.target_embedding.embeddings
    drawn = np.random.default_rng(0).normal(0, 0.3, embeddings.shape)
    drawn[3] = 0  # the end is never likely
    embeddings.assign(drawn)
    return found


def seconds(translator, source):
    began = time.perf_counter()
    translator.translate_ids(source)
    return time.perf_counter() - began


def main():
    rng = np.random.default_rng(0)
    print("| V | ids | batch | all ids, best ms | shortlist, best ms | times (range) |")
    print("|---|---|---|---|---|---|")
    for vocabulary, size in SIZES.items():
        made = model(vocabulary)
        table = rng.integers(4, vocabulary, (vocabulary, 50))
        shares = np.full(table.shape, 0.02)
        few = Shortlist(table, shares, np.arange(vocabulary)[::-1], size)
        with tempfile.TemporaryDirectory() as folder:
            both = []
            for name, shortlist in (("all", None), ("few", few)):
                path = Path(folder, name)
                export(made, path, search=BeamSearch(BEAM), max_length=STEPS, shortlist=shortlist)
                both.append(Translator(path))
            for batch in BATCHES:
                source = rng.integers(4, vocabulary, (batch, LENGTH)).astype("int32")
                for translator in both:
                    seconds(translator, source)
                pairs = [[seconds(each, source) for each in both] for _ in range(PAIRS)]
                best = [1e3 * min(times) for times in zip(*pairs, strict=True)]
                ratios = sorted(full / reduced for full, reduced in pairs)
                print(
                    f"| {vocabulary:,} | {size:,} | {batch} | {best[0]:.1f} | {best[1]:.1f} | "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
