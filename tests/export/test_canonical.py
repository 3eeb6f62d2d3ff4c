"""Exports of the same weights and options have the same bytes."""

import numpy as np
import onnx_ir
from graphs import graph_of

from keras_bahdanau_export.graph.canonical import canonicalize
from keras_bahdanau_export.tracing_process import trace_in_subprocess


def canonical(text, **constants):
    model = onnx_ir.serde.deserialize_model(graph_of(text, **constants))
    canonicalize(model)
    return onnx_ir.serde.serialize_model(model).SerializeToString(deterministic=True)


def test_a_graph_does_not_depend_on_the_order_and_names_of_its_nodes():
    first = canonical(
        """
        agraph (float[n] x, bool go) => (float[n] y, float[n] z) {
          a = Add(x, one)
          b = Mul(x, two)
          y = Sub(a, b)
          z = If(go) <
            then_branch = left () => (float[m] c) { t = Tanh(b) c = Add(t, a) },
            else_branch = right () => (float[m] d) { d = Neg(a) }
          >
        }
        """,
        one=np.ones(1, "float32"),
        two=np.full(1, 2, "float32"),
    )
    second = canonical(
        """
        agraph (float[n] x, bool go) => (float[n] y, float[n] z) {
          q = Mul(x, Add_0)
          unused = Exp(q)
          p = Add(x, constant_1)
          z = If(go) <
            then_branch = f7 () => (float[k] c9) { Mul_0 = Tanh(q) c9 = Add(Mul_0, p) },
            else_branch = f8 () => (float[k] e) { e = Neg(p) }
          >
          y = Sub(p, q)
        }
        """,
        Add_0=np.full(1, 2, "float32"),
        constant_1=np.ones(1, "float32"),
    )
    assert first == second


def test_names_of_inputs_and_outputs_are_kept():
    text = "agraph (float[Add_0] Add_1) => (float[Add_0] y) { a = Add(Add_1, b) y = Add(a, a) }"
    model = onnx_ir.serde.deserialize_model(graph_of(text, b=np.ones(1, "float32")))
    canonicalize(model)
    first, last = model.graph
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["Add_1", "y"]
    assert [first.name, first.outputs[0].name, last.name] == ["Add_2", "Add_3", "Add_4"]


def test_exports_of_two_processes_are_equal(traced, tmp_path, monkeypatch):
    """The process is the one that traces models on JAX and torch."""
    model, options, folder, signatures = traced
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert trace_in_subprocess(model, options, tmp_path) == signatures
    contents = [{path.name: path.read_bytes() for path in f.iterdir()} for f in (folder, tmp_path)]
    assert len(contents[0]) == 7 and contents[0] == contents[1]
