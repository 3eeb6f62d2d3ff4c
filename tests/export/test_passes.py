"""Each rewrite on a small graph: fewer nodes, equal results, and graphs that it must not change."""

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest

from keras_bahdanau_export.graph.passes import (
    conditions,
    loops,
    optimizer,
    products,
    recurrence,
    shapes,
    top_k,
)

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def graph_of(text, **constants):
    """A model from ONNX's text form; `constants` become its initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def results(model, feeds, fixed=False):
    """Run a model; `fixed` sets its free dimensions to the sizes of the feeds."""
    onnx.checker.check_model(model)
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    options = onnxruntime.SessionOptions()
    for value in model.graph.input if fixed else ():
        shape = value.type.tensor_type.shape.dim
        for dim, size in zip(shape, feeds[value.name].shape, strict=True):
            if dim.dim_param:
                options.add_free_dimension_override_by_name(dim.dim_param, size)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def assert_fixed_dimensions_change_nothing(model, feeds):
    """Returns the results, by name."""
    free, fixed = (results(model, feeds, fixed) for fixed in (False, True))
    for a, b in zip(free, fixed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return dict(zip([value.name for value in model.graph.output], free, strict=True))


def bodies(graph):
    return [
        attribute.g
        for node in graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    ]


def operators(graph):
    return [node.op_type for node in graph.node]


def rewritten(model, *chosen, **feeds):
    """The graph after the passes, and their counts; checks that the results are equal."""
    before = results(model, feeds)
    lean = onnx_ir.serde.deserialize_model(model)
    counts = optimizer.optimize(lean, chosen)
    lean = onnx_ir.serde.serialize_model(lean)
    for a, b in zip(before, results(lean, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    return lean.graph, [counts[each.__name__] for each in chosen]


LOOP = """
agraph (float[2,3] x) => (float[2,3] last, float[5,2,3] all, float[3,3] weights) {
  last, weights, all = Loop <body = step (int64 i, bool go, float[2,3] h, float[3,3] w)
    => (bool still, float[2,3] new, float[3,3] same, float[2,3] out) {
      still = Identity(go)
      same = Identity(w)
      square = MatMul(w, w)
      product = MatMul(h, square)
      new = Tanh(product)
      out = Identity(new)
  }> (five, yes, x, kernel)
}
"""


def loop():
    return graph_of(LOOP, five=5, yes=True, kernel=normal(3, 3))


def test_lift_loop_state_moves_unchanged_state_out_of_the_loop():
    graph, counts = rewritten(loop(), loops.lift_loop_state, x=normal(2, 3))
    assert counts == [1]
    (body,) = bodies(graph)
    assert [value.name for value in body.input] == ["i", "go", "h"]


def test_hoist_invariants_moves_invariant_products_out_of_the_loop():
    graph, _ = rewritten(loop(), loops.lift_loop_state, loops.hoist_invariants, x=normal(2, 3))
    (body,) = bodies(graph)
    assert operators(body).count("MatMul") == 1
    assert operators(graph).count("MatMul") == 1


def test_hoist_invariants_leaves_random_and_state_dependent_nodes_in_the_loop():
    text = LOOP.replace("square = MatMul(w, w)", "square = RandomUniformLike(w)")
    model = graph_of(text, five=5, yes=True, kernel=normal(3, 3))
    lean = onnx_ir.serde.deserialize_model(model)
    assert optimizer.optimize(lean, [loops.lift_loop_state, loops.hoist_invariants]) == {
        "lift_loop_state": 1,
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
def test_scanned_histories_replaces_buffers_by_rows_of_the_loop(changes, count, steps, go):
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
    graph, counts = rewritten(model, loops.scanned_histories, **feeds)
    assert counts == [count]
    assert ("ScatterND" in operators(bodies(graph)[0])) == (not count)


def test_scanned_histories_takes_buffers_of_unknown_size_and_loops_without_steps():
    text = HISTORY.replace("float[2]", "float[n]").replace("float[5,2]", "float[m,n]")
    text = text.replace("float[n] x,", "float[n] x, float[m,n] buffer,")
    model = graph_of(text, zeros=[0], pair=[1, 1], start=0, one=1)
    for steps in (0, 2):
        feeds = {"steps": steps, "go": True, "x": normal(3), "buffer": normal(5, 3), "first": 0}
        _, counts = rewritten(model, loops.scanned_histories, **feeds)
        assert counts == [1]


SELECT = """
agraph (bool[4] c, bool[4] d, float[4] a, float[4] b) => (float[4] y) {
  one = Cast<to = 1>(c)
  kept = Mul(a, one)
  no = Not(%s)
  other = Cast<to = 1>(no)
  instead = Mul(other, b)
  y = Add(instead, kept)
}
"""


@pytest.mark.parametrize("negated, count", [("c", 1), ("d", 0)])
def test_where_for_sums_replaces_sums_of_masked_values(negated, count):
    feeds = {"c": [True, False, True, False], "d": [True, True, False, False]}
    feeds |= {"a": normal(4), "b": normal(4)}
    graph, counts = rewritten(graph_of(SELECT % negated), conditions.where_for_sums, **feeds)
    assert counts == [count]
    assert (operators(graph) == ["Where"]) == bool(count)


@pytest.mark.parametrize("number, count", [(2.0, 1), (2.5, 0), (np.inf, 0), (1e10, 0)])
def test_integer_comparisons_compares_integers_without_casts(number, count):
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
    graph, counts = rewritten(model, conditions.integer_comparisons, i=i)
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
def test_step_comparisons_compares_steps_as_integers(side, count):
    model = graph_of(STEPS % side, ten=10, yes=True, zero=np.int32(0))
    feeds = {"n": np.int32(4), "x": np.float32(0.5)}
    graph, counts = rewritten(model, conditions.step_comparisons, **feeds)
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


@pytest.mark.parametrize("beside, count", [("c", 1), ("d", 0)])
def test_choices_for_casts_replaces_casts_of_masks_in_a_loop(beside, count, capfd):
    model = graph_of(MASKED % beside, three=3, yes=True)
    feeds = {"c": [True, False], "d": [False, True], "x": np.ones(2, "float32")}
    graph, counts = rewritten(model, conditions.choices_for_casts, **feeds)
    assert counts == [count]
    assert operators(graph) == (["Where", "Loop"] if count else ["Cast", "Loop"])
    # onnxruntime warns about the graph before the pass.
    assert ("cannot be safely updated" in capfd.readouterr().err) is (count == 1)


def test_double_negations_and_casts_to_the_same_type_are_removed():
    model = graph_of(
        """
        agraph (bool[4] c, float[4] x) => (float[4] y) {
          no = Not(c)
          yes = Not(no)
          same = Cast<to = 1>(x)
          y = Where(yes, same, zero)
        }
        """,
        zero=np.float32(0),
    )
    c, x = np.array([True, False, True, False]), np.ones(4, "float32")
    graph, counts = rewritten(model, conditions.double_negations, c=c, x=x)
    assert counts == [2]
    assert operators(graph) == ["Where"]


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
def test_plain_gathers_reads_negative_indices_directly(start, limit, count):
    model = graph_of(GATHER, start=[start], end=[start + 1], zeros=[0], limit=limit)
    x = normal(2, 2)
    places = np.array([-1, 1, -2]) if limit == 0 else np.array([-1, -1, -2])
    graph, counts = rewritten(model, shapes.plain_gathers, x=x, i=places)
    assert counts == [count]
    assert (operators(graph) == ["Gather"]) == bool(count)


def test_wide_shapes_drops_casts_between_sizes():
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
    graph, counts = rewritten(model, shapes.wide_shapes, x=normal(4, 6))
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
def test_wide_ranges_counts_sizes_in_int64(dtype, limit, count):
    """onnxruntime opens the range when the size is fixed, too, where it counts in int64."""
    start, step = (np.array(number, np.dtype(dtype.replace("float", "f4"))) for number in (0, 1))
    model = graph_of(
        f"""
        agraph (float[n,6] x, int32 given) => ({dtype}[m] y) {{
          sizes = Shape(x)
          narrow = Cast<to = 6>(sizes)
          first = Slice(narrow, nought, single, nought)
          n = Squeeze(first, nought)
          {limit}
          y = Range(start, limit, step)
        }}
        """,
        nought=[0],
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
    assert optimizer.optimize(lean, [shapes.wide_ranges])["wide_ranges"] == count
    lean = onnx_ir.serde.serialize_model(lean)
    (expected,) = results(model, feeds)
    (outputs,) = results(lean, feeds)
    assert outputs.dtype == expected.dtype and outputs.tolist() == expected.tolist()
    assert operators(lean.graph).count("Cast") == (
        1 if count else operators(model.graph).count("Cast")
    )
    if count:
        assert_fixed_dimensions_change_nothing(lean, feeds)


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
def test_whole_products_multiplies_without_reshapes(dims, target, count, bent):
    text = PRODUCT % (dims, target)
    if bent:
        text = text.replace("MatMul(flat", "MatMul(bent")
        text = text.replace("  product =", "  bent = Tanh(flat)\n  product =")
    model = graph_of(
        text, zero=[0], two=[2], four=[4], flattened=[-1, 6], other=[-1, 4], w=normal(6, 4)
    )
    graph, counts = rewritten(model, products.whole_products, x=normal(2, 3, 6))
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
def test_contiguous_slices_sorts_the_columns_of_a_product(width, start, end, count):
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
    _, counts = rewritten(model, products.contiguous_slices, x=normal(2, 3))
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
def test_early_products_multiplies_tables_before_the_loop(changes, count, inside, outside):
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
    graph, counts = rewritten(model, products.early_products, loops.hoist_invariants, **feeds)
    (body,) = bodies(graph)
    assert counts[0] == count
    assert operators(body).count("MatMul") == inside
    assert operators(graph).count("MatMul") == outside


def test_early_products_makes_no_table_above_the_size_limit(monkeypatch):
    monkeypatch.setattr(products, "_TABLE", 9 * 5 - 1)
    test_early_products_multiplies_tables_before_the_loop([], count=1, inside=2, outside=1)


@pytest.mark.parametrize("last, count", [([6, 2], 1), ([0, 3], 0)], ids=["sizes", "a copied size"])
def test_single_reshapes_joins_two_reshapes(last, count):
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
    graph, counts = rewritten(model, shapes.single_reshapes, x=normal(2, 6))
    assert counts == [count]
    assert operators(graph) == ["Reshape"] * (2 - count)


@pytest.mark.parametrize("k, levels", [(1, 1), (5, 1), (40, 2), (80, 0)])
@pytest.mark.parametrize("width", [1999, 2000])
def test_chunked_top_ks_gives_the_same_indices(k, levels, width):
    model = graph_of(
        f"""
        agraph (float[n,{width}] x) => (float[n,{k}] y, int64[n,{k}] i) {{
          y, i = TopK(x, k)
        }}
        """,
        k=[k],
    )
    x = RNG.normal(size=(3, width)).round(1).astype("float32")  # hundreds of ties
    x[1], x[2, 7:] = 0.0, -np.inf
    graph, counts = rewritten(model, top_k.chunked_top_ks, x=x)
    assert counts == [min(levels, 1)]
    assert operators(graph).count("TopK") == 1 + 2 * levels


@pytest.mark.parametrize("width", [257, 8000, 30000])
def test_chunks_are_at_most_as_wide_as_cuda_sorts_stably(width):
    model = graph_of(
        f"""
        agraph (float[2,{width}] x) => (float[2,7] y, int64[2,7] i) {{ y, i = TopK(x, k) }}
        """,
        k=[7],
    )
    x = RNG.normal(size=(2, width)).round(1).astype("float32")
    graph, _ = rewritten(model, top_k.chunked_top_ks, x=x)
    shapes_of = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph)).graph.value_info
    sizes = {value.name: value.type.tensor_type.shape.dim for value in shapes_of}
    widths = [sizes[node.input[0]][-1].dim_value for node in graph.node if node.op_type == "TopK"]
    assert len(widths) >= 3 and 0 < min(widths) and max(widths) <= 256


def test_chunked_top_ks_leaves_short_rows_and_the_smallest():
    model = graph_of(
        """
        agraph (float[2,256] x, float[2,2000] y) => (float[2,5] a, float[2,5] b) {
          a, i = TopK(x, k)
          b, j = TopK<largest = 0>(y, k)
        }
        """,
        k=[5],
    )
    widths = {"x": 256, "y": 2000}
    feeds = {name: normal(2, n) for name, n in widths.items()}
    _, counts = rewritten(model, top_k.chunked_top_ks, **feeds)
    assert counts == [0]


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
def test_joined_directions_transposes_and_reshapes(axes, axis, output, rest, count):
    text = BOTH_WAYS % (axes, axis, output, *2 * ["one" if axis else "zero"], rest)
    model = graph_of(text, w=normal(2, 12, 3), r=normal(2, 12, 4), zero=[0], one=[1])
    graph, counts = rewritten(model, recurrence.joined_directions, x=normal(5, 2, 3))
    assert counts == [count]
    if count:
        assert operators(graph) == ["GRU", "Transpose", "Reshape"]


@pytest.mark.parametrize("op_type, gates", [("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("lengths, count", [("lengths", 1), ("others", 0), ("", 0)])
def test_bidirectional_operators_joins_two_directions(op_type, gates, lengths, count):
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
    graph, counts = rewritten(model, recurrence.bidirectional_operators, **feeds)
    assert counts == [count]
    assert operators(graph).count(op_type) == 2 - count


def test_optimize_runs_every_pass_until_nothing_changes():
    lean = onnx_ir.serde.deserialize_model(loop())
    first = optimizer.optimize(lean)
    assert set(first) == {each.__name__ for each in optimizer.PASSES}
    assert first["lift_loop_state"] and first["hoist_invariants"]
    assert not any(optimizer.optimize(lean).values())


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
    graph, counts = rewritten(model, top_k.chunked_top_ks, x=normal(2, 2000))
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


@pytest.mark.parametrize("more", ["sum", "other"])
def test_contiguous_slices_leaves_columns_that_other_nodes_read(more):
    text = PAIRS.replace("odd) {", f"odd, float[n,4] {more}) {{")
    text = text.replace("  sum = Add", "  other = Neg(product)\n  sum = Add")
    slices = {"zeros": [0, 0], "start": [0, 1], "ends": [10**9, 10**9]}
    slices |= {"axes": [0, 1], "steps": [1, 2]}
    model = graph_of(text, w=normal(3, 4), b=normal(4), **slices)
    _, counts = rewritten(model, products.contiguous_slices, x=normal(2, 3))
    assert counts == [0]


def test_scanned_histories_leaves_a_state_that_the_loop_passes_on():
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
    _, counts = rewritten(model, loops.scanned_histories, **feeds)
    assert counts == [0]


@pytest.mark.parametrize("attribute", ["linear_before_reset = 1", "clip = 0.1"])
def test_bidirectional_operators_leaves_operators_with_other_attributes(attribute):
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
    _, counts = rewritten(graph_of(text, **weights), recurrence.bidirectional_operators, **feeds)
    assert counts == [0]


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


def test_chunked_top_ks_leaves_columns():
    model = graph_of(
        """
        agraph (float[400,300] x) => (float[5,300] y, int64[5,300] i) {
          y, i = TopK<axis = 0>(x, k)
        }
        """,
        k=np.array([5]),
    )
    _, counts = rewritten(
        model, top_k.chunked_top_ks, x=RNG.normal(size=(400, 300)).astype("float32")
    )
    assert counts == [0]


def test_step_comparisons_leaves_int64_limits():
    text = (STEPS % "float_t").replace("int32 n", "int64 n")
    model = graph_of(text, ten=np.int64(10), yes=np.bool_(True), zero=np.int64(0))
    _, counts = rewritten(model, conditions.step_comparisons, n=np.int64(4), x=np.float32(0.5))
    assert counts == [0]
