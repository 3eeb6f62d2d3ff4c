"""A graph that asks for foreign operators or foreign files is refused before it is opened."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from keras_bahdanau_runtime import CorruptArtifactError, UnsupportedArtifactError
from keras_bahdanau_runtime.operators import check_contents

PLAIN = """<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
agraph (float[2] x, bool go) => (float[2] y) {
  y = If (go) <
    then_branch = one () => (float[2] a) { a = %s(x, w) },
    else_branch = two () => (float[2] b) { b = Add(x, w) }
  >
}
"""


def model(operator="Add"):
    made = onnx.parser.parse_model(PLAIN % operator)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, "float32"), "w"))
    return made


def outside(location):
    made = model()
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return made


def check(made, listed=()):
    contents = made if isinstance(made, bytes) else made.SerializeToString()
    check_contents(contents, Path("model.onnx"), dict.fromkeys(listed, 8))


def test_operators_of_onnx_pass():
    check(model())


def test_an_operator_of_another_domain_is_refused_wherever_it_stands():
    with pytest.raises(UnsupportedArtifactError, match=r"'Run' of 'own'"):
        check(model("own.Run"))


@pytest.mark.parametrize("operator", ["ImageDecoder", "StringNormalizer", "NoSuchOperator"])
def test_an_operator_that_is_not_on_the_list_is_refused(operator):
    with pytest.raises(UnsupportedArtifactError, match=f"Received: '{operator}' of 'ai.onnx'"):
        check(model(operator))


def test_functions_are_refused():
    made = model()
    made.functions.add(name="hidden", domain="own")
    with pytest.raises(UnsupportedArtifactError, match="field 25 of a ModelProto"):
        check(made)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../w.bin", "other.bin", ""])
def test_data_outside_the_artifact_is_refused(location):
    with pytest.raises(CorruptArtifactError, match=r"data in files of the artifact"):
        check(outside(location), listed=["model.onnx", "w.bin"])


def test_data_in_a_listed_file_passes():
    check(outside("w.bin"), listed=["model.onnx", "w.bin"])


def test_data_of_a_constant_is_seen_too():
    made = model()
    constant = onnx.helper.make_node(
        "Constant", [], ["c"], value=outside("w.bin").graph.initializer[0]
    )
    made.graph.node.append(constant)
    with pytest.raises(CorruptArtifactError, match=r"w\.bin"):
        check(made)


def test_what_is_no_onnx_file_is_refused():
    for contents in (b"\xff" * 20, b"", b"\x08\x08"):
        with pytest.raises(CorruptArtifactError, match="expected an ONNX file"):
            check(contents)


def test_names_that_are_no_text_are_refused():
    contents = model().SerializeToString()
    for name in (b"x", b"y"):
        assert name in contents
        with pytest.raises(CorruptArtifactError, match="names in UTF-8"):
            check(contents.replace(name, b"\xf3"))


def loop(trips):
    body = onnx.parser.parse_graph(
        "body (int64 i, bool go) => (bool still) { still = Identity(go) }"
    )
    made = model()
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(trips), "trips"))
    made.graph.node.append(onnx.helper.make_node("Loop", ["trips", "go"], [], body=body))
    return made


def shaped(operator, *numbers):
    made = model()
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers), "sizes"))
    inputs = {"ConstantOfShape": ["sizes"], "Pad": ["x", "sizes"]}.get(operator, ["x", "sizes"])
    made.graph.node.append(onnx.helper.make_node(operator, inputs, ["large"]))
    return made


def sparse():
    made = model()
    values = onnx.numpy_helper.from_array(np.ones(1, "float32"), "s")
    places = onnx.numpy_helper.from_array(np.zeros(1, "int64"), "p")
    made.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [4]))
    return made


def sparse_constant():
    made, tensor = model(), sparse().graph.sparse_initializer[0]
    made.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], sparse_value=tensor))
    return made


def with_field(change):
    made = model()
    change(made)
    return made


def with_node(*arguments, **attributes):
    made = model()
    for name, number in (("zero", 0), ("one", 1), ("large", 2**40)):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number), name))
    made.graph.node.append(onnx.helper.make_node(*arguments, **attributes))
    return made


def without_condition():
    made = loop(2**63 - 1)
    made.graph.node[-1].input[1] = ""
    return made


def inside_a_loop():
    made = loop(100)
    inner = shaped("ConstantOfShape", 2**20, 2**20)
    body = made.graph.node[-1].attribute[0].g
    body.node.append(inner.graph.node[-1])
    made.graph.initializer.append(inner.graph.initializer[-1])
    return made


def of_a_constant():
    made = shaped("ConstantOfShape", 2**20, 2**20)
    sizes = made.graph.initializer.pop()
    sizes.name = ""
    made.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["sizes"], value=sizes))
    return made


REFUSED = {
    "a sparse tensor": (sparse, "field 15 of a GraphProto"),
    "a sparse constant": (sparse_constant, "field 22 of a AttributeProto"),
    "training": (lambda: with_field(lambda m: m.training_info.add()), "field 20 of a ModelProto"),
    "metadata": (
        lambda: with_field(lambda m: m.metadata_props.add(key="file", value="/etc/passwd")),
        "field 14 of a ModelProto",
    ),
    "quantisation": (
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
    "a loop without a condition": (without_condition, "a Loop of 9,223,"),
    "many random numbers": (
        lambda: with_node("RandomNormal", [], ["r"], shape=[2**20, 2**20]),
        "RandomNormal to 1,099",
    ),
    "a long range": (lambda: with_node("Range", ["zero", "large", "one"], ["r"]), "Range to 1,099"),
    "many classes": (lambda: with_node("OneHot", ["x", "large", "x"], ["r"]), "OneHot to 1,099"),
    "a terabyte within a loop": (inside_a_loop, "ConstantOfShape to 1,099"),
    "a terabyte of a constant": (of_a_constant, "ConstantOfShape to 1,099"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_model_needs_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(UnsupportedArtifactError, match=message):
        check(make())


def test_loops_that_stop_by_their_condition_pass():
    check(loop(2**63 - 1))
    check(loop(100))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "9"),
        ("length", "9"),
        ("offset", "-1"),
        ("offset", "x"),
        ("basepath", "/"),
        ("length", "9" * 5000),
    ],
)
def test_places_outside_the_file_of_the_weights_are_refused(key, value):
    made = outside("w.bin")
    made.graph.initializer[0].external_data.add(key=key, value=value)
    with pytest.raises(CorruptArtifactError, match=r"data in files of the artifact"):
        check(made, listed=["w.bin"])


@pytest.mark.parametrize("dims", [[2**62], [-1], [3], [2**20, 2**20], [2, 2]])
def test_a_shape_beyond_the_numbers_of_a_tensor_is_refused(dims):
    made = model()
    tensor = onnx.numpy_helper.from_array(np.zeros(1, "uint8"), "odd")
    del tensor.dims[:]
    tensor.dims.extend(dims)
    made.graph.initializer.append(tensor)
    with pytest.raises(CorruptArtifactError, match="as many numbers as a tensor's shape says"):
        check(made)


def test_two_places_of_one_tensor_are_refused():
    made = outside("w.bin")
    made.graph.initializer[0].external_data.add(key="location", value="w.bin")
    with pytest.raises(CorruptArtifactError, match=r"data in files of the artifact"):
        check(made, listed=["w.bin"])


def test_data_beside_the_graph_has_a_place():
    made = model()
    made.graph.initializer.append(
        onnx.TensorProto(name="w", data_type=1, dims=[0], data_location=1)
    )
    with pytest.raises(CorruptArtifactError, match="data in files of the artifact"):
        check(made, listed=["w.bin"])
