"""Passes that move work out of loops: fewer nodes and equal results, or no change."""

import numpy as np
import onnx_ir
import pytest
from graphs import LOOP, RNG, bodies, graph_of, loop, normal, operators, rewritten

from keras_bahdanau_export.graph.passes import loops, optimizer


def test_hoist_unchanged_state_moves_unchanged_state_out_of_the_loop():
    graph, counts = rewritten(loop(), loops.hoist_unchanged_state, x=normal(2, 3))
    assert counts == [1]
    (body,) = bodies(graph)
    assert [value.name for value in body.input] == ["i", "go", "h"]


def test_hoist_invariants_moves_invariant_products_out_of_the_loop():
    graph, _ = rewritten(
        loop(), loops.hoist_unchanged_state, loops.hoist_invariants, x=normal(2, 3)
    )
    (body,) = bodies(graph)
    assert operators(body).count("MatMul") == 1
    assert operators(graph).count("MatMul") == 1


def test_hoist_invariants_leaves_random_and_state_dependent_nodes_in_the_loop():
    text = LOOP.replace("square = MatMul(w, w)", "square = RandomUniformLike(w)")
    model = graph_of(text, five=5, yes=True, kernel=normal(3, 3))
    lean = onnx_ir.serde.deserialize_model(model)
    assert optimizer.optimize(lean, [loops.hoist_unchanged_state, loops.hoist_invariants]) == {
        "hoist_unchanged_state": 1,
        "hoist_invariants": 0,
    }


HISTORY = """
agraph (int64 steps, bool go, float[2] x, int64 first) => (float[5,2] all, float[2] last) {
  last, count, all = Loop <body = step (int64 i, bool go_on, float[2] h, int64 t, float[5,2] before)
    => (bool still, float[2] new, int64 next, float[5,2] after) {
      still = Identity(go_on)
      new = Tanh(h)
      next = Add(t, one)
      row = Unsqueeze(new, zeros)
      place = Reshape(t, pair)
      after = ScatterND(before, place, row)
  }> (steps, go, x, start, buffer)
}
"""


READ_AFTERWARDS = [
    ("new = Tanh(h)", "half = Tanh(h)"),
    ("Unsqueeze(new", "Unsqueeze(half"),
    ("place, row)", "place, row)\n      new = ReduceMax<keepdims = 0>(after, zeros)"),
]


ELEMENT = [
    ("x, start", "x, starts"),
    ("int64 t", "int64[2] t"),
    ("int64 next", "int64[2] next"),
    ("Reshape(t, pair)", "Reshape(t, both_sides)"),
    ("row = Unsqueeze(new", "top = ReduceMax<keepdims = 0>(new, zeros)\n      row = Unsqueeze(top"),
]


TWO_STATES = [
    ("count, all = Loop", "count, same, all = Loop"),
    ("int64 t, float[5,2] before", "int64 t, float[5,2] unread, float[5,2] before"),
    ("next, float[5,2] after)", "next, float[5,2] after, float[5,2] after)"),
    ("start, buffer", "start, buffer, buffer"),
]


@pytest.mark.parametrize("steps, go", [(5, True), (3, True), (0, True), (5, False)])
@pytest.mark.parametrize(
    "changes, count",
    [
        ([], 1),
        ([("Reshape(t, pair)", "Reshape(i, pair)")], 1),
        ([("Add(t, one)", "Add(t, two)")], 0),
        ([("x, start", "x, one")], 0),
        ([("x, start", "x, first")], 0),
        ([("Tanh(h)", "ReduceMax<keepdims = 0>(before, zeros)")], 0),
        ([("Reshape(t, pair)", "Reshape(start, pair)")], 0),
        ([("float[5,2]", "float[5,1,2]"), ("(new, zeros)", "(new, both)")], 0),
        ([("ScatterND(", 'ScatterND<reduction = "add">(')], 0),
        (READ_AFTERWARDS, 0),
        (ELEMENT, 0),
        (TWO_STATES, 0),
    ],
    ids=[
        "state",
        "counter",
        "step of two",
        "start at one",
        "start at an input",
        "buffer read before it is written",
        "always the same row",
        "another axis",
        "sum",
        "buffer read after it is written",
        "one element",
        "two states",
    ],
)
def test_collect_scan_outputs_replaces_buffers_by_rows_of_the_loop(changes, count, steps, go):
    text = HISTORY
    for old, new in changes:
        text = text.replace(old, new)
    steps = min(steps, 2) if changes and not count else steps
    model = graph_of(
        text,
        start=0,
        starts=[0, 0],
        both_sides=[1, 2],
        one=1,
        two=2,
        zeros=[0],
        pair=[1, 1],
        both=[0, 1],
        buffer=normal(5, 1, 2) if "5,1,2" in text else normal(5, 2),
    )
    feeds = {"steps": steps, "go": go, "x": normal(2), "first": 1}
    graph, counts = rewritten(model, loops.collect_scan_outputs, **feeds)
    assert counts == [count]
    assert ("ScatterND" in operators(bodies(graph)[0])) == (not count)


def test_collect_scan_outputs_takes_buffers_of_unknown_size_and_loops_without_steps():
    text = HISTORY.replace("float[2]", "float[n]").replace("float[5,2]", "float[m,n]")
    text = text.replace("float[n] x,", "float[n] x, float[m,n] buffer,")
    model = graph_of(text, zeros=[0], pair=[1, 1], start=0, one=1)
    for steps in (0, 2):
        feeds = {"steps": steps, "go": True, "x": normal(3), "buffer": normal(5, 3), "first": 0}
        _, counts = rewritten(model, loops.collect_scan_outputs, **feeds)
        assert counts == [1]


def test_collect_scan_outputs_leaves_a_state_that_the_loop_passes_on():
    text = HISTORY
    for old, new in [
        ("count, all = Loop", "count, all, former = Loop"),
        ("float[5,2] all, float[2] last)", "float[5,2] all, float[2] last, float[5,2] former)"),
        ("float[5,2] before)", "float[5,2] before, float[5,2] unread)"),
        ("float[5,2] after)", "float[5,2] after, float[5,2] before)"),
        ("start, buffer", "start, buffer, buffer"),
    ]:
        assert old in text
        text = text.replace(old, new)
    model = graph_of(
        text, start=np.int64(0), one=np.int64(1), zeros=np.array([0]), pair=np.array([1, 1]),
        buffer=RNG.normal(size=(5, 2)).astype("float32"),
    )  # fmt: skip
    feeds = {
        "steps": np.int64(3),
        "go": np.bool_(True),
        "x": RNG.normal(size=2).astype("float32"),
        "first": np.int64(0),
    }
    _, counts = rewritten(model, loops.collect_scan_outputs, **feeds)
    assert counts == [0]
