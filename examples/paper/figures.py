"""The paper's Figures 2 and 3, drawn from results."""

import html
import itertools
import logging
import math

from joining import BUCKETS
from matplotlib.figure import Figure
from words import all_known, words_of

from keras_bahdanau import BeamSearch

logger = logging.getLogger("paper")

STYLES = {
    "RNNsearch-50": ("tab:blue", "-"),
    "RNNsearch-30": ("tab:orange", "--"),
    "RNNencdec-50": ("tab:green", "-."),
    "RNNencdec-30": ("tab:red", ":"),
}


def draw_lengths(models, path):
    """Figure 2: BLEU against the source length, a line for each model.

    A bucket without a sentence is a gap in the lines, not a zero.

    Args:
        models: Scores by the name of the model.
        path: The picture to write.

    Returns:
        The matplotlib figure.
    """
    figure = Figure(figsize=(6.4, 4.0), dpi=120)
    axes = figure.add_subplot()
    for name, (color, line) in STYLES.items():
        found = [models[name]["by_length"][bucket.label]["bleu"] for bucket in BUCKETS]
        found = [math.nan if score is None else score for score in found]
        axes.plot(found, color=color, linestyle=line, marker="o", markersize=3, label=name)
    axes.set_xticks(range(len(BUCKETS)), [bucket.label for bucket in BUCKETS])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("words of the source sentence")
    axes.set_ylabel("BLEU")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    return figure


def chosen_for_alignment(pairs, tokenizer, count=4):
    """The first test pairs in the bucket 10-20 that hold no unknown word on either side."""
    fitting = (pair for pair in pairs if pair.length in BUCKETS[1] and all_known(tokenizer, pair))
    return list(itertools.islice(fitting, count))


def draw_alignments(model, pairs, beam, path):
    """Figure 3: source along x, written words along y; black is weight 0 and white is 1.

    Args:
        model: A trained model with a tokenizer.
        pairs: At most four test pairs; of none there is no picture, but a warning in the log.
        beam: Width of the search.
        path: The picture to write.

    Returns:
        The matplotlib figure, or `None`.
    """
    if not pairs:
        logger.warning("No test sentence of 10 to 20 words is without unknown words: no Figure 3.")
        return None
    found = model.translate([pair.source for pair in pairs], search=BeamSearch(beam, 1.0))
    figure = Figure(figsize=(13, 13), dpi=100, layout="constrained")
    for place, translation in enumerate(found):
        axes = figure.add_subplot(2, 2, place + 1)
        axes.imshow(translation.alignment, cmap="gray", vmin=0.0, vmax=1.0)
        columns = [*words_of(translation.source_tokens), "<end>"]
        # A translation that was cut off has no end.
        ends = ["<end>"] * (len(translation.tokens) - len(words_of(translation.tokens)))
        rows = [*words_of(translation.tokens), *ends]
        axes.set_xticks(range(len(columns)), [_plain(word) for word in columns], rotation=90)
        axes.set_yticks(range(len(rows)), [_plain(word) for word in rows])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=9)
    figure.savefig(path)
    return figure


def _plain(word):
    # The tokenised files write an apostrophe as &apos;, and a dollar starts mathematics.
    return html.unescape(word).replace("$", r"\$")
