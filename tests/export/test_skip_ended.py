"""Graphs that compute logits only for hypotheses that have not ended."""

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from models import model_of_many_lengths

from keras_bahdanau import BeamSearch, Sampling
from keras_bahdanau_export.graph.writer import write_onnx
from keras_bahdanau_export.trace import search_defaults, search_function
from keras_bahdanau_runtime.errors import UnsupportedModelError

V, K, T = 300, 4, 9  # a vocabulary that is ranked in chunks
SOURCE = np.array([[5, 6, 7, 120, 3], [8, 3, 0, 0, 0], [99, 41, 12, 3, 0]], "int32")
OUTPUTS = ("tokens", "scores", "lengths", "alignments", "log_probs")


@pytest.fixture(scope="module")
def model():
    return model_of_many_lengths(V)


def write(model, search, path, skip_ended):
    function, signature = search_function(model, search, T, options_are_inputs=True)
    defaults = search_defaults(search, T)
    write_onnx(function, signature, path, model.variables, defaults=defaults, skip_ended=skip_ended)
    return path


@pytest.fixture(scope="module")
def graphs(model, tmp_path_factory):
    """Paths of the graph that computes all rows, and of the one that skips ended ones."""
    folder = tmp_path_factory.mktemp("graphs")
    return [
        write(model, BeamSearch(K), folder / f"{skip_ended}.onnx", skip_ended)
        for skip_ended in (False, True)
    ]


def open_graph(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 2},
        {"coverage_penalty": 0.5, "min_length": 3},
        {"no_repeat_ngram": 1, "repetition_penalty": 1.5},
        {"prefix": [[4, 9], [7, 0], [0, 0]]},
        {"required": [[[7, 4]], [[0, 0]], [[9, 0]]]},
    ],
    ids=" ".join,
)
def test_results_are_those_of_all_rows(graphs, options):
    inputs = {
        name: np.array(value, "float32" if "penalty" in name else "int32")
        for name, value in options.items()
    }
    complete, skipping = (
        open_graph(path).run(OUTPUTS, {"source": SOURCE, **inputs}) for path in graphs
    )
    assert len(set(complete[2][:, 0])) > 1  # outputs end in different steps
    for name, expected, actual in zip(OUTPUTS, complete, skipping, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5, err_msg=name)


def test_a_step_has_the_rows_of_live_hypotheses(graphs, tmp_path):
    model = onnx_ir.load(graphs[1])
    (loop,) = [node for node in model.graph if node.op_type == "Loop"]
    body = loop.attributes["body"].value
    (compress,) = [node for node in body if node.op_type == "Compress"]
    size = onnx_ir.node("Shape", compress.outputs, {"start": 0, "end": 1})
    size.outputs[0].name, size.outputs[0].dtype = "rows_of_step", onnx_ir.DataType.INT64
    size.outputs[0].shape = onnx_ir.Shape([1])
    body.append(size)
    body.outputs.append(size.outputs[0])
    inputs, outputs = list(loop.inputs), list(loop.outputs)
    new = onnx_ir.node("Loop", inputs, {"body": body}, num_outputs=len(outputs) + 1)
    model.graph.insert_before(loop, new)
    for old, value in zip(outputs, new.outputs, strict=False):
        value.name, value.type, value.shape = old.name, old.type, old.shape
        onnx_ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    model.graph.remove(loop, safe=True)
    rows = new.outputs[-1]
    rows.name, rows.dtype = "rows", onnx_ir.DataType.INT64
    rows.shape = onnx_ir.Shape([None, 1])
    model.graph.outputs.append(rows)
    onnx_ir.save(model, tmp_path / "rows.onnx")
    session = open_graph(tmp_path / "rows.onnx")

    def rows_of(source):
        (rows,) = session.run(["rows"], {"source": source})
        return np.pad(rows[:, 0], (0, T - len(rows)))

    alone = [rows_of(sentence[None]) for sentence in SOURCE]
    assert len({np.count_nonzero(rows) for rows in alone}) > 1  # they end in different steps
    assert all(rows[0] == 1 and rows[1] == K for rows in alone)
    np.testing.assert_array_equal(rows_of(SOURCE), sum(alone))


def test_a_search_without_a_beam_is_refused(model, tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"beam search .* without `skip_ended`"):
        write(model, Sampling(2), tmp_path / "model.onnx", skip_ended=True)
