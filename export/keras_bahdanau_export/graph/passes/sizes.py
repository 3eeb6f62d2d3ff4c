"""What a graph tells of the sizes of its values, as products of numbers and of sizes of others.

    sizes = Sizes(graph)
    sizes.dims[value]     # a list with a `Size` for each axis; no key where their number is unknown
    sizes.items[value]    # of a vector or scalar of integers that is made of sizes: its `Size`s

onnx's own inference gives sizes that it does not know names, and new ones at every operator: it
cannot tell that a loop's state keeps its shape, or that two sizes are one.
"""

from fractions import Fraction

from keras_bahdanau_export.graph.passes.graph import constant
from keras_bahdanau_export.graph.passes.size import Size, number
from keras_bahdanau_export.graph.passes.size_rules import DIM_RULES, ITEM_RULES

_MOST_ITEMS = 16  # a vector of more numbers is no shape


class Sizes:
    """The sizes of all values of a graph and of the bodies of its loops.

    Args:
        graph: An `onnx_ir.Graph`; of values around it only the ranks are taken for known. Axes of
            its inputs that have one name have one size.
    """

    def __init__(self, graph):
        self.dims, self.items = {}, {}
        named = {}
        for value in graph.inputs:
            self._leave(value)
            for axis, size in enumerate(value.shape or ()):
                if not isinstance(size, int) and size.value is not None:
                    known = named.setdefault(size.value, self.dims[value][axis])
                    self.dims[value][axis] = known
        self._walk(graph)

    def _walk(self, graph):
        for node in graph:
            if node.op_type == "Loop":
                self._enter(node)
                continue
            for value in node.inputs:
                if value is not None and value not in self.dims:
                    self._know(value)
            found = DIM_RULES.get(node.op_type, lambda *_: None)(self, node)
            for i, value in enumerate(node.outputs):
                self._settle(value, None if found is None else found[i])
            made = node.outputs[0]
            if node.op_type in ITEM_RULES and len(self.dims.get(made, (0, 0))) < 2:
                items = ITEM_RULES[node.op_type](self, node)
                if items is not None and len(items) <= _MOST_ITEMS:
                    self.items[made] = items

    def _know(self, value):
        """Of a value that no node before has made: a constant, or one from around the graph."""
        numbers = constant(value)
        if numbers is None:
            self._leave(value)
            return
        self.dims[value] = [number(size) for size in numbers.shape]
        if numbers.dtype.kind == "i" and numbers.ndim <= 1 and numbers.size <= _MOST_ITEMS:
            self.items[value] = [number(item) for item in numbers.reshape(-1)]

    def _leave(self, value):
        """Its sizes stand for themselves."""
        if value.shape is not None:
            self._settle(value, [None] * len(value.shape))

    def _settle(self, value, dims):
        """Notes sizes, with what is written in the graph where they are not known."""
        told = list(value.shape) if value.shape is not None else None
        if dims is None:
            if told is None:
                return
            dims = [None] * len(told)
        told = told if told is not None and len(told) == len(dims) else [None] * len(dims)
        self.dims[value] = [
            number(known)
            if isinstance(known, int)
            else (Size(Fraction(1), ((value, axis),)) if size is None else size)
            for axis, (size, known) in enumerate(zip(dims, told, strict=True))
        ]

    def _enter(self, loop):
        """A body, whose states have the sizes of the values at the start if all steps keep them."""
        body = loop.attributes["body"].value
        for value in loop.inputs:
            if value is not None and value not in self.dims:
                self._know(value)
        states = list(zip(body.inputs[2:], loop.inputs[2:], body.outputs[1:], strict=False))
        kept = {inner: self.dims.get(first) for inner, first, _ in states}
        while True:
            before = dict(self.dims), dict(self.items)
            for value in body.inputs[:2]:
                self._settle(value, [])
            for inner, dims in kept.items():
                if dims is None:
                    self._leave(inner)
                else:
                    self.dims[inner] = dims
            self._walk(body)
            for value in body.outputs:
                if value not in self.dims:
                    self._know(value)
            lost = [
                inner
                for inner, _, after in states
                if kept[inner] is not None and self.dims.get(after) != kept[inner]
            ]
            if not lost:
                break
            self.dims, self.items = before
            for inner in lost:
                kept[inner] = None
        for i, value in enumerate(loop.outputs):
            if i < len(states):
                self._settle(value, kept[states[i][0]])
                continue
            row = self.dims.get(body.outputs[1 + i])
            self._settle(value, None if row is None else [None, *_outside(body, row)])


def _outside(body, dims):
    """The sizes, with `None` for those that only a step knows."""
    inside = {*body.inputs, *(value for node in body for value in node.outputs)}
    return [None if {value for value, _ in size.parts} & inside else size for size in dims]
