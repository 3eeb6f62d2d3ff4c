"""The pass that splits wide TopK operators into chunks."""

import numpy as np
import onnx
import pytest
from graphs import RNG, graph_of, normal, operators, rewritten

from keras_bahdanau_export.graph.passes import top_k


@pytest.mark.parametrize("k, levels", [(1, 1), (5, 1), (40, 2), (80, 0)])
@pytest.mark.parametrize("width", [1999, 2000])
def test_split_top_k_gives_the_same_indices(k, levels, width):
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
    graph, counts = rewritten(model, top_k.split_top_k, x=x)
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
    graph, _ = rewritten(model, top_k.split_top_k, x=x)
    shapes_of = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph)).graph.value_info
    sizes = {value.name: value.type.tensor_type.shape.dim for value in shapes_of}
    widths = [sizes[node.input[0]][-1].dim_value for node in graph.node if node.op_type == "TopK"]
    assert len(widths) >= 3 and 0 < min(widths) and max(widths) <= 256


def test_split_top_k_leaves_short_rows_and_the_smallest():
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
    _, counts = rewritten(model, top_k.split_top_k, **feeds)
    assert counts == [0]


def test_split_top_k_leaves_columns():
    model = graph_of(
        """
        agraph (float[400,300] x) => (float[5,300] y, int64[5,300] i) {
          y, i = TopK<axis = 0>(x, k)
        }
        """,
        k=np.array([5]),
    )
    _, counts = rewritten(model, top_k.split_top_k, x=RNG.normal(size=(400, 300)).astype("float32"))
    assert counts == [0]
