"""What operators make of sizes: `DIM_RULES` of those of tensors, `ITEM_RULES` of listed ones."""

from math import prod

import onnx_ir as ir

from keras_bahdanau_export.graph.passes.graph import WHOLE, constant
from keras_bahdanau_export.graph.passes.size import Size, broadcast, number

_LIKE_FIRST = frozenset(
    "Abs Cast Clip CumSum Elu Erf Exp Identity IsInf IsNaN LayerNormalization LeakyRelu Log "
    "LogSoftmax Neg Not Reciprocal Relu Round ScatterElements ScatterND Selu Sigmoid Sign Softmax "
    "Softplus Sqrt Tanh Trilu".split()
)
_BROADCAST = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub Where "
    "Xor".split()
)


def _first(sizes, node):
    return [sizes.dims.get(node.inputs[0])] * len(node.outputs)


def _spread(sizes, node):
    return [broadcast([sizes.dims.get(value) for value in node.inputs])]


def _product(sizes, node):
    left, right = (sizes.dims.get(value) for value in node.inputs)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    around = broadcast([left[:-2], right[:-2]])
    return [[*around, left[-2], right[-1]]]


def _gemm(sizes, node):
    left, right = (sizes.dims.get(value) for value in node.inputs[:2])
    if left is None or right is None:
        return None
    return [[left[_integer(node, "transA", 0)], right[1 - _integer(node, "transB", 0)]]]


