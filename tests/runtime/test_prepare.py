import gzip
import hashlib
import json
import logging
import lzma
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau.data import blocks
from keras_bahdanau.data import preparation as module
from keras_bahdanau.data.corpus import (
    PreparedCorpus,
    concatenate_shards,
    shard_from_lists,
)
from keras_bahdanau.data.preparation import prepare
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

KILLS = int(os.environ.get("KILLS", "3"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_PAIRS", 20)


def write_corpus(folder, pairs=100):
    """Write two files of different lines; return their paths and the pairs of lines."""
    rng = np.random.default_rng(0)
    lines = [
        [f"{side} {number} " + " ".join(rng.choice(["a", "man", "bike"], 1 + number % 7)).strip()
         for number in range(pairs)]
        for side in ("source", "target")
    ]  # fmt: skip
    paths = [folder / "train.en", folder / "train.de"]
    for path, side in zip(paths, lines, strict=True):
        path.write_text("\n".join([*side, ""]), encoding="utf-8")
    return *paths, list(zip(*lines, strict=True))


@pytest.fixture
def corpus_files(tmp_path):
    """A source file and a target file of 100 lines."""
    return write_corpus(tmp_path)[:2]


def prepare_corpus(files, output, **options):
    source, target = files
    return prepare([source], [target], output, **{**OPTIONS, **options})


def pairs_of(corpus):
    """Decode the pairs of a corpus, and check that each text ends with EOS."""
    pairs = []
    for number, size in enumerate(corpus.sizes):
        shard = corpus.shard(number)
        assert len(shard) == size
        for begin, middle, end in zip(
            shard.offsets[:-1:2], shard.offsets[1::2], shard.offsets[2::2], strict=True
        ):
            source, target = shard.ids[begin:middle].tolist(), shard.ids[middle:end].tolist()
            assert source[-1] == target[-1] == EOS
            # Both sides have one vocabulary, so `decode` can read the source, too.
            pairs.append((corpus.tokenizer.decode(source), corpus.tokenizer.decode(target)))
    return pairs


def hashes(folder):
    """Hash of each file in a folder, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


OPTIONS = {"tokenizer": "bpe", "vocabulary_size": 300, "shard_pairs": 30, "sample": 50}


def test_corpus_has_each_pair_once_in_another_order(tmp_path):
    source, target, lines = write_corpus(tmp_path)
    assert prepare_corpus((source, target), tmp_path / "corpus") == tmp_path / "corpus"
    corpus = PreparedCorpus(tmp_path / "corpus")
    corpus.check()
    pairs = pairs_of(corpus)
    assert sorted(pairs) == sorted(lines) and pairs != lines
    assert corpus.pairs == 100 and len(corpus.sizes) == 4 and not corpus.aligned
    lengths = [[len(corpus.tokenizer.encode_target(text)) for text in side]
               for side in zip(*lines, strict=True)]  # fmt: skip
    assert [corpus.source_tokens, corpus.tokens] == [sum(side) for side in lengths]
    assert list(corpus.longest) == [max(side) for side in lengths]
    assert corpus.shard(0).ids.dtype == "uint16"
    names = {path.name for path in (tmp_path / "corpus").iterdir()}
    assert names == {"manifest.json", "tokenizer.json"} | {
        f"shard-0000{number}.{kind}.npy" for number in range(4) for kind in ("ids", "offsets")
    }


def test_bytes_depend_only_on_texts_options_and_seed(tmp_path, corpus_files):
    parts = []
    for path in corpus_files:  # the same lines in other files, one of them compressed
        lines = path.read_bytes().splitlines(keepends=True)
        first, second = path.with_suffix(f"{path.suffix}1"), path.with_suffix(f"{path.suffix}2.gz")
        first.write_bytes(b"".join(lines[:33]))
        second.write_bytes(gzip.compress(b"".join(lines[33:])))
        parts.append([first, second])
    first = prepare_corpus(corpus_files, tmp_path / "first")
    second = prepare(*parts, tmp_path / "second", processes=2, **OPTIONS)
    assert hashes(first) == hashes(second)
    other_seed = prepare_corpus(corpus_files, tmp_path / "other", seed=1)
    assert hashes(other_seed)["shard-00000.ids.npy"] != hashes(first)["shard-00000.ids.npy"]


def test_files_with_both_sides_give_the_same_bytes(tmp_path, corpus_files, monkeypatch):
    lines = [path.read_text("utf-8").splitlines() for path in corpus_files]
    pairs = list(zip(*lines, strict=True))
    tabbed = "".join(f"{source}\t{target}\n" for source, target in pairs[:50])
    (tmp_path / "1.tsv.xz").write_bytes(lzma.compress(tabbed.encode()))
    objects = ({"source": source, "target": target} for source, target in pairs[50:])
    (tmp_path / "2.jsonl").write_text("".join(f"{json.dumps(value)}\n" for value in objects))
    monkeypatch.chdir(tmp_path)
    two_files = prepare_corpus(corpus_files, "two-files")
    both_sides = prepare(["[12].*"], None, "both-sides", **OPTIONS)
    assert hashes(two_files) == hashes(both_sides)


FILTER = ["length=2:12", "identical", "duplicate"]


def write_pairs_to_filter(folder):
    """Write pairs of which ten are kept; return the arguments of `prepare` and the counts."""
    lines = [*(f"{number} a\t{number} b" for number in range(10)), "3 a\t3 b", "ab\tab", "ab\tb"]
    (folder / "a.tsv").write_text("\n".join([*lines, "a\t", "bad", "0 a\t0 b", ""]))
    counts = {"blank": 1, "bad": 1, "filtered": dict(zip(FILTER, (1, 1, 2), strict=True))}
    options = {"text_format": TextFormat(on_bad_line="skip"), **OPTIONS}
    return (([folder / "a.tsv"], None), options, counts)


@pytest.mark.parametrize("stage", [None, "encoding"])
def test_filter_drops_and_counts_pairs(tmp_path, monkeypatch, stage):
    monkeypatch.setattr(module, "_BLOCK_PAIRS", 4)
    files, options, counts = write_pairs_to_filter(tmp_path)
    if stage is not None:

        def stop(reported_stage, done, total):
            if reported_stage == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(*files, tmp_path / "corpus", filter=FILTER, progress=stop, **options)
    corpus = PreparedCorpus(prepare(*files, tmp_path / "corpus", filter=FILTER, **options))
    expected = [(f"{number} a", f"{number} b") for number in range(10)]
    assert sorted(pairs_of(corpus)) == expected
    assert {name: corpus.manifest[name] for name in counts} == counts
    prepare(*files, tmp_path / "corpus", filter=FILTER, **options)  # nothing has changed
    with pytest.raises(ValueError, match=r"`filter` was .*, is None"):
        prepare(*files, tmp_path / "corpus", **options)


def test_nothing_is_filtered_without_a_rule(tmp_path):
    files, options, _ = write_pairs_to_filter(tmp_path)
    corpus = PreparedCorpus(prepare(*files, tmp_path / "corpus", **options))
    assert corpus.pairs == 14 and corpus.manifest["filtered"] == {}
    with pytest.raises(ValueError, match=r"line 15: expected 2 columns"):
        prepare(*files, tmp_path / "stopped", **OPTIONS)
    assert not (tmp_path / "stopped").exists()
    rules = {"filter": ["length=99:100"], **options}
    with pytest.raises(ValueError, match="none without a blank side that `filter` keeps, and 1 ba"):
        prepare(*files, tmp_path / "empty", **rules)


def test_pairs_with_another_encoding_are_skipped_and_counted(tmp_path):
    (tmp_path / "a").write_bytes(b"a\n\xe9\nc\nd\n")
    (tmp_path / "b").write_bytes(b"x\ny\n\xe9\nz\n")
    options = {"text_format": TextFormat(on_bad_line="skip"), **OPTIONS}
    corpus = PreparedCorpus(
        prepare([tmp_path / "a"], [tmp_path / "b"], tmp_path / "corpus", **options)
    )
    assert sorted(pairs_of(corpus)) == [("a", "x"), ("d", "z")]
    assert corpus.manifest["bad"] == 2


def test_lines_of_alignments_belong_to_dropped_pairs_too(tmp_path):
    tokenizer = Tokenizer.train(["a"], ["a"], 260)
    (tmp_path / "a.tsv").write_text("ab\tab\nbad\n\tb\nb\tc\n")
    (tmp_path / "links").write_text("0-1\n0-2\n0-3\n1-0\n")
    corpus = prepare(
        [tmp_path / "a.tsv"],
        None,
        tmp_path / "corpus",
        tokenizer,
        [tmp_path / "links"],
        text_format=TextFormat(on_bad_line="skip"),
        filter=["identical"],
    )
    assert PreparedCorpus(corpus).shard(0).links.tolist() == [[1, 0]]


def test_tokenizer_is_an_argument_or_is_learned_from_a_sample(tmp_path):
    source, target, lines = write_corpus(tmp_path)
    tokenizer = Tokenizer.train(["a man"] * 3, ["a bike"] * 3, 270, joint=False)
    corpus = PreparedCorpus(prepare([source], [target], tmp_path / "corpus", tokenizer))
    assert corpus.tokenizer == tokenizer and corpus.pairs == 100
    with pytest.raises(ValueError, match="`tokenizer` is a different one"):
        prepare([source], [target], tmp_path / "corpus", Tokenizer.train(["b"], ["b"], 270))
    for name, value in (("vocabulary_size", 300), ("joint", False), ("sample", 5)):
        with pytest.raises(ValueError, match=f"`{name}` must be left out with a"):
            prepare([source], [target], tmp_path / "refused", tokenizer, **{name: value})
    assert not (tmp_path / "refused").exists()
    whole = prepare([source], [target], tmp_path / "whole", vocabulary_size=300, sample=100)
    sources, targets = zip(*lines, strict=True)
    assert PreparedCorpus(whole).tokenizer == Tokenizer.train(sources, targets, 300)


def test_targets_have_the_copied_words_of_their_sources(tmp_path):
    (tmp_path / "a.tsv").write_text("a Rex\tx Rex\na Max Rex\tx Rex Max\n")
    options = {"tokenizer": "words", "joint": True, "vocabulary_size": 260}
    (tmp_path / "b.tsv").write_text("a\tx\na\tx\n")  # neither name is in the vocabulary
    vocabulary = prepare([tmp_path / "b.tsv"], None, tmp_path / "b", copied_words=2, **options)
    tokenizer = PreparedCorpus(vocabulary).tokenizer
    # " a" and " x" have the ids 4 and 5, and the copied words 6 and 7.
    output = tmp_path / "corpus"
    prepare([tmp_path / "a.tsv"], None, output, tokenizer)
    shard = PreparedCorpus(output).shard(0)
    ids = [row.tolist() for row in np.split(shard.ids, shard.offsets[1:-1])]
    pairs = sorted(zip(ids[::2], ids[1::2], strict=True))
    assert pairs == [([4, 6, 3], [5, 6, 3]), ([4, 6, 7, 3], [5, 7, 6, 3])]
    prepare([tmp_path / "b.tsv"], None, tmp_path / "b", copied_words=2, **options)
    for count, name in ((3, "3"), (None, "None")):
        with pytest.raises(ValueError, match=f"`copied_words` was 2, is {name}"):
            prepare([tmp_path / "b.tsv"], None, tmp_path / "b", copied_words=count, **options)


def test_one_side_from_a_file_has_copied_words_with_one_that_is_learned(tmp_path):
    (tmp_path / "a.tsv").write_text("a Rex\tx Rex\n" * 2)
    Tokenizer.from_pieces(["a"], copied_words=7).save(tmp_path / "source.json")
    options = {
        "source_tokenizer": tmp_path / "source.json",
        "target_tokenizer": "symbols",
        "copied_words": 2,
    }
    for _ in range(2):  # the second call compares the corpus with its options
        prepare([tmp_path / "a.tsv"], None, tmp_path / "corpus", **options)
    tokenizer = PreparedCorpus(tmp_path / "corpus").tokenizer
    assert tokenizer.copied_words == 2
    assert tokenizer.encode_source("a Rex") == [4, 6, 3]


def test_blank_and_long_pairs_are_counted(tmp_path, caplog):
    tokenizer = Tokenizer.train(["a"], ["a"], 260)  # a letter is an id, and so is a space
    (tmp_path / "en").write_text("abcdefgh\n\nab\nabc\n")
    (tmp_path / "de").write_text("ab\nab\n  \nabcdef\n")
    with caplog.at_level(logging.WARNING, "keras_bahdanau_runtime"):
        arguments = [tmp_path / "en"], [tmp_path / "de"]
        cut = prepare(*arguments, tmp_path / "cut", tokenizer, max_length=6)
        drop = prepare(*arguments, tmp_path / "drop", tokenizer, max_length=8, too_long="drop")
    assert [record.message for record in caplog.records] == [
        "Dropped 2 of 4 pairs: one side is blank.",
        "Cut 2 of 4 pairs: one side is longer than max_length.",
        "Dropped 2 of 4 pairs: one side is blank.",
        "Dropped 1 of 4 pairs: one side is longer than max_length.",
    ]
    assert sorted(pairs_of(PreparedCorpus(cut))) == [("abc", "abcd"), ("abcd", "ab")]
    assert pairs_of(PreparedCorpus(drop)) == [("abc", "abcdef")]
    manifest = json.loads((drop / "manifest.json").read_text())
    assert (manifest["blank"], manifest["cut"], manifest["dropped"]) == (2, 0, 1)
    with pytest.raises(ValueError, match=r"must leave at least one pair. Received: 2, and all 2"):
        prepare(*arguments, tmp_path / "none", tokenizer, max_length=2, too_long="drop")


@pytest.mark.parametrize("normalization", [None, "nfc"])
def test_texts_that_cannot_be_right_are_warned_of_once(tmp_path, caplog, normalization):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a\tx\ncafe\u0301\n", encoding="utf-8")
    two.write_text("b\r" * 9, encoding="utf-8")
    three = tmp_path / "three"
    three.write_text("b\n", encoding="utf-8")
    options = {**OPTIONS, "normalization": normalization}
    prepare([one, two], [one, three], tmp_path / "corpus", **options)
    forms = [] if normalization else [f"{one}: 1 of 2 (50.0%) lines are not in Unicode form NFC"]
    assert [record.getMessage().partition(". ")[0] for record in caplog.records] == [
        f"{one} and {one}: 2 of 2 (100.0%) pairs are identical",
        f"{one}: 1 of 2 (50.0%) lines contain a tab",
        *forms,
        f"{two}: the number of carriage returns inside lines is 8, of lines 1",
    ]
    corpus = PreparedCorpus(tmp_path / "corpus")
    assert corpus.tokenizer.normalization == normalization
    assert ("caf\u00e9", "caf\u00e9") in pairs_of(corpus) or normalization is None
    with pytest.raises(ValueError, match=r"`normalization` was .*, is 'nfkc'"):
        prepare(
            [one, two], [one, three], tmp_path / "corpus", **{**options, "normalization": "nfkc"}
        )


def test_blank_lines_after_a_full_block_keep_alignments(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_PAIRS", 2)
    tokenizer = Tokenizer.train(["a"], ["a"], 260)
    for name, text in {"en": "a\na\n\n", "de": "a\na\n\n", "links": "0-0\n0-0\n\n"}.items():
        (tmp_path / name).write_text(text)
    files = [tmp_path / "en"], [tmp_path / "de"]
    path = prepare(*files, tmp_path / "corpus", tokenizer, [tmp_path / "links"])
    corpus = PreparedCorpus(path)
    assert corpus.pairs == 2 and corpus.shard(0).links.tolist() == [[0, 0], [0, 0]]


def test_alignments_stay_with_their_pairs(tmp_path):
    tokenizer = Tokenizer.train(["a"], ["a"], 260)
    (tmp_path / "en").write_text("a\nab\nabc\n")
    (tmp_path / "de").write_text("a\nab\nabc\n")
    (tmp_path / "links").write_text("0-0\n\n1-2 3-3 4-4\n")
    files = [tmp_path / "en"], [tmp_path / "de"]
    path = prepare(*files, tmp_path / "corpus", tokenizer, [tmp_path / "links"], max_length=4)
    corpus = PreparedCorpus(path)
    shard = corpus.shard(0)
    links = [shard.links[a:b].tolist() for a, b in pairwise(shard.starts)]
    # The last pair has five ids, with the leading space and the end. The first three and the end
    # are kept, and so are the first link and the link to the end.
    assert corpus.aligned and sorted(links) == [[], [[0, 0]], [[1, 2], [3, 3]]]
    (tmp_path / "links").write_text("0-0\n\n5-2\n")
    with pytest.raises(ValueError, match=r"below \(5, 5\).*Received: \(5, 2\) for 'abc'"):
        prepare(*files, tmp_path / "wrong", tokenizer, [tmp_path / "links"])
    with pytest.raises(ValueError, match="`tokenizer` must be given with `alignments`"):
        prepare(*files, tmp_path / "wrong", alignments=[tmp_path / "links"])


@given(st.data())
def test_take_part_and_join_behave_like_list_operations(data):
    numbers = st.integers(1, 99)
    count = data.draw(st.integers(1, 8))
    sides = [
        [data.draw(st.lists(numbers, min_size=1, max_size=5)) for _ in range(count)]
        for _ in range(2)
    ]
    links = [data.draw(st.lists(st.tuples(numbers, numbers), max_size=3)) for _ in range(count)]
    shard = shard_from_lists(*sides, "uint16", links)
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=10))

    def lists(shard):
        texts = [shard.ids[a:b].tolist() for a, b in pairwise(shard.offsets.tolist())]
        links = [shard.links[a:b].tolist() for a, b in pairwise(shard.starts.tolist())]
        return list(zip(texts[::2], texts[1::2], links, strict=True))

    expected = [
        (sides[0][row], sides[1][row], [list(link) for link in links[row]]) for row in range(count)
    ]
    assert lists(shard) == expected
    assert lists(shard.take(np.array(rows, int))) == [expected[row] for row in rows]
    begin = data.draw(st.integers(0, count))
    assert lists(concatenate_shards([shard.slice(begin, count), shard.slice(0, begin)])) == (
        expected[begin:] + expected[:begin]
    )


def interrupt(files, output, stage):
    """Prepare a corpus and stop when it first reports this stage."""

    def stop(reported_stage, done, total):
        if reported_stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(files, output, progress=stop)


@pytest.mark.parametrize("stage", ["reading", "training the tokenizer", "encoding", "shuffling"])
def test_interrupted_call_is_resumed(tmp_path, corpus_files, stage):
    whole, output = prepare_corpus(corpus_files, tmp_path / "whole"), tmp_path / "corpus"
    interrupt(corpus_files, output, stage)
    early = stage in ("reading", "training the tokenizer")
    assert output.exists() is not early
    if stage == "encoding":
        block = output / "work" / "block-00000.ids.npy"
        before = block.stat().st_mtime_ns
        with pytest.raises(ValueError, match="is not finished"):
            PreparedCorpus(output)
        interrupt(corpus_files, output, "shuffling")
        assert block.stat().st_mtime_ns == before  # the finished block is not written again
    for _ in range(2):  # the second call has nothing to do
        prepare_corpus(corpus_files, output)
        assert hashes(output) == hashes(whole)


def test_texts_and_options_must_be_those_of_the_interrupted_call(tmp_path, corpus_files):
    source, output = corpus_files[0], tmp_path / "corpus"
    text = source.read_text()
    changed_text = text.replace("source 50 ", "source 51 ")
    for stage in ("encoding", "shuffling"):  # with one block, and with all of them
        interrupt(corpus_files, output, stage)
        with pytest.raises(ValueError, match="`seed` was 0, is 1"):
            prepare_corpus(corpus_files, output, seed=1)
        source.write_text(changed_text)
        with pytest.raises(ValueError, match="after pair 40; they have changed"):
            prepare_corpus(corpus_files, output)
        source.write_text(text)
    prepare_corpus(corpus_files, output)
    with pytest.raises(ValueError, match="`joint` was True, is False"):
        prepare_corpus(corpus_files, output, joint=False)
    source.write_text(changed_text)
    with pytest.raises(ValueError, match="they have changed"):
        prepare_corpus(corpus_files, output)


def test_texts_that_change_between_the_passes_are_refused(tmp_path, corpus_files):
    source = corpus_files[0]
    text = source.read_text()

    def change(stage, done, total):
        if stage == "training the tokenizer":
            source.write_text(text.replace("source 99 ", "source 98 "))

    with pytest.raises(ValueError, match="after pair 80; they have changed"):
        prepare_corpus(corpus_files, tmp_path / "corpus", progress=change)


SCRIPT = """
import sys
from keras_bahdanau.data import preparation as module
module._BLOCK_PAIRS = 20
if __name__ == "__main__":
    source, target, output, processes = sys.argv[1:]
    module.prepare([source], [target], output, vocabulary_size=300, shard_pairs=30, sample=50,
                   processes=int(processes))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_process_is_resumed_by_the_next_one(tmp_path, processes):
    source, target, _ = write_corpus(tmp_path, pairs=400)
    whole = prepare_corpus((source, target), tmp_path / "whole")
    (tmp_path / "script.py").write_text(SCRIPT)
    output, rng = tmp_path / "corpus", np.random.default_rng(processes)
    command = [sys.executable, tmp_path / "script.py", source, target, output, str(processes)]
    start_time, killed = time.monotonic(), 0
    subprocess.run(command, check=True)
    seconds = time.monotonic() - start_time
    assert hashes(output) == hashes(whole)
    for _ in range(KILLS):
        shutil.rmtree(output)
        process = subprocess.Popen(command)
        try:
            process.wait(rng.uniform(0.2, 0.95) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.wait()
        subprocess.run(command, check=True)
        assert hashes(output) == hashes(whole)
    assert killed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is full.")
def test_call_is_resumed_after_a_full_disk(tmp_path, corpus_files):
    whole = prepare_corpus(corpus_files, tmp_path / "whole")
    code = SCRIPT.replace(
        "if __name__", "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\nif __name__"
    )  # fmt: skip
    (tmp_path / "script.py").write_text(code)
    output = tmp_path / "corpus"
    command = [sys.executable, tmp_path / "script.py", *corpus_files, output, "1"]
    for stage in ("encoding", "shuffling"):
        interrupt(corpus_files, output, stage)
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode and "OSError" in run.stderr, run.stderr
    prepare_corpus(corpus_files, output)
    assert hashes(output) == hashes(whole)


def flip_last_bit(path):
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)


@pytest.mark.parametrize("name", ["shard-00001.ids.npy", "shard-00001.offsets.npy"])
@pytest.mark.parametrize(
    "damage, message",
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes instead of"),
        (flip_last_bit, "was changed: its hash differs"),
    ],
)
def test_damaged_shards_are_refused(tmp_path, corpus_files, name, damage, message):
    path = prepare_corpus(corpus_files, tmp_path / "corpus")
    damage(path / name)
    with pytest.raises(ValueError, match=f"Received: .*{name}.*{message}"):
        PreparedCorpus(path).shard(1)


def test_shard_of_another_seed_is_refused(tmp_path, corpus_files):
    path = prepare_corpus(corpus_files, tmp_path / "corpus")
    other = prepare_corpus(corpus_files, tmp_path / "other", seed=1)
    for kind in ("ids", "offsets"):
        shutil.copy(other / f"shard-00002.{kind}.npy", path)
    with pytest.raises(ValueError, match=r"shard-00002\.(ids|offsets)\.npy (has|was changed)"):
        PreparedCorpus(path).check()


def test_unusable_manifests_are_refused(tmp_path, corpus_files):
    path = prepare_corpus(corpus_files, tmp_path / "corpus")
    manifest = json.loads((path / "manifest.json").read_text())
    files = manifest["files"]
    for change, message in (
        ({"version": 2}, "must be a corpus of version 1.*version 2"),
        ({"format": "other"}, "is not that of a corpus"),
        ({"aligned": None}, "invalid `aligned` None"),
        ({"longest": [3]}, r"invalid `longest` \[3\]"),
        ({"shards": ["9"]}, "invalid `shards`"),
        ({"shards": []}, "invalid `shards`"),
        ({"tokens": 3}, "invalid `tokens` 3"),
        ({"files": []}, "invalid `files`"),
        ({"files": {**files, "tokenizer.json": {}}}, "invalid `files`"),
        # A run with `mix` links the files of a corpus into its own folder.
        ({"files": {**files, "../a.py": files["tokenizer.json"]}}, "invalid `files`"),
    ):
        (path / "manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(ValueError, match=message):
            PreparedCorpus(path)
    for text in ("{", "[" * 10**5):
        (path / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match="cannot be read"):
            PreparedCorpus(path)
    with pytest.raises(ValueError, match="is missing"):
        PreparedCorpus(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": -1}, "`seed`"),
        ({"sample": 0}, "`sample`"),
        ({"shard_pairs": 0}, "`shard_pairs`"),
        ({"max_length": 1}, "`max_length`"),
        ({"vocabulary_size": 100}, "`vocabulary_size`"),
        ({"sources": iter(["a"])}, r"`sources` must be a list of paths. Received: <list_it"),
        ({"processes": 0}, "`processes`"),
        ({"normalization": "NFC"}, "`normalization` must be one of"),
        ({"too_long": "keep"}, "`too_long` must be one of"),
        ({"sources": []}, "`sources` and `targets` must have the same number of files"),
        ({"targets": ["a", "b"]}, "Received: 1, 2"),
        ({"sources": ["."]}, "plain files"),
        ({"targets": "train.de"}, "`targets` must be a list of paths. Received: 'train.de'"),
    ],
)
def test_arguments_are_checked_before_files_are_written(tmp_path, corpus_files, change, message):
    source, target = corpus_files
    arguments = {"sources": [source], "targets": [target], "output": tmp_path / "corpus", **change}
    with pytest.raises(ValueError, match=message):
        prepare(**arguments)
    assert not (tmp_path / "corpus").exists()


def test_files_that_are_no_parallel_text_are_refused(tmp_path, corpus_files):
    source, target = corpus_files
    target.write_text("one line\n")
    for contents, message in (
        (source.read_bytes(), r"train\.de ends after line 1, .*train\.en goes on"),
        (b"\n", "must contain a pair of sentences"),
        (b"\xff\n", r"train\.en, line 1: not UTF-8"),
    ):
        source.write_bytes(contents)
        with pytest.raises(ValueError, match=message):
            prepare_corpus(corpus_files, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    "name", ["thesis.txt", "work/thesis.txt", "tokenizer.json", "manifest.json"]
)
def test_folder_with_other_files_is_refused(tmp_path, corpus_files, name):
    file = tmp_path / "corpus" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"name": "mine"}')
    with pytest.raises(ValueError, match="contains other files"):
        prepare_corpus(corpus_files, tmp_path / "corpus")
    assert list(hashes(tmp_path / "corpus")) == [name]
    assert file.read_text() == '{"name": "mine"}'


