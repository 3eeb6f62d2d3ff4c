"""English to Hindi from about 250 phrases, with alignments in Devanagari.

A fifth of the generated commands is the test set, "Turn off the lights" among them, and another
fifth is for validation. Most of their words occur in the training phrases. The baseline is the same
model with a fixed context, the last annotation.

    python -m examples.hindi.translate

The grammar records which English words each Hindi word translates, so the alignment is evaluated
as well.
"""

import sys

import keras
import numpy as np

from examples.common import parse_options, require_margin
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

EXAMPLE = "Turn off the lights"
SEARCH, MAX_LENGTH = GreedySearch(), 20


def split(validation=False):
    """Return training pairs and held-out `Phrase`s.

    The held-out phrases are the test set, which begins with `EXAMPLE`, or with `validation` the
    validation set.
    """
    phrases = grammar()
    np.random.default_rng(0).shuffle(phrases)
    phrases.sort(key=lambda phrase: phrase.english != EXAMPLE)
    fifth = len(phrases) // 5
    pairs = [(phrase.english, phrase.hindi) for phrase in phrases[2 * fifth :]]
    held_out = phrases[fifth : 2 * fifth] if validation else phrases[:fifth]
    return [*pairs, *FIXED.items()], held_out


def build(tokenizer, units, attention):
    """Return a text model. Its attention query is the state after reading the previous word."""
    return Seq2Seq(
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        embedding_dim=units,
        encoder=BidirectionalEncoder(units),
        decoder=AttentiveDecoder(
            keras.layers.GRUCell(units), attention, DeepOutput(units), query_state="current"
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


def exact_match_rate(translations, phrases):
    """Return the fraction of translations that are equal to the reference."""
    return float(np.mean([t.text == p.hindi for t, p in zip(translations, phrases, strict=True)]))


def alignment_accuracy(translations, phrases):
    """Return the fraction of Hindi words whose largest weight is on a word they translate.

    Only exact translations count.
    """
    is_correct = []
    for translation, phrase in zip(translations, phrases, strict=True):
        if translation.text == phrase.hindi:
            weights, english, _ = align_words(translation)
            positions = weights.argmax(-1)[: len(phrase.origins)]
            is_correct += [
                english[j] in words for j, words in zip(positions, phrase.origins, strict=True)
            ]
    return float(np.mean(is_correct)) if is_correct else 0.0


def align_words(translation):
    """Return the alignment `(Hindi words, English words)`, the English and the Hindi words."""
    return word_alignment(translation.alignment, translation.source_tokens, translation.tokens)


def export_and_compare(model, phrases, translations, folder):
    """Export the model with its tokenizer and compare its translations with those of Keras."""
    model.export(folder, search=SEARCH, max_length=MAX_LENGTH, overwrite=True)
    exported = Translator(folder).translate(phrases)
    assert [t.text for t in exported] == [t.text for t in translations]
    difference = max(
        abs(a.alignment - b.alignment).max() for a, b in zip(exported, translations, strict=True)
    )
    print(f"onnxruntime gives the same phrases; weights differ by at most {difference:.1e}")
    assert difference <= 1e-4, difference


def main(arguments=None):
    """Train both models, translate held-out phrases, draw some and return the rates."""
    args = parse_options("hindi", __doc__, arguments)
    epochs, units = (1, 8) if args.quick else (40, 64)
    pairs, held_out = split(args.validation)
    # Large enough for every word to be one token.
    tokenizer = Tokenizer.train(
        [english for english, _ in pairs],
        [hindi for _, hindi in pairs],
        vocabulary_size=4000,
        joint=False,
        min_frequency=1,
    )
    mechanisms = BahdanauAttention(units, use_bias=True), FixedContext()
    models = [train(build(tokenizer, units, attention), pairs, epochs) for attention in mechanisms]
    phrases = [phrase.english for phrase in held_out]
    attentive, fixed = (
        model.translate(phrases, search=SEARCH, max_length=MAX_LENGTH) for model in models
    )
    for phrase, translation in list(zip(phrases, attentive, strict=True))[:5]:
        print(f"{phrase}  ->  {translation.text}")
    rates = {
        "attention": exact_match_rate(attentive, held_out),
        "fixed context": exact_match_rate(fixed, held_out),
        "aligned": alignment_accuracy(attentive, held_out),
    }
    print(rates)
    plot_alignments(list(map(align_words, attentive[:3])), args.output / "hindi.png")
    models[0].save(args.output / "model.keras")
    if args.export:
        export_and_compare(models[0], phrases, attentive, args.output / "artifact")
    value, baseline, _ = rates.values()
    require_margin("exact held-out phrases", value, baseline, margin=0.05, quick=args.quick)
    return rates


if __name__ == "__main__":
    main(sys.argv[1:])
