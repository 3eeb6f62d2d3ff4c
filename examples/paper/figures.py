"""Figures 2 and 3 of the paper, drawn from our results."""

import html
import itertools
import logging
import math

from joined_sentences import BUCKETS
from word_tokenizer import has_only_known_words, words_of

from keras_bahdanau import BeamSearch
from keras_bahdanau_runtime.pictures.style import saved_figure

logger = logging.getLogger("paper")

STYLES = {
    "RNNsearch-50": ("C0", "-"),
    "RNNsearch-30": ("C1", "--"),
    "RNNencdec-50": ("C2", "-."),
    "RNNencdec-30": ("C3", ":"),
}


def draw_lengths(models, path):
    """Draw Figure 2: BLEU by source length, one line per model.

    An empty bucket is a gap in the lines.

    Args:
        models: Scores by model name.
        path: The picture to write.

    Returns:
        The matplotlib figure.
    """
    with saved_figure(path, 7, 4.2) as figure:
        axes = figure.add_subplot()
        for name, (color, line) in STYLES.items():
            bleu = [models[name]["by_length"][bucket.label]["bleu"] for bucket in BUCKETS]
            bleu = [math.nan if value is None else value for value in bleu]
            axes.plot(bleu, color=color, linestyle=line, marker="o", markersize=4, label=name)
        axes.set_xticks(range(len(BUCKETS)), [bucket.label for bucket in BUCKETS])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("words of the source sentence")
        axes.set_ylabel("BLEU")
        axes.legend()
    return figure


def select_for_alignment(pairs, tokenizer, count=4):
    """Return the first test pairs in the bucket 10-20 without unknown words."""
    candidates = (
        pair
        for pair in pairs
        if pair.length in BUCKETS[1] and has_only_known_words(tokenizer, pair)
    )
    return list(itertools.islice(candidates, count))


def draw_alignments(model, pairs, beam, path):
    """Draw Figure 3: source words along x, output words along y; black is weight 0, white is 1.

    Args:
        model: A trained model with a tokenizer.
        pairs: At most four test pairs. If empty, log a warning and draw nothing.
        beam: Beam size.
        path: The picture to write.

    Returns:
        The matplotlib figure, or `None`.
    """
    if not pairs:
        logger.warning("No test sentence of 10 to 20 words is without unknown words: no Figure 3.")
        return None
    translations = model.translate([pair.source for pair in pairs], search=BeamSearch(beam, 1.0))
    with saved_figure(path, 10, 10) as figure:
        for index, translation in enumerate(translations):
            axes = figure.add_subplot(2, 2, index + 1)
            axes.imshow(translation.alignment, cmap="gray", vmin=0.0, vmax=1.0)
            columns = [*words_of(translation.source_tokens), "<end>"]
            # A translation that was cut off has no end token.
            ends = ["<end>"] * (len(translation.tokens) - len(words_of(translation.tokens)))
            rows = [*words_of(translation.tokens), *ends]
            labels = [_display_text(word) for word in columns]
            axes.set_xticks(range(len(columns)), labels, rotation=90)
            axes.set_yticks(range(len(rows)), [_display_text(word) for word in rows])
            axes.xaxis.tick_top()
            axes.tick_params(length=0)
            axes.grid(False)
    return figure


def _display_text(word):
    # The tokenized files escape apostrophes as &apos;, and matplotlib reads $ as mathematics.
    return html.unescape(word).replace("$", r"\$")
