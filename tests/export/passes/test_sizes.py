"""Sizes inferred from a graph, and the passes that compute fewer sizes at run time."""

import numpy as np
import onnx_ir
import pytest
from graphs import bodies, graph_of, normal, operators, rewritten

from keras_bahdanau_export.graph.passes import loops, recurrence, shapes
from keras_bahdanau_export.graph.passes.size_inference import SizeInference


def sizes_of(text, **constants):
    """The sizes of every named value: ints, or numbers times names of axes, as text."""
    graph = onnx_ir.serde.deserialize_model(graph_of(text, **constants)).graph
    sizes = SizeInference(graph)

    def description(size):
        if size.as_int is not None:
            return size.as_int
        factor = "" if size.factor == 1 else f"{size.factor} "
        return factor + " ".join(f"{value.name}.{axis}" for value, axis in size.axes)

    return {value.name: [description(size) for size in dims] for value, dims in sizes.dims.items()}


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("y = Tanh(x)", ["x.0", "x.1", 6]),
        ("y = Add(x, row)", ["x.0", "x.1", 6]),
        ("y = Add(x, other)", [None, "x.1", 6]),
        ("y = Mul(half, row)", ["x.0", 6]),
        ("y = MatMul(x, kernel)", ["x.0", "x.1", 4]),
        ("y = Gemm<transA = 1>(half, half)", [6, 6]),
        ("y = Transpose<perm = [2, 0, 1]>(x)", [6, "x.0", "x.1"]),
        ("y = Transpose(half)", [6, "x.0"]),
        ("y = Reshape(x, flat)", ["x.0 x.1", 6]),
        ("y = Reshape(x, thirds)", ["x.0", "3 x.1", 2]),
        ("y = Unsqueeze(half, last)", ["x.0", 6, 1]),
        ("y = Squeeze(z, last)", ["x.0"]),
        ("y = Concat<axis = 1>(half, half)", ["x.0", 12]),
        ("y = Concat<axis = 0>(half, half)", [None, 6]),
        ("y, w = Split<axis = 1, num_outputs = 2>(half)", ["x.0", 3]),
        ("y = Slice(half, zero, two, one)", ["x.0", 2]),
        ("y = Slice(half, zero, all, zero)", ["x.0", 6]),
        ("y = Slice(half, one, all, zero)", [None, 6]),
        ("y = Slice(half, zero, all, zero, two)", [None, 6]),
        ("y = Gather<axis = 1>(x, places)", ["x.0", 5, "x.1", 6]),
        ("y = GatherElements<axis = 0>(half, places)", [5, "x.1"]),
        ("y = GatherND<batch_dims = 1>(x, pairs)", ["x.0", 7, 6]),
        ("y = ReduceSum(x, last)", ["x.0", "x.1", 1]),
        ("y = ReduceMax<keepdims = 0>(x, one)", ["x.0", 6]),
        ("y, w = TopK(half, two)", ["x.0", 2]),
        ("y = Expand(row, sizes)", ["x.0", "x.1", 6]),
        ("y = Tile(half, counts)", ["x.0", 12]),
        ("y = ConstantOfShape(sizes)", ["x.0", "x.1", 6]),
        (
            "n = ReduceProd<keepdims = 0>(sizes, zero) y = Range(scalar_zero, n, single)",
            ["6 x.0 x.1"],
        ),
        ("n = Mul(sizes, two) y = ConstantOfShape(n)", ["2 x.0", "2 x.1", 12]),
        ("n = Add(sizes, two) y = ConstantOfShape(n)", None),
        ("n = Div(sizes, two) y = ConstantOfShape(n)", None),
        ("n = Div(sizes, one) y = ConstantOfShape(n)", ["x.0", "x.1", 6]),
        ("y = NonZero(x)", None),
    ],
)
def test_sizes_of_the_outputs_of_operators(statement, expected):
    sizes = sizes_of(
        f"""
        agraph (float[n,m,6] x, float[k,m,6] other, float[n,6] half, float[n,1] z,
                int64[5,m] places, int64[n,7,1] pairs) => (float out) {{
          sizes = Shape(x)
          {statement}
          out = Identity(y)
        }}
        """,
        row=np.zeros(6, "float32"),
        kernel=np.zeros((6, 4), "float32"),
        flat=[-1, 6],
        thirds=[0, -1, 2],
        counts=[1, 2],
        all=[2**31 - 1],
        zero=[0],
        one=[1],
        two=[2],
        last=[-1],
        scalar_zero=0,
        single=1,
    )
    if expected is not None:  # an unknown size is named after its axis
        expected = [f"y.{i}" if size is None else size for i, size in enumerate(expected)]
    assert sizes.get("y") == expected


