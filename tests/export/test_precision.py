"""Smaller numbers: what changes, what it saves, and that a loss is refused."""

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

from keras_bahdanau import BeamSearch, GreedySearch, RNNSearch, Tokenizer
from keras_bahdanau_export import export
from keras_bahdanau_export.precision import PrecisionLoss, reduce_precision
from keras_bahdanau_runtime import Translator
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
        texts=[*TEXTS, "a man " * 30],  # the last is too long to be translated
        references=["ein Mann", "zwei Hunde", ""],
        precision=request.param,
    )
    return path, request.param


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def test_float16_on_the_cpu_is_said_and_not_refused(artifact, caplog):
    path, precision = artifact
    Translator(path, "CPUExecutionProvider")
    said = [line for line in caplog.messages if "float16 is for GPUs" in line]
    assert len(said) == (precision == "float16")


def test_the_manifest_tells_what_was_measured(artifact):
    path, precision = artifact
    loss = read_manifest(path).other["precision"]
    assert loss["precision"] == precision
    assert loss["size"] < {"float16": 0.6, "int8": 0.5}[precision]  # a small model: nodes weigh
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
    for kind in ("Softmax", "LogSoftmax"):
        assert kind in kinds


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_products_with_chosen_columns_are_small_too(tmp_path, tied, others, precision):
    """`x @ W[:, ids]`, where `W` is of its own or an embedding turned, as with a shortlist.

    There the mean of all columns stands in the place of the id 0, for all `others`.
    """
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(64, 80)).astype("float32")
    table, columns = (weights.T, "turned") if tied else (weights, "columns")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["columns"], axis=0 if tied else 1),
        *([helper.make_node("Transpose", ["columns"], ["turned"], perm=[1, 0])] if tied else []),
    ]
    if others:
        nodes += [
            helper.make_node("ReduceMean", ["table", "axis"], ["mean"], keepdims=1),
            helper.make_node("Reshape", ["mean", "turn"], ["upright"]),
            helper.make_node("Equal", ["ids", "zero"], ["first"]),
            helper.make_node("Where", ["first", "upright", columns], ["replaced"]),
        ]
        columns = "replaced"
    nodes.append(helper.make_node("MatMul", ["x", columns], ["y"]))
    arrays = {"table": np.ascontiguousarray(table)}
    if others:
        arrays |= {"axis": np.array([0 if tied else 1]), "turn": np.array([64, 1])}
        arrays["zero"] = np.array(0)
    kinds = onnx.TensorProto
    x, ids = rng.normal(size=(5, 64)).astype("float32"), np.array([3, 79, 0, 41], "int64")
    made = helper.make_graph(
        nodes,
        "chosen",
        [
            helper.make_tensor_value_info("x", kinds.FLOAT, ["n", 64]),
            helper.make_tensor_value_info("ids", kinds.INT64, ["few"]),
        ],
        [helper.make_tensor_value_info("y", kinds.FLOAT, ["n", "few"])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    reduce_precision(path, precision)
    small = onnx.load(path).graph
    assert {value.data_type for value in small.initializer if len(value.dims) == 2} == {
        {"float16": kinds.FLOAT16, "int8": kinds.INT8}[precision]
    }
    product = {"float16": "MatMul", "int8": "MatMulInteger"}[precision]
    assert [node.op_type for node in small.node].count(product) == 1
    (y,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x, "ids": ids})
    # Of 64 products each: a rounding to 127 steps, or to eleven bits, of both sides.
    tolerance = {"float16": 0.05, "int8": 0.5}[precision]
    expected = x @ weights[:, ids]
    if others:
        expected[:, 2] = x @ weights.mean(axis=1)
    np.testing.assert_allclose(y, expected, atol=tolerance)


@pytest.mark.parametrize("moved", [False, True])
def test_the_shares_of_a_shortlist_keep_their_small_numbers(tmp_path, moved):
    """They are summed by target id: of one scale for a row, 127 steps of it, most would be 0."""
    shares = np.full((80, 64), 1e-4, "float32")
    shares[:, 0] = 0.9
    helper, numpy_helper, kinds = onnx.helper, onnx.numpy_helper, onnx.TensorProto
    place = np.arange(64, dtype="int64")[None]
    constants = {"shares": shares, "place": place, "zeros": np.zeros((1, 64), "float32")}
    constants["shape"] = np.array([1, 64])
    middle = helper.make_node("Reshape", ["rows", "shape"], ["row"])
    nodes = [
        helper.make_node("Gather", ["shares", "ids"], ["rows"]),
        *([middle] if moved else []),
        helper.make_node(
            "ScatterElements", ["zeros", "place", "row" if moved else "rows"], ["y"],
            axis=1, reduction="add",
        ),
    ]  # fmt: skip
    made = helper.make_graph(
        nodes,
        "summed",
        [helper.make_tensor_value_info("ids", kinds.INT64, [1])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [1, 64])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = tmp_path / "model.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    reduce_precision(path, "int8")
    (y,) = onnxruntime.InferenceSession(str(path)).run(None, {"ids": np.array([7])})
    np.testing.assert_allclose(y, shares[7:8], rtol=1e-3)  # as float16 has them


def test_hidden_numbers_stay_close(artifact, model):
    """The odds of the first token, which no beam has reordered yet."""
    path, precision = artifact
    source = np.array([[5, 6, 7, 3]], "int32")
    ours = model.generate(source, BeamSearch(2), max_length=6)
    theirs = Translator(path).translate_ids(source)
    tolerance = {"float16": 2e-3, "int8": 5e-2}[precision]
    np.testing.assert_allclose(theirs["scores"][0, 0], ours.scores[0, 0], atol=tolerance)


def test_a_loss_above_the_limit_is_refused_and_one_unmeasured_is_said(caplog):
    loss = PrecisionLoss("int8", 0.3, 0.5, 0.9, bleu=30.0, bleu_loss=0.6)
    loss.enforce(0.7)
    with pytest.raises(PrecisionError, match=r"at most 0\.5 BLEU .*Received: a loss of 0\.60"):
        loss.enforce(0.5)
    PrecisionLoss("int8", 0.3, 0.5, 0.9, None, None).enforce(0.5)
    assert "not measured" in caplog.text


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


def test_the_call_of_a_model_takes_a_precision(tmp_path):
    x = keras.Input((None, 64), name="x")
    model = keras.Model(x, keras.layers.Dense(64, name="y")(keras.layers.GRU(64)(x)))
    export(model, tmp_path / "artifact", precision="int8")
    assert read_manifest(tmp_path / "artifact").other["precision"]["size"] < 0.5
    session = onnxruntime.InferenceSession(str(tmp_path / "artifact" / "model.onnx"))
    given = np.random.default_rng(0).normal(size=(2, 5, 64)).astype("float32")
    (theirs,) = session.run(None, {"x": given})
    np.testing.assert_allclose(theirs, keras.ops.convert_to_numpy(model(given)), atol=0.05)


def test_weights_that_half_precision_does_not_hold_stay(tmp_path):
    weights = np.random.default_rng(0).normal(size=(64, 80)).astype("float32")
    weights[0, 0] = 1e5  # float16 ends at 65,504
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "large",
        [helper.make_tensor_value_info("x", 1, ["n", 64])],
        [helper.make_tensor_value_info("y", 1, ["n", 80])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path
    )
    reduce_precision(path, "float16")
    x = np.ones((1, 64), "float32")
    (y,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(y, x @ weights, rtol=1e-3, atol=0.1)
