"""Graphs of any search and attention run on a GPU alone, and with fixed dimensions."""

import logging
import re

import keras
import numpy as np
import onnx
import onnx_ir
import pytest
from graphs import assert_fixed_dimensions_change_nothing, graph_of, results

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    BidirectionalEncoder,
    FixedContext,
    GreedySearch,
    LuongAttention,
    RNNSearch,
    Sampling,
    Seq2Seq,
)
from keras_bahdanau.layers import (
    CoverageAttention,
    LayerNormGRUCell,
    LocationSensitiveAttention,
    MonotonicAttention,
)
from keras_bahdanau.models import Shortlist
from keras_bahdanau_export.cuda.placement import find_fallbacks, summarize
from keras_bahdanau_export.graph.passes.editing import constant_array, nodes_including_loops
from keras_bahdanau_export.graph.passes.optimizer import optimize
from keras_bahdanau_export.graph.passes.size_inference import SizeInference
from keras_bahdanau_export.graph.writer import write_onnx
from keras_bahdanau_export.trace import encode_function, score_function, search_function

V, U = 300, 6
EVERY_OPTION = BeamSearch(
    6, groups=2, diversity=0.5, n_best=2, min_length=3, no_repeat_ngram=3, coverage_penalty=0.2,
    forbidden=(0, 1, 2), early_stopping=True, normalization="plain",
    max_length_ratio=2.0,
)  # fmt: skip


def host_lines(text, **constants):
    return summarize(find_fallbacks(onnx_ir.serde.deserialize_model(graph_of(text, **constants))))


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("y = Tanh(x)", None),
        (
            "y = Tan(x)",
            "1 Tan: CUDA has no kernel for it, or it is missing in the table",
        ),
        ("y = other.Tan(x)", "1 Tan: operators of other are not in the table of kernels"),
        ("y = GatherND(n, places)", "1 GatherND: its kernels are for .*float.*, not for int32"),
    ],
)
def test_nodes_without_a_cuda_kernel_are_listed(statement, expected):
    text = "agraph (float[2,3] x, int32[2,2] n, int64[1,1] places) => (float[a,b] out)"
    model = graph_of(f"{text} {{ {statement} out = Cast<to = 1>(y) }}")
    model.opset_import.add(domain="other", version=1)
    lines = summarize(find_fallbacks(onnx_ir.serde.deserialize_model(model)))
    assert len(lines) == (expected is not None)
    assert all(re.match(expected, line) for line in lines)


@pytest.mark.parametrize(
    "operator, attributes, why",
    [
        ("GRU", "linear_before_reset = 1", None),
        ("GRU", "linear_before_reset = 0", "resets after the recurrent product"),
        ("GRU", 'linear_before_reset = 1, activations = ["Sigmoid", "Relu"]', "sigmoid and tanh"),
        ("GRU", "linear_before_reset = 1, clip = 1.0", "has no clip"),
        ("LSTM", "input_forget = 0", None),
        ("LSTM", "input_forget = 1", "does not couple input and forget gates"),
        ("RNN", 'activations = ["Relu"]', "activations tanh, not relu"),
    ],
)
def test_recurrent_operators_that_cudnn_lacks_are_listed(operator, attributes, why):
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
    lines = host_lines(
        f"""
        agraph (float[5,2,3] x) => (float y) {{
          y, h = {operator}<hidden_size = 4, {attributes}>(x, w, r)
        }}
        """,
        w=np.zeros((1, 4 * gates, 3), "float32"),
        r=np.zeros((1, 4 * gates, 4), "float32"),
    )
    assert lines == [] if why is None else why in lines[0]


def test_values_copied_at_every_step_of_a_loop_are_listed():
    lines = host_lines(
        """
        agraph (float[2,3] x, int64[2] i) => (float a, int64 b, float c) {
          y = Reshape(x, shape)
          a, b, c = Loop <body = step (int64 t, bool go, float[2,3] h, int64[1] n, float[2,3] o)
            => (bool still, float[2,3] h2, int64[2] n2, float[2,3] o2) {
              still = Identity(go)
              h2 = Tanh(h)
              size = Shape(h2)
              n2 = Mul(size, shape)
              m = Identity(n)
              o2 = Identity(h2)
          }> (five, yes, y, shape, y)
        }
        """,
        shape=[2, 3],
        five=5,
        yes=True,
    )
    assert len(lines) == 3 and all("at every step of a loop" in line for line in lines)
    assert "computes a size" in lines[0] and "no step reads this state" in " ".join(lines)
    assert "also reads this constant" in " ".join(lines)


SIZE_IN_LOOP = """
    agraph (float[2,n] x) => (int32 total, int32 count) {
      size = Shape<start = 1>(x)
      wide = Squeeze(size, first)
      length = Cast<to = 6>(wide)
      total, count = Loop <body = step (int64 t, bool go, int32 a, int32 b) => (still, a2, b2) {
          still = Identity(go)
          a2 = Add(a, length)
          b2 = If(go) <
            then_branch = yes () => (int32 c) { c = Mul(a2, length) },
            else_branch = no () => (int32 d) { d = Add(a2, b) }
          >
        }> (three, on, zero, zero)
    }
"""
SIZE_CONSTANTS = {"first": [0], "three": 3, "on": True, "zero": np.int32(0)}


