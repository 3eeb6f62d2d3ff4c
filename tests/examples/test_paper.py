"""The example of the paper's claims, on a small synthetic language."""

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "paper"
MODULES = (
    "joined_sentences",
    "word_tokenizer",
    "training",
    "scoring",
    "figures",
    "reproduce",
)


@pytest.fixture(scope="module")
def paper():
    """The example's modules, imported from its folder as by its command."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        patch.undo()
        for name in MODULES:
            sys.modules.pop(name, None)


def synthetic(folder, pairs=150):
    """Multi30k's files in a synthetic language: target words are source words with an x prefix."""
    rng = np.random.default_rng(0)
    (folder / "tok").mkdir(parents=True)
    names = ("train", "val", "test_2016_flickr", "test_2017_flickr")
    for name in names:
        sizes = rng.integers(3, 12, pairs)
        sources = [" ".join(f"w{n}" for n in rng.integers(0, 9, size)) for size in sizes]
        if name.startswith("test"):
            sources[::30] = ["never seen before"] * len(sources[::30])
        for end, sign in (("en", ""), ("fr", "x")):
            lines = [" ".join(sign + word for word in source.split()) for source in sources]
            path = folder / "tok" / f"{name}.lc.norm.tok.{end}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("multi30k"))


@pytest.fixture(scope="module")
def tiny(paper):
    return paper.training.Settings(
        units=6, vocabulary_size=40, pairs=15, validation_pairs=15, test_pairs=1, epochs=2,
        batch_size=15, dropout=0.0, beam=2, seed=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(paper, tiny, data, tmp_path_factory):
    output = tmp_path_factory.mktemp("paper") / "run"
    return output, paper.reproduce.reproduce(data, output, tiny)


def pair(paper, words, target_words=None):
    target_words = words if target_words is None else target_words
    return paper.joined_sentences.Pair(" ".join(["a"] * words), " ".join(["b"] * target_words))


def test_consecutive_pairs_are_joined(paper):
    pairs = [paper.joined_sentences.Pair(f"a{n} a a a", f"b{n} b b") for n in range(9)]
    bucket = paper.joined_sentences.Bucket(10, 20)
    joined = list(paper.joined_sentences.join_pairs(pairs, bucket, np.random.default_rng(3)))
    order = np.random.default_rng(3).permutation(9)
    assert len(joined) == 3
    for index, (source, target) in enumerate(joined):
        parts = [pairs[n] for n in order[3 * index : 3 * index + 3]]
        assert source == " ".join(part.source for part in parts)
        assert target == " ".join(part.target for part in parts)


def test_joined_pairs_that_are_too_long_are_left_out(paper):
    join, bucket, rng = (
        paper.joined_sentences.join_pairs,
        paper.joined_sentences.Bucket(10, 20),
        np.random.default_rng(0),
    )
    assert [p.length for p in join([pair(paper, 11)] * 2, bucket, rng)] == [11, 11]
    assert not list(join([pair(paper, 21)] * 2, bucket, rng))
    assert not list(join([pair(paper, 11, 31)] * 2, bucket, rng, target_limit=30))


@pytest.mark.parametrize("limit", [30, 50])
def test_training_lengths_are_evenly_distributed(paper, limit):
    pairs = [pair(paper, 3 + n % 9) for n in range(100)]
    text = paper.joined_sentences.make_training_pairs(pairs, limit, 150, seed=0)
    assert len(text) == 150
    tens = np.bincount([(p.length - 1) // 10 for p in text])
    assert tens.tolist() == [150 * 10 // limit] * (limit // 10)


def test_impossible_training_texts_are_refused(paper):
    with pytest.raises(ValueError, match=r"joined to 0-10 words\. Received: 5 pairs"):
        paper.joined_sentences.make_training_pairs([pair(paper, 12)] * 5, 30, 30, seed=0)
    with pytest.raises(ValueError, match=r"multiple of 5.*Received: 12"):
        paper.joined_sentences.make_training_pairs([pair(paper, 8)] * 5, 50, 12, seed=0)


def test_sentence_longer_than_every_other_bucket_is_in_the_last(paper, caplog):
    text = paper.joined_sentences.make_test_pairs([pair(paper, 200)], 1, seed=0)
    assert [p.length for p in text] == [200]
    labels = [bucket.label for bucket in paper.joined_sentences.BUCKETS if 200 in bucket]
    assert labels == ["60+"]
    assert "0 of 1 sentences of 0-10 words." in caplog.messages


def test_buckets_cover_each_length_once(paper):
    for length in range(1, 100):
        assert sum(length in bucket for bucket in paper.joined_sentences.BUCKETS) == 1


def test_missing_files_are_named(paper, data, tmp_path):
    (tmp_path / "tok").mkdir()
    for path in (data / "tok").iterdir():
        if path.name not in ("train.lc.norm.tok.fr", "val.lc.norm.tok.en"):
            (tmp_path / "tok" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError) as caught:
        paper.joined_sentences.find_files(tmp_path)
    ending = "without tok/train.lc.norm.tok.fr, tok/val.lc.norm.tok.en"
    assert str(caught.value).endswith(ending)


def test_command_refuses_other_texts(paper, data, tmp_path):
    with pytest.raises(SystemExit, match=r"train\.lc\.norm\.tok\.en, whose text has the SHA-256"):
        paper.reproduce.main(["--data", str(data), "--output", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_words_are_ranked_by_frequency_and_others_are_unknown(paper, tmp_path):
    tokenizer = paper.word_tokenizer.word_tokenizer(["a man , l'été a", "a man"], ["ein Mann"], 7)
    # After the special ids, words are sorted by frequency and alphabet: a, man, `,`.
    assert tokenizer.encode_source("man a , été") == [5, 4, 6, 1, 3]
    assert paper.word_tokenizer.words_of(tokenizer.source_tokens("man a été")) == [
        "man",
        "a",
        "<unk>",
    ]
    assert tokenizer.encode_source("") == [3]
    tokenizer.save(tmp_path / "words.json")
    assert type(tokenizer).load(tmp_path / "words.json") == tokenizer


def test_words_of_several_bytes_are_decoded(paper):
    tokenizer = paper.word_tokenizer.word_tokenizer(["été 水 &apos;"], ["été 水 &apos;"], 20)
    ids = tokenizer.encode_target("水 été &apos;")
    assert paper.word_tokenizer.words_of(tokenizer.target_tokens(ids)) == ["水", "été", "&apos;"]


@pytest.mark.parametrize("size", [1, 4])
def test_vocabulary_without_words_is_refused(paper, size):
    with pytest.raises(ValueError, match=f"every word is unknown. Received: {size}"):
        paper.word_tokenizer.word_tokenizer(["a"], ["b"], size)


def test_empty_bucket_is_a_gap_in_figure_and_table(paper, finished, tmp_path):
    models = json.loads(json.dumps(finished[1]["models"]))
    for model in models.values():
        model["by_length"]["20-30"] = paper.scoring.bleu_within([], [], [])
    figure = paper.figures.draw_lengths(models, tmp_path / "figure.png")
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert list(drawn) == list(paper.figures.STYLES)
    assert all(
        [math.isnan(y) for y in line] == [i == 2 for i in range(7)] for line in drawn.values()
    )
    row = paper.scoring.table(models).splitlines()[-1].split(" | ")
    assert row[3] == "-" and row[2] != "-"


def test_bleu_counts_the_sentences_of_a_bucket(paper):
    pairs = [pair(paper, 5), pair(paper, 15), pair(paper, 16)]
    texts = ["wrong"] + [p.target for p in pairs[1:]]
    short, long, none = paper.joined_sentences.BUCKETS[:3]
    within = paper.scoring.bleu_within
    assert within(texts, pairs, [short]) == {"bleu": 0.0, "sentences": 1}
    assert within(texts, pairs, [long]) == {"bleu": pytest.approx(100), "sentences": 2}
    assert within(texts, pairs, [none]) == {"bleu": None, "sentences": 0}


def test_claims_are_ratios_of_bleu(paper):
    def model(everything, short, long):
        return {
            "all": {"bleu": everything},
            "by_length": {"10-20": {"bleu": short}},
            "50 and more": {"bleu": long},
        }

    claims = paper.scoring.claims(
        {
            "RNNsearch-50": model(30.0, 40.0, 38.0),
            "RNNsearch-30": model(25.0, 40.0, 20.0),
            "RNNencdec-50": model(20.0, 30.0, None),
        }
    )
    assert list(claims.values()) == [pytest.approx(0.95), None, 5.0]


def test_run_writes_results_models_and_figures(paper, finished):
    output, results = finished
    assert json.loads((output / "results.json").read_text()) == results
    assert list(results["models"]) == list(paper.training.RUNS)
    for name, model in results["models"].items():
        assert model["training"]["updates"] == 2
        assert sum(bucket["sentences"] for bucket in model["by_length"].values()) == 7
        # Some joined texts contain words that are not in the training text.
        assert 0 < model["known"]["sentences"] < model["all"]["sentences"] == 7
        assert (output / name / "last.keras").exists()
    for name in ("figure2.png", "figure3.png", "table.md"):
        assert (output / name).stat().st_size
    encdec, search = (
        results["models"][f"RNN{kind}-30"]["weights"] for kind in ("encdec", "search")
    )
    assert encdec < search


def test_finished_run_is_skipped(paper, tiny, data, finished):
    output, results = finished
    files = {path: path.stat().st_mtime_ns for path in output.rglob("*.keras")}
    assert paper.reproduce.reproduce(data, output, tiny) == results
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.keras")} == files


def test_folder_of_another_run_is_refused(paper, tiny, data, finished):
    other = replace(tiny, epochs=3)
    with pytest.raises(ValueError, match="epochs was 2, is 3"):
        paper.reproduce.reproduce(data, finished[0], other)


def test_resumed_run_has_the_weights_of_an_uninterrupted_run(paper, tiny, data, finished, tmp_path):
    files = paper.joined_sentences.find_files(data)
    tokenizer, texts = paper.reproduce._texts(files, tiny, tmp_path / "texts")
    arguments = (
        "RNNsearch-30", tiny, tokenizer, texts["train-30"], texts["val-30"], tmp_path / "run",
    )  # fmt: skip

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        paper.training.train_or_load(*arguments, callbacks=[Interrupt()])
    model = paper.training.train_or_load(*arguments)
    whole = keras.saving.load_model(finished[0] / "RNNsearch-30" / "last.keras")
    for resumed, expected in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(resumed, expected, rtol=1e-5, atol=1e-6)
    assert paper.training.training_figures(tmp_path / "run")["updates"] == 2


def test_alignments_are_drawn_for_the_first_four_known_sentences_of_11_to_20_words(paper):
    tokenizer = paper.word_tokenizer.word_tokenizer(["a"], ["b"], 9)
    pairs = [pair(paper, length) for length in (10, 11, 21, 20, 15, 12, 11)]
    pairs.insert(1, paper.joined_sentences.Pair(" ".join(["unheard"] * 12), "b"))
    chosen = paper.figures.select_for_alignment(pairs, tokenizer)
    assert [p.length for p in chosen] == [11, 20, 15, 12]


def test_text_of_unknown_words_has_no_known_scores_and_no_figure_3(
    paper, finished, tmp_path, caplog
):
    model = keras.saving.load_model(finished[0] / "RNNsearch-50" / "last.keras")
    pairs = [paper.joined_sentences.Pair("quite unheard of", "of unheard quite")] * 3
    translations = paper.scoring.translate_or_load(model, pairs, 2, tmp_path / "translations.json")
    scores = paper.scoring.score(translations, pairs, model.tokenizer)
    assert scores["all"] == {"bleu": 0.0, "sentences": 3}
    assert scores["known"] == {"bleu": None, "sentences": 0}
    chosen = paper.figures.select_for_alignment(pairs, model.tokenizer)
    assert paper.figures.draw_alignments(model, chosen, 2, tmp_path / "figure.png") is None
    assert "without unknown words: no Figure 3" in caplog.text
