"""BLEU as the paper reports it: by source length, of all sentences and of those all known."""

import json
import time

import sacrebleu
from joining import BUCKETS
from words import all_known, words_of

from keras_bahdanau import BeamSearch
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import BOS, PAD, UNK

# Table 1 of the paper, BLEU on newstest2014: all sentences, those without unknown words.
TABLE_1 = {
    "RNNencdec-30": (13.93, 24.19),
    "RNNsearch-30": (21.50, 31.44),
    "RNNencdec-50": (17.82, 26.71),
    "RNNsearch-50": (26.75, 34.16),
}


def translations(model, pairs, beam, path):
    """The translations of the test text, found now or read.

    Args:
        model: A trained model with a tokenizer.
        pairs: The joined test pairs.
        beam: Width of the search.
        path: JSON file that keeps them.

    Returns:
        `{"all": texts, "known": texts, "seconds": float}`: of all pairs, and of those without
        unknown words once more, where as in the paper the models may not write `<unk>`.
    """
    if not path.exists():
        began = time.perf_counter()
        known = [pair for pair in pairs if all_known(model.tokenizer, pair)]
        found = {
            "all": _translated(model, pairs, beam, forbidden=(PAD, BOS)),
            "known": _translated(model, known, beam, forbidden=(PAD, BOS, UNK)),
            "seconds": time.perf_counter() - began,
        }
        with atomic_write(path) as writing:
            writing.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def _translated(model, pairs, beam, forbidden):
    found = model.translate(
        [pair.source for pair in pairs],
        search=BeamSearch(beam, 1.0, forbidden=forbidden),
        max_length=_room,
        alignments=False,
    )
    return [" ".join(words_of(translation.tokens)) for translation in found]


def _room(lengths):
    """Most words of translations: half as many again as the source has, and some more.

    In steps of 40, as a search is compiled for each limit; French has 1.1 words for one of English.
    """
    return (lengths * 3 // 2 // 40 + 1) * 40


def bleu(texts, references):
    """Corpus BLEU of tokenised text in 0..100; `None` of no text at all."""
    if not texts:
        return None
    # The text is tokenised already, which sacreBLEU would warn of.
    return sacrebleu.corpus_bleu(list(texts), [list(references)], tokenize="none", force=True).score


def bleu_within(texts, pairs, buckets):
    """BLEU of the pairs with a source length in one of `buckets`, and how many they are."""
    chosen = [
        (text, pair.target)
        for text, pair in zip(texts, pairs, strict=True)
        if any(pair.length in bucket for bucket in buckets)
    ]
    return {
        "bleu": bleu([text for text, _ in chosen], [target for _, target in chosen]),
        "sentences": len(chosen),
    }


def scores(found, pairs, tokenizer):
    """All BLEU figures of one model.

    Args:
        found: What `translations` returns.
        pairs: The joined test pairs.
        tokenizer: The model's `Tokenizer`.

    Returns:
        `{"all": ..., "known": ..., "by_length": {label: ...}, "10-20": ..., "50 and more": ...}`,
        each with "bleu" (`None` where there is no sentence) and "sentences".
    """
    known = [pair for pair in pairs if all_known(tokenizer, pair)]
    return {
        "all": bleu_within(found["all"], pairs, BUCKETS),
        "known": bleu_within(found["known"], known, BUCKETS),
        "by_length": {
            bucket.label: bleu_within(found["all"], pairs, [bucket]) for bucket in BUCKETS
        },
        "50 and more": bleu_within(found["all"], pairs, BUCKETS[-2:]),
    }


def claims(models):
    """The paper's claims in three figures; `None` where a length that one needs is empty.

    Args:
        models: Scores by the name of the model.
    """
    difference = models["RNNsearch-30"]["all"]["bleu"] - models["RNNencdec-50"]["all"]["bleu"]
    return {
        "RNNsearch-50, 50 and more words against 10-20": _kept(models["RNNsearch-50"]),
        "RNNencdec-50, 50 and more words against 10-20": _kept(models["RNNencdec-50"]),
        "RNNsearch-30 above RNNencdec-50, BLEU": difference,
    }


def _kept(found):
    short, long = found["by_length"]["10-20"]["bleu"], found["50 and more"]["bleu"]
    return long / short if short and long is not None else None


def table(models):
    """Two Markdown tables: beside the paper's Table 1, and by length.

    Args:
        models: Scores by the name of the model.
    """
    lines = [
        "| model | BLEU, all | no unknown words | the paper, all | no unknown words |",
        "|---|---|---|---|---|",
    ]
    for name, paper in TABLE_1.items():
        figures = [models[name]["all"]["bleu"], models[name]["known"]["bleu"], *paper]
        lines.append(f"| {name} | {' | '.join(map(_shown, figures))} |")
    labels = [bucket.label for bucket in BUCKETS]
    lines += ["", f"| source words | {' | '.join(labels)} |", f"|---{'|---' * len(labels)}|"]
    first = next(iter(models.values()))["by_length"]
    lines.append(f"| sentences | {' | '.join(str(first[x]['sentences']) for x in labels)} |")
    for name in TABLE_1:
        figures = [models[name]["by_length"][label]["bleu"] for label in labels]
        lines.append(f"| {name} | {' | '.join(map(_shown, figures))} |")
    return "\n".join(lines) + "\n"


def _shown(figure):
    return "-" if figure is None else f"{figure:.2f}"
