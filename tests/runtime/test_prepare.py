import gzip
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.prepared import prepare as module
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare
from keras_bahdanau_runtime.prepared.shard import from_lists, join
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

KILLS = int(os.environ.get("KILLS", "3"))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 20)


def texts(folder, pairs=100, name="train"):
    """Two files whose lines can be told apart; returns their paths and the lines."""
    rng = np.random.default_rng(0)
    lines = [
        [f"{side} {number} " + " ".join(rng.choice(["a", "man", "bike"], 1 + number % 7)).strip()
         for number in range(pairs)]
        for side in ("source", "target")
    ]  # fmt: skip
    paths = [folder / f"{name}.{side}" for side in ("en", "de")]
    for path, side in zip(paths, lines, strict=True):
        path.write_text("\n".join([*side, ""]), encoding="utf-8")
    return *paths, list(zip(*lines, strict=True))


def pairs_of(corpus):
    """The pairs of a corpus as text, checking their form."""
    found = []
    for number, size in enumerate(corpus.sizes):
        shard = corpus.shard(number)
        assert len(shard) == size
        for begin, middle, end in zip(
            shard.offsets[:-1:2], shard.offsets[1::2], shard.offsets[2::2], strict=True
        ):
            source, target = shard.ids[begin:middle].tolist(), shard.ids[middle:end].tolist()
            assert source[-1] == target[-1] == EOS
            # One vocabulary: a source is read as a target is.
            found.append((corpus.tokenizer.decode(source), corpus.tokenizer.decode(target)))
    return found


