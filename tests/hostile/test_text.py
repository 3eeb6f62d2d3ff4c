"""Any text in: one translation for each, in order, the same as alone; what one costs the others."""

import gzip
import io
import math
import sys
import threading

import numpy as np
import onnx
import onnx.parser
import pytest
from copy_artifact import TOKENIZER, copy_graph, make, spinning_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.errors import LimitError, RunError
from keras_bahdanau_runtime.text.corpus import iterate_lines, read_lines

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "artifact"
    return Translator(make(path, max_source_length=None), threads=1)


@pytest.fixture(scope="module")
def crowd(translator):
    return Translator(translator.manifest.folder, workers=3)


@settings(max_examples=60)
@given(texts=st.lists(ANY_TEXT, max_size=12), tokens=st.integers(1, 200), size=st.integers(1, 5))
def test_each_text_has_its_translation_whatever_stands_beside_it(
    translator, crowd, texts, tokens, size
):
    found = translator.translate(texts, batch_size=size, batch_tokens=tokens)
    assert [one.text for one in found] == [text if text.strip() else "" for text in texts]
    streamed = list(translator.translate_stream(iter(texts), window=size, batch_tokens=tokens))
    assert [one.text for one in streamed] == [one.text for one in found]
    done = []
    beside = crowd.translate(texts, batch_size=size, progress=done.append)
    assert [one.text for one in beside] == [one.text for one in found]
    assert done == sorted(done) and (done or [0])[-1] == len(texts)
    for text, one in zip(texts, found, strict=True):
        [alone] = translator.translate([text])
        assert (alone.text, alone.tokens, alone.score) == (one.text, one.tokens, one.score)


@pytest.mark.parametrize(
    "texts, options, named",
    [
        ("a man", {}, "texts"),
        ([], dict(batch_size=0), "batch_size"),
        ([], dict(batch_tokens=0), "batch_tokens"),
        ([], dict(on_error="ignore"), "on_error"),
        ([], dict(window=0), "window"),
    ],
)
def test_a_stream_of_texts_is_refused_before_it_begins(translator, texts, options, named):
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        translator.translate_stream(texts, **options)


@given(texts=st.lists(ANY_TEXT.map(lambda text: text.replace("\n", " ").rstrip("\r"))))
def test_lines_come_back_as_they_were_written(texts):
    data = "".join(f"{text}\n" for text in texts).encode()
    expected = [text.removeprefix("\ufeff") if i == 0 else text for i, text in enumerate(texts)]
    assert read_lines(io.BytesIO(data), may_be_empty=True) == expected
    with_mark = b"\xef\xbb\xbf" + data
    assert list(iterate_lines(io.BytesIO(with_mark))) == texts


@pytest.mark.parametrize("cut", [5, 20])
def test_a_cut_gzip_file_is_named_after_the_lines_before_it(tmp_path, cut):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a man\n" * 1000)[:-cut])
    with pytest.raises(ValueError, match=r"text\.gz is not a whole gzip file"):
        list(iterate_lines(path))


def test_a_long_text_is_run_alone(translator, monkeypatch):
    shapes, run = [], translator._graph.run

    def watched(feeds, shrink):
        shapes.append(feeds["source"].shape)
        return run(feeds, shrink)

    monkeypatch.setattr(translator._graph, "run", watched)
    translator.translate([*["a man"] * 40, "a dog " * 500], batch_tokens=400)
    assert shapes[0][0] == 1 and shapes[0][1] > 400
    assert max(rows for rows, _ in shapes) == 16
    assert all(rows * width <= 400 for rows, width in shapes[1:])


