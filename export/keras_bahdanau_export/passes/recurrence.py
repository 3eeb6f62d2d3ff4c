"""Passes over the operators of recurrent layers."""

import itertools

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.passes.graph import (
    constant,
    depends,
    nodes_of,
    put,
    register,
    take_place,
)

_NONE = ir.AttrInt64("none", 0)
_OF_ACTIVATIONS = ("activation_alpha", "activation_beta")


def zero_states(graph):
    """A recurrent operator whose first state is zero leaves it out: that is what it then takes."""
    count = 0
    for layer in nodes_of(graph, "GRU", "LSTM", "RNN"):
        for i in range(5, min(len(layer.inputs), 7)):  # initial_h and initial_c
            if layer.inputs[i] is not None and _is_zero(layer.inputs[i]):
                layer.replace_input_with(i, None)
                count += 1
    return count


def bidirectional_operators(graph):
    """A forward and a reverse GRU or LSTM over one sequence become one bidirectional operator."""
    count = 0
    layers = nodes_of(graph, "GRU", "LSTM")
    while layers:
        first = layers.pop(0)
        second = next((other for other in layers if _other_direction(first, other)), None)
        if second is None:
            continue
        layers.remove(second)
        if _direction(first) == "reverse":
            first, second = second, first
        # Everything before the pair is before the later of the two.
        place = second if list(graph).index(first) < list(graph).index(second) else first
        inputs = []
        for i, (one, two) in enumerate(zip(first.inputs, second.inputs, strict=True)):
            if i in (0, 4):  # the sequence and its lengths
                inputs.append(one)
                continue
            if one is None:
                inputs.append(None)
                continue
            numbers = [constant(one), constant(two)]
            if all(number is not None for number in numbers):
                name = f"{one.name}_both_ways"
                inputs.append(register(graph, name, np.concatenate(numbers)))
                continue
            inputs.append(put(graph, place, "Concat", one, two, axis=0))
        attributes = dict(first.attributes)
        attributes["direction"] = ir.AttrString("direction", "bidirectional")
        activations = [*_strings(first, "activations"), *_strings(second, "activations")]
        if activations:
            attributes["activations"] = ir.AttrStrings("activations", activations)
        # A last state that nobody reads may be missing on either side.
        wanted = list(itertools.zip_longest(first.outputs, second.outputs))
        joint = ir.node(first.op_type, inputs, attributes, num_outputs=len(wanted))
        graph.insert_before(place, joint)
        for i, output in enumerate(joint.outputs):
            axis = 1 if i == 0 else 0
            parts = put(graph, place, "Split", output, outputs=2, axis=axis, num_outputs=2)
            for old, new in zip(wanted[i], parts, strict=True):
                if old is not None:
                    take_place(old, new)
        graph.remove([first, second], safe=True)
        graph.sort()
        count += 1
    return count


def _is_zero(value):
    """Whether a value is made of zeros alone."""
    numbers, node = constant(value), value.producer()
    if numbers is not None:
        return not numbers.any()
    if node is None:
        return False
    if node.op_type == "ConstantOfShape":
        return "value" not in node.attributes or not node.attributes["value"].value.numpy().any()
    if node.op_type == "Concat":
        return all(map(_is_zero, node.inputs))
    passed_on = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Identity", "Cast")
    return node.op_type in passed_on and _is_zero(node.inputs[0])


def _direction(node):
    return node.attributes["direction"].value if "direction" in node.attributes else "forward"


def _strings(node, name):
    return list(node.attributes[name].value) if name in node.attributes else []


def _other_direction(first, second):
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
        and not any(key in node.attributes for node in (first, second) for key in _OF_ACTIVATIONS)
        and not depends(first, on=second)
        and not depends(second, on=first)
    )
