"""GRU and LSTM layers as the ONNX operators of these names.

with recurrent_operators():
    function.get_concrete_function()        # every GRU and LSTM of Keras leaves an operator here
tf2onnx.from_function(function, ..., custom_op_handlers=RECURRENT_HANDLERS)

Converted step by step, such a layer is a `Loop` of two dozen nodes. TensorFlow has no operator that
tf2onnx could turn into ONNX's, so a `PyFunc`, which is never run, stands for one while the model is
traced: its inputs are the operator's, and its token says which operator it is.
"""

import contextlib
import json
import logging

import keras
import tensorflow as tf
from keras import ops, tree

from keras_bahdanau.layers.encoder import BidirectionalEncoder

logger = logging.getLogger("keras_bahdanau_export")

# By the functions themselves: others may have their names.
_ACTIVATIONS = {
    keras.activations.tanh: "Tanh",
    keras.activations.sigmoid: "Sigmoid",
    keras.activations.relu: "Relu",
    keras.activations.softsign: "Softsign",
}
# Where Keras keeps the gates that ONNX wants first, second, ...: z r h, and i o f c of i f c o.
_GATE_ORDER = {"GRU": (0, 1, 2), "LSTM": (0, 3, 1, 2)}
_LAYERS = (keras.layers.GRU, keras.layers.LSTM)


@contextlib.contextmanager
def recurrent_operators():
    """While it is open, traced GRU and LSTM layers and `BidirectionalEncoder`s leave operators.

    Layers that ONNX has no operator for keep their loop, and the log says why: those that carry
    state from batch to batch, compute in another type than float32, or use an activation other than
    tanh, sigmoid, relu and softsign. The classes themselves are changed meanwhile: no other thread
    may call such a layer.
    """
    with (
        _replaced(keras.layers.GRU, "inner_loop", _inner_loop),
        _replaced(keras.layers.LSTM, "inner_loop", _inner_loop),
        _replaced(BidirectionalEncoder, "read_both_ways", _read_both_ways),
    ):
        yield


@contextlib.contextmanager
def _replaced(layer_class, name, make):
    method = getattr(layer_class, name)
    setattr(layer_class, name, make(method))
    try:
        yield
    finally:
        setattr(layer_class, name, method)


def _inner_loop(loop):
    def inner_loop(self, sequences, initial_state, mask, training=False):
        if not _has_operator(self):
            return loop(self, sequences, initial_state, mask=mask, training=training)
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


def _read_both_ways(method):
    def read_both_ways(self, forward, backward, inputs, lengths, training=None):
        if not (_has_operator(forward) and _has_operator(backward)):
            return method(self, forward, backward, inputs, lengths, training=training)
        start = tree.flatten(forward.get_initial_state(ops.shape(inputs)[0]))
        ahead, _ = _run(forward, inputs, lengths, start, reverse=False)
        back, _ = _run(backward, inputs, lengths, start, reverse=True)
        return ops.concatenate([ahead, back], axis=-1)

    return read_both_ways


def _onnx_name(function):
    """What ONNX calls an activation, or `None`; a layer may be one, which need not be hashable."""
    return next((name for known, name in _ACTIVATIONS.items() if function is known), None)


def _name(activation):
    return getattr(activation, "__name__", type(activation).__name__)


def _has_operator(layer):
    cell = layer.cell
    activations = (cell.activation, cell.recurrent_activation)
    unknown = [function for function in activations if not _onnx_name(function)]
    reason = (
        (type(layer) not in _LAYERS and "it is a class of its own")
        or (layer.stateful and "it is stateful")
        or (layer.compute_dtype != "float32" and f"it computes in {layer.compute_dtype}")
        or (unknown and f"ONNX has no activation {', '.join(map(_name, unknown))}")
    )
    if reason:
        logger.warning("The layer %s becomes a loop, not an operator: %s.", layer.name, reason)
    return not reason


def _run_masked(layer, sequences, mask, state):
    """A masked layer of Keras, for any mask, by an operator that knows only lengths.

    The steps that count are moved together. At the others Keras repeats the output before, which
    is zero where there is none.
    """
    mask, steps = ops.cast(mask, "int32"), ops.shape(mask)[1]
    lengths, so_far = ops.sum(mask, axis=1), ops.cumsum(mask, axis=1)
    kept_first = ops.argsort((1 - mask) * steps + ops.arange(steps), axis=1)
    together = tf.gather(sequences, kept_first, batch_dims=1)
    outputs, states = _run(layer, together, lengths, state, layer.go_backwards)
    # onnxruntime gives zeros, not the first state, where no step counts.
    some = ops.expand_dims(lengths > 0, -1)
    states = [ops.where(some, last, first) for last, first in zip(states, state, strict=True)]
    # The place among those kept of the last one computed: before this step, or after it.
    place = so_far - mask if layer.go_backwards else so_far - 1
    real = ops.logical_and(place >= 0, place < ops.expand_dims(lengths, 1))
    if layer.zero_output_for_mask:
        real = ops.logical_and(real, mask > 0)
    outputs = tf.gather(outputs, ops.clip(place, 0, steps - 1), batch_dims=1)
    outputs = ops.where(ops.expand_dims(real, -1), outputs, 0.0)
    return outputs, outputs[:, 0] if layer.go_backwards else outputs[:, -1], states


def _run(layer, sequences, lengths, state, reverse):
    """Outputs `(B, T, H)` in the order of time and the last states, by one operator."""
    cell, units, name = layer.cell, layer.units, type(layer).__name__
    gate, candidate = (
        _onnx_name(function) for function in (cell.recurrent_activation, cell.activation)
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
    """The weights of a Keras cell in ONNX's layout."""
    order = _GATE_ORDER[name]

    def arranged(weights):  # (n, gates * H) -> (1, gates * H, n)
        gates = tf.split(tf.transpose(tf.convert_to_tensor(weights)), len(order), axis=0)
        return tf.expand_dims(tf.concat([gates[i] for i in order], axis=0), 0)

    width = len(order) * units
    bias = tf.zeros((1, width)) if cell.bias is None else tf.reshape(cell.bias, (-1, width))
    if bias.shape[0] == 1:  # ONNX adds a second one in the recurrence
        bias = tf.concat([bias, tf.zeros_like(bias)], axis=0)
    bias = tf.transpose(arranged(bias)[0])
    return {
        "W": arranged(cell.kernel),
        "R": arranged(cell.recurrent_kernel),
        "B": tf.reshape(bias, (1, 2 * width)),
    }


def _convert(graph, node, name, arguments):
    """Puts the ONNX operator where its `PyFunc` stood."""
    token = json.loads(node.get_attr_value("token"))
    given = iter(node.input)
    inputs = [next(given) if key else "" for key in token["inputs"]]
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
