"""The optimizer, which runs all passes, and the names of values in the graphs that it writes."""

import numpy as np
import onnx_ir
from graphs import bodies, graph_of, loop, normal, results, rewritten

from keras_bahdanau_export.graph.passes import optimizer, top_k
from keras_bahdanau_export.graph.passes.editing import remove_unused


def test_optimize_runs_every_pass_until_nothing_changes():
    lean = onnx_ir.serde.deserialize_model(loop())
    first = optimizer.optimize(lean)
    assert set(first) == {each.__name__ for each in optimizer.PASSES}
    assert first["hoist_unchanged_state"] and first["hoist_invariants"]
    assert not any(optimizer.optimize(lean).values())


def test_optimize_does_not_repeat_a_pass_on_an_unchanged_graph():
    model, calls = onnx_ir.serde.deserialize_model(loop()), []

    def first(graph):
        calls.append("first")
        return int(len(calls) == 1)

    def second(graph):
        calls.append("second")
        return 0

    graphs = len(list(model.graphs()))
    assert optimizer.optimize(model, (first, second)) == {"first": 1, "second": 0}
    assert calls == ["first"] * graphs + ["second"] * graphs + ["first"] * graphs


def test_values_inside_and_outside_a_loop_have_different_names():
    """Otherwise, onnx mixes up their shapes."""
    model = graph_of(
        """
        agraph (float[2,2000] x) => (float[2,5] first, float[2,2000] last) {
          first, i = TopK(x, k)
          last = Loop <body = step (int64 t, bool go, float[2,2000] h) => (
              bool still, float[2,2000] new) {
              still = Identity(go)
              best, j = TopK(h, k)
              worst = ReduceMin<keepdims = 1>(best, ones)
              new = Min(h, worst)
          }> (five, yes, x)
        }
        """,
        k=[5],
        ones=[1],
        five=5,
        yes=True,
    )
    graph, counts = rewritten(model, top_k.split_top_k, x=normal(2, 2000))
    assert counts == [2]
    parts = (graph, *bodies(graph))
    names = [name for part in parts for node in part.node for name in node.output]
    assert len(set(names)) == len(names)


def test_outputs_equal_to_each_other_or_to_an_input_keep_their_names():
    model = graph_of(
        """
        agraph (float[2] x) => (float[2] a, float[2] b, float[2] c) {
          a = Neg(x)
          b = Identity(a)
          c = Identity(x)
        }
        """
    )
    graph, _ = rewritten(model, x=np.ones(2, "float32"))
    assert [value.name for value in graph.output] == ["a", "b", "c"]


def test_optimize_keeps_two_random_draws_apart():
    model = graph_of(
        """
        agraph (float[8] x) => (float[8] a, float[8] b) {
          one = RandomNormalLike(x)
          other = RandomNormalLike(x)
          a = Neg(one)
          b = Neg(other)
        }
        """
    )
    lean = onnx_ir.serde.deserialize_model(model)
    optimizer.optimize(lean)
    a, b = results(onnx_ir.serde.serialize_model(lean), {"x": np.zeros(8, "float32")})
    assert (a != b).all()


def test_constants_that_only_an_unused_loop_reads_are_removed():
    text = """
        agraph (float[n,2] x) => (float[n,2] y) {
          unused = Loop <body = step (int64 t, bool go, float[n,2] h)
            => (bool more, float[n,2] new) {
              more = Identity(go)
              new = Add(h, weights)
          }> (two, yes, x)
          y = Identity(x)
        }
    """
    model = onnx_ir.serde.deserialize_model(graph_of(text, weights=normal(2), two=2, yes=True))
    remove_unused(model)
    assert [node.op_type for node in model.graph] == ["Identity"]
    assert not model.graph.initializers