def test_a_size_that_a_loop_reads_is_copied_before_it():
    model = graph_of(SIZE_IN_LOOP, **SIZE_CONSTANTS)
    graph = onnx_ir.serde.deserialize_model(model)
    (line,) = summarize(find_fallbacks(graph))
    assert line == (
        "1 Loop at every step of a loop: it is computed on the CPU before the loop and read on "
        "the GPU in it"
    )
    optimize(graph)
    assert find_fallbacks(graph) == []
    optimized, x = onnx_ir.serde.serialize_model(graph), np.zeros((2, 5), "float32")
    for fixed in (False, True):
        assert results(optimized, {"x": x}, fixed) == [15, 75]


def rnn_search(**options):
    sizes = {"units": U, "embedding_dim": 4, "attention_units": 5, "maxout_units": 4}
    return RNNSearch(V, V, **sizes, reset_after=True, **options)


def seq2seq(attention, cell=None, encoder="gru"):
    decoder = AttentiveDecoder(cell or keras.layers.GRUCell(U, reset_after=True), attention)
    return Seq2Seq(V, V, 4, BidirectionalEncoder(U, encoder), decoder)


def shortlist():
    links = [(np.arange(4, 9), np.arange(5, 9), np.eye(4, 5))]
    return Shortlist.from_links(links, V, V, size=280)


FORMS = {
    "greedy": (
        lambda: rnn_search(layer_normalization=True, conditional=True, join_embeddings=True),
        GreedySearch(),
    ),
    "every_option": (lambda: seq2seq(LocationSensitiveAttention(5, 3, 3)), EVERY_OPTION),
    "sampling": (
        lambda: seq2seq(MonotonicAttention(BahdanauAttention(5))),
        Sampling(2, top_p=0.9, min_length=2, no_repeat_ngram=2),
    ),
    "lstm": (
        lambda: seq2seq(CoverageAttention(5), keras.layers.LSTMCell(U), "lstm"),
        Sampling(2, top_k=10),
    ),
    "stacked": (
        lambda: seq2seq(
            BahdanauAttention(5, normalizer="sparsemax"),
            keras.layers.StackedRNNCells([LayerNormGRUCell(U), LayerNormGRUCell(U)]),
        ),
        BeamSearch(2),
    ),
    "fixed": (lambda: seq2seq(FixedContext()), BeamSearch(2)),
    "wide": (
        lambda: seq2seq(MonotonicAttention(BahdanauAttention(5), mode="soft")),
        BeamSearch(16),
    ),
    "luong_shortlist": (lambda: seq2seq(LuongAttention()), BeamSearch(2)),
}


@pytest.fixture(scope="module", params=FORMS)
def graph_file(request, tmp_path_factory):
    """The graph of a search, next to that which scores targets, and what their export logged."""
    make, search = FORMS[request.param]
    model, records = make(), []
    model.build()
    few = shortlist() if "shortlist" in request.param else None
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    handler, logger = logging.Handler(), logging.getLogger("keras_bahdanau_export")
    handler.emit = records.append
    logger.addHandler(handler)
    write_onnx(*search_function(model, search, 5, few), path)
    write_onnx(*score_function(model), path.with_name("score.onnx"))
    logger.removeHandler(handler)
    return path, [record.getMessage() for record in records]


def test_every_search_and_attention_runs_on_cuda_alone(graph_file):
    path, messages = graph_file
    assert messages == [] and path.with_name("score.onnx").exists()
    graph = onnx_ir.load(path).graph
    sizes, widths = SizeInference(graph), []
    for node in nodes_including_loops(graph, "TopK"):
        width, count = sizes.dims[node.inputs[0]][-1].as_int, constant_array(node.inputs[1])
        if count is not None and count.item() <= 64:  # larger counts are not split into chunks
            widths.append(width)
    assert max(widths, default=0) <= 256


def test_options_of_a_search_with_a_fixed_context_run_on_cuda_alone(tmp_path):
    make, search = FORMS["fixed"]
    model = make()
    model.build()
    write_onnx(*search_function(model, search, 5, options_are_inputs=True), tmp_path / "model.onnx")
    assert find_fallbacks(onnx_ir.load(tmp_path / "model.onnx")) == []


def test_fixed_dimensions_change_no_search(graph_file):
    model = onnx.load(graph_file[0])
    feeds = {"source": [[5, 9, 200, 7, 3], [8, 3, 0, 0, 0]], "noise": np.full((2, 2, 5), 0.4, "f4")}
    feeds["source"] = np.array(feeds["source"], "int32")
    names = [value.name for value in model.graph.input]
    assert_fixed_dimensions_change_nothing(model, {name: feeds[name] for name in names})


def test_fixed_dimensions_change_no_score(graph_file):
    model = onnx.load(graph_file[0].with_name("score.onnx"))
    source, target = [[5, 9, 200, 7, 3], [8, 3, 0, 0, 0]], [[7, 8, 3], [9, 0, 0]]
    feeds = {"source": np.array(source, "int32"), "target": np.array(target, "int32")}
    outputs = assert_fixed_dimensions_change_nothing(model, feeds)
    assert outputs["lengths"].tolist() == [3, 1]


def test_a_gru_that_resets_before_the_product_is_logged_as_staying_on_the_cpu(tmp_path, caplog):
    model = RNNSearch(9, 9, units=3, embedding_dim=2, attention_units=2, maxout_units=2)
    model.build()
    write_onnx(*encode_function(model), tmp_path / "encoder.onnx")
    (message,) = caplog.messages
    assert message.startswith("encoder.onnx: on a GPU the CPU has to do 1 GRU: cuDNN resets after")
