"""Graphs whose results the passes must not change; each was once changed or refused."""

import numpy as np
import onnx
import onnx_ir
import pytest
from graphs import RNG, graph_of, normal, results

from keras_bahdanau_export.graph.passes import optimizer
from keras_bahdanau_export.graph.precision import reduce_precision

YES, ZERO, ONE, MINUS_ONE = True, 0, 1, [-1]


def loop(states, body, **constants):
    """A loop of `n` steps over `states`, such as {"h": "x"}, with this body."""
    inner = ", ".join(f"float[3] {name}" for name in states)
    outer = ", ".join(f"float[3] last_{name}" for name in states)
    new = ", ".join(f"float[3] new_{name}" for name in states)
    text = f"""
    agraph (int64 n, bool c, float[3] x) => ({outer}, float[3] a, float[K,3] rows) {{
      a = Neg(x)
      {", ".join(f"last_{name}" for name in states)}, rows = Loop <body = step
        (int64 t, bool go, {inner}) => (bool still, {new}, float[3] row) {{
          still = Identity(go)
          {body}
      }}> (n, yes, {", ".join(states.values())})
    }}"""
    feeds = [{"n": n, "c": c, "x": normal(3)} for n in (2, 0) for c in (True, False)]
    return text, {"yes": YES, **constants}, feeds


def branches(body):
    """An `If` over two values."""
    text = f"agraph (bool c, float[3] x) => (float[3] y) {{ a = Neg(x) b = Exp(x) y = {body} }}"
    return text, {}, [{"c": c, "x": normal(3)} for c in (True, False)]


def recurrence(text, layers, **feeds):
    """GRUs of 3 units over `x (4, 2, 2)` with weights `w0`, `r0`, `b0`, `w1` and so on."""
    weights = {}
    for i in range(layers):
        weights |= {f"w{i}": normal(1, 9, 2), f"r{i}": normal(1, 9, 3), f"b{i}": normal(1, 18)}
    return text, weights, [{"x": normal(4, 2, 2), **feeds}]


def columns(outputs, rest, **constants):
    """A product with a bias, and its even and odd columns."""
    text = f"""
    agraph (float[N,2] x) => ({outputs}) {{
      product = MatMul(x, w)
      total = Add(product, bias)
      even = Slice(total, none, all, axis, two)
      odd = Slice(total, one, all, axis, two)
      {rest}
    }}"""
    places = {"none": [0], "one": [1], "all": [2**31 - 1], "axis": [1], "two": [2]}
    numbers = {name: np.array(place) for name, place in places.items()}
    return text, {**numbers, "w": normal(2, 4), "bias": normal(4), **constants}, [
        {"x": normal(2, 2)}
    ]  # fmt: skip


def history(states, rows, index, buffer, written="h"):
    """A loop that writes into a buffer at every step."""
    rank = ",".join(["M", *map(str, buffer)])
    text = f"""
    agraph (int64 n, int64[R] dims, float[2] x, float[{rank}] whole)
      => (float[2] last, float[{rank}] filled{states}) {{
      last, filled{", more" if rows else ""} = Loop <body = step
        (int64 t, bool go, float[2] h, float[{rank}] kept)
        => (bool still, float[2] new, float[{rank}] next{rows}) {{
          still = Identity(go)
          new = Tanh(h)
          place = Reshape(t, index)
          wide = Expand(h, dims)
          update = Unsqueeze({written}, first)
          next = ScatterND(kept, place, update)
      }}> (n, yes, x, whole)
    }}"""
    constants = {"yes": YES, "index": np.array(index), "first": [0]}
    feeds = [
        {"n": n, "dims": np.array([*buffer[:-1], 2]), "x": normal(2), "whole": normal(4, *buffer)}
        for n in (3, 0)
    ]
    return text, constants, feeds