def test_a_text_that_cannot_be_translated_leaves_the_others(translator):
    limit = len(TOKENIZER.encode("a man").ids)
    translator = Translator(make_limited(translator, limit), threads=1)
    texts = ["a man", "a man on a bike on a bike", "", "a dog"]
    with pytest.raises(ValueError, match="at index 1"):
        translator.translate(texts)
    found = translator.translate(texts, on_error="keep", n_best=2)
    assert [len(hypotheses) for hypotheses in found] == [1, 1, 1, 1]
    one, long, empty, other = (hypotheses[0] for hypotheses in found)
    assert (one.text, empty.text, other.text) == ("a man", "", "a dog")
    assert one.error is empty.error is other.error is None
    assert long.text == "" and math.isnan(long.score) and f"at most {limit}" in long.error
    cut = translator.translate(texts, on_error="keep", truncate=True)
    assert cut[1].error is None and cut[1].text.startswith("a man")
    with pytest.raises(ValueError, match="`on_error` must be"):
        translator.translate(texts, on_error="ignore")


def make_limited(translator, limit):
    path = translator.manifest.folder.with_name("limited")
    return path if path.exists() else make(path, max_source_length=limit)


# Takes the id 6 of any sentence as the number of places of a tensor: too many, for large ids.
HUNGRY = (
    copy_graph()
    .replace(
        "is_pad = Equal",
        """largest = ReduceMax <keepdims = 1> (source)
    wide = Cast <to = 7> (largest)
    flat = Reshape (wide, one)
    huge = Mul (flat, many)
    taken = ConstantOfShape (huge)
    is_pad = Equal""",
    )
    .replace("int64[1] two = {2}", "int64[1] two = {2}, int64[1] many = {1099511627776}")
)


def test_memory_that_is_not_there_is_a_limit(tmp_path):
    translator = Translator(make(tmp_path / "a", HUNGRY), threads=1)
    with pytest.raises(RunError):
        translator.translate(["a man"])
    [found] = translator.translate(["a man"], on_error="keep")
    assert found.error.startswith(("RunError", "LimitError"))


# Takes 4 MB for every id of a sentence.
GREEDY = HUNGRY.replace("largest = ReduceMax <keepdims = 1> (source)", "largest = Size (source)")
GREEDY = GREEDY.replace("{1099511627776}", "{1048576}")


def test_memory_has_a_limit_for_each_translator(tmp_path):
    path = make(tmp_path / "a", GREEDY)
    free, small, large = (Translator(path, threads=1, megabytes=limit) for limit in (None, 30, 400))
    short, long = "a man", "a man on a bike " * 4 + "on"
    assert small.translate([short])[0].text == short
    with pytest.raises(LimitError, match="could not run"):
        small.translate([long])
    one, other = small.translate([long, short], on_error="keep")
    assert "LimitError" in one.error and other.text == short
    for translator in (large, free):
        assert translator.translate([long])[0].text == long


def test_weights_do_not_count_for_the_limit_of_memory(tmp_path):
    text = GREEDY.replace("int64[1] two = {2}", "int64[1] two = {2}, int64[2] deep = {1, 2048}")
    text = text.replace(
        "score = Neg (float_count)",
        """features = Expand (float_count, deep)
    product = MatMul (features, weights)
    nothing_more = ReduceMax <axes = [1], keepdims = 1> (product)
    score = Sub (nothing_more, float_count)""",
    )
    graph = onnx.parser.parse_model(text)
    weights = np.zeros((2048, 6144), "float32")  # 48 MB, of which onnxruntime keeps a packed copy
    graph.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    path = make(tmp_path / "a", graph)
    for limit, most in ((30, 7), (80, 20)):  # fewer than the weights, and more
        translator = Translator(path, threads=1, megabytes=limit)
        assert translator.translate_ids([[5, 6, 3]])["lengths"].tolist() == [[3, 0]]
        with pytest.raises(LimitError):
            translator.translate_ids([[5] * (most + 1)])


@pytest.mark.parametrize("limits", [dict(megabytes=1e30), dict(megabytes=None)])
def test_a_limit_that_no_machine_reaches_is_none(tmp_path, limits):
    translator = Translator(make(tmp_path / "a"), threads=1, seconds=1e300, **limits)
    assert translator.translate(["a man"])[0].text == "a man"
    with pytest.raises(LimitError):
        Translator(make(tmp_path / "b"), threads=1, megabytes=1e-9).translate(["a man"])


