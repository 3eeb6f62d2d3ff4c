"""A graph that asks for foreign operators or foreign files is refused before it is opened."""

import numpy as np
import onnx
import pytest

from keras_bahdanau_runtime import CorruptArtifactError, UnsupportedArtifactError
from keras_bahdanau_runtime.operators import check_contents

pytestmark = pytest.mark.once

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


def check(made, path, listed=()):
    path.write_bytes(made.SerializeToString())
    check_contents(path, listed)


def test_operators_of_onnx_pass(tmp_path):
    check(model(), tmp_path / "model.onnx")


def test_an_operator_of_another_domain_is_refused_wherever_it_stands(tmp_path):
    with pytest.raises(UnsupportedArtifactError, match=r"'Run' of 'own'"):
        check(model("own.Run"), tmp_path / "model.onnx")


@pytest.mark.parametrize("operator", ["ImageDecoder", "StringNormalizer", "NoSuchOperator"])
def test_an_operator_that_is_not_on_the_list_is_refused(tmp_path, operator):
    onnx.save(model(operator), tmp_path / "model.onnx")
    with pytest.raises(UnsupportedArtifactError, match=f"Received: '{operator}' of 'ai.onnx'"):
        check_contents(tmp_path / "model.onnx", [])


def test_functions_are_refused(tmp_path):
    made = model()
    made.functions.add(name="hidden", domain="own")
    with pytest.raises(UnsupportedArtifactError, match="'hidden'"):
        check(made, tmp_path / "model.onnx")


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../w.bin", "other.bin", ""])
def test_data_outside_the_artifact_is_refused(tmp_path, location):
    with pytest.raises(CorruptArtifactError, match=r"data in files of the artifact"):
        check(outside(location), tmp_path / "model.onnx", listed=["model.onnx", "w.bin"])


def test_data_in_a_listed_file_passes(tmp_path):
    check(outside("w.bin"), tmp_path / "model.onnx", listed=["model.onnx", "w.bin"])


def test_data_of_a_constant_is_seen_too(tmp_path):
    made = model()
    constant = onnx.helper.make_node(
        "Constant", [], ["c"], value=outside("w.bin").graph.initializer[0]
    )
    made.graph.node.append(constant)
    with pytest.raises(CorruptArtifactError, match=r"w\.bin"):
        check(made, tmp_path / "model.onnx")


def test_what_is_no_onnx_file_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 20)
    with pytest.raises(CorruptArtifactError, match="expected an ONNX file"):
        check_contents(tmp_path / "model.onnx", [])