def files_of(folder):
    """The hash of every file of a folder, by its name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


OPTIONS = {"vocabulary_size": 300, "shard_pairs": 30, "sample": 50}


def test_every_pair_is_there_once_in_another_order(tmp_path):
    source, target, lines = texts(tmp_path)
    assert prepare([source], [target], tmp_path / "corpus", **OPTIONS) == tmp_path / "corpus"
    corpus = PreparedCorpus(tmp_path / "corpus")
    corpus.check()
    found = pairs_of(corpus)
    assert sorted(found) == sorted(lines) and found != lines
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


def test_the_bytes_are_a_function_of_texts_options_and_seed(tmp_path):
    source, target, _ = texts(tmp_path)
    parts = []
    for path in (source, target):  # the same lines in other files, one of them compressed
        lines = path.read_bytes().splitlines(keepends=True)
        first, second = path.with_suffix(f"{path.suffix}1"), path.with_suffix(f"{path.suffix}2.gz")
        first.write_bytes(b"".join(lines[:33]))
        second.write_bytes(gzip.compress(b"".join(lines[33:])))
        parts.append([first, second])
    one = prepare([source], [target], tmp_path / "one", **OPTIONS)
    two = prepare(*parts, tmp_path / "two", processes=2, **OPTIONS)
    assert files_of(one) == files_of(two)
    other = prepare([source], [target], tmp_path / "other", seed=1, **OPTIONS)
    assert files_of(other)["shard-00000.ids.npy"] != files_of(one)["shard-00000.ids.npy"]


def test_a_tokenizer_may_be_given_and_a_sample_is_enough(tmp_path):
    source, target, lines = texts(tmp_path)
    tokenizer = Tokenizer.train(["a man"] * 3, ["a bike"] * 3, 270, joint=False)
    corpus = PreparedCorpus(prepare([source], [target], tmp_path / "given", tokenizer))
    assert corpus.tokenizer == tokenizer and corpus.pairs == 100
    with pytest.raises(ValueError, match="`tokenizer` is another"):
        prepare([source], [target], tmp_path / "given", Tokenizer.train(["b"], ["b"], 270))
    for useless in ({"vocabulary_size": 300}, {"joint": False}, {"sample": 5}):
        with pytest.raises(ValueError, match=f"`{next(iter(useless))}` must be left out with a"):
            prepare([source], [target], tmp_path / "useless", tokenizer, **useless)
    assert not (tmp_path / "useless").exists()
    whole = prepare([source], [target], tmp_path / "whole", vocabulary_size=300, sample=100)
    sources, targets = zip(*lines, strict=True)
    assert PreparedCorpus(whole).tokenizer == Tokenizer.train(sources, targets, 300)


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
    with pytest.raises(ValueError, match=r"`max_length` must leave a pair. Received: 2, and all 2"):
        prepare(*arguments, tmp_path / "none", tokenizer, max_length=2, too_long="drop")


def test_blank_lines_after_a_whole_block_do_not_harm_alignments(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 2)
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
    found = [shard.links[a:b].tolist() for a, b in pairwise(shard.starts)]
    # Lengths count the space in front and the end: of the last five ids the first three and the
    # end stay, and of its links the first and the one to the end.
    assert corpus.aligned and sorted(found) == [[], [[0, 0]], [[1, 2], [3, 3]]]
    (tmp_path / "links").write_text("0-0\n\n5-2\n")
    with pytest.raises(ValueError, match=r"below \(5, 5\).*Received: \(5, 2\) for 'abc'"):
        prepare(*files, tmp_path / "wrong", tokenizer, [tmp_path / "links"])
    with pytest.raises(ValueError, match="`tokenizer` must be given with `alignments`"):
        prepare(*files, tmp_path / "wrong", alignments=[tmp_path / "links"])


@given(st.data())
def test_take_part_and_join_are_those_of_lists(data):
    numbers = st.integers(1, 99)
    count = data.draw(st.integers(1, 8))
    sides = [
        [data.draw(st.lists(numbers, min_size=1, max_size=5)) for _ in range(count)]
        for _ in range(2)
    ]
    links = [data.draw(st.lists(st.tuples(numbers, numbers), max_size=3)) for _ in range(count)]
    shard = from_lists(*sides, "uint16", links)
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=10))
    taken = shard.take(np.array(rows, int))

    def lists(some):
        ids, places = some.ids.tolist(), some.offsets.tolist()
        cut = [ids[a:b] for a, b in pairwise(places)]
        ends = some.starts.tolist()
        found = [some.links[a:b].tolist() for a, b in pairwise(ends)]
        return list(zip(cut[::2], cut[1::2], found, strict=True))

    expected = [
        (sides[0][row], sides[1][row], [list(link) for link in links[row]]) for row in range(count)
    ]
    assert lists(shard) == expected
    assert lists(taken) == [expected[row] for row in rows]
    begin = data.draw(st.integers(0, count))
    assert lists(join([shard.part(begin, count), shard.part(0, begin)])) == (
        expected[begin:] + expected[:begin]
    )


def interrupted(source, target, output, stage, **options):
    """A call that ends where it first reports `stage`."""

    def stop(now, done, total):
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([source], [target], output, progress=stop, **OPTIONS, **options)


@pytest.mark.parametrize("stage", ["reading", "learning the tokenizer", "encoding", "shuffling"])
def test_an_interrupted_call_goes_on(tmp_path, stage):
    source, target, _ = texts(tmp_path)
    whole = prepare([source], [target], tmp_path / "whole", **OPTIONS)
    interrupted(source, target, tmp_path / "corpus", stage)
    early = stage in ("reading", "learning the tokenizer")
    assert (tmp_path / "corpus").exists() is not early
    if stage == "encoding":  # the block that is there is not made again
        block = tmp_path / "corpus" / "work" / "block-00000.ids.npy"
        before = block.stat().st_mtime_ns
        with pytest.raises(ValueError, match="was not finished"):
            PreparedCorpus(tmp_path / "corpus")
        interrupted(source, target, tmp_path / "corpus", "shuffling")
        assert block.stat().st_mtime_ns == before
    prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    assert files_of(tmp_path / "corpus") == files_of(whole)
    prepare([source], [target], tmp_path / "corpus", **OPTIONS)  # once more: nothing to do
    assert files_of(tmp_path / "corpus") == files_of(whole)


def test_texts_and_options_must_be_those_of_the_interrupted_call(tmp_path):
    source, target, _ = texts(tmp_path)
    output = tmp_path / "corpus"
    interrupted(source, target, output, "encoding")
    with pytest.raises(ValueError, match="`seed` was 0, is 1"):
        prepare([source], [target], output, seed=1, **OPTIONS)
    text = source.read_text()
    source.write_text(text.replace("source 50 ", "source 51 "))
    with pytest.raises(ValueError, match="after pair 40; they have changed"):
        prepare([source], [target], output, **OPTIONS)
    source.write_text(text)
    interrupted(source, target, output, "shuffling")  # all blocks are there
    source.write_text(text.replace("source 50 ", "source 51 "))
    with pytest.raises(ValueError, match="after pair 40; they have changed"):
        prepare([source], [target], output, **OPTIONS)
    source.write_text(text)
    prepare([source], [target], output, **OPTIONS)
    with pytest.raises(ValueError, match="`joint` was True, is False"):
        prepare([source], [target], output, joint=False, **OPTIONS)
    source.write_text(text.replace("source 50 ", "source 51 "))
    with pytest.raises(ValueError, match="they have changed"):
        prepare([source], [target], output, **OPTIONS)


def test_texts_that_change_between_the_passes_are_refused(tmp_path):
    source, target, _ = texts(tmp_path)
    text = source.read_text()

    def change(stage, done, total):
        if stage == "learning the tokenizer":
            source.write_text(text.replace("source 99 ", "source 98 "))

    with pytest.raises(ValueError, match="after pair 80; they have changed"):
        prepare([source], [target], tmp_path / "corpus", progress=change, **OPTIONS)


SCRIPT = """
import sys
from keras_bahdanau_runtime.prepared import prepare as module
module._BLOCK = 20
if __name__ == "__main__":
    source, target, output, processes = sys.argv[1:]
    module.prepare([source], [target], output, vocabulary_size=300, shard_pairs=30, sample=50,
                   processes=int(processes))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_process_leaves_what_the_next_goes_on_with(tmp_path, processes):
    source, target, _ = texts(tmp_path, pairs=400)
    whole = prepare([source], [target], tmp_path / "whole", **OPTIONS)
    (tmp_path / "script.py").write_text(SCRIPT)
    output, rng = tmp_path / "corpus", np.random.default_rng(processes)
    command = [sys.executable, tmp_path / "script.py", source, target, output, str(processes)]
    began, killed = time.monotonic(), 0
    subprocess.run(command, check=True)
    seconds = time.monotonic() - began
    assert files_of(output) == files_of(whole)
    for _ in range(KILLS):
        shutil.rmtree(output)
        process = subprocess.Popen(command)
        try:
            process.wait(rng.uniform(0.2, 0.95) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
        subprocess.run(command, check=True)
        assert files_of(output) == files_of(whole)
    assert killed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is full.")
def test_a_full_disk_says_so_and_the_call_goes_on(tmp_path):
    source, target, _ = texts(tmp_path)
    whole = prepare([source], [target], tmp_path / "whole", **OPTIONS)
    code = SCRIPT.replace(
        "if __name__", "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\nif __name__"
    )  # fmt: skip
    (tmp_path / "script.py").write_text(code)
    output = tmp_path / "corpus"
    for stage in ("encoding", "shuffling"):
        interrupted(source, target, output, stage)
        command = [sys.executable, tmp_path / "script.py", source, target, output, "1"]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode and "OSError" in run.stderr, run.stderr
    prepare([source], [target], output, **OPTIONS)
    assert files_of(output) == files_of(whole)


def spoil(folder, name, change):
    path = folder / name
    if change == "missing":
        path.unlink()
    elif change == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        contents = bytearray(path.read_bytes())
        contents[-1] ^= 1
        path.write_bytes(contents)


@pytest.mark.parametrize("name", ["shard-00001.ids.npy", "shard-00001.offsets.npy"])
@pytest.mark.parametrize("change, message", [
    ("missing", "is missing"), ("truncated", "bytes instead of"), ("flipped", "its hash is another")
])  # fmt: skip
def test_damaged_shards_are_refused(tmp_path, name, change, message):
    source, target, _ = texts(tmp_path)
    path = prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    spoil(path, name, change)
    with pytest.raises(ValueError, match=f"Received: .*{name}.*{message}"):
        PreparedCorpus(path).shard(1)


def test_a_shard_of_another_seed_is_refused(tmp_path):
    source, target, _ = texts(tmp_path)
    one = prepare([source], [target], tmp_path / "one", **OPTIONS)
    other = prepare([source], [target], tmp_path / "other", seed=1, **OPTIONS)
    for kind in ("ids", "offsets"):
        shutil.copy(other / f"shard-00002.{kind}.npy", one)
    with pytest.raises(ValueError, match=r"shard-00002\.(ids|offsets)\.npy (has|is not)"):
        PreparedCorpus(one).check()


def test_manifests_that_cannot_be_used(tmp_path):
    source, target, _ = texts(tmp_path)
    path = prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    manifest = json.loads((path / "manifest.json").read_text())
    for change, message in (
        ({"version": 2}, "must be a corpus of version 1.*version 2"),
        ({"format": "other"}, "is of something else"),
    ):
        (path / "manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(ValueError, match=message):
            PreparedCorpus(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        PreparedCorpus(path)
    with pytest.raises(ValueError, match="is not there"):
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
        ({"too_long": "keep"}, "`too_long` must be one of"),
        ({"sources": []}, "`sources` and `targets` must hold as many files"),
        ({"targets": ["a", "b"]}, "Received: 1, 2"),
        ({"sources": ["."]}, "plain files"),
        ({"targets": "train.de"}, "`targets` must be a list of paths. Received: 'train.de'"),
    ],
)
def test_arguments_are_checked_before_anything_is_made(tmp_path, change, message):
    source, target, _ = texts(tmp_path)
    arguments = {"sources": [source], "targets": [target], "output": tmp_path / "corpus", **change}
    with pytest.raises(ValueError, match=message):
        prepare(**arguments)
    assert not (tmp_path / "corpus").exists()


def test_texts_that_do_not_belong_together(tmp_path):
    source, target, _ = texts(tmp_path)
    target.write_text("one line\n")
    with pytest.raises(ValueError, match=r"train\.de ends after line 1, .*train\.en goes on"):
        prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    source.write_text("\n")
    with pytest.raises(ValueError, match="must hold a pair of sentences"):
        prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    source.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"train\.en, line 1: not UTF-8"):
        prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    "name", ["thesis.txt", "work/thesis.txt", "tokenizer.json", "manifest.json"]
)
def test_a_folder_of_something_else_is_left_alone(tmp_path, name):
    source, target, _ = texts(tmp_path)
    mine = tmp_path / "corpus" / name
    mine.parent.mkdir(parents=True)
    mine.write_text('{"name": "mine"}')
    with pytest.raises(ValueError, match="holds something else"):
        prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    assert list(files_of(tmp_path / "corpus")) == [name]
    assert mine.read_text() == '{"name": "mine"}'