def test_files_added_to_a_finished_corpus_are_kept(tmp_path, corpus_files):
    file = tmp_path / "corpus" / "work" / "thesis.txt"
    prepare_corpus(corpus_files, tmp_path / "corpus")
    file.parent.mkdir()
    file.write_text("mine")
    prepare_corpus(corpus_files, tmp_path / "corpus")
    assert file.read_text() == "mine"
    PreparedCorpus(tmp_path / "corpus")


def test_new_corpus_in_the_same_folder_has_its_own_tokenizer(tmp_path):
    file = tmp_path / "text"
    for words in ("a man on a bike", "waltz fjord on a bike"):
        file.write_text(f"{words}\n" * 50)
        corpus = PreparedCorpus(prepare_corpus((file, file), tmp_path / "corpus"))
        assert set(pairs_of(corpus)) == {(words, words)}
        shutil.rmtree(tmp_path / "corpus")


def test_tokenizer_sample_is_spread_over_the_text(tmp_path, corpus_files, monkeypatch):
    samples, train = [], module.Tokenizer.train

    def train_and_record(sources, *arguments, **options):
        samples.append(sources)
        return train(sources, *arguments, **options)

    monkeypatch.setattr(module.Tokenizer, "train", train_and_record)
    prepare_corpus(corpus_files, tmp_path / "corpus", sample=30)
    lines = [int(text.split()[1]) for text in samples[0]]
    assert len(set(lines)) == 30 and max(lines) > 70 and sum(line < 30 for line in lines) < 20


