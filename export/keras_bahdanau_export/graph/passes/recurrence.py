"""Passes over the operators of recurrent layers."""

import itertools

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    constant_array,
    depends_on,
    insert_node,
    nodes_of,
    replace_value,
)

_NONE = ir.AttrInt64("none", 0)
_LAYERS = ("GRU", "LSTM", "RNN")
_ACTIVATION_PARAMETERS = ("activation_alpha", "activation_beta")


def drop_zero_states(graph):
    """Remove zero initial states of recurrent operators; zero is the default."""
    count = 0
    for layer in nodes_of(graph, *_LAYERS):
        for i in range(5, min(len(layer.inputs), 7)):  # initial_h and initial_c
            if layer.inputs[i] is not None and _is_zero(layer.inputs[i]):
                layer.replace_input_with(i, None)
                count += 1
    return count


def fuse_directions(graph):
    """Fuse a forward and a reverse GRU or LSTM over one sequence into a bidirectional operator."""
    count = 0
    layers = nodes_of(graph, "GRU", "LSTM")
    while layers:
        first = layers.pop(0)
        second = next((other for other in layers if _are_opposite(first, other)), None)
        if second is None:
            continue
        layers.remove(second)
        if _direction(first) == "reverse":
            first, second = second, first
        # All inputs of the pair are computed before the later of the two.
        later = second if list(graph).index(first) < list(graph).index(second) else first
        inputs = []
        for i, (forward, backward) in enumerate(zip(first.inputs, second.inputs, strict=True)):
            if i in (0, 4):  # the sequence and its lengths
                inputs.append(forward)
                continue
            if forward is None:
                inputs.append(None)
                continue
            arrays = [constant_array(forward), constant_array(backward)]
            if all(array is not None for array in arrays):
                name = f"{forward.name}_both_ways"
                inputs.append(add_initializer(graph, name, np.concatenate(arrays)))
                continue
            inputs.append(insert_node(graph, later, "Concat", forward, backward, axis=0))
        attributes = dict(first.attributes)
        attributes["direction"] = ir.AttrString("direction", "bidirectional")
        activations = [*_strings(first, "activations"), *_strings(second, "activations")]
        if activations:
            attributes["activations"] = ir.AttrStrings("activations", activations)
        # Unused final states may be missing in either direction.
        outputs = list(itertools.zip_longest(first.outputs, second.outputs))
        fused = ir.node(first.op_type, inputs, attributes, num_outputs=len(outputs))
        graph.insert_before(later, fused)
        for i, output in enumerate(fused.outputs):
            axis = 1 if i == 0 else 0
            parts = insert_node(graph, later, "Split", output, outputs=2, axis=axis, num_outputs=2)
            for old, new in zip(outputs[i], parts, strict=True):
                if old is not None:
                    replace_value(old, new)
        graph.remove([first, second], safe=True)
        graph.sort()
        count += 1
    return count


def _is_zero(value):
    """Whether a value is known to contain only zeros."""
    array, node = constant_array(value), value.producer()
    if array is not None:
        return not array.any()
    if node is None:
        return False
    if node.op_type == "ConstantOfShape":
        return "value" not in node.attributes or not node.attributes["value"].value.numpy().any()
    if node.op_type == "Concat":
        return all(map(_is_zero, node.inputs))
    keeps_zeros = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Identity", "Cast")
    return node.op_type in keeps_zeros and _is_zero(node.inputs[0])


def _direction(node):
    return node.attributes["direction"].value if "direction" in node.attributes else "forward"


def _strings(node, name):
    return list(node.attributes[name].value) if name in node.attributes else []


def _are_opposite(first, second):
    """Whether two recurrent operators read one sequence in opposite directions."""
    compared = ("hidden_size", "linear_before_reset", "clip", "layout", "input_forget")
    return (
        first.op_type == second.op_type
        and {_direction(first), _direction(second)} == {"forward", "reverse"}
        and len(first.inputs) == len(second.inputs)
        and first.inputs[0] is second.inputs[0]
        and [v is None for v in first.inputs] == [v is None for v in second.inputs]
        and (len(first.inputs) < 5 or first.inputs[4] is second.inputs[4])
        and all(
            first.attributes.get(key, _NONE).value == second.attributes.get(key, _NONE).value
            for key in compared
        )
        and bool(_strings(first, "activations")) == bool(_strings(second, "activations"))
        and not any(
            key in node.attributes for node in (first, second) for key in _ACTIVATION_PARAMETERS
        )
        and not depends_on(first, second)
        and not depends_on(second, first)
    )
