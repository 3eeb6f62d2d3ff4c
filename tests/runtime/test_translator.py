"""`Translator` with a hand-written graph that copies its source, and a real tokenizer."""

import copy
import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from copy_artifact import COPY_STEPS, DOCUMENT, SIDE, TOKENIZER, VOCABULARY, copy_graph, make

from keras_bahdanau_runtime import Stepper, Translator
from keras_bahdanau_runtime import session as session_module
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    MissingDependencyError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.session import open_graph, run

VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
BOUNDED = (1, 27)  # the first version that bounds the memory of a session


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runtime") / "artifact")


@pytest.fixture(scope="module")
def translator(artifact):
    return Translator(artifact, threads=1)


def test_relative_path_is_valid_after_a_change_of_folder(tmp_path, monkeypatch):
    make(tmp_path / "copy", steps=COPY_STEPS)
    monkeypatch.chdir(tmp_path)
    translator = Translator("copy")
    monkeypatch.chdir("/")
    assert list(translator.stream("a man")) == ["a", " man"]
    assert translator.with_threads(2).translate(["a man"])[0].text == "a man"


PICK = """
<ir_version: 8, opset_import: ["" : 17]>
pick (float[n] data, int64 index) => (float value) { value = Gather (data, index) }
"""


def test_scalar_output_has_no_axes(tmp_path):
    manifest = read_manifest(make(tmp_path / "pick", PICK, document=None))
    session = open_graph(manifest, "model.onnx", "CPUExecutionProvider", 1)
    inputs = {"data": np.array([5.0, 6.0], "float32"), "index": np.array(1)}
    value = run(session, inputs, ["value"])["value"].numpy()
    assert value.shape == () and value == 6.0


@pytest.fixture(scope="module")
def translator_without_tokenizer(tmp_path_factory):
    """An artifact without a tokenizer and without a limit."""
    path = make(tmp_path_factory.mktemp("ids") / "artifact", document=None, max_source_length=None)
    return Translator(path)


def test_translation_has_text_tokens_score_and_alignment(translator):
    [translation] = translator.translate(["a man on a bike"])
    assert translation.text == "a man on a bike"
    assert translation.tokens == translation.source_tokens
    assert translation.tokens[0] == "a" and translation.tokens[-1] == "</s>"
    assert "".join(translation.tokens[:-1]) == "a man on a bike"
    assert translation.score == -len(translation.tokens)
    assert translation.alignment.dtype == np.float32
    np.testing.assert_array_equal(translation.alignment, np.eye(len(translation.tokens)))


