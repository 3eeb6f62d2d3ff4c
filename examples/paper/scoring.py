"""BLEU as the paper reports it: by source length, and for sentences without unknown words."""

import json
import time

import sacrebleu
from joined_sentences import BUCKETS
from word_tokenizer import has_only_known_words, words_of

from keras_bahdanau import BeamSearch
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import BOS, PAD, UNK

# Table 1 of the paper, BLEU on newstest2014: all sentences, sentences without unknown words.
TABLE_1 = {
    "RNNencdec-30": (13.93, 24.19),
    "RNNsearch-30": (21.50, 31.44),
    "RNNencdec-50": (17.82, 26.71),
    "RNNsearch-50": (26.75, 34.16),
}


def translate_or_load(model, pairs, beam, path):
    """Return translations of the test text, from a file if it exists.

    Args:
        model: A trained model with a tokenizer.
        pairs: The joined test pairs.
        beam: Beam size.
        path: JSON file of the translations.

    Returns:
        `{"all": texts, "known": texts, "seconds": float}`. "known" has the pairs without unknown
        words, translated with `<unk>` forbidden, as in the paper.
    """
    if not path.exists():
        began = time.perf_counter()
        known_pairs = [pair for pair in pairs if has_only_known_words(model.tokenizer, pair)]
        results = {
            "all": _translate(model, pairs, beam, forbidden=(PAD, BOS)),
            "known": _translate(model, known_pairs, beam, forbidden=(PAD, BOS, UNK)),
            "seconds": time.perf_counter() - began,
        }
        with atomic_write(path) as writing:
            writing.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def _translate(model, pairs, beam, forbidden):
    translations = model.translate(
        [pair.source for pair in pairs],
        search=BeamSearch(beam, 1.0, forbidden=forbidden),
        max_length=_max_length,
        alignments=False,
    )
    return [" ".join(words_of(translation.tokens)) for translation in translations]


def _max_length(lengths):
    """Return the maximum number of output words: 1.5 per source word, rounded up to steps of 40.

    A search is compiled for each limit. French has 1.1 words per English word.
    """
    return (lengths * 3 // 2 // 40 + 1) * 40


def bleu(texts, references):
    """Return corpus BLEU of tokenized text in 0..100, or `None` without texts."""
    if not texts:
        return None
    # Without `force` sacreBLEU warns that the text is already tokenized.
    return sacrebleu.corpus_bleu(list(texts), [list(references)], tokenize="none", force=True).score


def bleu_within(texts, pairs, buckets):
    """Return BLEU and the number of pairs with a source length in one of `buckets`."""
    selected = [
        (text, pair.target)
        for text, pair in zip(texts, pairs, strict=True)
        if any(pair.length in bucket for bucket in buckets)
    ]
    return {
        "bleu": bleu([text for text, _ in selected], [target for _, target in selected]),
        "sentences": len(selected),
    }


def score(translations, pairs, tokenizer):
    """Return all BLEU scores of one model.

    Args:
        translations: The result of `translate_or_load`.
        pairs: The joined test pairs.
        tokenizer: The model's `Tokenizer`.

    Returns:
        `{"all": ..., "known": ..., "by_length": {label: ...}, "50 and more": ...}`, each with
        "bleu" (`None` without sentences) and "sentences".
    """
    known_pairs = [pair for pair in pairs if has_only_known_words(tokenizer, pair)]
    return {
        "all": bleu_within(translations["all"], pairs, BUCKETS),
        "known": bleu_within(translations["known"], known_pairs, BUCKETS),
        "by_length": {
            bucket.label: bleu_within(translations["all"], pairs, [bucket]) for bucket in BUCKETS
        },
        "50 and more": bleu_within(translations["all"], pairs, BUCKETS[-2:]),
    }


def claims(models):
    """Return three numbers for the claims of the paper, or `None` for a claim about empty buckets.

    Args:
        models: Scores by model name.
    """
    difference = models["RNNsearch-30"]["all"]["bleu"] - models["RNNencdec-50"]["all"]["bleu"]
    return {
        "RNNsearch-50, 50 and more words against 10-20": _long_to_short_ratio(
            models["RNNsearch-50"]
        ),
        "RNNencdec-50, 50 and more words against 10-20": _long_to_short_ratio(
            models["RNNencdec-50"]
        ),
        "RNNsearch-30 above RNNencdec-50, BLEU": difference,
    }


def _long_to_short_ratio(scores):
    short, long = scores["by_length"]["10-20"]["bleu"], scores["50 and more"]["bleu"]
    return long / short if short and long is not None else None


def table(models):
    """Return two Markdown tables: BLEU next to the paper's Table 1, and BLEU by length.

    Args:
        models: Scores by model name.
    """
    lines = [
        "| model | BLEU, all | no unknown words | the paper, all | no unknown words |",
        "|---|---|---|---|---|",
    ]
    for name, paper in TABLE_1.items():
        values = [models[name]["all"]["bleu"], models[name]["known"]["bleu"], *paper]
        lines.append(f"| {name} | {' | '.join(map(_format, values))} |")
    labels = [bucket.label for bucket in BUCKETS]
    lines += ["", f"| source words | {' | '.join(labels)} |", f"|---{'|---' * len(labels)}|"]
    first = next(iter(models.values()))["by_length"]
    lines.append(f"| sentences | {' | '.join(str(first[x]['sentences']) for x in labels)} |")
    for name in TABLE_1:
        values = [models[name]["by_length"][label]["bleu"] for label in labels]
        lines.append(f"| {name} | {' | '.join(map(_format, values))} |")
    return "\n".join(lines) + "\n"


def _format(value):
    return "-" if value is None else f"{value:.2f}"
