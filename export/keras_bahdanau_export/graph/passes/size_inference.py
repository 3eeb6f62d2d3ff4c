"""Inference of tensor sizes in a graph, as products of integers and of sizes of other tensors.

    sizes = SizeInference(graph)
    sizes.dims[value]       # a `Size` for each axis; no key if even the rank is unknown
    sizes.contents[value]   # the elements of an integer scalar or vector, as `Size`s

onnx's own inference gives a new name to each unknown size at every operator, so it cannot tell that
a loop's state keeps its shape, or that two sizes are equal.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import SLICE_END, constant_array

_MAX_ELEMENTS = 16  # a longer vector is not a shape


@dataclass(frozen=True)
class Size:
    """A rational number times the sizes of axes of tensors.

    Attributes:
        factor: A `Fraction`.
        axes: `(value, axis)` pairs, sorted.
    """

    factor: Fraction
    axes: tuple = ()

    @property
    def as_int(self):
        """The size as an int, or `None` if it depends on an axis or is no integer."""
        return int(self.factor) if not self.axes and self.factor.denominator == 1 else None

    def __mul__(self, other):
        # Sort by name, so that every export of a model multiplies in the same order.
        axes = sorted(
            (*self.axes, *other.axes), key=lambda axis: (axis[0].name or "", id(axis[0]), axis[1])
        )
        return Size(self.factor * other.factor, tuple(axes))

    def divide(self, other):
        """Return the quotient, or `None` if it is not a product of sizes."""
        remaining = list(self.axes)
        for axis in other.axes:
            if axis not in remaining:
                return None
            remaining.remove(axis)
        return Size(self.factor / other.factor, tuple(remaining)) if other.factor else None


def fixed_size(number):
    """Return the `Size` of an int."""
    return Size(Fraction(int(number)))


def broadcast(shapes):
    """Return the sizes that tensors of these sizes broadcast to, with `None` for unknown ones."""
    if None in shapes:
        return None
    rank, result = max(map(len, shapes)), []
    one = fixed_size(1)
    for axis in range(-rank, 0):
        candidates = {dims[axis] for dims in shapes if len(dims) >= -axis} - {one}
        integers = {size for size in candidates if size is not None and size.as_int is not None}
        if integers:
            candidates = integers  # the other sizes are equal to it, or 1
        if not candidates:
            result.append(one)
        else:
            result.append(candidates.pop() if len(candidates) == 1 else None)
    return result


class SizeInference:
    """Sizes of all values of a graph and of its loops and conditions.

    Args:
        graph: An `onnx_ir.Graph`. Axes of its inputs with the same name have the same size. Only
            the ranks of values outside of the graph are used.
    """

    def __init__(self, graph):
        self._graph = graph

    def __getattr__(self, name):
        # Inference starts at the first use, as most graphs have no nodes that a pass looks for.
        if name not in ("dims", "contents"):
            raise AttributeError(name)
        self.dims, self.contents = {}, {}
        self._infer_all(self._graph)
        return self.__dict__[name]

    def _infer_all(self, graph):
        by_name = {}
        for value in graph.inputs:
            self._set_unknown(value)
            for axis, size in enumerate(value.shape or ()):
                if not isinstance(size, int) and size.value is not None:
                    first = by_name.setdefault(size.value, self.dims[value][axis])
                    self.dims[value][axis] = first
        self._infer(graph)

    def _infer(self, graph):
        for node in graph:
            if node.op_type == "Loop":
                self._infer_loop(node)
                continue
            if node.op_type == "If":
                self._infer_condition(node)
                continue
            for value in node.inputs:
                if value is not None and value not in self.dims:
                    self._set_outer(value)
            dims = DIM_RULES.get(node.op_type, lambda *_: None)(self, node)
            for i, value in enumerate(node.outputs):
                self._set_dims(value, None if dims is None else dims[i])
            output = node.outputs[0]
            if node.op_type in CONTENT_RULES and len(self.dims.get(output, (0, 0))) < 2:
                contents = CONTENT_RULES[node.op_type](self, node)
                if contents is not None and len(contents) <= _MAX_ELEMENTS:
                    self.contents[output] = contents

    def _set_outer(self, value):
        """Set the sizes of a value that no earlier node made: a constant or an outer value."""
        array = constant_array(value)
        if array is None:
            self._set_unknown(value)
            return
        self.dims[value] = [fixed_size(size) for size in array.shape]
        if array.dtype.kind == "i" and array.ndim <= 1 and array.size <= _MAX_ELEMENTS:
            self.contents[value] = [fixed_size(element) for element in array.reshape(-1)]

    def _set_unknown(self, value):
        """Use each axis of a value as its own size."""
        if value.shape is not None:
            self._set_dims(value, [None] * len(value.shape))

    def _set_dims(self, value, dims):
        """Set sizes. Unknown sizes are integers of the graph, or else the axes themselves."""
        shape = list(value.shape) if value.shape is not None else None
        if dims is None:
            if shape is None:
                return
            dims = [None] * len(shape)
        shape = shape if shape is not None and len(shape) == len(dims) else [None] * len(dims)
        self.dims[value] = [
            fixed_size(static)
            if isinstance(static, int)
            else (Size(Fraction(1), ((value, axis),)) if size is None else size)
            for axis, (size, static) in enumerate(zip(dims, shape, strict=True))
        ]

    def _infer_condition(self, condition):
        """Infer both branches; an output has the sizes that are equal in both."""
        branches = [condition.attributes[f"{name}_branch"].value for name in ("then", "else")]
        for branch in branches:
            self._infer(branch)
            for value in branch.outputs:
                if value not in self.dims:
                    self._set_outer(value)
        insides = [_values_inside(branch) for branch in branches]
        for value, *results in zip(condition.outputs, *(b.outputs for b in branches), strict=True):
            first, second = (
                None if result not in self.dims else _known_outside(inside, self.dims[result])
                for inside, result in zip(insides, results, strict=True)
            )
            is_known = first is not None and second is not None and len(first) == len(second)
            self._set_dims(
                value,
                [a if a == b else None for a, b in zip(first, second, strict=True)]
                if is_known
                else None,
            )

    def _infer_loop(self, loop):
        """Infer a loop's body; its states have their initial sizes if every step keeps them."""
        body = loop.attributes["body"].value
        for value in loop.inputs:
            if value is not None and value not in self.dims:
                self._set_outer(value)
        states = list(zip(body.inputs[2:], loop.inputs[2:], body.outputs[1:], strict=False))
        constant_dims = {state: self.dims.get(initial) for state, initial, _ in states}
        while True:
            before = dict(self.dims), dict(self.contents)
            for value in body.inputs[:2]:
                self._set_dims(value, [])
            for state, dims in constant_dims.items():
                if dims is None:
                    self._set_unknown(state)
                else:
                    self.dims[state] = dims
            self._infer(body)
            for value in body.outputs:
                if value not in self.dims:
                    self._set_outer(value)
            changed = [
                state
                for state, _, result in states
                if constant_dims[state] is not None
                and self.dims.get(result) != constant_dims[state]
            ]
            if not changed:
                break
            self.dims, self.contents = before
            for state in changed:
                constant_dims[state] = None
        inside = _values_inside(body)
        for i, value in enumerate(loop.outputs):
            if i < len(states):
                self._set_dims(value, constant_dims[states[i][0]])
                continue
            row = self.dims.get(body.outputs[1 + i])
            self._set_dims(value, None if row is None else [None, *_known_outside(inside, row)])


