"""Passes for shapes and indices: fewer nodes and equal results, or no change."""

import numpy as np
import onnx_ir
import pytest
from graphs import (
    assert_fixed_dimensions_change_nothing,
    graph_of,
    normal,
    operators,
    results,
    rewritten,
)

from keras_bahdanau_export.graph.passes import optimizer, shapes

GATHER = """
agraph (float[n,2] x, int64[3] i) => (float[3,2] y) {
  shape = Shape(x)
  count = Slice(shape, start, end, zeros)
  size = Squeeze(count, zeros)
  wrapped = Add(i, size)
  below = Less(i, limit)
  place = Where(below, wrapped, i)
  y = Gather(x, place)
}
"""


@pytest.mark.parametrize(
    "start, limit, count",
    [(0, 0, 1), (1, 0, 0), (0, 1, 0)],
    ids=["negative indices", "size of another axis", "another limit"],
)
def test_drop_index_wrapping_reads_negative_indices_directly(start, limit, count):
    model = graph_of(GATHER, start=[start], end=[start + 1], zeros=[0], limit=limit)
    x = normal(2, 2)
    places = np.array([-1, 1, -2]) if limit == 0 else np.array([-1, -1, -2])
    graph, counts = rewritten(model, shapes.drop_index_wrapping, x=x, i=places)
    assert counts == [count]
    assert (operators(graph) == ["Gather"]) == bool(count)


def test_widen_shapes_drops_casts_between_sizes():
    model = graph_of(
        """
        agraph (float[n,6] x) => (float[n,2,3] y) {
          shape = Shape(x)
          narrow = Cast<to = 6>(shape)
          rows = Slice(narrow, zero, one, zero)
          target = Concat<axis = 0>(rows, two_three)
          wide = Cast<to = 7>(target)
          y = Reshape(x, wide)
        }
        """,
        zero=[0],
        one=[1],
        two_three=np.array([2, 3], "int32"),
    )
    graph, counts = rewritten(model, shapes.widen_shapes, x=normal(4, 6))
    assert counts == [1]
    assert "Cast" not in operators(graph)


@pytest.mark.parametrize(
    "dtype, limit, count",
    [
        ("int32", "limit = Identity(n)", 1),
        ("int32", "limit = Mul(n, two)", 1),
        ("int32", "m = Add(n, two) limit = Sub(m, one)", 1),
        ("int32", "limit = Div(n, two)", 1),
        ("float", "limit = Cast<to = 1>(n)", 1),
        ("float", "f = Cast<to = 1>(n) limit = Add(f, ones)", 1),
        ("float", "f = Cast<to = 1>(n) limit = Div(f, twos)", 0),
        ("float", "f = Cast<to = 1>(n) limit = Mul(f, half)", 0),
        ("int32", "limit = Add(n, given)", 0),
    ],
)
def test_widen_ranges_counts_sizes_in_int64(dtype, limit, count):
    """onnxruntime opens the range when the size is fixed, too, where it counts in int64."""
    start, step = (np.array(number, np.dtype(dtype.replace("float", "f4"))) for number in (0, 1))
    model = graph_of(
        f"""
        agraph (float[n,6] x, int32 given) => ({dtype}[m] y) {{
          sizes = Shape(x)
          narrow = Cast<to = 6>(sizes)
          first = Slice(narrow, zero, single, zero)
          n = Squeeze(first, zero)
          {limit}
          y = Range(start, limit, step)
        }}
        """,
        zero=[0],
        single=[1],
        one=np.array(1, "int32"),
        two=np.array(2, "int32"),
        ones=np.array(1, "f4"),
        twos=np.array(2, "f4"),
        half=np.array(0.5, "f4"),
        start=start,
        step=step,
    )
    feeds = {"x": normal(5, 6), "given": np.array(1, "int32")}
    lean = onnx_ir.serde.deserialize_model(model)
    assert optimizer.optimize(lean, [shapes.widen_ranges])["widen_ranges"] == count
    lean = onnx_ir.serde.serialize_model(lean)
    (expected,) = results(model, feeds)
    (outputs,) = results(lean, feeds)
    assert outputs.dtype == expected.dtype and outputs.tolist() == expected.tolist()
    assert operators(lean.graph).count("Cast") == (
        1 if count else operators(model.graph).count("Cast")
    )
    if count:
        assert_fixed_dimensions_change_nothing(lean, feeds)


@pytest.mark.parametrize("last, count", [([6, 2], 1), ([0, 3], 0)], ids=["sizes", "a copied size"])
def test_fuse_reshapes_joins_two_reshapes(last, count):
    model = graph_of(
        """
        agraph (float[2,6] x) => (float[p,q] y) {
          inner = Reshape(x, first)
          y = Reshape(inner, last)
        }
        """,
        first=[4, 3],
        last=last,
    )
    graph, counts = rewritten(model, shapes.fuse_reshapes, x=normal(2, 6))
    assert counts == [count]
    assert operators(graph) == ["Reshape"] * (2 - count)
