"""Passes for masks, comparisons and casts: fewer nodes and equal results, or no change."""

import numpy as np
import pytest
from graphs import graph_of, operators, rewritten

from keras_bahdanau_export.graph.passes import conditions


@pytest.mark.parametrize("number, count", [(2.0, 1), (2.5, 0), (np.inf, 0), (1e10, 0)])
def test_compare_as_integers_compares_integers_without_casts(number, count):
    model = graph_of(
        """
        agraph (int32[4] i) => (bool[4] y) {
          float_i = Cast<to = 1>(i)
          y = Less(float_i, limit)
        }
        """,
        limit=np.float32(number),
    )
    i = np.arange(4, dtype="int32")
    graph, counts = rewritten(model, conditions.compare_as_integers, i=i)
    assert counts == [count]
    assert operators(graph) == (["Less"] if count else ["Cast", "Less"])


STEPS = """
agraph (int32 n, float x) => (float y, bool last) {
  float_n = Cast<to = 1>(n)
  y, last = Loop <body = step (int64 t, bool go, float h, bool same) => (
      bool still, float next, bool again) {
      float_t = Cast<to = 1>(t)
      still = Less(%s, float_n)
      again = Less(zero, n)
      next = Add(h, float_t)
  }> (ten, yes, x, yes)
}
"""


@pytest.mark.parametrize("side, count", [("float_t", 1), ("h", 0)])
def test_compare_steps_as_int32_compares_steps_as_integers(side, count):
    model = graph_of(STEPS % side, ten=10, yes=True, zero=np.int32(0))
    feeds = {"n": np.int32(4), "x": np.float32(0.5)}
    graph, counts = rewritten(model, conditions.compare_steps_as_int32, **feeds)
    assert counts == [count]
    assert ("Cast" in operators(graph)) is (count == 0)  # the cast of `n`


MASKED = """
agraph (bool[2] c, bool[2] d, float[2] x) => (float[2] y) {
  number = Cast<to = 1>(c)
  y = Loop <body = step (int64 t, bool go, float[2] h) => (bool still, float[2] next) {
      still = Identity(go)
      chosen = Where(%s, h, x)
      next = Add(chosen, number)
  }> (three, yes, x)
}
"""


@pytest.mark.parametrize("cast_condition, count", [("c", 1), ("d", 0)])
def test_replace_bool_casts_replaces_casts_of_masks_in_a_loop(cast_condition, count, capfd):
    model = graph_of(MASKED % cast_condition, three=3, yes=True)
    feeds = {"c": [True, False], "d": [False, True], "x": np.ones(2, "float32")}
    graph, counts = rewritten(model, conditions.replace_bool_casts, **feeds)
    assert counts == [count]
    assert operators(graph) == (["Where", "Loop"] if count else ["Cast", "Loop"])
    # onnxruntime warns about the graph before the pass.
    assert ("cannot be safely updated" in capfd.readouterr().err) is (count == 1)


def test_compare_steps_as_int32_leaves_int64_limits():
    text = (STEPS % "float_t").replace("int32 n", "int64 n")
    model = graph_of(text, ten=np.int64(10), yes=np.bool_(True), zero=np.int64(0))
    _, counts = rewritten(
        model, conditions.compare_steps_as_int32, n=np.int64(4), x=np.float32(0.5)
    )
    assert counts == [0]