def test_what_is_put_beside_a_corpus_stays(tmp_path):
    source, target, _ = texts(tmp_path)
    mine = tmp_path / "corpus" / "work" / "thesis.txt"
    prepare([source], [target], tmp_path / "corpus", **OPTIONS)
    mine.parent.mkdir()
    mine.write_text("mine")
    prepare([source], [target], tmp_path / "corpus", **OPTIONS)  # finds it finished
    assert mine.read_text() == "mine"
    PreparedCorpus(tmp_path / "corpus")


def test_another_corpus_in_the_same_place_has_a_tokenizer_of_its_own(tmp_path):
    for words in ("a man on a bike", "waltz fjord on a bike"):
        text = tmp_path / "text"
        text.write_text(f"{words}\n" * 50)
        found = PreparedCorpus(prepare([text], [text], tmp_path / "corpus", **OPTIONS))
        assert set(pairs_of(found)) == {(words, words)}
        shutil.rmtree(tmp_path / "corpus")


def test_the_pieces_are_learned_from_all_of_the_text(tmp_path, monkeypatch):
    source, target, _ = texts(tmp_path)
    seen, train = [], module.Tokenizer.train
    monkeypatch.setattr(
        module.Tokenizer, "train", lambda *given: seen.append(given) or train(*given)
    )
    prepare([source], [target], tmp_path / "corpus", **{**OPTIONS, "sample": 30})
    places = [int(text.split()[1]) for text in seen[0][0]]
    assert len(set(places)) == 30 and max(places) > 70 and sum(place < 30 for place in places) < 20


def test_the_pairs_of_a_shard_are_in_no_order(tmp_path):
    source, target, lines = texts(tmp_path)
    path = prepare([source], [target], tmp_path / "corpus", **{**OPTIONS, "shard_pairs": 1000})
    found = pairs_of(PreparedCorpus(path))
    assert (
        sorted(found) == sorted(lines)
        and sum(a == b for a, b in zip(found, lines, strict=True)) < 20
    )
