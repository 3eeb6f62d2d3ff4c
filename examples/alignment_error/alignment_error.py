"""How well attention aligns words, measured: alignment error rates beside those of IBM models.

    python -m examples.alignment_error.alignment_error

The text is a made-up language pair with known links. Everything learns from the same pairs and is
measured on further ones: IBM model 1 and fast_align's model 2 in both directions and joined; models
of this package, trained with `fit`, by the largest attention weight of each word when the decoder
is forced to write the given target (`model.score`). Guided ones also learned from the links that
fast_align found in the training text. No model has seen a gold link.
"""

import sys
import time
from typing import NamedTuple

import keras

from examples.alignment_error.ibm import Aligner, grow_diag, turned
from examples.alignment_error.language import Language
from examples.common import options
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DeepOutput,
    Seq2Seq,
    TokenCrossentropy,
    TranslationDataset,
)
from keras_bahdanau.text import hard_alignment
from keras_bahdanau_runtime.ids import EOS

FIRST_WORD = EOS + 1  # ids below are padding, unknown, start and end


class Size(NamedTuple):
    """How much is trained: pairs to learn from and to measure on, and the models' settings."""

    training: int = 8000
    measured: int = 1000
    units: int = 64
    epochs: int = 3
    batch_size: int = 32
    bucket: int = 12


QUICK = Size(training=128, measured=50, units=8, epochs=1, bucket=32)
# Name in the table, which state asks where to look, whether the model is guided.
MODELS = [
    ("attention, previous state", "previous", False),
    ("attention, current state", "current", False),
    ("attention, current state, guided", "current", True),
]


class Errors(NamedTuple):
    """Shares in [0, 1] over a whole text."""

    aer: float
    precision: float
    recall: float


def alignment_errors(found, gold):
    """Och and Ney's alignment error rate (2003, Eq. 21) where every gold link is a sure one.

        AER = 1 - (|A n S| + |A n P|) / (|A| + |S|),  S = P:   1 - 2 |A n S| / (|A| + |S|)

    Args:
        found: A set of links for each pair.
        gold: Likewise.

    Returns:
        `Errors`.
    """
    right = sum(len(a & s) for a, s in zip(found, gold, strict=True))
    a, s = sum(map(len, found)), sum(map(len, gold))
    return Errors(1 - 2 * right / (a + s), right / max(a, 1), right / max(s, 1))


def ibm_links(diagonal, training, texts):
    """Links of IBM model 1, or with `diagonal` of fast_align's, trained on one text.

    Args:
        diagonal: See `Aligner`.
        training: Pairs to learn from.
        texts: Lists of pairs to align.

    Returns:
        For each text a dict of the link sets of each pair: "source to target", which gives each
        target word at most one source word, "target to source", "intersection", "grow-diag".
    """
    forward = Aligner(diagonal).fit(training)
    backward = Aligner(diagonal).fit([_swapped(pair) for pair in training])
    found = []
    for pairs in texts:
        there = forward.align(pairs)
        back = [turned(links) for links in backward.align([_swapped(pair) for pair in pairs])]
        both = list(zip(there, back, strict=True))
        found.append(
            {
                "source to target": there,
                "target to source": back,
                "intersection": [a & b for a, b in both],
                "grow-diag": [grow_diag(a, b) for a, b in both],
            }
        )
    return found


def _swapped(pair):
    return pair.target, pair.source


def token_ids(pairs):
    """Source and target ids with the end at the end: two lists of lists. A token is a word."""
    return [
        [[FIRST_WORD + word for word in pair[side]] + [EOS] for pair in pairs] for side in (0, 1)
    ]


def build(language, units, query):
    """A model that differs from the others in which state asks where to look, and in nothing else.

    The previous state, s_{i-1}, which asks in the paper, has not yet read the word before; the
    current one, s_i, which asks in Luong et al. (2015), has.
    """
    return Seq2Seq(
        FIRST_WORD + len(language.source_words),
        FIRST_WORD + len(language.target_words),
        embedding_dim=units,
        encoder=BidirectionalEncoder(units),
        decoder=AttentiveDecoder(
            keras.layers.GRUCell(units),
            BahdanauAttention(units, use_bias=True),
            readout=DeepOutput(units),
            query=query,
        ),
    )


