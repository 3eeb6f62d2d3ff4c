"""The pass that fuses two directions of a recurrent operator."""

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
