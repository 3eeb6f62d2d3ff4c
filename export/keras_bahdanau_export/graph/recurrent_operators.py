"""GRU and LSTM layers as the ONNX operators of the same names.

    with recurrent_operators():
        function.get_concrete_function()        # each GRU and LSTM of Keras leaves a placeholder
    tf2onnx.from_function(function, ..., custom_op_handlers=RECURRENT_HANDLERS)

Converted step by step, such a layer is a `Loop` of about 24 nodes. TensorFlow has no operator that
tf2onnx could convert to ONNX's. While the model is traced, a `PyFunc` that is never run is the
placeholder: its inputs are those of the ONNX operator, and its token contains the operator's name.
"""

import contextlib
import json
import logging

import keras
import tensorflow as tf
from keras import ops, tree

from keras_bahdanau.layers.encoder import BidirectionalEncoder

logger = logging.getLogger("keras_bahdanau_export")

# Keys are functions, as a custom function can have the name of one of Keras.
_ACTIVATIONS = {
    keras.activations.tanh: "Tanh",
    keras.activations.sigmoid: "Sigmoid",
    keras.activations.relu: "Relu",
    keras.activations.softsign: "Softsign",
}
# ONNX's order of the gates, as indices into Keras's order: z r h, and i f c o -> i o f c.
_GATE_ORDER = {"GRU": (0, 1, 2), "LSTM": (0, 3, 1, 2)}
_LAYERS = (keras.layers.GRU, keras.layers.LSTM)


@contextlib.contextmanager
def recurrent_operators():
    """Let GRU and LSTM layers and `BidirectionalEncoder`s that are traced leave placeholders.

    A layer without an equivalent operator keeps its loop, and the log says why: it is stateful,
    computes in another type than float32, or has an activation other than tanh, sigmoid, relu and
    softsign. The layer classes are patched meanwhile: no other thread may call such a layer.
    """
    with (
        _patched(keras.layers.GRU, "inner_loop", _make_inner_loop),
        _patched(keras.layers.LSTM, "inner_loop", _make_inner_loop),
        _patched(BidirectionalEncoder, "read_both_ways", _make_read_both_ways),
    ):
        yield


@contextlib.contextmanager
def _patched(layer_class, name, make):
    method = getattr(layer_class, name)
    setattr(layer_class, name, make(method))
    try:
        yield
    finally:
        setattr(layer_class, name, method)


def _make_inner_loop(original):
    def inner_loop(self, sequences, initial_state, mask, training=False):
        if not _has_operator(self):
            return original(self, sequences, initial_state, mask=mask, training=training)
        state = list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        if mask is None:
            outputs, states = _run(self, sequences, None, state, self.go_backwards)
            last = states[0]
        else:
            outputs, last, states = _run_masked(self, sequences, mask, state)
        if self.go_backwards and self.return_sequences:
            outputs = ops.flip(outputs, axis=1)  # Keras returns them in the order of computation
        return last, outputs, states

    return inner_loop


def _make_read_both_ways(original):
    def read_both_ways(self, forward, backward, inputs, lengths, training=None):
        if not (_has_operator(forward) and _has_operator(backward)):
            return original(self, forward, backward, inputs, lengths, training=training)
        state = tree.flatten(forward.get_initial_state(ops.shape(inputs)[0]))
        forward_outputs, forward_states = _run(forward, inputs, lengths, state, reverse=False)
        backward_outputs, backward_states = _run(backward, inputs, lengths, state, reverse=True)
        outputs = ops.concatenate([forward_outputs, backward_outputs], axis=-1)
        if not self.return_state:
            return outputs, []
        states = zip(forward_states, backward_states, strict=True)
        return outputs, [ops.concatenate(pair, axis=-1) for pair in states]

    return read_both_ways


def _onnx_activation(function):
    """Return ONNX's name of an activation, or `None`.

    Compared one by one, as an activation may be a layer that is not hashable.
    """
    return next(
        (name for keras_function, name in _ACTIVATIONS.items() if function is keras_function), None
    )


def _activation_name(activation):
    return getattr(activation, "__name__", type(activation).__name__)


def _has_operator(layer):
    cell = layer.cell
    activations = (cell.activation, cell.recurrent_activation)
    unsupported = [function for function in activations if not _onnx_activation(function)]
    reason = (
        (type(layer) not in _LAYERS and "it is a custom class")
        or (layer.stateful and "it is stateful")
        or (layer.compute_dtype != "float32" and f"it computes in {layer.compute_dtype}")
        or (
            unsupported
            and f"ONNX has no activation {', '.join(map(_activation_name, unsupported))}"
        )
    )
    if reason:
        logger.warning("The layer %s becomes a loop, not an operator: %s.", layer.name, reason)
    return not reason


