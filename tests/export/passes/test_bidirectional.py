"""Passes that join the two directions of recurrent operators."""

import numpy as np
import pytest
from graphs import RNG, graph_of, normal, operators, rewritten

from keras_bahdanau_export.graph.passes import recurrence

RECURRENT = """
agraph (float[5,2,3] x, int32[2] lengths, int32[2] others, float[1,2,4] h) => (
    float[5,1,2,4] a, float[1,2,4] b, float[5,1,2,4] c, float[1,2,4] d) {
  c, d = %s<hidden_size = 4, direction = "reverse">(x, w2, r2, b2, lengths, h)
  a, b = %s<hidden_size = 4, direction = "forward">(x, w1, r1, b1, %s, h)
}
"""


BOTH_WAYS = """
agraph (float[t,b,3] x) => (float[%s] y) {
  all, last = GRU<hidden_size = 4, direction = "bidirectional">(x, w, r)
  a, b = Split<axis = %d, num_outputs = 2>(%s)
  ahead = Squeeze(a, %s)
  back = Squeeze(b, %s)
  %s
}
"""


@pytest.mark.parametrize(
    "axes, axis, output, rest, count",
    [
        ("t,b,8", 1, "all", "y = Concat<axis = 2>(ahead, back)", 1),
        ("b,8", 0, "last", "y = Concat<axis = -1>(ahead, back)", 1),
        (
            "b,t,8", 1, "all",
            "p = Transpose<perm = [1, 0, 2]>(ahead) q = Transpose<perm = [1, 0, 2]>(back) "
            "y = Concat<axis = -1>(p, q)",
            1,
        ),
        ("t,b,8", 1, "all", "y = Concat<axis = 2>(back, ahead)", 0),
        ("t,c,4", 1, "all", "y = Concat<axis = 1>(ahead, back)", 0),
        ("t,b,12", 1, "all", "y = Concat<axis = 2>(ahead, back, back)", 0),
        (
            "t,4,c", 1, "all",
            "p = Transpose<perm = [0, 2, 1]>(ahead) q = Transpose<perm = [0, 2, 1]>(back) "
            "y = Concat<axis = -1>(p, q)",
            0,
        ),
    ],
    ids=["all", "last", "turned", "reversed", "another axis", "three", "units not last"],
)  # fmt: skip
def test_fuse_direction_concat_transposes_and_reshapes(axes, axis, output, rest, count):
    text = BOTH_WAYS % (axes, axis, output, *2 * ["one" if axis else "zero"], rest)
    model = graph_of(text, w=normal(2, 12, 3), r=normal(2, 12, 4), zero=[0], one=[1])
    graph, counts = rewritten(model, recurrence.fuse_direction_concat, x=normal(5, 2, 3))
    assert counts == [count]
    if count:
        assert operators(graph) == ["GRU", "Transpose", "Reshape"]


@pytest.mark.parametrize("op_type, gates", [("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("lengths, count", [("lengths", 1), ("others", 0), ("", 0)])
def test_fuse_directions_joins_two_directions(op_type, gates, lengths, count):
    weights = {
        f"{name}{i}": normal(1, *shape)
        for i in (1, 2)
        for name, shape in (("w", (gates * 4, 3)), ("r", (gates * 4, 4)), ("b", (gates * 8,)))
    }
    model = graph_of(RECURRENT % (op_type, op_type, lengths), **weights)
    feeds = {
        "x": normal(5, 2, 3),
        "lengths": np.array([5, 3], "int32"),
        "others": np.array([4, 2], "int32"),
        "h": normal(1, 2, 4),
    }
    graph, counts = rewritten(model, recurrence.fuse_directions, **feeds)
    assert counts == [count]
    assert operators(graph).count(op_type) == 2 - count


@pytest.mark.parametrize("attribute", ["linear_before_reset = 1", "clip = 0.1"])
def test_fuse_directions_leaves_operators_with_other_attributes(attribute):
    text = RECURRENT % ("GRU", "GRU", "lengths")
    text = text.replace('direction = "reverse"', f'direction = "reverse", {attribute}')
    weights = {
        f"{name}{i}": RNG.normal(size=(1, *shape)).astype("float32")
        for i in (1, 2)
        for name, shape in (("w", (12, 3)), ("r", (12, 4)), ("b", (24,)))
    }
    feeds = {
        "x": RNG.normal(size=(5, 2, 3)).astype("float32"),
        "lengths": np.array([5, 3], "int32"), "others": np.array([4, 2], "int32"),
        "h": RNG.normal(size=(1, 2, 4)).astype("float32"),
    }  # fmt: skip
    _, counts = rewritten(graph_of(text, **weights), recurrence.fuse_directions, **feeds)
    assert counts == [0]