def anonymous_megabytes():
    [line] = re.findall(r"Anonymous: +([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text())
    return int(line) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process from /proc")
def test_release_memory_returns_what_the_largest_search_needed(tmp_path):
    # 2 MB for each row: 128 MB of zeros for 64 rows.
    score = """size = Shape <end = 1> (source)
    width = Constant <value_ints = [524288]> ()
    large = Concat <axis = 0> (size, width)
    zero = Constant <value_float = 0.0> ()
    wide = Expand (zero, large)
    sums = ReduceSum (wide, one)
    negative = Neg (float_count)
    score = Add (negative, sums)"""
    graph = copy_graph().replace("score = Neg (float_count)", score)
    translator = Translator(make(tmp_path / "artifact", graph), threads=1)
    source = np.array([[5, 3]] * 64, "int32")
    translator.translate_ids(source[:1])
    before = anonymous_megabytes()
    translator.translate_ids(source)
    assert anonymous_megabytes() - before > 60
    translator.release_memory()
    assert anonymous_megabytes() - before < 20
    assert translator.translate_ids(source)["scores"][:, 0].tolist() == [-2.0] * 64


def test_alignment_is_a_copy_of_its_part_of_the_batch(translator):
    translations = translator.translate(["a man on a bike", "a"])
    assert all(translation.alignment.base is None for translation in translations)


def test_n_best_of_a_full_beam(tmp_path):
    graph = copy_graph(second_score="Add (score, score)")
    [hypotheses] = Translator(make(tmp_path / "a", graph)).translate(["a man"], n_best=2)
    first, second = hypotheses
    assert (first.text, second.text) == ("a man", "")
    assert second.score == 2 * first.score
    assert second.alignment.shape == (0, len(second.source_tokens))


def test_unfinished_hypothesis_has_no_eos(tmp_path):
    graph = copy_graph(cut=1)
    [translation] = Translator(make(tmp_path / "a", graph)).translate(["a man"])
    assert translation.text == "a man"
    assert "</s>" not in translation.tokens
    assert translation.alignment.shape == (len(translation.tokens), len(translation.source_tokens))


def test_separate_target_vocabulary_decodes_the_translation(tmp_path):
    target = json.loads(json.dumps(SIDE))
    vocabulary = target["model"]["vocab"]
    vocabulary["x"], vocabulary["y"] = vocabulary["y"], vocabulary["x"]
    path = make(tmp_path / "a", document={**DOCUMENT, "target": target})
    [translation] = Translator(path).translate(["x y"])
    assert (translation.text, translation.source_tokens[0]) == ("y x", "")
    assert "".join(translation.source_tokens[:-1]) == "x y"


def test_threads_can_share_one_translator(translator):
    texts = ["a man", "a dog on a boat", "on a bike"] * 5
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: translator.translate(texts, batch_size=4), range(16)))
    assert all([translation.text for translation in result] == texts for result in results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "a man"}, "`texts` must be a list of str. Received: one str"),
        ({"texts": ["a", b"man"]}, "`texts[1]` must be a str. Received: b'man'"),
        ({"texts": ["a", "b", None]}, "`texts[2]` must be a str. Received: None"),
        ({"texts": ["a", "\ud800"]}, "`texts[1]` must be a str without lone surrogates"),
        ({"texts": ["a", "x " * 40]}, "at most 40 tokens"),
        ({"texts": ["a"], "batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"texts": ["a"], "n_best": 0}, "`n_best` must be a positive integer"),
        ({"texts": ["a"], "n_best": 3}, "`n_best` must be at most 2"),
    ],
)
def test_invalid_texts_and_options_are_refused(translator, arguments, message):
    with pytest.raises(ValueError) as raised:
        translator.translate(**arguments)
    assert message in str(raised.value)


def test_text_of_the_longest_length_is_translated(translator):
    text = "z" * 38
    assert len(TOKENIZER.encode(text).ids) == 40
    assert translator.translate([text])[0].text == text


def test_translate_ids_returns_the_arrays_of_the_graph(translator_without_tokenizer):
    source = np.array([[5, 6, 3], [7, 3, 0]])
    outputs = translator_without_tokenizer.translate_ids(source)
    assert {name: (value.dtype.name, value.shape) for name, value in outputs.items()} == {
        "tokens": ("int32", (2, 2, 3)),
        "scores": ("float32", (2, 2)),
        "lengths": ("int32", (2, 2)),
        "alignments": ("float32", (2, 2, 3, 3)),
        "log_probs": ("float32", (2, 2, 3)),
    }
    np.testing.assert_array_equal(outputs["tokens"][:, 0], source)
    np.testing.assert_array_equal(outputs["lengths"][:, 0], [3, 2])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        *((ids, "array of shape (batch, source_length)") for ids in ([5, 3], [[[5, 3]]])),
        *((np.zeros(shape, np.int32), f"shape {shape}") for shape in ((0, 4), (4, 0))),
        ([[5.0, 3.0]], "dtype float64"),
        ([[True]], "dtype bool"),
        ([[5, 3], [0, 0]], "a token in every row. Received: row 1"),
        ([[5, 3], [290, 3]], "ids from 0 to 289. Received: row 1"),
        *(([[index, 3]], "ids from 0 to 289") for index in (-1, 2**40)),
        *(([ids], "padding (0) at the right only") for ids in ([5, 0, 3], [0, 5, 3])),
        ([[5] * 41], "at most 40 tokens"),
    ],
)
def test_invalid_ids_are_refused(translator, source, message):
    with pytest.raises(ValueError) as raised:
        translator.translate_ids(source)
    assert message in str(raised.value)


def test_padding_does_not_count_for_the_length_limit(translator):
    assert translator.translate_ids([[5, 3] + [0] * 60])["tokens"].shape == (1, 2, 2)


def test_text_is_refused_without_a_tokenizer(translator_without_tokenizer):
    with pytest.raises(ValueError, match="exported without one"):
        translator_without_tokenizer.translate(["a man"])