GRU = "GRU <hidden_size = 3, linear_before_reset = 1"
GRAPHS = {
    "branches that return outer values": branches(
        "If (c) <then_branch = yes () => (float[3] u) { u = Identity(a) },"
        " else_branch = no () => (float[3] v) { v = Identity(b) }>"
    ),
    "branches of identities and double negations": branches(
        "If (c) <then_branch = yes () => (float[3] u) { u = Cast <to = 1> (a) },"
        " else_branch = no () => (float[3] v) { w = Neg(b) v = Neg(w) }>"
    ),
    "a state that becomes an outer value": loop(
        {"h": "x"}, "new_h = Identity(a) row = Add(h, a)"
    ),
    "rows of an outer value": loop({"h": "x"}, "new_h = Add(h, a) row = Identity(a)"),
    "a state that takes a fixed one": loop(
        {"k": "a", "h": "x"}, "new_k = Identity(k) new_h = Identity(k) row = Add(h, k)"
    ),
    "rows of a fixed state": loop(
        {"k": "a", "h": "x"}, "new_k = Identity(k) new_h = Add(h, k) row = Identity(k)"
    ),
    "a condition inside a loop": loop(
        {"h": "x"},
        "b = Tanh(h) row = Neg(h) new_h = If (c) <"
        "then_branch = yes () => (float[3] u) { u = Identity(b) },"
        " else_branch = no () => (float[3] v) { v = Identity(h) }>",
    ),
    "an input that is left out": loop(
        {"h": "x"}, "new_h = Clip(h, , most) row = Neg(h)", most=np.float32(0.1)
    ),
    "a backward layer that begins where the forward one ends": recurrence(
        f"""agraph (float[4,2,2] x, float[1,2,3] start)
          => (float[4,1,2,3] y, float[4,1,2,3] z) {{
          y, last = {GRU}> (x, w0, r0, b0, , start)
          begin = Tanh(last)
          z = {GRU}, direction = "reverse"> (x, w1, r1, b1, , begin)
        }}""",
        2,
        start=normal(1, 2, 3),
    ),
    "a forward layer with two backward ones": recurrence(
        f"""agraph (float[4,2,2] x, float[4,2,2] other)
          => (float[4,1,2,3] y, float[4,1,2,3] z, float[4,1,2,3] v, float[4,1,2,3] u) {{
          y = {GRU}> (x, w0, r0, b0)
          z = {GRU}, direction = "reverse"> (x, w1, r1, b1)
          v = {GRU}> (other, w0, r0, b0)
          u = {GRU}, direction = "reverse"> (other, w2, r2, b2)
        }}""",
        3,
        other=normal(4, 2, 2),
    ),
    "directions with different activations": recurrence(
        f"""agraph (float[4,2,2] x) => (float[4,1,2,3] y, float[4,1,2,3] z) {{
          y = {GRU}, activations = ["HardSigmoid", "Tanh"], activation_alpha = [0.1],
            activation_beta = [0.4]> (x, w0, r0, b0)
          z = {GRU}, direction = "reverse", activations = ["HardSigmoid", "Tanh"],
            activation_alpha = [0.3], activation_beta = [0.6]> (x, w1, r1, b1)
        }}""",
        2,
    ),
    "sizes of rows known only inside the loop": (
        """agraph (float[B,3] x, int64 n) => (int64[3] y) {
          last, all = Loop <body = step (int64 t, bool go, float[U,3] h)
            => (bool still, float[V,3] new, float[W,3] row) {
              still = Identity(go)
              product = MatMul(h, k)
              new = Softsign(product)
              row = Identity(new)
          }> (n, yes, x)
          sizes = Shape(all)
          y = Mul(sizes, two)
        }""",
        {"yes": YES, "k": normal(3, 3), "two": [2]},
        [{"x": normal(2, 3), "n": 4}],
    ),
    "products with two orders of concatenation": (
        """agraph (int64[N] i, float[N,2] z) => (float[N,4] y, float[N,4] u) {
          e = Gather(table, i)
          one = Concat <axis = 1> (e, z)
          other = Concat <axis = 1> (z, e)
          y = MatMul(one, w)
          u = MatMul(other, w)
        }""",
        {"table": normal(5, 2), "w": normal(4, 4)},
        [{"i": [1, 2], "z": normal(2, 2)}],
    ),
    "a product before a loop and its bias in it": (
        """agraph (int64 n, int64[2] i) => (float[2,4] last, float[K,2,4] rows) {
          e = Gather(table, i)
          last, rows = Loop <body = step (int64 t, bool go, float[2,4] h)
            => (bool still, float[2,4] new, float[2,4] row) {
              still = Identity(go)
              product = MatMul(e, w)
              row = Add(product, bias)
              new = Tanh(h)
          }> (n, yes, start)
        }""",
        {"yes": YES, "table": normal(5, 3), "w": normal(3, 4), "bias": normal(4),
         "start": normal(2, 4)},
        [{"n": 2, "i": [1, 2]}],
    ),
    "a weighted sum of an outer vector": (
        """agraph (int64 n, float[2,3,5] p, float[5] v) => (float[2,3] last) {
          around = Neg(v)
          last = Loop <body = step (int64 t, bool go, float[2,3] h)
            => (bool still, float[2,3] new) {
              still = Identity(go)
              scale = ReduceSum <keepdims = 0> (h)
              scaled = Mul(p, scale)
              sum = MatMul(scaled, around)
              product = MatMul(sum, w)
              new = Add(h, product)
          }> (n, yes, start)
        }""",
        {"yes": YES, "w": normal(3, 3), "start": normal(2, 3)},
        [{"n": 2, "p": normal(2, 3, 5), "v": normal(5)}],
    ),
    "a product that is an output, and its columns": columns(
        "float[N,4] product, float[N,2] even, float[N,2] odd", ""
    ),
    "a constant with the name that a pass would choose": columns(
        "float[N,2] y, float[N,2] odd", "y = Add(even, column_2)", column_2=normal(1, 2)
    ),
    "numbers that int32 does not hold": (
        """agraph (int64[N] x) => (int64[N] y, int64[M] z) {
          narrow = Cast <to = 6> (x)
          y = Cast <to = 7> (narrow)
          twice = Concat <axis = 0> (narrow, narrow)
          z = Cast <to = 7> (twice)
        }""",
        {},
        [{"x": [2**32 + 5, 3, -1]}],
    ),
    "negative indices that other nodes read": (
        """agraph (float[N,2] x, int64[K] i) => (float[K,2] y, int64[K] places) {
          negative = Less(i, zero)
          length = Shape <start = 0, end = 1> (x)
          shifted = Add(i, length)
          chosen = Where(negative, shifted, i)
          j = Reshape(chosen, minus_one)
          y = Gather(x, j)
          places = Mul(j, one)
        }""",
        {"zero": ZERO, "one": ONE, "minus_one": MINUS_ONE},
        [{"x": normal(4, 2), "i": [-1, 2]}],
    ),
    "an index that becomes a vector": (
        """agraph (float[N,2] x, int64 i) => (float[K,2] y) {
          negative = Less(i, zero)
          length = Shape <start = 0, end = 1> (x)
          shifted = Add(i, length)
          j = Where(negative, shifted, i)
          y = Gather(x, j)
        }""",
        {"zero": ZERO},
        [{"x": normal(4, 2), "i": -1}],
    ),
    "a buffer that is an output before it is written": (
        history(", float[K,M,2] more", ", float[M,2] kept", [1, 1], [2])
    ),
    "a buffer with an axis of one": history("", "", [1], [1, 2]),
    "a buffer of rows of unknown rank": history("", "", [1, 1], [2, 2], written="wide"),
    "top 0": (
        "agraph (float[N,1001] x) => (float[N,0] y, int64[N,0] i) { y, i = TopK(x, k) }",
        {"k": [0]},
        [{"x": normal(2, 1001)}],
    ),
    "top integers": (
        "agraph (int32[N,1001] x) => (int32[N,5] y, int64[N,5] i) { y, i = TopK(x, k) }",
        {"k": [5]},
        [{"x": RNG.integers(-9, 0, (2, 1001)).astype("int32")}],
    ),
    "the shape of a scalar": (
        """agraph (float x, float[N] z) => (float[M] y) {
          none = Shape(x)
          product = Mul(none, none)
          target = Concat <axis = 0> (product, minus_one)
          y = Reshape(z, target)
        }""",
        {"minus_one": MINUS_ONE},
        [{"x": np.float32(3), "z": normal(3)}],
    ),
    "a sum over no axes, which is over all": (
        """agraph (float[N,3] x) => (float[K] y) {
          sum = ReduceSum <keepdims = 0> (x, none)
          shape = Shape(sum)
          target = Concat <axis = 0> (shape, minus_one)
          y = Reshape(x, target)
        }""",
        {"none": np.zeros(0, "int64"), "minus_one": MINUS_ONE},
        [{"x": normal(2, 3)}],
    ),
    "a range that is empty, and a remainder with its sign": (
        """agraph (float[N,3] x) => (int64[K] y, int64[1] z) {
          size = Shape <start = 0, end = 1> (x)
          negative = Mul(size, minus_one)
          end = Squeeze(negative, first)
          range = Range(zero, end, one)
          length = Shape(range)
          y = Mul(length, two)
          less = Sub(six, three)
          rest = Mod <fmod = 1> (negative, less)
          z = Add(rest, size)
        }""",
        {"first": [0], "minus_one": MINUS_ONE, "zero": ZERO, "one": ONE,
         "two": [2], "six": [6], "three": [3]},
        [{"x": normal(2, 3)}],
    ),
    "constants that print alike": (
        """agraph (double[N] x) => (double[N] y, double[N] z) {
          shape = Shape(x)
          one = ConstantOfShape <value = double[1] {1.000000001}> (shape)
          other = ConstantOfShape <value = double[1] {1.0000000001}> (shape)
          y = Sub(one, x)
          z = Sub(other, x)
        }""",
        {},
        [{"x": np.ones(2)}],
    ),
    "a condition as a number that onnxruntime does not choose": (
        """agraph (int64 n, bool[3] c) => (int16[3] last) {
          numbers = Cast <to = 5> (c)
          last = Loop <body = step (int64 t, bool go, int16[3] h)
            => (bool still, int16[3] new) {
              still = Identity(go)
              placed = ScatterElements <axis = 0> (h, places, numbers)
              whole = Cast <to = 9> (placed)
              both = And(whole, c)
              new = Cast <to = 5> (both)
          }> (n, yes, start)
        }""",
        {"yes": YES, "places": np.arange(3), "start": np.zeros(3, "int16")},
        [{"n": 2, "c": [True, False, True]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_passes_keep_the_results(name):
    text, constants, feeds = GRAPHS[name]
    model = graph_of(text, **constants)
    graph = onnx_ir.serde.deserialize_model(model)
    optimizer.optimize(graph)
    lean = onnx_ir.serde.serialize_model(graph)
    assert [out.name for out in lean.graph.output] == [out.name for out in model.graph.output]
    for inputs in feeds:
        for before, after in zip(results(model, inputs), results(lean, inputs), strict=True):
            assert before.dtype == after.dtype and before.shape == after.shape
            np.testing.assert_allclose(after, before, rtol=1e-9 if before.dtype == float else 1e-5)


TABLE = normal(200, 32)
PRODUCTS = {
    "a row of candidates for each sentence": (
        """agraph (float[B,1,32] h, int64[B,K] c) => (float[B,1,K] y) {
          rows = Gather(table, c)
          columns = Transpose <perm = [0, 2, 1]> (rows)
          y = MatMul(h, columns)
        }""",
        {"table": TABLE},
        {"h": normal(2, 1, 32), "c": RNG.integers(0, 200, (2, 5))},
    ),
    "candidates with an identity transpose": (
        """agraph (float[B,K] h, int64[K] c) => (float[B,32] y) {
          rows = Gather(table, c)
          same = Transpose <perm = [0, 1]> (rows)
          y = MatMul(h, same)
        }""",
        {"table": TABLE},
        {"h": normal(2, 5), "c": RNG.integers(0, 200, 5)},
    ),
    "weights of three axes": (
        "agraph (float[4,B,32] h) => (float[4,B,40] y) { y = MatMul(h, w) }",
        {"w": normal(4, 32, 40)},
        {"h": normal(4, 2, 32)},
    ),
    "a transpose without a permutation": (
        "agraph (float[B,32] h) => (float[B,200] y) { w = Transpose(table) y = MatMul(h, w) }",
        {"table": TABLE},
        {"h": normal(2, 32)},
    ),
    "numbers larger than float16 holds": (
        "agraph (int64[B] i) => (float[B,32] y) { y = Gather(table, i) }",
        {"table": TABLE * np.where(np.arange(200) == 7, 1e6, 1)[:, None].astype("float32")},
        {"i": [3, 7]},
    ),
}


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_reduced_precision_keeps_the_results_close(name, precision, tmp_path):
    text, constants, inputs = PRODUCTS[name]
    model = graph_of(text, **constants)
    onnx.save(model, tmp_path / "model.onnx")
    reduce_precision(tmp_path / "model.onnx", precision)
    reduced = results(onnx.load(tmp_path / "model.onnx"), inputs)
    for before, after in zip(results(model, inputs), reduced, strict=True):
        np.testing.assert_allclose(after, before, atol=0.1 * np.abs(before).max())
