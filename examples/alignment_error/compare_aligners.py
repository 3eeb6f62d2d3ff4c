"""Alignment error rates of attention weights, compared with IBM models and fast_align.

    python -m examples.alignment_error.compare_aligners

The text is a synthetic language pair with known links. All aligners are trained on the same pairs
and evaluated on others: IBM model 1 and fast_align's model 2 in both directions and symmetrized,
and models of this package. A model links each target word to the source word of its largest
attention weight under forced decoding (`model.score`). The guided model is also trained on the
links that fast_align assigns to the training text. No aligner is trained on gold links.
"""

import sys
import time
from typing import NamedTuple

import keras

from examples.alignment_error.ibm_models import Aligner, grow_diag, transpose_links
from examples.alignment_error.synthetic_language import Language
from examples.common import parse_options
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
from keras_bahdanau_runtime.pictures.style import GRAY, saved_figure

FIRST_WORD = EOS + 1  # the ids below are padding, unknown, start and end


class Size(NamedTuple):
    """Numbers of training and evaluation pairs, and model settings."""

    training: int = 8000
    evaluation: int = 1000
    units: int = 64
    epochs: int = 3
    batch_size: int = 32
    bucket: int = 12


QUICK = Size(training=128, evaluation=50, units=8, epochs=1, bucket=32)
# Name in the table, `query_state` of the decoder, whether the model is guided.
MODELS = [
    ("attention, previous state", "previous", False),
    ("attention, current state", "current", False),
    ("attention, current state, guided", "current", True),
]


class Errors(NamedTuple):
    """Fractions in [0, 1] over a whole text."""

    aer: float
    precision: float
    recall: float


def alignment_errors(links, gold):
    """Return the alignment error rate of Och and Ney (2003, Eq. 21), where all gold links are sure.

        AER = 1 - (|A n S| + |A n P|) / (|A| + |S|),  S = P:   1 - 2 |A n S| / (|A| + |S|)

    Args:
        links: A set of links per pair.
        gold: The gold links, in the same form.

    Returns:
        `Errors`.
    """
    correct = sum(len(a & s) for a, s in zip(links, gold, strict=True))
    a, s = sum(map(len, links)), sum(map(len, gold))
    return Errors(1 - 2 * correct / (a + s), correct / max(a, 1), correct / max(s, 1))


def ibm_links(diagonal, training, texts):
    """Train IBM model 1, or fast_align with `diagonal`, and return its links.

    Args:
        diagonal: See `Aligner`.
        training: Training pairs.
        texts: Lists of pairs to align.

    Returns:
        For each text, a dict of lists of link sets: "source to target", with at most one source
        word per target word, "target to source", "intersection" and "grow-diag".
    """
    forward = Aligner(diagonal).fit(training)
    backward = Aligner(diagonal).fit([_swapped(pair) for pair in training])
    results = []
    for pairs in texts:
        forward_links = forward.align(pairs)
        swapped = [_swapped(pair) for pair in pairs]
        backward_links = [transpose_links(links) for links in backward.align(swapped)]
        both = list(zip(forward_links, backward_links, strict=True))
        results.append(
            {
                "source to target": forward_links,
                "target to source": backward_links,
                "intersection": [a & b for a, b in both],
                "grow-diag": [grow_diag(a, b) for a, b in both],
            }
        )
    return results


def _swapped(pair):
    return pair.target, pair.source


def token_ids(pairs):
    """Return source and target ids with end tokens, two lists of lists. A token is a word."""
    return [
        [[FIRST_WORD + word for word in pair[side]] + [EOS] for pair in pairs] for side in (0, 1)
    ]


