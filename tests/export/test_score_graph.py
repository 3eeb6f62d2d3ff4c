"""The graph that scores targets, and the weights that it shares with the graph of the search."""

import json
import shutil

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from models import TEXTS
from small_artifact import write_artifact

from keras_bahdanau import BeamSearch, GreedySearch
from keras_bahdanau.layers import PointerGenerator
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export.graph import shared_weights
from keras_bahdanau_export.graph.passes import editing
from keras_bahdanau_export.graph.shared_weights import share_weights
from keras_bahdanau_export.parity import compare, random_sources, verify
from keras_bahdanau_runtime import ParityError, Translator
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.signature import SCORE

CPU = ["CPUExecutionProvider"]
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0], [9, 9, 3, 0]], "int32")
TARGET = np.array([[4, 9, 200, 7, 3], [3, 0, 0, 0, 0], [11, 12, 13, 0, 0]], "int32")
TARGETS = ["ein Mann", "zwei Hunde", "ein Hund"]


def assert_scores_of(model, outputs):
    expected = model.score(SOURCE, TARGET)._asdict()
    if not model.scores_copies:
        assert expected.pop("copied") is None
    assert outputs.keys() == expected.keys()
    assert np.abs(expected["totals"]).min() > 1
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=1e-5)


def test_the_graph_scores_targets_as_the_model_does(artifact, model):
    path, parity = artifact
    assert parity.log_prob_difference < 1e-5
    assert read_manifest(path).signatures["score.onnx"] == json.loads(json.dumps(SCORE.to_json()))
    assert_scores_of(model, Translator(path).score_ids(SOURCE, TARGET))
    session = onnxruntime.InferenceSession(path / "score.onnx", providers=CPU)  # the file alone
    names = [value.name for value in session.get_outputs()]
    outputs = session.run(None, {"source": SOURCE, "target": TARGET})
    assert_scores_of(model, dict(zip(names, outputs, strict=True)))


def test_texts_have_the_scores_and_links_of_the_model(artifact, model, tokenizer):
    ids = tokenizer.encode_sources(TEXTS), tokenizer.encode_targets(TARGETS)
    expected, scores = model.score(*ids), Translator(artifact[0]).score(TEXTS, TARGETS, 2)
    for i, (score, source, target) in enumerate(zip(scores, *ids, strict=True)):
        assert score.total == pytest.approx(expected.totals[i], abs=1e-4)
        np.testing.assert_allclose(score.log_probs, expected.log_probs[i, : len(target)], atol=1e-5)
        alignment = expected.alignments[i, : len(target), : len(source)]
        np.testing.assert_allclose(score.alignment, alignment, atol=1e-5)


def test_a_translation_has_the_score_of_its_search(artifact):
    translator = Translator(artifact[0])
    source = [[5, 6, 7, 3]]
    outputs = translator.translate_ids(source)
    for tokens, length, score in zip(
        *(outputs[name][0] for name in ("tokens", "lengths", "scores")), strict=True
    ):
        total = translator.score_ids(source, tokens[None])["totals"][0]
        assert total / ((5 + length) / 6) ** 0.6 == pytest.approx(score, abs=1e-4)


def test_the_saved_model_scores_as_keras_does(artifact, model):
    tf = pytest.importorskip("tensorflow")
    score = tf.saved_model.load(str(artifact[0] / "saved_model")).signatures["score"]
    assert_scores_of(model, score(source=tf.constant(SOURCE), target=tf.constant(TARGET)))


@pytest.fixture(scope="module")
def wide_model(model):
    """A model that copies, and whose weights are larger than its nodes."""
    sizes = {"units": 64, "embedding_dim": 64, "attention_units": 64, "maxout_units": 64}
    copy = PointerGenerator([min(i, 20) for i in range(model.source_vocabulary_size)])
    serialize = keras.saving.serialize_keras_object
    wide = type(model).from_config({**model.get_config(), **sizes, "copy": serialize(copy)})
    wide.build()
    return wide


@pytest.fixture(scope="module")
def large(wide_model, tmp_path_factory):
    """An artifact with a shortlist and a second file of weights."""
    sizes = wide_model.source_vocabulary_size, wide_model.target_vocabulary_size
    links = [(np.arange(4, 9), np.arange(5, 9), np.eye(4, 5))]
    shortlist = Shortlist.from_links(links, *sizes, size=sizes[1] - 20)
    path = tmp_path_factory.mktemp("large") / "artifact"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(editing, "MAX_WEIGHT_BYTES", 20_000)  # instead of 2 GB
        return write_artifact(wide_model, path, GreedySearch(), 6, shortlist, score=True)