def _transpose(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    if dims is None:
        return None
    order = node.attributes["perm"].value if "perm" in node.attributes else range(len(dims))[::-1]
    return [[dims[axis] for axis in order]]


def _reshape(sizes, node):
    dims, wanted = sizes.dims.get(node.inputs[0]), sizes.items.get(node.inputs[1])
    if wanted is None or "allowzero" in node.attributes:
        return None
    found = []
    for axis, size in enumerate(wanted):
        if size.number == 0:
            size = dims[axis] if dims is not None else None
        found.append(None if size is not None and size.number == -1 else size)
    open_axes = [i for i, size in enumerate(wanted) if size.number == -1]
    rest = [size for i, size in enumerate(found) if i not in open_axes]
    if len(open_axes) == 1 and dims is not None and None not in rest:
        whole = prod(dims, start=number(1))
        found[open_axes[0]] = whole.over(prod(rest, start=number(1)))
    return [found]


def _unsqueeze(sizes, node):
    dims, axes = sizes.dims.get(node.inputs[0]), constant(node.inputs[1])
    if dims is None or axes is None:
        return None
    rank = len(dims) + axes.size
    new, old = {int(axis) % rank for axis in axes.reshape(-1)}, iter(dims)
    return [[number(1) if axis in new else next(old) for axis in range(rank)]]


def _squeeze(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or axes is None:
        return None
    gone = {int(axis) % len(dims) for axis in axes.reshape(-1)}
    return [[size for axis, size in enumerate(dims) if axis not in gone]]


def _concat(sizes, node):
    shapes = [sizes.dims.get(value) for value in node.inputs]
    if None in shapes:
        return None
    place = node.attributes["axis"].value % len(shapes[0])
    found = [_same([dims[axis] for dims in shapes]) for axis in range(len(shapes[0]))]
    numbers = [dims[place].number for dims in shapes]
    found[place] = None if None in numbers else number(sum(numbers))
    return [found]


def _split(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    if dims is None:
        return None
    place = _integer(node, "axis", 0) % len(dims)
    lengths = sizes.items.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if len(node.inputs) < 2:
        part = dims[place].over(number(len(node.outputs)))
        whole = part is not None and part.factor.denominator == 1
        lengths = [part if whole else None] * len(node.outputs)
    lengths = lengths or [None] * len(node.outputs)
    return [[*dims[:place], length, *dims[place + 1 :]] for length in lengths]


def _slice(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    bounds = [sizes.items.get(value) for value in node.inputs[1:]]
    if dims is None or None in bounds or len(bounds) < 3:
        return None if dims is None else [[None] * len(dims)]
    steps = bounds[3] if len(bounds) > 3 else [number(1)] * len(bounds[0])
    found = list(dims)
    for start, end, axis, step in zip(*bounds[:3], steps, strict=True):
        place = axis.number % len(dims)
        found[place] = _sliced(dims[place], start.number, end.number, step.number)
    return [found]


def _sliced(size, start, end, step):
    """The `Size` of a slice of an axis, or `None`."""
    if start == 0 and step == 1 and end is not None and end >= WHOLE:
        return size
    if None in (size.number, start, end, step) or step == 0:
        return None
    return number(len(range(size.number)[slice(start, end, step)])) if step > 0 else None


def _gather(sizes, node):
    dims, places = (sizes.dims.get(value) for value in node.inputs)
    if dims is None or places is None:
        return None
    axis = _integer(node, "axis", 0) % len(dims)
    return [[*dims[:axis], *places, *dims[axis + 1 :]]]


def _gather_nd(sizes, node):
    dims, places = (sizes.dims.get(value) for value in node.inputs)
    if dims is None or places is None or places[-1].number is None:
        return None
    return [[*places[:-1], *dims[_integer(node, "batch_dims", 0) + places[-1].number :]]]


def _reduce(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    if dims is None or axes is None or not axes.size:  # of none: all, or none
        return None
    gone = {int(axis) % len(dims) for axis in axes.reshape(-1)}
    if _integer(node, "keepdims", 1):
        return [[number(1) if axis in gone else size for axis, size in enumerate(dims)]]
    return [[size for axis, size in enumerate(dims) if axis not in gone]]


def _top_k(sizes, node):
    dims, k = sizes.dims.get(node.inputs[0]), sizes.items.get(node.inputs[1])
    if dims is None:
        return None
    found = list(dims)
    found[_integer(node, "axis", -1)] = k[0] if k is not None else None
    return [found, found]


def _expand(sizes, node):
    return [broadcast([sizes.dims.get(node.inputs[0]), sizes.items.get(node.inputs[1])])]


def _tile(sizes, node):
    dims, counts = sizes.dims.get(node.inputs[0]), sizes.items.get(node.inputs[1])
    if dims is None or counts is None:
        return None
    return [[size * count for size, count in zip(dims, counts, strict=True)]]


def _filled(sizes, node):
    return [sizes.items.get(node.inputs[0])]


def _range(sizes, node):
    start, end, step = (sizes.items.get(value) for value in node.inputs)
    plain = start == [number(0)] and step == [number(1)] and end is not None
    return [[end[0] if plain and end[0].factor >= 0 else None]]


def _vector(sizes, node):
    items = _shape_items(sizes, node)
    return [[None if items is None else number(len(items))]]


def _recurrent(sizes, node):
    sequence, weights = (sizes.dims.get(node.inputs[i]) for i in (0, 2))
    if sequence is None or weights is None:
        return None
    (steps, rows, _), (directions, _, units) = sequence, weights
    last = [directions, rows, units]
    return [[steps, directions, rows, units], last, last][: len(node.outputs)]


def _convolution(sizes, node):
    dims, kernel = (sizes.dims.get(value) for value in node.inputs[:2])
    if dims is None or kernel is None:
        return None
    axes = len(dims) - 2
    strides, dilations = (_integers(node, name, [1] * axes) for name in ("strides", "dilations"))
    pads, found = _integers(node, "pads", [0] * 2 * axes), []
    padded = node.attributes["auto_pad"].value if "auto_pad" in node.attributes else "NOTSET"
    for i, (size, width) in enumerate(zip(dims[2:], kernel[2:], strict=True)):
        lost = (width.number - 1) * dilations[i] if width.number is not None else None
        same = padded.startswith("SAME") or (
            padded == "NOTSET" and lost == pads[i] + pads[axes + i]
        )
        found.append(size if same and strides[i] == 1 else None)
    return [[dims[0], kernel[0], *found]]


def _indices(sizes, node):
    return [sizes.dims.get(node.inputs[1])]


def _shape_items(sizes, node):
    dims = sizes.dims.get(node.inputs[0])
    if dims is None:
        return None
    end = node.attributes["end"].value if "end" in node.attributes else None
    return dims[_integer(node, "start", 0) : end]


def _passed_on(sizes, node):
    return sizes.items.get(node.inputs[0])


def _cast(sizes, node):
    whole = node.attributes["to"].value in (ir.DataType.INT32, ir.DataType.INT64)
    return _passed_on(sizes, node) if whole else None


def _joined(sizes, node):
    parts = [sizes.items.get(value) for value in node.inputs]
    return None if None in parts else [item for part in parts for item in part]


def _picked(sizes, node):
    items, places = (sizes.items.get(value) for value in node.inputs)
    if items is None or places is None or any(place.number is None for place in places):
        return None
    return [items[place.number] for place in places]


def _part(sizes, node):
    bounds = [sizes.items.get(value) for value in node.inputs]
    if None in bounds or any(item.number is None for of in bounds[1:] for item in of):
        return None
    items, *bounds = bounds
    start, end, _, step = (*(of[0].number for of in bounds), *[1] * (4 - len(bounds)))
    return items[slice(start, end, step)] if step > 0 else None


def _multiplied(sizes, node):
    items = sizes.items.get(node.inputs[0])
    return None if items is None else [prod(items, start=number(1))]


def _calculated(sizes, node):
    """Arithmetic with sizes, item by item, where a product of sizes comes out."""
    left, right = (sizes.items.get(value) for value in node.inputs)
    if (
        left is None
        or right is None
        or (len(left) != len(right) and 1 not in (len(left), len(right)))
        or _integer(node, "fmod", 0)
    ):
        return None
    if not left or not right:
        return []
    count = max(len(left), len(right))
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    found = [_ARITHMETIC[node.op_type](*pair) for pair in pairs]
    return None if None in found else found


def _on_numbers(calculate):
    """A function of ints as one of sizes."""

    def of(left, right):
        known = left.number is not None and right.number is not None
        return number(calculate(left.number, right.number)) if known else None

    return of


def _whole_quotient(left, right):
    found = left.over(right) if right.factor > 0 else None
    return found if found is not None and found.factor.denominator == 1 else None


_remainder = _on_numbers(int.__mod__)


def _extreme(choose):
    known = _on_numbers(choose)
    return lambda left, right: left if left == right else known(left, right)


def _integer(node, name, default):
    return node.attributes[name].value if name in node.attributes else default


def _integers(node, name, default):
    return list(node.attributes[name].value) if name in node.attributes else default


def _same(several):
    """The size that several are, or `None` if they differ."""
    return several[0] if len(set(several)) == 1 else None


# Of the outputs of an operator: a list of sizes for each, or `None` where even the rank is unknown.
DIM_RULES = {
    **dict.fromkeys(_LIKE_FIRST, _first),
    **dict.fromkeys(_BROADCAST, _spread),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd"), _reduce),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "MatMul": _product,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Conv": _convolution,
    "GatherElements": _indices,
    "GatherND": _gather_nd,
    "TopK": _top_k,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Shape": _vector,
}

_ARITHMETIC = {
    "Add": _on_numbers(int.__add__),
    "Sub": _on_numbers(int.__sub__),
    "Mul": Size.__mul__,
    "Div": _whole_quotient,
    "Mod": lambda left, right: _remainder(left, right) if (right.number or 0) > 0 else None,
    "Max": _extreme(max),
    "Min": _extreme(min),
}

# Of vectors and scalars of integers: what they hold.
ITEM_RULES = {
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze"), _passed_on),
    **dict.fromkeys(_ARITHMETIC, _calculated),
    "Cast": _cast,
    "Shape": _shape_items,
    "Concat": _joined,
    "Gather": _picked,
    "Slice": _part,
    "ReduceProd": _multiplied,
}