def _values_inside(body):
    """Return the set of the values that the body of a loop, or a branch, computes or is passed."""
    return {*body.inputs, *(value for node in body for value in node.outputs)}


def _known_outside(inside, dims):
    """Return sizes, with `None` for those that depend on values inside a loop or a condition."""
    return [None if any(value in inside for value, _ in size.axes) else size for size in dims]


_SAME_SHAPE_AS_FIRST_INPUT = frozenset(
    "Abs Cast Clip CumSum Elu Erf Exp Identity IsInf IsNaN LayerNormalization LeakyRelu Log "
    "LogSoftmax Neg Not Reciprocal Relu Round ScatterElements ScatterND Selu Sigmoid Sign Softmax "
    "Softplus Sqrt Tanh Trilu".split()
)
_BROADCASTING = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub Where "
    "Xor".split()
)


def _first_input_dims(sizes, node):
    return [sizes.dims.get(node.inputs[0])] * len(node.outputs)


def _broadcast_dims(sizes, node):
    return [broadcast([sizes.dims.get(value) for value in node.inputs])]


def _matmul_dims(sizes, node):
    left, right = (sizes.dims.get(value) for value in node.inputs)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    batch = broadcast([left[:-2], right[:-2]])
    return [[*batch, left[-2], right[-1]]]


