"""Reduced precision: file size, closeness to float32, and the limit on the loss of BLEU."""

import importlib.metadata
import json

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from copy_artifact import COPY_SCORE, make
from graphs import graph_of, operators, results

from keras_bahdanau import BeamSearch, GreedySearch, RNNSearch, Tokenizer
from keras_bahdanau_export import export
from keras_bahdanau_export.graph.precision import reduce_precision
from keras_bahdanau_export.quality_loss import PrecisionLoss, measure_precision_loss
from keras_bahdanau_runtime import SearchOptions, Translator
from keras_bahdanau_runtime.errors import PrecisionError
from keras_bahdanau_runtime.manifest import read_manifest

TEXTS = ["a man on a bike", "two dogs run"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, ["ein Mann", "zwei Hunde"], vocabulary_size=270)


@pytest.fixture(scope="module")
def model(tokenizer):
    keras.utils.set_random_seed(0)
    model = RNNSearch(
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        units=64,
        embedding_dim=64,
        attention_units=64,
        maxout_units=64,
        tie_embeddings=True,
        join_embeddings=True,
        initializer=None,
    )
    model.build()
    return model


@pytest.fixture(scope="module", params=["float16", "int8"])
def artifact(request, model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("precision") / "artifact"
    export(
        model,
        path,
        search=BeamSearch(2),
        max_length=6,
        max_source_length=30,
        tokenizer=tokenizer,
        texts=[*TEXTS, "a man " * 30],  # the last is longer than the limit
        references=["ein Mann", "zwei Hunde", ""],
        precision=request.param,
        stepwise=True,
        cuda_graphs=True,
    )
    return path, request.param


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def test_onnxruntime_opens_reduced_graphs_without_warnings(artifact, capfd):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    for path in artifact[0].glob("*.onnx"):
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    # onnxruntime mentions each option, an initializer that is also an input.
    lines = capfd.readouterr().err.splitlines()
    assert all("appears in graph inputs" in line for line in lines), lines


def test_every_node_of_a_reduced_graph_has_its_own_name(artifact):
    for path in artifact[0].glob("*.onnx"):
        names = [n.name for graph in graphs(onnx.load(path).graph) for n in graph.node]
        assert all(names) and len(set(names)) == len(names), path


def test_reduced_graphs_name_their_producer(artifact):
    session = onnxruntime.InferenceSession(artifact[0] / "model.onnx")
    metadata, version = session.get_modelmeta(), importlib.metadata.version("keras-bahdanau")
    assert metadata.producer_name == "keras_bahdanau"
    assert metadata.description == "BeamSearch of a RNNSearch: source ids in, target ids out"
    assert metadata.custom_metadata_map == {"keras_bahdanau_version": version}


def test_float16_on_the_cpu_is_logged_and_not_refused(artifact, caplog):
    path, precision = artifact
    Translator(path, "CPUExecutionProvider")
    warnings = [line for line in caplog.messages if "float16 is for GPUs" in line]
    assert len(warnings) == (precision == "float16")


def test_the_manifest_records_size_time_and_loss(artifact):
    path, precision = artifact
    loss = read_manifest(path).other["precision"]
    assert loss["precision"] == precision
    assert (
        loss["size"] < {"float16": 0.6, "int8": 0.5}[precision]
    )  # nodes are a large part of a small model
    assert read_manifest(path).parity["tf32"] is False
    assert loss["time"] > 0 and 0 <= loss["equal"] <= 1
    assert {"bleu", "bleu_loss"} < set(loss)


def test_no_product_with_a_weight_is_left_in_float32(artifact):
    path, precision = artifact
    model = onnx.load(path / "model.onnx")
    sizes = {
        value.name: (int(np.prod(value.dims)), value.data_type) for value in model.graph.initializer
    }
    large = [kind for size, kind in sizes.values() if size >= 4096]
    assert onnx.TensorProto.FLOAT not in large and len(large) >= 8
    kinds = [node.op_type for graph in graphs(model.graph) for node in graph.node]
    if precision == "int8":
        assert kinds.count("MatMulInteger") >= 6  # in the loop, too
    assert {"Softmax", "LogSoftmax"} <= set(kinds)


def reduced(path, text, precision, **constants):
    """The model with this graph and these constants in reduced precision."""
    onnx.save(graph_of(text, **constants), path / "model.onnx")
    reduce_precision(path / "model.onnx", precision)
    return onnx.load(path / "model.onnx")


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_products_with_selected_columns_are_reduced(tmp_path, rng, tied, others, precision):
    """`x @ W[:, ids]`, where `W` is a kernel or a transposed embedding, as with a shortlist.

    With `others`, the mean of all columns replaces that of the id 0.
    """
    weights = rng.normal(size=(64, 80)).astype("float32")
    selection = "columns = Gather<axis = 1>(table, ids)"
    if tied:
        selection = "rows = Gather(table, ids) columns = Transpose<perm = [1, 0]>(rows)"
    mean = """
      mean = ReduceMean<keepdims = 1>(table, axis)
      upright = Reshape(mean, turn)
      first = Equal(ids, zero)
      replaced = Where(first, upright, columns)"""
    text = f"""
    agraph (float[n,64] x, int64[few] ids) => (float[n,few] y) {{
      {selection} {mean if others else ""}
      y = MatMul(x, {"replaced" if others else "columns"})
    }}"""
    constants = {"axis": [0 if tied else 1], "turn": [64, 1], "zero": 0} if others else {}
    table = np.ascontiguousarray(weights.T) if tied else weights
    model = reduced(tmp_path, text, precision, table=table, **constants)
    matrices = [value for value in model.graph.initializer if len(value.dims) == 2]
    kind = {"float16": onnx.TensorProto.FLOAT16, "int8": onnx.TensorProto.INT8}[precision]
    assert {value.data_type for value in matrices} == {kind}
    product = {"float16": "MatMul", "int8": "MatMulInteger"}[precision]
    assert operators(model.graph).count(product) == 1
    x, ids = rng.normal(size=(5, 64)).astype("float32"), np.array([3, 79, 0, 41])
    expected = x @ weights[:, ids]
    if others:
        expected[:, 2] = x @ weights.mean(axis=1)
    # Sums of 64 products, whose factors are rounded to eleven bits or to 127 steps.
    tolerance = {"float16": 0.05, "int8": 0.5}[precision]
    np.testing.assert_allclose(*results(model, {"x": x, "ids": ids}), expected, atol=tolerance)


@pytest.mark.parametrize(
    "selection",
    ["row = Gather(shares, ids)", "rows = Gather(shares, ids) row = Reshape(rows, shape)"],
)
def test_the_shares_of_a_shortlist_keep_small_numbers(tmp_path, selection):
    """With one scale per row in 127 steps, most shares would be 0."""
    shares = np.full((80, 64), 1e-4, "float32")
    shares[:, 0] = 0.9
    text = f"""
    agraph (int64[1] ids) => (float[1,64] y) {{
      {selection}
      y = ScatterElements<axis = 1, reduction = "add">(zeros, place, row)
    }}"""
    constants = {"shares": shares, "zeros": np.zeros((1, 64), "float32"), "shape": [1, 64]}
    model = reduced(tmp_path, text, "int8", place=np.arange(64)[None], **constants)
    (y,) = results(model, {"ids": [7]})
    np.testing.assert_allclose(y, shares[7:8], rtol=1e-3)  # the precision of float16


def test_scores_stay_close_to_those_of_the_model(artifact, model):
    path, precision = artifact
    source = np.array([[5, 6, 7, 3]], "int32")
    ours = model.generate(source, BeamSearch(2), max_length=6)
    theirs = Translator(path).translate_ids(source)
    tolerance = {"float16": 2e-3, "int8": 5e-2}[precision]
    np.testing.assert_allclose(theirs["scores"][0, 0], ours.scores[0, 0], atol=tolerance)


def test_options_have_an_effect_in_reduced_precision(artifact, model):
    path, precision = artifact
    source, translator = np.array([[5, 6, 7, 3]], "int32"), Translator(path)
    settings = {"no_repeat_ngram": 1, "min_length": 4}
    inputs = SearchOptions(beam_size=1, **settings).inputs()
    theirs = translator.search(source, inputs=inputs)
    ours = model.generate(source, BeamSearch(1, **settings), max_length=6)
    tolerance = {"float16": 2e-3, "int8": 5e-2}[precision]
    np.testing.assert_allclose(theirs["scores"], ours.scores, atol=tolerance)
    assert theirs["lengths"].shape == (1, 1) and theirs["lengths"][0, 0] >= 4
    assert not np.array_equal(theirs["scores"], ours.scores)  # float32 would be equal or closer


def test_no_weight_is_stored_twice_in_reduced_precision(artifact):
    path, _ = artifact
    sizes = {file.name: file.stat().st_size for file in path.glob("*.onnx*")}
    assert set(sizes) == {
        *("model.onnx", "score.onnx", "encoder.onnx", "step.onnx"),
        *("beam_start.onnx", "beam_step.onnx", "beam_end.onnx"),
    }
    tensors = onnx.load(path / "score.onnx", load_external_data=False).graph.initializer
    places = [t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL]
    assert places and [t for t in tensors if len(t.raw_data) >= 1024] == []
    weights = sum(len(t.raw_data) for t in onnx.load(path / "model.onnx").graph.initializer)
    assert sizes["score.onnx"] < weights / 4
    source = np.array([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    steps, whole = (
        Translator(path, "CPUExecutionProvider", cuda_graphs=each).translate_ids(source)["tokens"]
        for each in (True, False)
    )
    np.testing.assert_array_equal(steps, whole)
    assert 0 < read_manifest(path).other["precision"]["log_prob_difference"] < 0.1


def test_a_loss_above_the_limit_is_refused_and_an_unmeasured_loss_is_logged(caplog):
    loss = PrecisionLoss("int8", 0.3, 0.5, 0.9, 0.01, bleu=30.0, bleu_loss=0.6)
    loss.enforce(0.7)
    with pytest.raises(PrecisionError, match=r"at most 0\.5 BLEU .*Received: a loss of 0\.60"):
        loss.enforce(0.5)
    PrecisionLoss("int8", 0.3, 0.5, 0.9, 0.01, None, None).enforce(0.5)
    assert "not measured" in caplog.text


def test_split_references_are_joined_to_measure_the_loss(tmp_path):
    tokenizer = Tokenizer.from_pieces(["ein@@", "er", "ist", "noch", "da"])
    tokenizer.save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    copies = Translator(make(tmp_path / "artifact", document=document, score=COPY_SCORE))
    text = "ein@@ er ist noch da"  # four words, so BLEU has 4-grams
    arguments = copies, copies, "int8", 1.0, [tokenizer.encode_source(text)], [text], [text]
    loss = measure_precision_loss(*arguments, rounds=1)
    assert (loss.bleu, loss.bleu_loss) == (pytest.approx(100), 0)


def test_a_refused_precision_leaves_no_artifact(model, tokenizer, tmp_path):
    with pytest.raises(PrecisionError):
        export(
            model,
            tmp_path / "artifact",
            search=GreedySearch(),
            max_length=3,
            tokenizer=tokenizer,
            texts=TEXTS,
            references=["ein Mann", "zwei Hunde"],
            precision="int8",
            max_bleu_loss=-100,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_search_is_reduced(tmp_path):
    x = keras.Input((None, 64), name="x")
    model = keras.Model(x, keras.layers.Dense(64, name="y")(keras.layers.GRU(64)(x)))
    export(model, tmp_path / "artifact", precision="int8")
    assert read_manifest(tmp_path / "artifact").other["precision"]["size"] < 0.5
    session = onnxruntime.InferenceSession(str(tmp_path / "artifact" / "model.onnx"))
    inputs = np.random.default_rng(0).normal(size=(2, 5, 64)).astype("float32")
    (outputs,) = session.run(None, {"x": inputs})
    np.testing.assert_allclose(outputs, keras.ops.convert_to_numpy(model(inputs)), atol=0.05)


def test_weights_beyond_the_range_of_float16_stay_float32(tmp_path, rng):
    weights = rng.normal(size=(64, 80)).astype("float32")
    weights[0, 0] = 1e5  # float16 ends at 65,504
    text = "agraph (float[n,64] x) => (float[n,80] y) { y = MatMul(x, w) }"
    x = np.ones((1, 64), "float32")
    (y,) = results(reduced(tmp_path, text, "float16", w=weights), {"x": x})
    np.testing.assert_allclose(y, x @ weights, rtol=1e-3, atol=0.1)
