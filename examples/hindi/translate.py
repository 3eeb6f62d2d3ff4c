"""English to Hindi from a handful of phrases: a model of texts, its alignment in Devanagari.

A fifth of the commands that the grammar makes is held out for the test, "Turn off the lights" among
them, and a fifth to choose settings on: most of their words are known, they are not. The baseline
is the same model with a fixed context, the last annotation.

    python -m examples.hindi.translate

The grammar knows which English words each Hindi one says, and so the alignment is measured, too.
"""

import sys

import keras
import numpy as np

from examples.common import options, require_margin
from examples.hindi.phrases import FIXED, grammar
from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    Bridge,
    DeepOutput,
    FixedContext,
    GreedySearch,
    Seq2Seq,
    TokenCrossentropy,
    Tokenizer,
    TranslationDataset,
)
from keras_bahdanau.plot import plot_alignments
from keras_bahdanau.text import word_alignment
from keras_bahdanau_runtime import Translator

SHOWN = "Turn off the lights"
SEARCH, MAX_LENGTH = GreedySearch(), 20


def split(validation=False):
    """Pairs to train on, and held-out `Phrase`s: of the test, `SHOWN` first, or of validation."""
    phrases = grammar()
    np.random.default_rng(0).shuffle(phrases)
    phrases.sort(key=lambda phrase: phrase.english != SHOWN)
    fifth = len(phrases) // 5
    pairs = [(phrase.english, phrase.hindi) for phrase in phrases[2 * fifth :]]
    held_out = phrases[fifth : 2 * fifth] if validation else phrases[:fifth]
    return [*pairs, *FIXED.items()], held_out


def build(tokenizer, units, attention):
    """A model of texts. The state that has read the last word asks where to look for the next."""
    return Seq2Seq(
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        embedding_dim=units,
        encoder=BidirectionalEncoder(units),
        decoder=AttentiveDecoder(
            keras.layers.GRUCell(units), attention, DeepOutput(units), query="current"
        ),
        bridge=Bridge([units], "mean"),
        dropout=0.2,
        tokenizer=tokenizer,
    )


def train(model, pairs, epochs):
    tokenizer = model.tokenizer
    dataset = TranslationDataset(
        [tokenizer.encode_source(english) for english, _ in pairs],
        [tokenizer.encode_target(hindi) for _, hindi in pairs],
        batch_size=16,
        bucket=12,
    )
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * len(dataset))
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
    model.fit(dataset, epochs=epochs, verbose=0)
    return model


def exact(translations, phrases):
    """Share of the phrases translated word for word."""
    return float(np.mean([t.text == p.hindi for t, p in zip(translations, phrases, strict=True)]))


def aligned(translations, phrases):
    """Share of the Hindi words whose largest weight is on a word they say; right phrases only."""
    right = []
    for translation, phrase in zip(translations, phrases, strict=True):
        if translation.text == phrase.hindi:
            weights, english, _ = by_words(translation)
            places = weights.argmax(-1)[: len(phrase.origins)]
            right += [english[j] in words for j, words in zip(places, phrase.origins, strict=True)]
    return float(np.mean(right)) if right else 0.0


def by_words(translation):
    """The alignment `(Hindi words, English words)`, and both."""
    return word_alignment(translation.alignment, translation.source_tokens, translation.tokens)


def export_and_compare(model, phrases, translations, folder):
    """Exports the model and its tokenizer; onnxruntime must give the same translations."""
    model.export(folder, search=SEARCH, max_length=MAX_LENGTH, overwrite=True)
    by_graph = Translator(folder).translate(phrases)
    assert [t.text for t in by_graph] == [t.text for t in translations]
    gap = max(
        abs(a.alignment - b.alignment).max() for a, b in zip(by_graph, translations, strict=True)
    )
    print(f"onnxruntime gives the same phrases; weights differ by at most {gap:.1e}")
    assert gap <= 1e-4, gap


def main(arguments=None):
    """Trains both, translates the held-out phrases, draws some; returns the shares."""
    args = options("hindi", __doc__, arguments)
    epochs, units = (1, 8) if args.quick else (40, 64)
    pairs, held_out = split(args.validation)
    # Enough room for every word to be a piece of its own.
    tokenizer = Tokenizer.train(
        [english for english, _ in pairs],
        [hindi for _, hindi in pairs],
        vocabulary_size=4000,
        joint=False,
        min_frequency=1,
    )
    mechanisms = BahdanauAttention(units, use_bias=True), FixedContext()
    models = [train(build(tokenizer, units, kind), pairs, epochs) for kind in mechanisms]
    phrases = [phrase.english for phrase in held_out]
    attentive, fixed = (
        model.translate(phrases, search=SEARCH, max_length=MAX_LENGTH) for model in models
    )
    for phrase, translation in list(zip(phrases, attentive, strict=True))[:5]:
        print(f"{phrase}  ->  {translation.text}")
    shares = {
        "attention": exact(attentive, held_out),
        "fixed context": exact(fixed, held_out),
        "aligned": aligned(attentive, held_out),
    }
    print(shares)
    plot_alignments(list(map(by_words, attentive[:3])), args.output / "hindi.png")
    models[0].save(args.output / "model.keras")
    if args.export:
        export_and_compare(models[0], phrases, attentive, args.output / "artifact")
    reached, baseline, _ = shares.values()
    require_margin("exact held-out phrases", reached, baseline, margin=0.05, quick=args.quick)
    return shares


if __name__ == "__main__":
    main(sys.argv[1:])