GROWING = """
agraph (float[n,2] x) => (float[n,2] kept, float[m,2] grown, int64[t,2] all) {
  kept, grown, all = Loop <body = step (int64 i, bool go, float[n,2] k, float[m,2] g)
    => (bool still, float[n,2] k2, float[m,2] g2, int64[2] shape) {
      still = Identity(go)
      twice = Mul(k, two)
      k2 = Tanh(twice)
      g2 = Concat<axis = 0>(g, x)
      shape = Shape(k2)
  }> (five, yes, x, x)
}
"""


GROWING_CONSTANTS = {"five": 5, "yes": True, "two": np.float32(2)}


def test_a_state_that_every_step_keeps_in_size_has_its_first_size_after_the_loop():
    sizes = sizes_of(GROWING, **GROWING_CONSTANTS)
    assert sizes["k"] == sizes["k2"] == sizes["kept"] == ["x.0", 2]
    assert sizes["g"] == ["g.0", 2] and sizes["grown"] == ["grown.0", 2]
    assert sizes["all"] == ["all.0", 2]


def test_simplify_sizes_moves_sizes_that_no_step_changes_out_of_a_loop():
    text = GROWING.replace("shape = Shape(k2)", "s = Shape(k2) shape = Mul(s, one)")
    model = graph_of(text, one=[1, 1], **GROWING_CONSTANTS)
    graph, counts = rewritten(model, shapes.simplify_sizes, x=normal(3, 2))
    (body,) = bodies(graph)
    assert counts[0] > 0 and "Shape" not in operators(body) and "Shape" in operators(graph)


def test_simplify_sizes_leaves_sizes_that_change_at_every_step_in_the_loop():
    model = graph_of(GROWING.replace("Shape(k2)", "Shape(g2)"), **GROWING_CONSTANTS)
    graph, counts = rewritten(model, shapes.simplify_sizes, x=normal(3, 2))
    (body,) = bodies(graph)
    assert counts == [0] and "Shape" in operators(body)


def test_simplify_sizes_computes_a_size_without_slices():
    model = graph_of(
        """
        agraph (int32[n,m] x) => (int32[k] y) {
          sizes = Shape(x)
          narrow = Cast<to = 6>(sizes)
          first = Slice(narrow, zero, one, zero)
          rows = Squeeze(first, zero)
          more = Mul(rows, five)
          y = Range(scalar_zero, more, single)
        }
        """,
        zero=[0],
        one=[1],
        five=np.array(5, "int32"),
        scalar_zero=np.array(0, "int32"),
        single=np.array(1, "int32"),
    )
    graph, counts = rewritten(model, shapes.simplify_sizes, x=np.zeros((3, 2), "int32"))
    assert counts[0] > 0
    assert sorted(operators(graph)) == ["Cast", "Mul", "Range", "Shape", "Squeeze"]


def test_drop_noop_reshapes_removes_reshapes_and_expands_to_the_same_shape():
    model = graph_of(
        """
        agraph (float[n,6] x) => (float[n,6] y, float[n,12] z) {
          sizes = Shape(x)
          a = Reshape(x, sizes)
          b = Expand(a, sizes)
          y = Tanh(b)
          joined = Concat<axis = 1>(x, x)
          z = Expand(joined, one)
        }
        """,
        one=[1, 1],
    )
    graph, counts = rewritten(model, shapes.drop_noop_reshapes, x=normal(2, 6))
    assert counts == [3] and operators(graph) == ["Tanh", "Concat"]


@pytest.mark.parametrize("value, count", [(0.0, 1), (0.5, 0)])
def test_drop_zero_states_removes_initial_states_that_are_zero(value, count):
    model = graph_of(
        """
        agraph (float[5,n,3] x) => (float y, float last) {
          rows = Shape<start = 1, end = 2>(x)
          sizes = Concat<axis = 0>(one, rows, four)
          flat = Expand(number, sizes)
          first = Concat<axis = 0>(flat, flat)
          y, last = GRU<hidden_size = 4, direction = "bidirectional">(x, w, r, b, , first)
        }
        """,
        number=np.float32(value),
        one=[1],
        four=[4],
        w=normal(2, 12, 3),
        r=normal(2, 12, 4),
        b=normal(2, 24),
    )
    feeds = {"x": normal(5, 2, 3)}
    graph, counts = rewritten(model, recurrence.drop_zero_states, **feeds)
    assert counts == [count] and ("Expand" in operators(graph)) == (not count)


def test_a_loop_gets_copies_of_its_small_constants():
    lean = onnx_ir.serde.deserialize_model(graph_of(GROWING, **GROWING_CONSTANTS))
    loops.copy_constants_into_loops(lean)
    graph = onnx_ir.serde.serialize_model(lean).graph
    (body,) = bodies(graph)
    (mul,) = [node for node in body.node if node.op_type == "Mul"]
    assert [constant.name for constant in body.initializer] == [mul.input[1]]
    assert mul.input[1] not in {constant.name for constant in graph.initializer}
