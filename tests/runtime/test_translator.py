"""The runtime on a real, hand-written graph that copies its source, and a real tokenizer."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from copy_artifact import COPY_STEPS, DOCUMENT, SIDE, TOKENIZER, VOCABULARY, copy_graph, make

from keras_bahdanau_runtime import Stepper, Translator, deadlines
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    MissingDependencyError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.session import open_graph, run
from keras_bahdanau_runtime.stepper import most_tokens


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runtime") / "artifact")


@pytest.fixture(scope="module")
def translator(artifact):
    return Translator(artifact, threads=1)


def test_an_artifact_stays_its_own_when_the_process_goes_elsewhere(tmp_path, monkeypatch):
    make(tmp_path / "copy", steps=COPY_STEPS)
    monkeypatch.chdir(tmp_path)
    translator = Translator("copy")
    monkeypatch.chdir("/")
    assert list(translator.stream("a man")) == ["a", " man"]
    assert translator.with_threads(2).translate(["a man"])[0].text == "a man"


PICK = """
<ir_version: 8, opset_import: ["" : 17]>
pick (float[n] data, int64 place) => (float picked) { picked = Gather (data, place) }
"""


def test_a_scalar_stays_one(tmp_path):
    manifest = read_manifest(make(tmp_path / "pick", PICK, document=None))
    session = open_graph(manifest, "model.onnx", "CPUExecutionProvider", 1)
    inputs = {"data": np.array([5.0, 6.0], "float32"), "place": np.array(1)}
    found = run(session, inputs, ["picked"])["picked"].numpy()
    assert found.shape == () and found == 6.0


@pytest.fixture(scope="module")
def wordless(tmp_path_factory):
    """An artifact without a tokenizer and without a limit."""
    path = make(tmp_path_factory.mktemp("ids") / "artifact", document=None, max_source_length=None)
    return Translator(path)


def test_translation(translator):
    [translation] = translator.translate(["a man on a bike"])
    assert translation.text == "a man on a bike"
    assert translation.tokens == translation.source_tokens
    assert translation.tokens[0] == "a" and translation.tokens[-1] == "</s>"
    assert "".join(translation.tokens[:-1]) == "a man on a bike"
    assert translation.score == -len(translation.tokens)
    assert translation.alignment.dtype == np.float32
    np.testing.assert_array_equal(translation.alignment, np.eye(len(translation.tokens)))


@pytest.mark.parametrize(
    "text",
    [
        "नमस्ते दुनिया",
        "a 😀 b",
        "👩‍👩‍👧",
        "é",
        "  two  spaces ",
        "a\tb\nc",
        "</s> <pad>",
        "\ufffd",
        "日本語",
    ],
)
def test_any_text_comes_back(translator, text):
    [translation] = translator.translate([text])
    assert translation.text == text
    assert "".join(translation.tokens[:-1]) == text
    assert "".join(translation.source_tokens[:-1]) == text
    size = len(TOKENIZER.encode(text).ids)
    assert len(translation.tokens) == len(translation.source_tokens) == size
    assert translation.alignment.shape == (size, size)


def test_a_character_stands_at_its_last_byte(translator):
    [translation] = translator.translate(["é"])
    assert translation.tokens[-3:] == ["", "é", "</s>"]
    assert translation.source_tokens[-3:] == ["", "é", "</s>"]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_order_is_restored(translator, batch_size):
    texts = ["a man", "a dog on a boat", "", "a", "on a bike on a boat on a bike", "  ", "bike"]
    done = []
    translations = translator.translate(texts, batch_size=batch_size, progress=done.append)
    assert [translation.text for translation in translations] == [text.strip() for text in texts]
    assert done == sorted(set(done)) and done[-1] == len(texts)
    for translation in translations:
        assert translation.alignment.shape == (
            len(translation.tokens),
            len(translation.source_tokens),
        )


def test_an_alignment_does_not_keep_its_batch(translator):
    translations = translator.translate(["a man on a bike", "a"])
    assert all(translation.alignment.base is None for translation in translations)


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u3000"])
def test_blank_text_is_an_empty_translation(translator, text):
    [translation] = translator.translate([text])
    assert (translation.text, translation.score) == ("", 0.0)
    assert (translation.tokens, translation.source_tokens) == ([], [])
    assert translation.alignment.shape == (0, 0)
    assert len(translator.translate([text], n_best=2)[0]) == 1


def test_no_texts(translator):
    assert translator.translate([]) == []
    assert translator.translate(iter(())) == []


def test_n_best_leaves_out_hypotheses_that_do_not_exist(translator):
    [hypotheses] = translator.translate(["a man"], n_best=2)
    assert [hypothesis.text for hypothesis in hypotheses] == ["a man"]


def test_n_best_of_a_full_beam(tmp_path):
    graph = copy_graph(second_score="Add (score, score)")
    [hypotheses] = Translator(make(tmp_path / "a", graph)).translate(["a man"], n_best=2)
    first, second = hypotheses
    assert (first.text, second.text) == ("a man", "")
    assert second.score == 2 * first.score
    assert second.alignment.shape == (0, len(second.source_tokens))


def test_an_unfinished_hypothesis_has_no_end(tmp_path):
    graph = copy_graph(cut=1)
    [translation] = Translator(make(tmp_path / "a", graph)).translate(["a man"])
    assert translation.text == "a man"
    assert "</s>" not in translation.tokens
    assert translation.alignment.shape == (len(translation.tokens), len(translation.source_tokens))


def test_separate_target_vocabulary(tmp_path):
    target = json.loads(json.dumps(SIDE))
    vocabulary = target["model"]["vocab"]
    vocabulary["x"], vocabulary["y"] = vocabulary["y"], vocabulary["x"]
    path = make(tmp_path / "a", document={**DOCUMENT, "target": target})
    [translation] = Translator(path).translate(["x y"])
    assert (translation.text, translation.source_tokens[0]) == ("y x", "")
    assert "".join(translation.source_tokens[:-1]) == "x y"


def test_many_threads_share_one_translator(translator):
    texts = ["a man", "a dog on a boat", "on a bike"] * 5
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: translator.translate(texts, batch_size=4), range(16)))
    assert all([translation.text for translation in answer] == texts for answer in answers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "a man"}, "`texts` must be a list of str. Received: one str"),
        ({"texts": ["a", b"man"]}, "`texts[1]` must be a str. Received: b'man'"),
        ({"texts": ["a", "b", None]}, "`texts[2]` must be a str. Received: None"),
        ({"texts": b"ab"}, "`texts[0]` must be a str"),
        ({"texts": ["a", "\ud800"]}, "`texts[1]` must be a str without lone surrogates"),
        ({"texts": ["a", "x " * 40]}, "at most 40 tokens"),
        ({"texts": ["a", "x " * 40]}, "at index 1"),
        ({"texts": ["a"], "batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"texts": ["a"], "n_best": 0}, "`n_best` must be a positive integer"),
        ({"texts": ["a"], "n_best": True}, "`n_best` must be a positive integer"),
        ({"texts": ["a"], "n_best": 3}, "`n_best` must be at most 2"),
    ],
)
def test_bad_texts(translator, arguments, message):
    with pytest.raises(ValueError) as raised:
        translator.translate(**arguments)
    assert message in str(raised.value)


def test_truncation_is_asked_for_and_logged(translator, caplog):
    text = "x " * 40
    with caplog.at_level(logging.WARNING, "keras_bahdanau_runtime"):
        short, long = translator.translate(["a", text], truncate=True)
    assert "Cut 1 of 2 texts to 40 ids." in caplog.text
    assert len(long.tokens) == len(long.source_tokens) == 40
    assert long.tokens[-1] == long.source_tokens[-1] == "</s>"
    assert text.startswith(long.text) and short.text == "a"


def test_a_text_at_the_limit_is_whole(translator):
    text = "z" * 38
    assert len(TOKENIZER.encode(text).ids) == 40
    assert translator.translate([text])[0].text == text


def test_translate_ids(wordless):
    source = np.array([[5, 6, 3], [7, 3, 0]])
    outputs = wordless.translate_ids(source)
    assert {name: (value.dtype.name, value.shape) for name, value in outputs.items()} == {
        "tokens": ("int32", (2, 2, 3)),
        "scores": ("float32", (2, 2)),
        "lengths": ("int32", (2, 2)),
        "alignments": ("float32", (2, 2, 3, 3)),
    }
    np.testing.assert_array_equal(outputs["tokens"][:, 0], source)
    np.testing.assert_array_equal(outputs["lengths"][:, 0], [3, 2])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([5, 3], "array of shape (batch, source_length)"),
        ([[[5, 3]]], "array of shape (batch, source_length)"),
        (np.zeros((0, 4), np.int32), "shape (0, 4)"),
        (np.zeros((4, 0), np.int32), "shape (4, 0)"),
        ([[5.0, 3.0]], "dtype float64"),
        ([[True]], "dtype bool"),
        ([[5, 3], [0, 0]], "a token in every row. Received: row 1"),
        ([[5, 3], [290, 3]], "ids from 0 to 289. Received: row 1"),
        ([[-1, 3]], "ids from 0 to 289"),
        ([[2**40, 3]], "ids from 0 to 289"),
        ([[5, 0, 3]], "padding (0) at the right only"),
        ([[0, 5, 3]], "padding (0) at the right only"),
        ([[5] * 41], "at most 40 tokens"),
    ],
)
def test_bad_ids(translator, source, message):
    with pytest.raises(ValueError) as raised:
        translator.translate_ids(source)
    assert message in str(raised.value)


def test_padding_beyond_the_limit_does_not_count(translator):
    assert translator.translate_ids([[5, 3] + [0] * 60])["tokens"].shape == (1, 2, 2)


def test_an_artifact_without_a_tokenizer_takes_no_text(wordless):
    with pytest.raises(ValueError, match="exported without one"):
        wordless.translate(["a man"])


def test_auto_provider_is_logged(artifact, caplog):
    with caplog.at_level(logging.INFO, "keras_bahdanau_runtime"):
        translator = Translator(artifact)
    assert translator.providers[-1] == "CPUExecutionProvider"
    assert f"on {', '.join(translator.providers)} (providers='auto'" in caplog.text


@pytest.mark.parametrize(
    "providers",
    ["CPUExecutionProvider", ["CPUExecutionProvider"], [("CPUExecutionProvider", {})]],
)
def test_named_provider(artifact, providers):
    assert Translator(artifact, providers=providers).providers == ["CPUExecutionProvider"]


@pytest.mark.parametrize("providers", ["NoSuchProvider", ["CPUExecutionProvider", "gpu"], []])
def test_unavailable_provider(artifact, providers):
    with pytest.raises(ValueError, match=r"`providers` must be .*CPUExecutionProvider"):
        Translator(artifact, providers=providers)


def test_more_rows_than_the_search_can_count(translator):
    most = (2**31 - 1) // VOCABULARY["target"]  # of one hypothesis each
    rows = np.broadcast_to(np.array([[3]], "int32"), (most + 1, 1))  # which takes no memory
    with pytest.raises(ValueError, match=f"`source` must have at most {most} rows"):
        translator.translate_ids(rows)


def test_what_stays_on_the_cpu_is_said(artifact, caplog):
    """AzureExecutionProvider comes with every onnxruntime and computes none of these operators."""
    providers = ["AzureExecutionProvider", "CPUExecutionProvider"]
    with caplog.at_level("WARNING"):
        Translator(artifact, providers=providers)
    assert "operators of model.onnx run on the CPU and not on AzureExecutionProvider" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING"):
        Translator(artifact, providers="CPUExecutionProvider")
    assert not caplog.records


def test_alignments_are_left_where_they_are_unless_asked_for(translator):
    texts = ["a b c", "b", "c a"]
    with_weights = translator.translate(texts, n_best=2)
    without = translator.translate([*texts, " "], n_best=2, alignments=False)
    for ours, theirs in zip(with_weights, without, strict=False):
        assert [t.text for t in ours] == [t.text for t in theirs]
        assert [t.score for t in ours] == [t.score for t in theirs]
    assert all(t.alignment is None for hypotheses in without for t in hypotheses)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_bad_threads(artifact, threads):
    with pytest.raises(ValueError, match="`threads` must be a positive integer"):
        Translator(artifact, threads=threads)
    with pytest.raises(ValueError, match="`threads` must be a positive integer"):
        Translator(artifact).with_threads(threads)


def test_other_threads_for_the_same_artifact(tmp_path):
    path = make(tmp_path / "artifact")
    one = Translator(path, threads=1)
    two = one.with_threads(2)
    assert two.session is not one.session
    assert [t.session.get_session_options().intra_op_num_threads for t in (one, two)] == [1, 2]
    assert two.translate(["a man"])[0].text == one.translate(["a man"])[0].text == "a man"
    make(tmp_path / "other", copy_graph(cut=1))
    shutil.rmtree(path)
    (tmp_path / "other").rename(path)
    with pytest.raises(CorruptArtifactError, match="was replaced since"):
        one.with_threads(2)
    shutil.rmtree(path)
    with pytest.raises(CorruptArtifactError, match="was replaced since"):
        one.with_threads(2)


def test_steps_have_a_thread_of_their_own_whatever_the_batches_have(tmp_path, monkeypatch):
    path = make(tmp_path / "artifact", steps=COPY_STEPS)
    monkeypatch.setattr("keras_bahdanau_runtime.translator.cores", lambda: 8)
    shared, alone = Translator(path, workers=2), Translator(path)

    def threads(session):
        return session.get_session_options().intra_op_num_threads

    assert threads(shared.session) == 4
    steps = [shared.open_steps(), alone.open_steps(), alone.with_threads(3).open_steps()]
    assert [threads(stepper._encoder) for stepper in steps] == [1, 1, 3]


def test_nobody_is_told_that_an_artifact_runs(artifact, tmp_path):
    """onnxruntime keeps a database of events, in the home of its user, and sends it away."""
    run = f"""
        from keras_bahdanau_runtime import Translator
        print(Translator({str(artifact)!r}).translate(["a man"])[0].text)
    """
    environment = {key: of for key, of in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    made = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(run)],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "a man\n"
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="This system does not fork.")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # of Python 3.12 and later
def test_a_process_that_is_forked_while_another_thread_runs_a_graph_has_its_own_clock():
    with deadlines._clock._changed:  # as that thread holds it
        child = os.fork()
        if not child:
            signal.alarm(60)
            with deadlines.deadline(5.0, None):
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_bound_is_of_the_translator_alone(artifact):
    """An application may share an allocator among sessions of its own."""
    shape = onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [1])
    zeros = onnx.helper.make_tensor_value_info("zeros", onnx.TensorProto.FLOAT, [None])
    node = onnx.helper.make_node("ConstantOfShape", ["shape"], ["zeros"])
    graph = onnx.helper.make_graph([node], "zeros", [shape], [zeros])
    opset = onnx.helper.make_opsetid("", 20)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    translator = Translator(artifact, megabytes=1)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (found,) = session.run(None, {"shape": np.array([2**22])})
    assert found.shape == (2**22,)
    assert translator.translate(["a man"])[0].text == "a man"


def test_text_that_no_encoding_knows_leaves_the_others_alone(translator):
    texts = ["a man", "half of a smile \ud83d", "a dog"]
    for found in (
        translator.translate(texts, on_error="keep"),
        list(translator.translate_stream(iter(texts))),
    ):
        assert [one.text for one in found] == ["a man", "", "a dog"]
        assert "without lone surrogates" in found[1].error and found[0].error is None
    for texts in (["a man", None], ["\ud83d"]):
        with pytest.raises(ValueError, match="must be a str"):
            translator.translate(texts, on_error="keep" if None in texts else "raise")


def test_a_batch_of_no_rows_is_refused(translator):
    with pytest.raises(ValueError, match=r"`source` must hold ids\. Received: shape \(0, 3\)"):
        translator.search(np.zeros((0, 3), np.int32))


@pytest.mark.parametrize(
    "given",
    [{"threads": 0}, {"seconds": "5"}, {"megabytes": -5}],
    ids=lambda given: next(iter(given)),
)
def test_steps_are_not_opened_with_bounds_that_are_none(tmp_path, given):
    path = make(tmp_path / "artifact", steps=COPY_STEPS)
    with pytest.raises(ValueError, match=f"Argument `{next(iter(given))}` must be a"):
        Stepper(read_manifest(path), **given)


def test_a_stream_of_what_is_no_text_names_it(translator):
    with pytest.raises(ValueError, match=r"Argument `text` must be a str\. Received: 5"):
        translator.stream(5)


def test_a_tampered_graph_is_never_run(tmp_path):
    path = make(tmp_path / "a")
    data = bytearray((path / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "model.onnx").write_bytes(data)
    with pytest.raises(CorruptArtifactError, match=r"model\.onnx: expected sha256"):
        Translator(path)


PATTERN = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"graph": None}, UnsupportedArtifactError, "holds no model.onnx"),
        ({"vocabulary": {}}, CorruptArtifactError, "no vocabulary size"),
        ({"graph": copy_graph("src")}, CorruptArtifactError, "expected the inputs {'source'"),
        ({"vocabulary": {"source": 99}}, CorruptArtifactError, "at most 99 source tokens"),
        ({"vocabulary": {"source": 290, "target": 9}}, CorruptArtifactError, "9 target tokens"),
        ({"document": {"format": "other"}}, CorruptArtifactError, "'format'"),
        ({"document": [1]}, CorruptArtifactError, "'format'"),
        ({"document": {**DOCUMENT, "version": 2}}, UnsupportedArtifactError, "expected version 1"),
        ({"document": {**DOCUMENT, "source": None}}, CorruptArtifactError, "JSON of a tokenizer"),
        ({"document": {**DOCUMENT, "target": {}}}, CorruptArtifactError, "JSON of a tokenizer"),
        (
            {"document": {**DOCUMENT, "source": {**SIDE, "post_processor": None}}},
            CorruptArtifactError,
            "to end a text with 3",
        ),
        (
            {"document": {**DOCUMENT, "source": {**SIDE, "normalizer": PATTERN}}},
            CorruptArtifactError,
            "by no pattern but our own",
        ),
    ],
)
def test_unusable_artifacts(tmp_path, changes, error, message):
    with pytest.raises(error) as raised:
        Translator(make(tmp_path / "a", **changes))
    assert message in str(raised.value)


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers", "google.protobuf"])
def test_a_missing_package_names_its_pip_command(artifact, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[runtime\]"'):
        Translator(artifact)


def test_a_limit_by_the_source_is_rounded_as_the_graph_rounds_it():
    settings = {"max_length": 100, "max_length_ratio": 0.29}
    assert most_tokens(settings, 100) == int(np.float32(0.29) * np.float32(100)) == 29
