"""GRU and LSTM layers of Keras as ONNX operators: one model with every form of them."""

import logging

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import assert_fixed_dimensions_change_nothing

from keras_bahdanau import BidirectionalEncoder
from keras_bahdanau_export.graph.writer import write_onnx
from keras_bahdanau_export.trace import forward_function, forward_signature

LAYERS = {
    "gru": lambda: keras.layers.GRU(4, return_sequences=True, bias_initializer="normal"),
    "paper": lambda: keras.layers.GRU(
        4, return_sequences=True, reset_after=False, bias_initializer="normal"
    ),
    "lstm": lambda: keras.layers.LSTM(4, return_sequences=True, bias_initializer="normal"),
    "last": lambda: keras.layers.GRU(4),
    "no_bias": lambda: keras.layers.LSTM(4, use_bias=False),
    "relu": lambda: keras.layers.GRU(4, activation="relu", recurrent_activation="tanh"),
    "backwards": lambda: keras.layers.GRU(4, return_sequences=True, go_backwards=True),
    "backwards_last": lambda: keras.layers.LSTM(4, go_backwards=True),
    "zeros": lambda: keras.layers.Bidirectional(
        keras.layers.GRU(4, return_sequences=True, zero_output_for_mask=True)
    ),
    "both_ways": lambda: keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True)),
    "encoder": lambda: BidirectionalEncoder(4, num_layers=2, residual=True),
    "lstm_encoder": lambda: BidirectionalEncoder(4, cell="lstm"),
}


@pytest.fixture(scope="module")
def model():
    x = keras.Input((None, 3), name="x")
    mask = keras.Input((None,), dtype="bool", name="mask")
    state = keras.Input((4,), name="state")
    outputs = {}
    for name, make in LAYERS.items():
        outputs[name] = make()(x)
        outputs[f"masked_{name}"] = make()(x, mask=mask)
    start = keras.layers.GRU(4, return_sequences=True, return_state=True)
    outputs["sequence"], outputs["state_after"] = start(x, mask=mask, initial_state=state)
    start = keras.layers.LSTM(4, return_state=True)
    outputs["h"], outputs["h_again"], outputs["c"] = start(x, initial_state=[state, 2 * state])
    encoder = BidirectionalEncoder(4, cell="lstm", num_layers=2, return_state=True)
    outputs |= {f"encoder_{i}": part for i, part in enumerate(encoder(x, mask=mask))}
    outputs = [keras.layers.Identity(name=f"{name}_out")(y) for name, y in outputs.items()]
    return keras.Model([x, mask, state], outputs)


@pytest.fixture(scope="module")
def graph(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    write_onnx(*forward_function(model, forward_signature(model)), path)
    return path


def feeds(batch, steps, seed=0):
    rng = np.random.default_rng(seed)
    mask = rng.random((batch, steps)) < 0.6
    mask[0], mask[-1, 0] = False, False  # a row without steps, and one without its first step
    return {
        "x": rng.normal(size=(batch, steps, 3)).astype("float32"),
        "mask": mask,
        "state": rng.normal(size=(batch, 4)).astype("float32"),
    }


def test_fixed_dimensions_change_no_layer(graph):
    assert_fixed_dimensions_change_nothing(onnx.load(graph), feeds(4, 7))


@pytest.mark.parametrize("batch, steps", [(4, 7), (1, 1), (2, 12)])
def test_every_layer_gives_the_outputs_of_keras(model, graph, batch, steps):
    inputs = feeds(batch, steps)
    expected = [keras.ops.convert_to_numpy(part) for part in model(list(inputs.values()))]
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    for name, ours, theirs in zip(
        model.output_names, expected, session.run(model.output_names, inputs), strict=True
    ):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6, err_msg=name)


def test_no_layer_is_left_as_a_loop(graph):
    nodes = onnx.load(graph).graph.node
    kinds = [node.op_type for node in nodes]
    assert "Loop" not in kinds
    directions = [
        attribute.s.decode()
        for node in nodes
        for attribute in node.attribute
        if attribute.name == "direction"
    ]
    # With and without a mask: two Bidirectionals, an encoder with one layer and one with two, and
    # two backward layers, each of which is joined with a forward layer over the same input. With a
    # mask, an encoder with two layers that returns its states.
    assert directions.count("bidirectional") == 2 * (2 + 1 + 2 + 2) + 2
    assert "reverse" not in directions
    for node in nodes:
        if node.op_type == "GRU":
            assert "linear_before_reset" in [attribute.name for attribute in node.attribute]


def tanh(x):
    """A function with the name of Keras's, but other values."""
    return 2.0 * keras.ops.tanh(x)


@pytest.mark.parametrize(
    "layer, reason",
    [
        (lambda: keras.layers.GRU(2, stateful=True), "it is stateful"),
        (lambda: keras.layers.LSTM(2, dtype="mixed_float16"), "it computes in float16"),
        (lambda: keras.layers.GRU(2, activation="elu"), "ONNX has no activation elu"),
        (lambda: keras.layers.LSTM(2, activation=keras.layers.LeakyReLU()), "activation LeakyReLU"),
        (lambda: keras.layers.GRU(2, activation=tanh), "ONNX has no activation tanh"),
    ],
)
def test_a_layer_without_an_operator_keeps_its_loop_and_logs_the_reason(
    tmp_path, caplog, layer, reason
):
    x = keras.Input((None, 3), batch_size=2, name="x")
    model = keras.Model(x, layer()(x))
    with caplog.at_level(logging.WARNING, "keras_bahdanau_export"):
        write_onnx(*forward_function(model, forward_signature(model)), tmp_path / "model.onnx")
    assert reason in caplog.text
    kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert "Loop" in kinds and not {"GRU", "LSTM"} & set(kinds)


def test_layer_classes_are_restored_after_an_export(graph):
    for layer in (keras.layers.GRU, keras.layers.LSTM):
        assert layer.inner_loop.__module__.startswith("keras.")
