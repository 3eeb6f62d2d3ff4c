"""Any texts, graphs that fail for some of them, and limits of memory and time."""

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
def translator_with_workers(translator):
    return Translator(translator.manifest.folder, parallel_batches=3)


@settings(max_examples=60)
@given(texts=st.lists(ANY_TEXT, max_size=12), tokens=st.integers(1, 200), size=st.integers(1, 5))
def test_translation_does_not_depend_on_other_texts_batches_and_workers(
    translator, translator_with_workers, texts, tokens, size
):
    translations = translator.translate(texts, batch_size=size, batch_tokens=tokens)
    expected = [text if text.strip() else "" for text in texts]
    assert [translation.text for translation in translations] == expected
    stream = translator.translate_stream(iter(texts), window=size, batch_tokens=tokens)
    assert [translation.text for translation in stream] == expected
    done = []
    parallel = translator_with_workers.translate(texts, batch_size=size, progress=done.append)
    assert [translation.text for translation in parallel] == expected
    assert done == sorted(done) and (done or [0])[-1] == len(texts)
    for text, translation in zip(texts, translations, strict=True):
        [alone] = translator.translate([text])
        assert alone.tokens == translation.tokens and alone.score == translation.score


@pytest.mark.parametrize(
    "texts, options, name",
    [
        ("a man", {}, "texts"),
        ([], dict(batch_size=0), "batch_size"),
        ([], dict(batch_tokens=0), "batch_tokens"),
        ([], dict(on_error="ignore"), "on_error"),
        ([], dict(window=0), "window"),
    ],
)
def test_invalid_arguments_of_a_stream_are_refused_before_it_begins(
    translator, texts, options, name
):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        translator.translate_stream(texts, **options)


@given(texts=st.lists(ANY_TEXT.map(lambda text: text.replace("\n", " ").rstrip("\r"))))
def test_lines_are_read_as_they_were_written(texts):
    data = "".join(f"{text}\n" for text in texts).encode()
    expected = [text.removeprefix("\ufeff") if i == 0 else text for i, text in enumerate(texts)]
    assert read_lines(io.BytesIO(data), may_be_empty=True) == expected
    with_mark = b"\xef\xbb\xbf" + data
    assert list(iterate_lines(io.BytesIO(with_mark))) == texts


def test_text_longer_than_batch_tokens_is_run_alone(translator, monkeypatch):
    shapes, run = [], translator._graph.run

    def run_and_record_shape(feeds, *arguments, **options):
        shapes.append(feeds["source"].shape)
        return run(feeds, *arguments, **options)

    monkeypatch.setattr(translator._graph, "run", run_and_record_shape)
    translator.translate([*["a man"] * 40, "a dog " * 500], batch_tokens=400)
    assert shapes[0][0] == 1 and shapes[0][1] > 400
    assert max(rows for rows, _ in shapes) == 16
    assert all(rows * width <= 400 for rows, width in shapes[1:])


def test_too_long_text_does_not_stop_the_others(tmp_path):
    limit = len(TOKENIZER.encode("a man").ids)
    translator = Translator(make(tmp_path / "a", max_source_length=limit), threads=1)
    texts = ["a man", "a man on a bike on a bike", "", "a dog"]
    with pytest.raises(ValueError, match="at index 1"):
        translator.translate(texts)
    lists = translator.translate(texts, on_error="keep", n_best=2)
    translations = [hypothesis for [hypothesis] in lists]
    assert [translation.text for translation in translations] == ["a man", "", "", "a dog"]
    assert [translation.error is None for translation in translations] == [True, False, True, True]
    assert math.isnan(translations[1].score) and f"at most {limit}" in translations[1].error
    truncated = translator.translate(texts, on_error="keep", truncate=True)
    assert truncated[1].error is None and truncated[1].text.startswith("a man")
    with pytest.raises(ValueError, match="`on_error` must be"):
        translator.translate(texts, on_error="ignore")


# Makes a tensor of 2^40 numbers for each unit of the largest id of a batch.
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


def test_failed_allocation_is_a_run_error(tmp_path):
    translator = Translator(make(tmp_path / "a", HUNGRY), threads=1)
    with pytest.raises(RunError):
        translator.translate(["a man"])
    [translation] = translator.translate(["a man"], on_error="keep")
    assert translation.error.startswith(("RunError", "LimitError"))


# Makes a tensor of 4 MB for each id of a batch.
GREEDY = HUNGRY.replace("largest = ReduceMax <keepdims = 1> (source)", "largest = Size (source)")
GREEDY = GREEDY.replace("{1099511627776}", "{1048576}")


def test_each_translator_has_its_own_memory_limit(tmp_path):
    path = make(tmp_path / "a", GREEDY)
    free, small, large = (Translator(path, threads=1, megabytes=limit) for limit in (None, 30, 400))
    short, long = "a man", "a man on a bike " * 4 + "on"
    assert small.translate([short])[0].text == short
    with pytest.raises(LimitError, match="could not run"):
        small.translate([long])
    failed, translated = small.translate([long, short], on_error="keep")
    assert "LimitError" in failed.error and translated.text == short
    for translator in (large, free):
        assert translator.translate([long])[0].text == long


