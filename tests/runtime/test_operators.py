"""Graphs with operators or files that are not allowed are refused before they are opened."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from keras_bahdanau_runtime import CorruptArtifactError, UnsupportedArtifactError
from keras_bahdanau_runtime.operators import check_onnx_file, inline_weights

PLAIN = """<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
agraph (float[2] x, bool go) => (float[2] y) {
  y = If (go) <
    then_branch = one () => (float[2] a) { a = %s(x, w) },
    else_branch = two () => (float[2] b) { b = Add(x, w) }
  >
}
"""


def model(operator="Add"):
    proto = onnx.parser.parse_model(PLAIN % operator)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, "float32"), "w"))
    return proto


def model_with_external_data(location):
    proto = model()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return proto


def check(proto, files=()):
    contents = proto if isinstance(proto, bytes) else proto.SerializeToString()
    return check_onnx_file(contents, Path("model.onnx"), dict.fromkeys(files, 8))


def test_allowed_graphs_pass():
    check(model())
    assert check(model_with_external_data("w.bin"), files=["v.bin", "w.bin"]) == {"w.bin"}
    assert check(loop(2**63 - 1)) == set()  # no limit, but a condition
    check(loop(100))


def test_metadata_of_text_passes():
    proto = model()
    [weight], [node, *_] = proto.graph.initializer, proto.graph.node
    for message in (proto, proto.graph, proto.graph.input[0], node, weight):
        message.metadata_props.add(key="file", value="/etc/passwd")
    check(proto)


@pytest.mark.parametrize("operator", ["ImageDecoder", "StringNormalizer", "own.Run"])
def test_operators_that_are_not_on_the_list_are_refused(operator):
    domain, _, name = operator.rpartition(".")
    expected = f"Received: '{name}' of '{domain or 'ai.onnx'}'"
    with pytest.raises(UnsupportedArtifactError, match=expected):
        check(model(operator))


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../w.bin", "other.bin", ""])
def test_external_data_outside_the_artifact_is_refused(location):
    with pytest.raises(CorruptArtifactError, match=r"data in files of the artifact"):
        check(model_with_external_data(location), files=["model.onnx", "w.bin"])


@pytest.mark.parametrize("count, is_refused", [(2, False), (3, True)])
def test_many_tensors_with_the_same_data_are_refused(count, is_refused):
    proto = model_with_external_data("w.bin")  # 8 bytes, the whole file
    for number in range(1, count):
        proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
        proto.graph.initializer[-1].name = f"w{number}"
    if is_refused:
        with pytest.raises(UnsupportedArtifactError, match=r"tensors of 24 bytes in w\.bin, .* 8"):
            check(proto, files=["w.bin"])
    else:
        assert check(proto, files=["w.bin"]) == {"w.bin"}


@pytest.mark.parametrize("entries, numbers", [({}, [1, 2]), ({"offset": 4, "length": 8}, [2, 3])])
def test_weights_of_another_file_become_part_of_the_graph(entries, numbers):
    proto = model_with_external_data("w.bin")
    for key, value in entries.items():
        proto.graph.initializer[0].external_data.add(key=key, value=str(value))
    data = np.array([1, 2, 3], "float32")[: 3 if entries else 2].tobytes()
    inlined = onnx.load_from_string(inline_weights(proto.SerializeToString(), "w.bin", data))
    onnx.checker.check_model(inlined)
    assert onnx.numpy_helper.to_array(inlined.graph.initializer[0]).tolist() == numbers
    same = inline_weights(proto.SerializeToString(), "other.bin", data)
    assert onnx.load_from_string(same) == proto


def test_external_data_of_a_constant_is_refused():
    tensor = model_with_external_data("w.bin").graph.initializer[0]
    with pytest.raises(CorruptArtifactError, match=r"w\.bin"):
        check(with_node("Constant", [], ["c"], value=tensor))


def test_file_that_is_not_onnx_is_refused():
    for contents in (b"\xff" * 20, b"", b"\x08\x08"):
        with pytest.raises(CorruptArtifactError, match="expected an ONNX file"):
            check(contents)


def test_names_that_are_not_utf8_are_refused():
    contents = model().SerializeToString()
    for name in (b"x", b"y"):
        assert name in contents
        with pytest.raises(CorruptArtifactError, match="names in UTF-8"):
            check(contents.replace(name, b"\xf3"))


def loop(trips):
    body = onnx.parser.parse_graph(
        "body (int64 i, bool go) => (bool still) { still = Identity(go) }"
    )
    proto = model()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(trips), "trips"))
    proto.graph.node.append(onnx.helper.make_node("Loop", ["trips", "go"], [], body=body))
    return proto


def shaped(operator, *numbers):
    proto = model()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers), "sizes"))
    inputs = {"ConstantOfShape": ["sizes"], "Pad": ["x", "sizes"]}.get(operator, ["x", "sizes"])
    proto.graph.node.append(onnx.helper.make_node(operator, inputs, ["large"]))
    return proto


def sparse_tensor():
    values = onnx.numpy_helper.from_array(np.ones(1, "float32"), "s")
    indices = onnx.numpy_helper.from_array(np.zeros(1, "int64"), "p")
    return onnx.helper.make_sparse_tensor(values, indices, [4])


def with_field(change):
    proto = model()
    change(proto)
    return proto


def with_node(*arguments, **attributes):
    proto = model()
    for name, number in (("zero", 0), ("one", 1), ("large", 2**40)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number), name))
    proto.graph.node.append(onnx.helper.make_node(*arguments, **attributes))
    return proto


def loop_without_condition():
    proto = loop(2**63 - 1)
    proto.graph.node[-1].input[1] = ""
    return proto


def large_tensor_in_a_loop():
    proto = loop(100)
    inner = shaped("ConstantOfShape", 2**20, 2**20)
    body = proto.graph.node[-1].attribute[0].g
    body.node.append(inner.graph.node[-1])
    proto.graph.initializer.append(inner.graph.initializer[-1])
    return proto


def large_tensor_with_constant_shape():
    proto = shaped("ConstantOfShape", 2**20, 2**20)
    sizes = proto.graph.initializer.pop()
    sizes.name = ""
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["sizes"], value=sizes))
    return proto


REFUSED = {
    "a sparse tensor": (
        lambda: with_field(lambda m: m.graph.sparse_initializer.append(sparse_tensor())),
        "field 15 of a GraphProto",
    ),
    "a sparse constant": (
        lambda: with_node("Constant", [], ["c"], sparse_value=sparse_tensor()),
        "field 22 of a AttributeProto",
    ),
    "a function": (
        lambda: with_field(lambda m: m.functions.add(name="hidden", domain="own")),
        "field 25 of a ModelProto",
    ),
    "training": (lambda: with_field(lambda m: m.training_info.add()), "field 20 of a ModelProto"),
    "session options in metadata": (
        lambda: with_field(lambda m: m.metadata_props.add(key="ort_config", value="{}")),
        "metadata 'ort_config'",
    ),
    "quantization": (
        lambda: with_field(lambda m: m.graph.quantization_annotation.add()),
        "field 14 of a GraphProto",
    ),
    "an overload": (
        lambda: with_field(lambda m: setattr(m.graph.node[0], "overload", "own")),
        "field 8 of a NodeProto",
    ),
    "a field of tomorrow": (
        lambda: model().SerializeToString() + b"\xfa\x3e\x01a",
        "field 1007 of a ModelProto",
    ),
    "a loop of 2^62 steps": (lambda: loop(2**62), "a Loop of 4,611,"),
    "a terabyte": (lambda: shaped("ConstantOfShape", 2**20, 2**20), "ConstantOfShape to 1,099"),
    "an expansion": (lambda: shaped("Expand", 2**40), "Expand to 1,099"),
    "many tiles": (lambda: shaped("Tile", 2**40), "Tile to 1,099"),
    "padding": (lambda: shaped("Pad", 0, 2**40), "Pad to 1,099"),
    "a loop without a condition": (loop_without_condition, "a Loop of 9,223,"),
    "many random numbers": (
        lambda: with_node("RandomNormal", [], ["r"], shape=[2**20, 2**20]),
        "RandomNormal to 1,099",
    ),
    "a long range": (lambda: with_node("Range", ["zero", "large", "one"], ["r"]), "Range to 1,099"),
    "many classes": (lambda: with_node("OneHot", ["x", "large", "x"], ["r"]), "OneHot to 1,099"),
    "a terabyte within a loop": (large_tensor_in_a_loop, "ConstantOfShape to 1,099"),
    "a terabyte of a constant": (large_tensor_with_constant_shape, "ConstantOfShape to 1,099"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_graph_features_that_no_model_needs_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(UnsupportedArtifactError, match=message):
        check(make())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("offset", "9"), ("offset", "-1"), ("offset", "x")),
        *(("length", "9"), ("length", "9" * 5000)),
        *(("basepath", "/"), ("location", "w.bin")),
    ],
)
def test_invalid_external_data_of_a_tensor_is_refused(key, value):
    proto = model_with_external_data("w.bin")
    proto.graph.initializer[0].external_data.add(key=key, value=value)
    with pytest.raises(CorruptArtifactError, match=r"data in files of the artifact"):
        check(proto, files=["w.bin"])


@pytest.mark.parametrize("dims", [[2**62], [-1], [3], [2**20, 2**20], [2, 2]])
def test_tensor_shape_must_match_its_data(dims):
    proto = model()
    tensor = onnx.numpy_helper.from_array(np.zeros(1, "uint8"), "odd")
    del tensor.dims[:]
    tensor.dims.extend(dims)
    proto.graph.initializer.append(tensor)
    with pytest.raises(CorruptArtifactError, match="as many elements as their shapes say"):
        check(proto)


def test_external_data_without_a_location_is_refused():
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[0], data_location=1)
    proto = with_field(lambda m: m.graph.initializer.append(tensor))
    with pytest.raises(CorruptArtifactError, match="data in files of the artifact"):
        check(proto, files=["w.bin"])