def test_auto_provider_is_logged(artifact, caplog):
    with caplog.at_level(logging.INFO, "keras_bahdanau_runtime"):
        translator = Translator(artifact)
    assert translator.providers[-1] == "CPUExecutionProvider"
    assert f"on {', '.join(translator.providers)} (providers='auto'" in caplog.text


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", [("CPUExecutionProvider", {})]])
def test_provider_is_selected_by_name(artifact, providers):
    assert Translator(artifact, providers=providers).providers == ["CPUExecutionProvider"]
    with pytest.raises(ValueError, match=r"`providers` must be .*CPUExecutionProvider"):
        Translator(artifact, providers="NoSuchProvider")


def test_values_without_rows_or_text_are_refused(translator):
    with pytest.raises(ValueError, match=r"`source` must hold ids\. Received: shape \(0, 3\)"):
        translator.search(np.zeros((0, 3), np.int32))
    with pytest.raises(ValueError, match=r"Argument `text` must be a str\. Received: 5"):
        translator.stream(5)


def test_more_rows_than_an_int32_can_count_are_refused(translator):
    limit = (2**31 - 1) // VOCABULARY["target"]  # with one hypothesis for each row
    rows = np.broadcast_to(np.array([[3]], "int32"), (limit + 1, 1))  # which takes no memory
    with pytest.raises(ValueError, match=f"`source` must have at most {limit} rows"):
        translator.translate_ids(rows)


def test_operators_that_run_on_the_cpu_instead_are_logged(artifact, caplog):
    """AzureExecutionProvider is part of every onnxruntime and has none of these operators."""
    providers = ["AzureExecutionProvider", "CPUExecutionProvider"]
    message = "operators of model.onnx run on the CPU and not on AzureExecutionProvider"
    if VERSION < (1, 24):
        message = "onnxruntime reports only since 1.24 which operators of model.onnx run on the CPU"
    with caplog.at_level("INFO"):
        Translator(artifact, providers=providers)
    assert message in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING"):
        Translator(artifact, providers="CPUExecutionProvider")
    assert not caplog.records


def test_provider_that_does_not_open_a_graph_is_named(tmp_path, monkeypatch):
    """No provider here fails, so onnxruntime is made to fail as OpenVINO does at a GRU."""
    providers = ["AzureExecutionProvider", "CPUExecutionProvider"]
    fails = onnxruntime.capi.onnxruntime_pybind11_state.Fail
    open_session = onnxruntime.InferenceSession

    def open_on_the_cpu_only(*arguments, providers, **options):
        if ("AzureExecutionProvider", {}) in providers:
            raise fails("Exception during initialization: Check 'false' failed")
        return open_session(*arguments, providers=providers, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_on_the_cpu_only)
    path = make(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"that open .*\['AzureExecutionProvider'\], which"):
        Translator(path, providers)
    assert Translator(path, "CPUExecutionProvider").translate(["a man"])[0].text == "a man"
    broken = make(tmp_path / "broken", copy_graph().replace("Not (is_pad)", "Not (pad)"))
    with pytest.raises(CorruptArtifactError, match="expected a graph that onnxruntime opens"):
        Translator(broken, providers)


def test_translations_without_alignments_have_the_same_texts_and_scores(translator):
    texts = ["a b c", "b", "c a"]
    expected = translator.translate(texts)
    translations = translator.translate([*texts, " "], alignments=False)
    for translation, other in zip(translations, expected, strict=False):
        assert (translation.text, translation.score) == (other.text, other.score)
    assert [translation.alignment for translation in translations] == [None] * 4


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_invalid_threads_are_refused(artifact, threads):
    with pytest.raises(ValueError, match="`threads` must be a positive integer"):
        Translator(artifact, threads=threads)
    with pytest.raises(ValueError, match="`threads` must be a positive integer"):
        Translator(artifact).with_threads(threads)


def test_with_threads_opens_the_same_artifact_again(tmp_path):
    path = make(tmp_path / "artifact")
    first = Translator(path, threads=1)
    second = first.with_threads(2)
    for translator, threads in ((first, 1), (second, 2)):
        assert translator.session.get_session_options().intra_op_num_threads == threads
        assert translator.translate(["a man"])[0].text == "a man"
    make(path, copy_graph(cut=1), overwrite=True)
    with pytest.raises(CorruptArtifactError, match="was replaced since"):
        first.with_threads(2)
    shutil.rmtree(path)
    with pytest.raises(CorruptArtifactError, match="was replaced since"):
        first.with_threads(2)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}