def test_pairs_within_a_shard_are_shuffled(tmp_path):
    source, target, lines = write_corpus(tmp_path)
    path = prepare_corpus((source, target), tmp_path / "corpus", shard_pairs=1000)
    pairs = pairs_of(PreparedCorpus(path))
    assert sorted(pairs) == sorted(lines)
    assert sum(pair == line for pair, line in zip(pairs, lines, strict=True)) < 20


def test_blocks_of_long_texts_have_fewer_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_BLOCK_CHARACTERS", 10)
    (tmp_path / "a.tsv").write_text("aaaa\tbbbb\n" * 5)
    read = list(blocks.read_blocks([tmp_path / "a.tsv"], None, None, pairs=3))
    assert [len(block.sources) for block in read] == [2, 2, 1]
    assert [block.number for block in read] == [0, 1, 2]


def test_long_texts_are_encoded_in_small_groups_with_the_same_ids(
    tmp_path, corpus_files, monkeypatch
):
    contents = []
    for name, characters, cached in (("a", 2**21, 2000), ("b", 40, 12)):
        monkeypatch.setattr(blocks, "_ENCODE_CHARACTERS", characters)
        monkeypatch.setattr(blocks, "_MAX_CACHED", cached)
        prepare_corpus(corpus_files, tmp_path / name)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
