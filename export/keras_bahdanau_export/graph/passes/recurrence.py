"""Passes over the operators of recurrent layers."""

import itertools

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.graph import (
    constant,
    depends,
    made_by,
    nodes_of,
    put,
    register,
    rewrite,
    take_place,
)

_NONE = ir.AttrInt64("none", 0)
_LAYERS = ("GRU", "LSTM", "RNN")
_OF_ACTIVATIONS = ("activation_alpha", "activation_beta")


def zero_states(graph):
    """A recurrent operator whose first state is zero leaves it out: that is what it then takes."""
    count = 0
    for layer in nodes_of(graph, *_LAYERS):
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


def joined_directions(graph):
    """Both directions of a bidirectional operator side by side: a transpose and a reshape.

    It is one copy where `concat(squeeze(split(y)), ...)` makes two, and OpenVINO does not compile
    the latter with sizes that only a run tells.
    """
    count = 0
    for concat in nodes_of(graph, "Concat"):
        sides = [_of_direction(side) for side in concat.inputs]
        if len(sides) != 2 or None in sides:
            continue
        (output, number, order), (other, second, other_order) = sides
        if (output, order, number, second) != (other, other_order, 0, 1):
            continue
        rank = len(order)
        if order[-1] != rank - 1 or concat.attributes["axis"].value not in (-1, rank - 2):
            continue
        units = 2 * output.producer().attributes["hidden_size"].value
        whole = put(graph, concat, "Transpose", output, perm=order)
        shape = np.array([0] * (rank - 2) + [units])
        shape = register(graph, f"both_ways_{rank}_{units}", shape)
        rewrite(graph, concat, "Reshape", [whole, shape])
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


def _of_direction(value):
    """What `value` holds of a bidirectional operator, if it is one direction of an output.

    Returns:
        `(output, number, order)`: the output of the operator; 0 for its forward direction or 1; and
        the axes of the output in the order of `value`, with that of the directions before the last.
        Or `None`.
    """
    turned = made_by(value, "Transpose")
    squeeze = made_by(value if turned is None else turned.inputs[0], "Squeeze")
    split = made_by(squeeze.inputs[0], "Split") if squeeze is not None else None
    if split is None or len(split.outputs) != 2 or len(squeeze.inputs) < 2:
        return None
    output, axes = split.inputs[0], constant(squeeze.inputs[1])
    layer = output.producer()
    if layer is None or layer.op_type not in _LAYERS or _direction(layer) != "bidirectional":
        return None
    rank = 4 if output is layer.outputs[0] else 3
    axis = split.attributes["axis"].value if "axis" in split.attributes else 0
    if axes is None or (axes % rank).tolist() != [axis % rank]:
        return None
    rest = [i for i in range(rank) if i != axis % rank]
    turn = range(rank - 1) if turned is None else turned.attributes["perm"].value
    order = [rest[i] for i in turn]
    return output, split.outputs.index(squeeze.inputs[0]), [*order[:-1], axis % rank, order[-1]]