def build(language, units, query_state):
    """Return a model whose attention query is the previous or the current decoder state.

    The previous state, s_{i-1}, is the query of the paper; it has not read the previous word yet.
    The current state, s_i, is the query of Luong et al. (2015); it has.
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
            query_state=query_state,
        ),
    )


def train(model, pairs, size, guide=None):
    """Train a model on pairs, optionally guided by a set of links per pair."""
    alignments = None if guide is None else [sorted(links) for links in guide]
    dataset = TranslationDataset(
        *token_ids(pairs), size.batch_size, bucket=size.bucket, alignments=alignments
    )
    rate = keras.optimizers.schedules.CosineDecay(5e-3, size.epochs * len(dataset))
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=1.0)
    model.compile(optimizer=optimizer, loss=TokenCrossentropy())
    model.fit(dataset, epochs=size.epochs, verbose=0)
    return model


def attention_weights(model, pairs, batch_size=250):
    """Return weights `(target words, source words + 1)` per pair; the last column is the end."""
    all_weights = []
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        weights = model.score(*token_ids(batch)).alignments
        all_weights += [
            rows[: len(pair.target), : len(pair.source) + 1]
            for rows, pair in zip(weights, batch, strict=True)
        ]
    return all_weights


def attention_links(weights):
    """Return a set of links per pair. A largest weight on the end token gives no link."""
    return [{(j, i) for j, i in hard_alignment(rows) if j < rows.shape[1] - 1} for rows in weights]


def draw_figure(path, table, language, pair, weights, title):
    """Draw the error rates as bars, and one alignment with its gold links as circles."""
    names = list(table)
    rates = [100 * errors.aer for errors in table.values()]
    colors = [GRAY if "attention" not in name else "C0" for name in names]
    words = [*(language.source_words[word] for word in pair.source), "(end)"]
    with saved_figure(path, 11, 5.5) as figure:
        bars, grid = figure.subplots(1, 2)
        bars.bar_label(bars.barh(names, rates, color=colors), fmt="%.1f", padding=3)
        bars.invert_yaxis()
        bars.set_xlabel("alignment error rate, %")
        bars.grid(axis="y", visible=False)
        grid.imshow(weights, vmin=0.0, vmax=1.0, aspect="auto")
        grid.set_xticks(range(len(words)), words, rotation=60, ha="right")
        grid.set_yticks(range(len(pair.target)), [language.target_words[w] for w in pair.target])
        grid.scatter(*zip(*pair.links, strict=True), s=140, facecolors="none", edgecolors="C1")
        grid.set_title(f"{title}; circles: gold links")
        grid.grid(False)


def compare(size, seed, validation=False):
    """Train and evaluate all aligners.

    Args:
        size: A `Size`.
        seed: Seed of the language, its text and the initial weights.
        validation: Whether to evaluate on validation pairs instead of test pairs.

    Returns:
        `(table, language, pairs, weights)`: a dict of `Errors` by name, the `Language`, the
        evaluation pairs, and the attention weights of the last model for these.
    """
    language = Language(seed)
    training, *unseen = (
        [language.pair() for _ in range(count)]
        for count in (size.training, size.evaluation, size.evaluation)
    )
    evaluation = unseen[0] if validation else unseen[1]
    gold = [pair.links for pair in evaluation]
    table = {}

    def report(name, links, started):
        table[name] = errors = alignment_errors(links, gold)
        columns = "".join(f"{100 * fraction:10.1f}" for fraction in errors)
        print(f"{name:44}{columns}{time.process_time() - started:8.0f}", flush=True)

    print(f"{'':44}{'AER %':>10}{'precision':>10}{'recall':>10}{'CPU s':>8}")
    for name, diagonal in [("IBM model 1", False), ("fast_align", True)]:
        started = time.process_time()
        guides, results = ibm_links(diagonal, training, [training, evaluation])
        for direction, links in results.items():
            report(f"{name}, {direction}", links, started)
    guide = guides["source to target"]
    for name, query_state, guided in MODELS:
        started = time.process_time()
        keras.utils.set_random_seed(seed)
        model = build(language, size.units, query_state)
        train(model, training, size, guide if guided else None)
        weights = attention_weights(model, evaluation)
        report(name, attention_links(weights), started)
    return table, language, evaluation, weights


def main(arguments=None):
    """Run all aligners, draw their errors and one alignment, and return the table."""
    args = parse_options("alignment_error", __doc__, arguments, exports=False)
    size = QUICK if args.quick else Size()
    table, language, pairs, weights = compare(size, args.seed, args.validation)
    # The first pair whose source length is closest to 10 words, so the picture is not hand-picked.
    index = min(range(len(pairs)), key=lambda i: abs(len(pairs[i].source) - 10))
    picture = args.output / "alignment_error.png"
    draw_figure(picture, table, language, pairs[index], weights[index], list(table)[-1])
    print(f"Wrote {picture}")
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