def _run_masked(layer, sequences, mask, state):
    """Run a Keras layer with any mask by an operator that supports only lengths.

    The steps that are not masked are moved to the front. At a masked step Keras repeats the
    previous output, or returns zero if there is none.
    """
    mask, steps = ops.cast(mask, "int32"), ops.shape(mask)[1]
    lengths, count = ops.sum(mask, axis=1), ops.cumsum(mask, axis=1)
    order = ops.argsort((1 - mask) * steps + ops.arange(steps), axis=1)  # unmasked steps first
    compacted = tf.gather(sequences, order, batch_dims=1)
    outputs, states = _run(layer, compacted, lengths, state, layer.go_backwards)
    # For a row without steps onnxruntime returns zeros instead of the initial state.
    has_steps = ops.expand_dims(lengths > 0, -1)
    states = [ops.where(has_steps, last, first) for last, first in zip(states, state, strict=True)]
    # Index of the last computed output: up to this step, or before it in reverse order.
    index = count - mask if layer.go_backwards else count - 1
    exists = ops.logical_and(index >= 0, index < ops.expand_dims(lengths, 1))
    if layer.zero_output_for_mask:
        exists = ops.logical_and(exists, mask > 0)
    outputs = tf.gather(outputs, ops.clip(index, 0, steps - 1), batch_dims=1)
    outputs = ops.where(ops.expand_dims(exists, -1), outputs, 0.0)
    return outputs, outputs[:, 0] if layer.go_backwards else outputs[:, -1], states


def _run(layer, sequences, lengths, state, reverse):
    """Return the outputs `(B, T, H)` in order of time and the last states of one operator."""
    cell, units, name = layer.cell, layer.units, type(layer).__name__
    gate, candidate = (
        _onnx_activation(function) for function in (cell.recurrent_activation, cell.activation)
    )
    attributes = {"hidden_size": units, "direction": "reverse" if reverse else "forward"}
    inputs = {
        "X": tf.transpose(sequences, (1, 0, 2)),
        **_weights(cell, name, units),
        "sequence_lens": None if lengths is None else ops.cast(lengths, "int32"),
        "initial_h": tf.expand_dims(state[0], 0),
    }
    if name == "GRU":
        attributes |= {"activations": [gate, candidate]}
        attributes |= {"linear_before_reset": int(cell.reset_after)}
    else:
        attributes |= {"activations": [gate, candidate, candidate]}
        inputs["initial_c"] = tf.expand_dims(state[1], 0)
    token = {
        "op_type": name,
        "inputs": [key if value is not None else "" for key, value in inputs.items()],
        "attributes": attributes,
    }
    outputs, *states = tf.raw_ops.PyFunc(
        input=[value for value in inputs.values() if value is not None],
        token=json.dumps(token),
        Tout=[tf.float32] * (1 + len(state)),
    )
    batch, length = sequences.shape[:2]
    outputs = tf.ensure_shape(outputs, (length, 1, batch, units))
    states = [tf.ensure_shape(part, (1, batch, units))[0] for part in states]
    return tf.transpose(tf.squeeze(outputs, 1), (1, 0, 2)), states


def _weights(cell, name, units):
    """Return the weights of a Keras cell in ONNX's layout."""
    order = _GATE_ORDER[name]

    def reorder_gates(weights):  # (n, gates * H) -> (1, gates * H, n)
        gates = tf.split(tf.transpose(tf.convert_to_tensor(weights)), len(order), axis=0)
        return tf.expand_dims(tf.concat([gates[i] for i in order], axis=0), 0)

    width = len(order) * units
    bias = tf.zeros((1, width)) if cell.bias is None else tf.reshape(cell.bias, (-1, width))
    if bias.shape[0] == 1:  # ONNX also has a bias of the recurrent product
        bias = tf.concat([bias, tf.zeros_like(bias)], axis=0)
    bias = tf.transpose(reorder_gates(bias)[0])
    return {
        "W": reorder_gates(cell.kernel),
        "R": reorder_gates(cell.recurrent_kernel),
        "B": tf.reshape(bias, (1, 2 * width)),
    }


def _convert(graph, node, name, arguments):
    """Replace a `PyFunc` by the ONNX operator that it is the placeholder of."""
    token = json.loads(node.get_attr_value("token"))
    present = iter(node.input)
    inputs = [next(present) if key else "" for key in token["inputs"]]
    graph.remove_node(node.name)
    graph.make_node(
        token["op_type"],
        inputs,
        attr=token["attributes"],
        outputs=node.output,
        name=node.name,
        shapes=[graph.get_shape(output) for output in node.output],
        dtypes=[graph.get_dtype(output) for output in node.output],
    )


RECURRENT_HANDLERS = {"PyFunc": (_convert, [])}