def test_weights_do_not_count_for_the_memory_limit(tmp_path):
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
    for limit, ids in ((30, 7), (80, 20)):  # less memory than the weights, and more
        translator = Translator(path, threads=1, megabytes=limit)
        assert translator.translate_ids([[5, 6, 3]])["lengths"].tolist() == [[3, 0]]
        with pytest.raises(LimitError):
            translator.translate_ids([[5] * (ids + 1)])


@pytest.mark.parametrize("limits", [dict(megabytes=1e30), dict(megabytes=None)])
def test_very_large_and_very_small_limits(tmp_path, limits):
    translator = Translator(make(tmp_path / "a"), threads=1, timeout=1e300, **limits)
    assert translator.translate(["a man"])[0].text == "a man"
    with pytest.raises(LimitError):
        Translator(make(tmp_path / "b"), threads=1, megabytes=1e-9).translate(["a man"])


def test_exception_of_a_worker_is_raised(tmp_path):
    translator = Translator(make(tmp_path / "a", GREEDY), parallel_batches=2, megabytes=60)
    texts = ["a man"] * 40 + ["a man on a bike " * 6]
    with pytest.raises(LimitError):
        translator.translate(texts, batch_size=1)
    translations = translator.translate(texts, batch_size=1, on_error="keep")
    errors = [translation.error for translation in translations]
    assert errors[:40] == [None] * 40 and errors[40] is not None
    assert not [thread for thread in threading.enumerate() if "search" in thread.name]


# Has a constant of 1 GB that onnxruntime could compute when it opens the graph.
VAST = (
    copy_graph()
    .replace("is_pad = Equal", "vast = ConstantOfShape (huge)\n    is_pad = Equal")
    .replace("int64[1] two = {2}", "int64[1] two = {2}, int64[1] huge = {268435456}")
    .replace("score = Neg (float_count)", "most = ReduceMax <keepdims = 0> (vast)\n"
             "    none = Add (float_count, most)\n    score = Neg (none)")
)  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no getrusage.")
def test_opening_computes_no_large_constants(tmp_path):
    import resource

    path = make(tmp_path / "a", VAST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    translator = Translator(path, threads=1, megabytes=30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    with pytest.raises(LimitError):
        translator.translate(["a man"])


def test_run_ends_at_its_deadline(tmp_path):
    translator = Translator(make(tmp_path / "a", spinning_graph(2**63 - 1)), threads=1, timeout=0.2)
    with pytest.raises(LimitError, match=r"longer than 0\.2 s"):
        translator.translate(["a man"])


@pytest.mark.parametrize("value", [0, -1, float("nan"), "1", True])
def test_invalid_limits_are_refused(translator, value):
    for name in ("timeout", "megabytes"):
        with pytest.raises(ValueError, match=f"`{name}` must be a number above 0"):
            Translator(translator.manifest.folder, **{name: value})
    with pytest.raises(ValueError, match="`parallel_batches` must be a positive integer"):
        Translator(translator.manifest.folder, parallel_batches=value)


# Needs too much memory for a text with a learned piece, which has an id of 260 or more.
LARGE = """large = Greater (largest, bytes)
    wide = Cast <to = 7> (large)"""
CHOOSY = HUNGRY.replace("wide = Cast <to = 7> (largest)", LARGE)
CHOOSY = CHOOSY.replace("int64[1] many", "int32 bytes = {259}, int64[1] many")


def test_failed_batch_is_run_again_text_by_text(tmp_path):
    translator = Translator(make(tmp_path / "a", CHOOSY), threads=1)
    translations = translator.translate(["xyz", "a man", "qqq"], on_error="keep")
    assert [translation.text for translation in translations] == ["xyz", "", "qqq"]
    assert [translation.error is None for translation in translations] == [True, False, True]


LIES = {
    "one score": ("scores = Concat <axis = 1> (score, second_score)", "scores = Identity (score)"),
    "no such token": ("empty_row = Mul (row, pad)", "empty_row = Add (row, thousand)"),
    "a negative token": ("empty_row = Mul (row, pad)", "empty_row = Sub (row, thousand)"),
    "too long": ("lengths = Max (shorter, pad)", "lengths = Add (shorter, thousand)"),
}


@pytest.mark.parametrize("name", LIES)
def test_impossible_outputs_of_a_search_are_refused(tmp_path, name):
    old, new = LIES[name]
    graph = copy_graph().replace(old, new)
    graph = graph.replace("<int32 pad = {0}", "<int32[1] thousand = {1000}, int32 pad = {0}")
    translator = Translator(make(tmp_path / "a", graph), threads=1)
    with pytest.raises(RunError, match="The graph must return"):
        translator.translate(["a man"])
    with pytest.raises(RunError, match="The graph must return"):
        translator.translate_ids([[5, 6, 3]])