@pytest.mark.parametrize("how", COPIES)
def test_copy_of_a_translator_opens_the_artifact_with_the_same_settings(tmp_path, how):
    path = make(tmp_path / "artifact", steps=COPY_STEPS)
    settings = {
        "threads": 1,
        "timeout": 50,
        "megabytes": 500,
        "parallel_batches": 2,
        "cuda_graphs": False,
    }
    if VERSION < BOUNDED:
        settings["megabytes"] = None
    translator = Translator(path, "CPUExecutionProvider", **settings)
    pieces = list(translator.stream("a man"))
    other = COPIES[how](translator)
    assert list(other.stream("a man")) == pieces == ["a", " man"]
    assert other.translate(["a man on a bike"])[0].text == "a man on a bike"
    assert other.manifest == translator.manifest
    assert other.session is not translator.session
    for name in ("providers", *settings):
        assert vars(other)[f"_{name}"] == vars(translator)[f"_{name}"]


@pytest.mark.parametrize("how", COPIES)
def test_copy_of_a_stepper_gives_the_same_steps(tmp_path, how):
    manifest = read_manifest(make(tmp_path / "artifact", steps=COPY_STEPS))
    stepper = Stepper(manifest, "CPUExecutionProvider", timeout=50.0)
    source, tokens = np.array([[5, 6, 3]], np.int32), np.array([2], np.int32)
    expected, *_ = stepper.step(tokens, *stepper.start(source))
    other = COPIES[how](stepper)
    state, memory = other.start(source)
    log_probs, *_ = other.step(tokens, state, memory)
    np.testing.assert_array_equal(log_probs, expected)


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_tokenizer_and_a_translation_are_equal(translator, how):
    tokenizer = COPIES[how](translator.tokenizer)
    assert tokenizer == translator.tokenizer
    assert tokenizer.decode(tokenizer.encode_target("a  man 🙂")) == "a  man 🙂"
    [translation] = translator.translate(["a man"])
    other = COPIES[how](translation)
    np.testing.assert_array_equal(other.alignment, translation.alignment)
    assert (other.text, other.tokens, other.score) == ("a man", ["a", " man", "</s>"], -3.0)