def _gemm_dims(sizes, node):
    left, right = (sizes.dims.get(value) for value in node.inputs[:2])
    if left is None or right is None:
        return None
    return [[left[_int_attribute(node, "transA", 0)], right[1 - _int_attribute(node, "transB", 0)]]]


def _transpose_dims(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    if dims is None:
        return None
    order = node.attributes["perm"].value if "perm" in node.attributes else range(len(dims))[::-1]
    return [[dims[axis] for axis in order]]


def _reshape_dims(sizes, node):
    dims, shape = sizes.dims.get(node.inputs[0]), sizes.contents.get(node.inputs[1])
    if shape is None or "allowzero" in node.attributes:
        return None
    result = []
    for axis, size in enumerate(shape):
        if size.as_int == 0:
            size = dims[axis] if dims is not None else None
        result.append(None if size is not None and size.as_int == -1 else size)
    inferred = [i for i, size in enumerate(shape) if size.as_int == -1]
    rest = [size for i, size in enumerate(result) if i not in inferred]
    if len(inferred) == 1 and dims is not None and None not in rest:
        total = prod(dims, start=fixed_size(1))
        result[inferred[0]] = total.divide(prod(rest, start=fixed_size(1)))
    return [result]


def _unsqueeze_dims(sizes, node):
    dims, axes = sizes.dims.get(node.inputs[0]), constant_array(node.inputs[1])
    if dims is None or axes is None:
        return None
    rank = len(dims) + axes.size
    added, sizes_before = {int(axis) % rank for axis in axes.reshape(-1)}, iter(dims)
    return [[fixed_size(1) if axis in added else next(sizes_before) for axis in range(rank)]]


def _squeeze_dims(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    axes = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or axes is None:
        return None
    removed = {int(axis) % len(dims) for axis in axes.reshape(-1)}
    return [[size for axis, size in enumerate(dims) if axis not in removed]]


def _concat_dims(sizes, node):
    shapes = [sizes.dims.get(value) for value in node.inputs]
    if None in shapes:
        return None
    concat_axis = node.attributes["axis"].value % len(shapes[0])
    result = [_common([dims[axis] for dims in shapes]) for axis in range(len(shapes[0]))]
    integers = [dims[concat_axis].as_int for dims in shapes]
    result[concat_axis] = None if None in integers else fixed_size(sum(integers))
    return [result]


def _split_dims(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    if dims is None:
        return None
    split_axis = _int_attribute(node, "axis", 0) % len(dims)
    lengths = sizes.contents.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if len(node.inputs) < 2:
        length = dims[split_axis].divide(fixed_size(len(node.outputs)))
        is_even = length is not None and length.factor.denominator == 1
        lengths = [length if is_even else None] * len(node.outputs)
    lengths = lengths or [None] * len(node.outputs)
    return [[*dims[:split_axis], length, *dims[split_axis + 1 :]] for length in lengths]


def _slice_dims(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    bounds = [sizes.contents.get(value) for value in node.inputs[1:]]
    if dims is None or None in bounds or len(bounds) < 3:
        return None if dims is None else [[None] * len(dims)]
    steps = bounds[3] if len(bounds) > 3 else [fixed_size(1)] * len(bounds[0])
    result = list(dims)
    for start, end, axis, step in zip(*bounds[:3], steps, strict=True):
        i = axis.as_int % len(dims)
        result[i] = _slice_size(dims[i], start.as_int, end.as_int, step.as_int)
    return [result]


def _slice_size(size, start, end, step):
    """Return the `Size` of a slice of an axis, or `None`."""
    if start == 0 and step == 1 and end is not None and end >= SLICE_END:
        return size
    if None in (size.as_int, start, end, step) or step == 0:
        return None
    return fixed_size(len(range(size.as_int)[slice(start, end, step)])) if step > 0 else None


def _gather_dims(sizes, node):
    dims, indices = (sizes.dims.get(value) for value in node.inputs)
    if dims is None or indices is None:
        return None
    axis = _int_attribute(node, "axis", 0) % len(dims)
    return [[*dims[:axis], *indices, *dims[axis + 1 :]]]


def _gather_nd_dims(sizes, node):
    dims, indices = (sizes.dims.get(value) for value in node.inputs)
    if dims is None or indices is None or indices[-1].as_int is None:
        return None
    batch_dims = _int_attribute(node, "batch_dims", 0)
    return [[*indices[:-1], *dims[batch_dims + indices[-1].as_int :]]]


def _reduce_dims(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    axes = constant_array(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    # An empty list of axes means all axes or none, depending on an attribute.
    if dims is None or axes is None or not axes.size:
        return None
    reduced = {int(axis) % len(dims) for axis in axes.reshape(-1)}
    if _int_attribute(node, "keepdims", 1):
        return [[fixed_size(1) if axis in reduced else size for axis, size in enumerate(dims)]]
    return [[size for axis, size in enumerate(dims) if axis not in reduced]]


def _top_k_dims(sizes, node):
    dims, k = sizes.dims.get(node.inputs[0]), sizes.contents.get(node.inputs[1])
    if dims is None:
        return None
    result = list(dims)
    result[_int_attribute(node, "axis", -1)] = k[0] if k is not None else None
    return [result, result]


def _expand_dims(sizes, node):
    return [broadcast([sizes.dims.get(node.inputs[0]), sizes.contents.get(node.inputs[1])])]


def _tile_dims(sizes, node):
    dims, repeats = sizes.dims.get(node.inputs[0]), sizes.contents.get(node.inputs[1])
    if dims is None or repeats is None:
        return None
    return [[size * count for size, count in zip(dims, repeats, strict=True)]]


def _constant_of_shape_dims(sizes, node):
    return [sizes.contents.get(node.inputs[0])]


def _range_dims(sizes, node):
    start, end, step = (sizes.contents.get(value) for value in node.inputs)
    is_plain = start == [fixed_size(0)] and step == [fixed_size(1)] and end is not None
    return [[end[0] if is_plain and end[0].factor >= 0 else None]]


def _shape_dims(sizes, node):
    contents = _shape_contents(sizes, node)
    return [[None if contents is None else fixed_size(len(contents))]]


def _recurrent_dims(sizes, node):
    sequence, weights = (sizes.dims.get(node.inputs[i]) for i in (0, 2))
    if sequence is None or weights is None:
        return None
    (steps, batch, _), (directions, _, units) = sequence, weights
    state = [directions, batch, units]
    return [[steps, directions, batch, units], state, state][: len(node.outputs)]


def _conv_dims(sizes, node):
    dims, kernel = (sizes.dims.get(value) for value in node.inputs[:2])
    if dims is None or kernel is None:
        return None
    axes = len(dims) - 2
    strides, dilations = (
        _ints_attribute(node, name, [1] * axes) for name in ("strides", "dilations")
    )
    pads, result = _ints_attribute(node, "pads", [0] * 2 * axes), []
    auto_pad = node.attributes["auto_pad"].value if "auto_pad" in node.attributes else "NOTSET"
    for i, (size, width) in enumerate(zip(dims[2:], kernel[2:], strict=True)):
        shrinkage = (width.as_int - 1) * dilations[i] if width.as_int is not None else None
        is_same = auto_pad.startswith("SAME") or (
            auto_pad == "NOTSET" and shrinkage == pads[i] + pads[axes + i]
        )
        result.append(size if is_same and strides[i] == 1 else None)
    return [[dims[0], kernel[0], *result]]


def _second_input_dims(sizes, node):
    return [sizes.dims.get(node.inputs[1])]


def _shape_contents(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    if dims is None:
        return None
    end = node.attributes["end"].value if "end" in node.attributes else None
    return dims[_int_attribute(node, "start", 0) : end]


def _first_input_contents(sizes, node):
    return sizes.contents.get(node.inputs[0])


def _cast_contents(sizes, node):
    is_integer = node.attributes["to"].value in (ir.DataType.INT32, ir.DataType.INT64)
    return _first_input_contents(sizes, node) if is_integer else None


def _concat_contents(sizes, node):
    inputs = [sizes.contents.get(value) for value in node.inputs]
    return None if None in inputs else [element for contents in inputs for element in contents]


def _gather_contents(sizes, node):
    contents, indices = (sizes.contents.get(value) for value in node.inputs)
    if contents is None or indices is None or any(index.as_int is None for index in indices):
        return None
    return [contents[index.as_int] for index in indices]


def _slice_contents(sizes, node):
    inputs = [sizes.contents.get(value) for value in node.inputs]
    if None in inputs or any(size.as_int is None for bound in inputs[1:] for size in bound):
        return None
    contents, *bounds = inputs
    start, end, _, step = (*(bound[0].as_int for bound in bounds), *[1] * (4 - len(bounds)))
    return contents[slice(start, end, step)] if step > 0 else None


def _reduce_prod_contents(sizes, node):
    contents = sizes.contents.get(node.inputs[0])
    return None if contents is None else [prod(contents, start=fixed_size(1))]


def _arithmetic_contents(sizes, node):
    """Compute element by element; return `None` if a result is not a product of sizes."""
    left, right = (sizes.contents.get(value) for value in node.inputs)
    if (
        left is None
        or right is None
        or (len(left) != len(right) and 1 not in (len(left), len(right)))
        or _int_attribute(node, "fmod", 0)
    ):
        return None
    if not left or not right:
        return []
    count = max(len(left), len(right))
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    result = [_ARITHMETIC[node.op_type](*pair) for pair in pairs]
    return None if None in result else result


def _on_integers(function):
    """Return a function of two ints as one of two `Size`s; its result is `None` for other sizes."""

    def on_sizes(left, right):
        if left.as_int is None or right.as_int is None:
            return None
        return fixed_size(function(left.as_int, right.as_int))

    return on_sizes


def _integer_quotient(left, right):
    quotient = left.divide(right) if right.factor > 0 else None
    return quotient if quotient is not None and quotient.factor.denominator == 1 else None


_remainder = _on_integers(int.__mod__)


def _extreme(function):
    of_integers = _on_integers(function)
    return lambda left, right: left if left == right else of_integers(left, right)


def _int_attribute(node, name, default):
    return node.attributes[name].value if name in node.attributes else default


def _ints_attribute(node, name, default):
    return list(node.attributes[name].value) if name in node.attributes else default


def _common(sizes):
    """Return the size that all sizes are equal to, or `None` if they differ."""
    return sizes[0] if len(set(sizes)) == 1 else None


# Functions of `(sizes, node)` by operator. They return a list of sizes for each output, with `None`
# for unknown sizes and instead of a list for an unknown rank.
DIM_RULES = {
    **dict.fromkeys(_SAME_SHAPE_AS_FIRST_INPUT, _first_input_dims),
    **dict.fromkeys(_BROADCASTING, _broadcast_dims),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd"), _reduce_dims
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent_dims),
    "MatMul": _matmul_dims,
    "Gemm": _gemm_dims,
    "Transpose": _transpose_dims,
    "Reshape": _reshape_dims,
    "Unsqueeze": _unsqueeze_dims,
    "Squeeze": _squeeze_dims,
    "Concat": _concat_dims,
    "Split": _split_dims,
    "Slice": _slice_dims,
    "Gather": _gather_dims,
    "Conv": _conv_dims,
    "GatherElements": _second_input_dims,
    "GatherND": _gather_nd_dims,
    "TopK": _top_k_dims,
    "Expand": _expand_dims,
    "Tile": _tile_dims,
    "ConstantOfShape": _constant_of_shape_dims,
    "Range": _range_dims,
    "Shape": _shape_dims,
}

_ARITHMETIC = {
    "Add": _on_integers(int.__add__),
    "Sub": _on_integers(int.__sub__),
    "Mul": Size.__mul__,
    "Div": _integer_quotient,
    "Mod": lambda left, right: _remainder(left, right) if (right.as_int or 0) > 0 else None,
    "Max": _extreme(max),
    "Min": _extreme(min),
}

# Functions of `(sizes, node)` by operator. They return the elements of an integer scalar or vector
# as `Size`s, or `None`.
CONTENT_RULES = {
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze"), _first_input_contents),
    **dict.fromkeys(_ARITHMETIC, _arithmetic_contents),
    "Cast": _cast_contents,
    "Shape": _shape_contents,
    "Concat": _concat_contents,
    "Gather": _gather_contents,
    "Slice": _slice_contents,
    "ReduceProd": _reduce_prod_contents,
}