def trained(model, pairs, size, guide=None):
    """The model, trained on pairs and, if given, guided by a set of links for each."""
    alignments = None if guide is None else [sorted(links) for links in guide]
    dataset = TranslationDataset(
        *token_ids(pairs), size.batch_size, bucket=size.bucket, alignments=alignments
    )
    rate = keras.optimizers.schedules.CosineDecay(5e-3, size.epochs * len(dataset))
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=1.0)
    model.compile(optimizer=optimizer, loss=TokenCrossentropy())
    model.fit(dataset, epochs=size.epochs, shuffle=False, verbose=0)
    return model


def attention(model, pairs, batch_size=250):
    """The weights `(target words, source words + 1)` of each pair, the end of the source last."""
    found = []
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        weights = model.score(*token_ids(batch)).alignments
        found += [
            rows[: len(pair.target), : len(pair.source) + 1]
            for rows, pair in zip(weights, batch, strict=True)
        ]
    return found


def attention_links(weights):
    """A set of links for each pair; a word whose largest weight is at the end gets none."""
    return [{(j, i) for j, i in hard_alignment(rows) if j < rows.shape[1] - 1} for rows in weights]


def draw(path, table, language, pair, weights, title):
    """Draws the error rates as bars, and one alignment with its gold links as circles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.5), dpi=120, layout="constrained")
    bars, grid = figure.subplots(1, 2)
    names = list(table)
    rates = [100 * errors.aer for errors in table.values()]
    colours = ["0.7" if "attention" not in name else "C0" for name in names]
    bars.bar_label(bars.barh(names, rates, color=colours), fmt="%.1f", padding=3)
    bars.invert_yaxis()
    bars.set_xlabel("alignment error rate, %")
    bars.spines[["top", "right"]].set_visible(False)
    grid.imshow(weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    words = [*(language.source_words[word] for word in pair.source), "(end)"]
    grid.set_xticks(range(len(words)), words, rotation=60, ha="right")
    grid.set_yticks(range(len(pair.target)), [language.target_words[w] for w in pair.target])
    grid.scatter(*zip(*pair.links, strict=True), s=140, facecolors="none", edgecolors="C3")
    grid.set_title(f"{title}; circles: gold links", fontsize=10)
    figure.savefig(path)


def compare(size, seed, validation=False):
    """Runs all aligners.

    Args:
        size: A `Size`.
        seed: Of the language, its text and the models' first weights.
        validation: Whether to measure on other pairs than those of the test.

    Returns:
        `(table, language, pairs, weights)`: a dict from a name to `Errors`, the `Language`, the
        measured pairs, and the attention weights of the last model for each of these.
    """
    language = Language(seed)
    training, *unseen = (
        [language.pair() for _ in range(count)]
        for count in (size.training, size.measured, size.measured)
    )
    measured = unseen[0] if validation else unseen[1]
    gold = [pair.links for pair in measured]
    table = {}

    def report(name, links, started):
        table[name] = errors = alignment_errors(links, gold)
        shown = "".join(f"{100 * share:10.1f}" for share in errors)
        print(f"{name:44}{shown}{time.process_time() - started:8.0f}", flush=True)

    print(f"{'':44}{'AER %':>10}{'precision':>10}{'recall':>10}{'CPU s':>8}")
    for name, diagonal in [("IBM model 1", False), ("fast_align", True)]:
        started = time.process_time()
        guides, found = ibm_links(diagonal, training, [training, measured])
        for way, links in found.items():
            report(f"{name}, {way}", links, started)
    guide = guides["source to target"]
    for name, query, guided in MODELS:
        started = time.process_time()
        keras.utils.set_random_seed(seed)
        model = build(language, size.units, query)
        trained(model, training, size, guide if guided else None)
        weights = attention(model, measured)
        report(name, attention_links(weights), started)
    return table, language, measured, weights


def main(arguments=None):
    """Runs all aligners, draws their errors and one alignment; returns the table."""
    args = options("alignment_error", __doc__, arguments, exports=False)
    size = QUICK if args.quick else Size()
    table, language, pairs, weights = compare(size, args.seed, args.validation)
    # The first of 10 words, or of as near to them as there are: so the choice is no choice.
    shown = min(range(len(pairs)), key=lambda place: abs(len(pairs[place].source) - 10))
    picture = args.output / "alignment_error.png"
    draw(picture, table, language, pairs[shown], weights[shown], list(table)[-1])
    print(f"Drawn in {picture}")
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