def test_a_shortlist_does_not_limit_the_targets(wide_model, large):
    assert verify(wide_model, large).log_prob_difference < 1e-5
    assert_scores_of(wide_model, Translator(large).score_ids(SOURCE, TARGET))


def test_an_artifact_that_samples_scores_targets(model, sampling):
    _, path, parity = sampling
    assert parity.log_prob_difference < 1e-5
    assert_scores_of(model, Translator(path).score_ids(SOURCE, TARGET))


@pytest.mark.parametrize("output", ["log_probs", "totals", "alignments"])
@pytest.mark.parametrize("change", [2e-4, np.nan])
def test_other_scores_fail_parity(artifact, model, tokenizer, output, change, monkeypatch):
    translator = Translator(artifact[0])
    scorer = translator.open_scorer()
    score = scorer.score

    def score_otherwise(*arguments):
        results = score(*arguments)
        results[output] = results[output].copy()
        results[output].flat[0] += 100 * change if output == "totals" else change * 10
        return results

    monkeypatch.setattr(scorer, "score", score_otherwise)
    sources = random_sources(tokenizer.source_vocabulary_size, 30)
    parity = compare(model, translator, sources, BeamSearch(3, 0.6), 9)
    assert parity.equal + parity.ties == parity.sentences
    with pytest.raises(ParityError, match=r"score given targets as the Keras model does"):
        parity.enforce()
    assert "log-probability of a given target" in str(parity)


def test_an_older_artifact_is_verified_without_scores(artifact, model, tmp_path):
    with publish(tmp_path / "old") as folder:
        for name in ("model.onnx", "tokenizer.json"):
            shutil.copy(artifact[0] / name, folder)
        manifest = read_manifest(artifact[0])
        contents = {name: getattr(manifest, name) for name in ("vocabulary", "max_source_length")}
        contents["search"] = manifest.search.document
        contents["signatures"] = {"model.onnx": manifest.signatures["model.onnx"]}
        write_manifest(folder, contents)
    parity = verify(model, tmp_path / "old")
    assert parity.log_prob_difference is None
    assert "given target" not in str(parity)


# Shared weights.


def references(path):
    """The places of the tensors of a graph in other files, by name."""
    graph = onnx.load(path, load_external_data=False).graph
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def test_graphs_refer_to_the_weights_of_the_search(artifact):
    path = artifact[0]
    assert references(path / "model.onnx") == {}
    contents = (path / "model.onnx").read_bytes()
    for name in ("score.onnx", "encoder.onnx", "step.onnx"):
        places = references(path / name)
        assert places and {place["location"] for place in places.values()} == {"model.onnx"}
        for tensor in onnx.load(path / name).graph.initializer:  # with the data
            if tensor.name in places:
                offset, length = (int(places[tensor.name][key]) for key in ("offset", "length"))
                assert contents[offset : offset + length] == tensor.raw_data
                assert length >= 1024
        onnx.checker.check_model(path / name)


def test_graphs_share_a_second_file_of_weights(large):
    assert {file.name for file in large.glob("*.data")} == {"model.onnx.data"}
    places = references(large / "score.onnx").values()
    assert {place["location"] for place in places} == {"model.onnx.data"}


def test_a_graph_whose_other_weights_are_too_large_is_not_changed(tmp_path, monkeypatch):
    shared, own = np.arange(400, dtype="float32"), np.ones(400, "float32")
    for name, arrays in (("model", [shared]), ("other", [shared, own]), ("third", [own])):
        tensors = [onnx.numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)]
        node = onnx.helper.make_node("Sum", [tensor.name for tensor in tensors], ["y"])
        y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [400])
        graph = onnx.helper.make_graph([node], name, [], [y], tensors)
        opset = [onnx.helper.make_opsetid("", 18)]
        model = onnx.helper.make_model(graph, ir_version=8, opset_imports=opset)
        onnx.save(model, tmp_path / f"{name}.onnx")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(shared_weights, "MAX_WEIGHT_BYTES", 1599)
    share_weights(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.setattr(shared_weights, "MAX_WEIGHT_BYTES", 1600)
    share_weights(tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert [name for name in before if after[name] != before[name]] == ["other.onnx"]
    assert set(references(tmp_path / "other.onnx")) == {"w0"}
    session = onnxruntime.InferenceSession(tmp_path / "other.onnx", providers=CPU)
    np.testing.assert_array_equal(session.run(None, {})[0], shared + own)
