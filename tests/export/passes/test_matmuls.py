"""Passes for matrix products: fewer nodes and equal results, or no change."""

import numpy as np
import pytest
from graphs import bodies, graph_of, normal, operators, rewritten

from keras_bahdanau_export.graph.passes import loops, matmuls

PRODUCT = """
agraph (float[b,t,6] x) => (float[%s] y) {
  shape = Shape(x)
  rows = Slice(shape, zero, two, zero)
  target = Concat<axis = 0>(rows, four)
  flat = Reshape(x, flattened)
  product = MatMul(flat, w)
  y = Reshape(product, %s)
}
"""


@pytest.mark.parametrize(
    "dims, target, count", [("b,t,4", "target", 1), ("c,4", "other", 0)], ids=["same", "other"]
)
@pytest.mark.parametrize("bent", [False, True])
def test_drop_matmul_reshapes_multiplies_without_reshapes(dims, target, count, bent):
    text = PRODUCT % (dims, target)
    if bent:
        text = text.replace("MatMul(flat", "MatMul(bent")
        text = text.replace("  product =", "  bent = Tanh(flat)\n  product =")
    model = graph_of(
        text, zero=[0], two=[2], four=[4], flattened=[-1, 6], other=[-1, 4], w=normal(6, 4)
    )
    graph, counts = rewritten(model, matmuls.drop_matmul_reshapes, x=normal(2, 3, 6))
    assert counts == [count]
    assert (operators(graph) == [*["Tanh"] * bent, "MatMul"]) == bool(count)


PAIRS = """
agraph (float[n,3] x) => (float[a,b] even, float[c,d] odd) {
  product = MatMul(x, w)
  sum = Add(b, product)
  even = Slice(sum, zeros, ends, axes, steps)
  odd = Slice(sum, start, ends, axes, steps)
}
"""


@pytest.mark.parametrize(
    "width, start, end, count",
    [
        (4, [0, 1], 10**9, 1),
        (6, [0, 0], 10**9, 1),
        (4, [1, 1], 10**9, 0),
        (4, [0, 1], 3, 0),
        (5, [0, 1], 10**9, 0),
    ],
    ids=["even and odd", "even twice", "not all rows", "not all columns", "odd width"],
)
def test_make_slices_contiguous_sorts_the_columns_of_a_product(width, start, end, count):
    model = graph_of(
        PAIRS,
        w=normal(3, width),
        b=normal(width),
        zeros=[0, 0],
        start=start,
        ends=[10**9, end],
        axes=[0, 1],
        steps=[1, 2],
    )
    _, counts = rewritten(model, matmuls.make_slices_contiguous, x=normal(2, 3))
    assert counts == [count]


DECODER = """
agraph (float[2,7,4] places, float[2,3,7] weights, int64[6] first, float[6,5] start,
        float[9,3] other_table, int64[2] target) => (float[6,5] last) {
  memory = Neg(places)
  last = Loop <body = step (int64 t, bool go, float[6,5] state) => (bool still, float[6,5] new) {
      still = Identity(go)
      ids = Add(first, t)
      word = Gather(table, ids)
      scale = Cast<to = 1>(t)
      alignment = Mul(weights, scale)
      moving = Mul(memory, scale)
      sum = MatMul(alignment, memory)
      context = Reshape(sum, rows)
      inputs = Concat<axis = -1>(state, word, context)
      product = MatMul(inputs, w)
      new = Tanh(product)
  }> (five, yes, start)
}
"""


SHIFTED = [
    ("new = Tanh(product)", "moved = Add(product, shift)\n      new = Tanh(moved)"),
    ("memory = Neg(places)", "memory = Neg(places)\n  shift = Neg(start)"),
]


@pytest.mark.parametrize(
    "changes, count, inside, outside",
    [
        ([], 1, 2, 2),
        ([("(state, word, context)", "(context, word, state)")], 1, 2, 2),
        ([("(alignment, memory)", "(alignment, moving)")], 1, 2, 1),
        ([("(sum, rows)", "(sum, target)")], 0, 2, 0),
        ([("(table, ids)", "(other_table, ids)")], 1, 2, 1),
        ([("new = Tanh(product)", "moved = Add(product, b)\n      new = Tanh(moved)")], 1, 2, 2),
        (SHIFTED, 1, 2, 2),
        ([("float[2,3,7] weights", "float[2,6,7] weights")], 1, 2, 1),
    ],
    ids=[
        "all",
        "another order",
        "annotations that change",
        "unknown sizes",
        "table that is an input",
        "bias",
        "sum that is not a bias",
        "two contexts per row",
    ],
)
def test_hoist_matmuls_multiplies_tables_before_the_loop(changes, count, inside, outside):
    text = DECODER
    for old, new in changes:
        text = text.replace(old, new)
    queries = 6 if "[2,6,7]" in text else 3  # two of six make a row of the context
    width = 4 * queries // 3
    model = graph_of(
        text,
        w=0.1 * normal(8 + width, 5),
        b=normal(5),
        table=normal(9, 3),
        rows=[-1, width],
        five=5,
        yes=True,
    )
    feeds = {
        "places": normal(2, 7, 4),
        "weights": normal(2, queries, 7),
        "first": np.array([0, 4, 3, 3, 1, -5]),
        "start": normal(6, 5),
        "other_table": normal(9, 3),
        "target": np.array([6, 4]),
    }
    graph, counts = rewritten(model, matmuls.hoist_matmuls, loops.hoist_invariants, **feeds)
    (body,) = bodies(graph)
    assert counts[0] == count
    assert operators(body).count("MatMul") == inside
    assert operators(graph).count("MatMul") == outside


def test_hoist_matmuls_makes_no_table_above_the_size_limit(monkeypatch):
    monkeypatch.setattr(matmuls, "_MAX_TABLE", 9 * 5 - 1)
    test_hoist_matmuls_multiplies_tables_before_the_loop([], count=1, inside=2, outside=1)


@pytest.mark.parametrize("more", ["sum", "other"])
def test_make_slices_contiguous_leaves_columns_that_other_nodes_read(more):
    text = PAIRS.replace("odd) {", f"odd, float[n,4] {more}) {{")
    text = text.replace("  sum = Add", "  other = Neg(product)\n  sum = Add")
    slices = {"zeros": [0, 0], "start": [0, 1], "ends": [10**9, 10**9]}
    slices |= {"axes": [0, 1], "steps": [1, 2]}
    model = graph_of(text, w=normal(3, 4), b=normal(4), **slices)
    _, counts = rewritten(model, matmuls.make_slices_contiguous, x=normal(2, 3))
    assert counts == [0]