def test_stepper_has_one_thread_unless_threads_are_set(tmp_path, monkeypatch):
    path = make(tmp_path / "artifact", steps=COPY_STEPS)
    monkeypatch.setattr("keras_bahdanau_runtime.translator.available_cores", lambda: 8)
    shared, alone = Translator(path, parallel_batches=2), Translator(path)
    steppers = [shared.open_stepper(), alone.open_stepper(), alone.with_threads(3).open_stepper()]
    sessions = [shared.session, *(stepper._encoder for stepper in steppers)]
    threads = [session.get_session_options().intra_op_num_threads for session in sessions]
    assert threads == [4, 1, 1, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has control groups.")
def test_threads_are_at_most_the_cpu_quota(artifact, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(session_module, "_CPU_QUOTA", tmp_path / "cpu.max")
    threads = []
    for quota, cores in ((None, 4), ("max 100000", 4), ("150000 100000", 2), ("800000 100000", 4)):
        if quota is not None:
            (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert session_module.available_cores() == cores
        options = Translator(artifact).session.get_session_options()
        threads.append(options.intra_op_num_threads)
    assert threads == [0, 0, 2, 0]  # 0 lets onnxruntime decide


def test_telemetry_is_off(artifact, tmp_path):
    """onnxruntime's telemetry writes events to a database in the home folder and uploads them."""
    run = f"""
        from keras_bahdanau_runtime import Translator
        print(Translator({str(artifact)!r}).translate(["a man"])[0].text)
    """
    environment = {key: os.environ[key] for key in os.environ if key != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", textwrap.dedent(run)]
    output = subprocess.check_output(command, env=environment, text=True)
    assert output == "a man\n"
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="This system does not fork.")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # of Python 3.12 and later
def test_deadlines_work_in_a_process_that_was_forked_during_a_run():
    with (
        session_module._deadline_thread._changed
    ):  # held by another thread when the process is forked
        child = os.fork()
        if not child:
            signal.alarm(60)
            with session_module.deadline(5.0, None):
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


ZEROS = """
<ir_version: 9, opset_import: ["" : 20]>
zeros (int64[1] shape) => (float[n] zeros) { zeros = ConstantOfShape (shape) }
"""


@pytest.mark.skipif(VERSION < BOUNDED, reason="onnxruntime before 1.27 bounds no memory.")
def test_memory_limit_of_a_translator_does_not_limit_other_sessions(artifact):
    """An application may share one allocator among its own sessions."""
    model = onnx.parser.parse_model(ZEROS)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    translator = Translator(artifact, megabytes=1)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (zeros,) = session.run(None, {"shape": np.array([2**22])})
    assert zeros.shape == (2**22,)
    assert translator.translate(["a man"])[0].text == "a man"


def test_memory_limit_is_refused_where_onnxruntime_has_none(artifact, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.26.1")
    with pytest.raises(
        ValueError, match=r"`megabytes` must be None .* 5 with onnxruntime 1\.26\.1"
    ):
        Translator(artifact, megabytes=5)
    assert Translator(artifact).translate(["a man"])[0].text == "a man"


def test_text_with_lone_surrogates_does_not_stop_the_others(translator):
    texts = ["a man", "half of a smile \ud83d", "a dog"]
    for translations in (
        translator.translate(texts, on_error="keep"),
        list(translator.translate_stream(iter(texts))),
    ):
        assert [translation.text for translation in translations] == ["a man", "", "a dog"]
        assert translations[0].error is None
        assert "without lone surrogates" in translations[1].error
    for texts in (["a man", None], ["\ud83d"]):
        with pytest.raises(ValueError, match="must be a str"):
            translator.translate(texts, on_error="keep" if None in texts else "raise")


@pytest.mark.parametrize("name, value", [("threads", 0), ("timeout", "5"), ("megabytes", -5)])
def test_invalid_limits_of_a_stepper_are_refused(tmp_path, name, value):
    path = make(tmp_path / "artifact", steps=COPY_STEPS)
    with pytest.raises(ValueError, match=f"Argument `{name}` must be a"):
        Stepper(read_manifest(path), **{name: value})


@pytest.mark.parametrize("name", ["model.onnx", "step.onnx", "tokenizer.json"])
def test_artifact_with_a_tampered_file_is_not_opened(tmp_path, name):
    path = make(tmp_path / "a", steps=COPY_STEPS)
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(CorruptArtifactError, match=f"{name}: expected sha256"):
        Translator(path)


PATTERN = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"graph": None}, UnsupportedArtifactError, "has no model.onnx"),
        ({"vocabulary": {}}, CorruptArtifactError, "no vocabulary size"),
        ({"graph": copy_graph("src")}, CorruptArtifactError, "expected the inputs {'source'"),
        ({"vocabulary": {"source": 99}}, CorruptArtifactError, "at most 99 source tokens"),
        ({"vocabulary": {"source": 290, "target": 9}}, CorruptArtifactError, "9 target tokens"),
        ({"document": {"format": "other"}}, CorruptArtifactError, "'format'"),
        ({"document": {**DOCUMENT, "version": 9}}, UnsupportedArtifactError, "expected version 1"),
        ({"document": {**DOCUMENT, "source": None}}, CorruptArtifactError, "JSON of a tokenizer"),
        ({"document": {**DOCUMENT, "target": {}}}, CorruptArtifactError, "JSON of a tokenizer"),
        (
            {"document": {**DOCUMENT, "source": {**SIDE, "post_processor": None}}},
            CorruptArtifactError,
            "the post_processor None instead of",
        ),
        (
            {"document": {**DOCUMENT, "source": {**SIDE, "normalizer": PATTERN}}},
            CorruptArtifactError,
            "only by patterns of this package",
        ),
    ],
)
def test_unusable_artifacts_are_refused(tmp_path, changes, error, message):
    with pytest.raises(error) as raised:
        Translator(make(tmp_path / "a", **changes))
    assert message in str(raised.value)


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers", "google.protobuf"])
def test_missing_package_error_has_the_pip_command(artifact, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[runtime\]"'):
        Translator(artifact)


def test_length_ratio_is_computed_in_float32_like_in_the_graph():
    search = ManifestSearch(max_length=100, max_length_ratio=0.29)
    assert search.output_limit(100) == int(np.float32(0.29) * np.float32(100)) == 29