def test_what_a_worker_raises_is_raised(tmp_path):
    translator = Translator(make(tmp_path / "a", GREEDY), workers=2, megabytes=60)
    texts = ["a man"] * 40 + ["a man on a bike " * 6]
    with pytest.raises(LimitError):
        translator.translate(texts, batch_size=1)
    found = translator.translate(texts, batch_size=1, on_error="keep")
    assert [one.error is None for one in found] == [True] * 40 + [False]
    assert not [one for one in threading.enumerate() if "search" in one.name]


# Has a constant of a gigabyte that onnxruntime could make when it opens the graph.
VAST = (
    copy_graph()
    .replace("is_pad = Equal", "vast = ConstantOfShape (huge)\n    is_pad = Equal")
    .replace("int64[1] two = {2}", "int64[1] two = {2}, int64[1] huge = {268435456}")
    .replace("score = Neg (float_count)", "most = ReduceMax <keepdims = 0> (vast)\n"
             "    none = Add (float_count, most)\n    score = Neg (none)")
)  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="Windows counts memory otherwise.")
def test_opening_makes_no_large_tensors(tmp_path):
    import resource

    path = make(tmp_path / "a", VAST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    translator = Translator(path, threads=1, megabytes=30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    with pytest.raises(LimitError):
        translator.translate(["a man"])


def test_a_run_ends_at_its_deadline(tmp_path):
    translator = Translator(make(tmp_path / "a", spinning_graph(2**63 - 1)), threads=1, seconds=0.2)
    with pytest.raises(LimitError, match=r"longer than 0\.2 s"):
        translator.translate(["a man"])


@pytest.mark.parametrize("name", ["seconds", "megabytes"])
@pytest.mark.parametrize("limit", [0, -1, float("nan"), "1", True])
def test_a_limit_must_be_a_number(translator, name, limit):
    with pytest.raises(ValueError, match=f"`{name}` must be a number above 0"):
        Translator(translator.manifest.folder, **{name: limit})


@pytest.mark.parametrize("workers", [0, 1.5, None])
def test_workers_must_be_counted(translator, workers):
    with pytest.raises(ValueError, match="`workers` must be a positive integer"):
        Translator(translator.manifest.folder, workers=workers)


# Asks for more memory than there is for a text that holds a learned piece: ids from 260 on.
LARGE = """large = Greater (largest, bytes)
    wide = Cast <to = 7> (large)"""
CHOOSY = HUNGRY.replace("wide = Cast <to = 7> (largest)", LARGE)
CHOOSY = CHOOSY.replace("int64[1] many", "int32 bytes = {259}, int64[1] many")


def test_a_run_that_fails_for_one_text_is_repeated_for_the_others(tmp_path):
    translator = Translator(make(tmp_path / "a", CHOOSY), threads=1)
    found = translator.translate(["xyz", "a man", "qqq"], on_error="keep")
    assert [one.text for one in found] == ["xyz", "", "qqq"]
    assert [one.error is None for one in found] == [True, False, True]


LIES = {
    "one score": ("scores = Concat <axis = 1> (score, second_score)", "scores = Identity (score)"),
    "no such token": ("empty_row = Mul (row, pad)", "empty_row = Add (row, thousand)"),
    "a negative token": ("empty_row = Mul (row, pad)", "empty_row = Sub (row, thousand)"),
    "too long": ("lengths = Max (shorter, pad)", "lengths = Add (shorter, thousand)"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_no_search_finds_is_refused(tmp_path, name):
    old, new = LIES[name]
    graph = copy_graph().replace(old, new)
    graph = graph.replace("<int32 pad = {0}", "<int32[1] thousand = {1000}, int32 pad = {0}")
    translator = Translator(make(tmp_path / "a", graph), threads=1)
    with pytest.raises(RunError, match="The graph must give"):
        translator.translate(["a man"])
    with pytest.raises(RunError, match="The graph must give"):
        translator.translate_ids([[5, 6, 3]])
