"""Base class of the layers over sequences, and the masks and loops over time that they share.

Masks are boolean, True = keep. They may have any pattern unless a function requires padding at the
right.
"""

import functools
import inspect
import itertools
import json

import keras
from keras import ops, tree

from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.errors import argument_error


class SequenceLayer(keras.layers.Layer):
    """Base class that checks the arguments of a call before Keras builds the layer.

    Raises:
        ValueError: If a required argument is missing, an argument is ragged or sparse, or a mask is
            passed under a name that the layer does not have.
    """

    def __call__(self, *args, **kwargs):
        owner = type(self).__name__
        names, required, has_kwargs = _call_arguments(type(self).call)
        for name in kwargs:
            if name.endswith("mask") and name not in names and not has_kwargs:
                masks = [other for other in names if other.endswith("mask") and other[:4] != "use_"]
                raise ValueError(
                    f"{owner} has no argument `{name}`; write {' or '.join(masks) or 'no argument'}"
                    f" for a mask. Received: `{name}`"
                )
        arguments = dict(zip(names, args, strict=False)) | kwargs
        for name in required:
            if arguments.get(name) is None:
                raise argument_error(
                    name,
                    f"be a tensor; call the layer with ({', '.join(required)})",
                    received="None",
                    of=owner,
                )
        check_dense(owner, **arguments)
        return super().__call__(*args, **kwargs)


@functools.cache
def _call_arguments(call):
    """Return the argument names of a `call` method.

    Returns:
        `(names, required, has_kwargs)`: all names, those without a default value, and whether the
        method accepts any keyword arguments.
    """
    parameters = list(inspect.signature(call).parameters.values())[1:]  # without `self`
    has_kwargs = any(p.kind == p.VAR_KEYWORD for p in parameters)
    parameters = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty]
    return [p.name for p in parameters], required, has_kwargs


def check_dense(owner, **tensors):
    """Raise a `ValueError` if one of `tensors` is ragged or sparse.

    Args:
        owner: Name of the layer, for the message.
        **tensors: Tensors of any backend, or lists of them.
    """
    for name, value in tensors.items():
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            kind = _storage_kind(tensor)
            if kind is not None:
                raise argument_error(
                    name,
                    "be a dense tensor; pad a ragged one at the right, for example by "
                    "TensorFlow's `to_tensor()`, and pass a mask of its real positions",
                    received=f"a {kind} {type(tensor).__name__}",
                    of=owner,
                )


def _storage_kind(tensor):
    """Return "ragged" or "sparse", or `None` for a dense tensor."""
    # `keras.KerasTensor` has `ragged` and `sparse`; each backend has its own attributes.
    if any(getattr(tensor, name, False) is True for name in ("ragged", "is_nested")):
        return "ragged"
    if any(getattr(tensor, name, False) is True for name in ("sparse", "is_sparse")):
        return "sparse"
    if hasattr(tensor, "row_splits"):
        return "ragged"
    return "sparse" if hasattr(tensor, "dense_shape") or hasattr(tensor, "todense") else None


def check_widths(**shapes):
    """Raise a `ValueError` if the last axis of one of `shapes` is unknown."""
    for name, shape in shapes.items():
        if shape[-1] is None:
            raise argument_error(
                name,
                "have a known width, its last axis; write keras.Input((None, 64)) for width 64",
                received=f"shape {tuple(shape)}",
            )


# --- Methods on symbolic tensors ------------------------------------------------------------------

# Named tuple classes by name. Configs of `MethodLayer` contain these names.
_NAMED_TUPLES: dict[str, type] = {}


def register_named_tuple(named_tuple):
    """Register a named tuple of tensors for configs, as a class decorator.

    A memory or a state of your own attention mechanism needs it.

    Raises:
        ValueError: If another module has registered a class of the same name.

    Example:

    >>> from typing import Any, NamedTuple
    >>> @register_named_tuple
    ... class WindowMemory(NamedTuple):
    ...     keys: Any
    ...     values: Any
    ...     mask: Any = None
    ...     dropout: Any = None
    ...     widths: Any = None
    """
    taken = _NAMED_TUPLES.setdefault(named_tuple.__name__, named_tuple)
    if taken.__module__ != named_tuple.__module__:
        raise argument_error(
            "named_tuple",
            f"have another name, because {taken.__module__} has registered {taken.__name__}",
            named_tuple,
        )
    _NAMED_TUPLES[named_tuple.__name__] = named_tuple
    return named_tuple


def accepts_symbolic_tensors(method):
    """Make a method of a layer usable in functional models, as a decorator.

    A functional model tracks the weights of the layers that it calls, but not of their other
    methods. On symbolic tensors the decorated method runs inside of a `MethodLayer`, which the
    model tracks. On real tensors it is called directly.

    Args:
        method: A method whose arguments and results are tensors and Python constants in nested
            tuples, lists and dicts.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if not (_has_symbolic(args) or _has_symbolic(list(kwargs.values()))):
            return method(self, *args, **kwargs)
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        del arguments[next(iter(signature.parameters))]  # self
        structure, tensors = _encode_nest(arguments)
        layer = MethodLayer(self, method.__name__, structure, dtype=self.dtype_policy)
        outputs = layer(tensors)
        return _decode_nest(layer.result, outputs)

    return call


def _has_symbolic(values):
    return any(isinstance(value, keras.KerasTensor) for value in flatten(values))


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class MethodLayer(keras.layers.Layer):
    """A method of a layer, as a layer of a functional model.

    Args:
        layer: A built layer.
        method: Name of the method.
        arguments: Structure of the method's arguments, a JSON text of `_encode_nest`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        tensors: List of the tensors in the arguments.
        training: Value of the method's `training`, if it has this argument and `arguments` does
            not contain it.

    Returns:
        List of the tensors in the method's result.

    Attributes:
        result: Structure of the method's result, a JSON text; `None` before the first call.

    Example:

    >>> import keras
    >>> attention = BahdanauAttention(4)
    >>> attention.build((None, 3), (None, None, 6))
    >>> query, values = keras.Input((3,)), keras.Input((None, 6))
    >>> context, weights, _ = attention.step(query, attention.memory(values))
    >>> keras.Model([query, values], [context, weights]).count_params() == attention.count_params()
    True
    """

    def __init__(self, layer, method: str, arguments: str, **kwargs):
        # No autocast: attention states are float32 under mixed precision.
        super().__init__(autocast=False, **kwargs)
        self.layer = layer
        self.method = method
        self.arguments = arguments
        self.result = None

    def build(self, shapes):
        """Do nothing: `layer` is built already."""

    def call(self, tensors, training=None):
        method = getattr(self.layer, self.method)
        arguments = _decode_nest(self.arguments, tensors)
        if "training" in inspect.signature(method).parameters:
            arguments = {"training": training} | arguments
        self.result, outputs = _encode_nest(method(**arguments))
        return outputs

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, "layer"),
            "method": self.method,
            "arguments": self.arguments,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "layer"))


def _encode_nest(nest):
    """Return the structure of a nest as a JSON text, and the list of its tensors."""
    tensors = []

    def encode(value):
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"constant": value}
        if isinstance(value, dict):
            return {"dict": {name: encode(item) for name, item in value.items()}}
        if not isinstance(value, (tuple, list)):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        items = [encode(item) for item in value]
        if hasattr(value, "_fields"):
            name = type(value).__name__
            if _NAMED_TUPLES.get(name) is not type(value):
                raise ValueError(
                    f"{name} must be a registered named tuple; decorate its class with "
                    "keras_bahdanau.layers.register_named_tuple. "
                    f"Received: {type(value)!r}"
                )
            return {"named_tuple": name, "parts": items}
        return {"parts": items}

    return json.dumps(encode(nest)), tensors


def _decode_nest(structure, tensors):
    """Return the nest of a structure and the list of its tensors. Lists become tuples."""

    def decode(node):
        if "constant" in node:
            return node["constant"]
        if "tensor" in node:
            return tensors[node["tensor"]]
        if "dict" in node:
            return {name: decode(item) for name, item in node["dict"].items()}
        items = [decode(item) for item in node["parts"]]
        name = node.get("named_tuple")
        return tuple(items) if name is None else _NAMED_TUPLES[name](*items)

    return decode(json.loads(structure))


# --- Masks and steps ------------------------------------------------------------------------------


def checked_mask(name, mask, sequences):
    """Check the shape and dtype of a mask over time, and return it as a tensor.

    Args:
        name: Name of the argument, for the message.
        mask: `(B, T)` bool, True = keep, or `None`.
        sequences: `(B, T, D)` tensor.

    Returns:
        The mask as a tensor, or `None`.

    Raises:
        ValueError: If the mask is not bool or not of shape `(B, T)`.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    batch, time = sequences.shape[:2]
    check_shape(name, mask, "batch time", "bool", ", True = keep", batch=batch, time=time)
    return mask


def zero_masked(values, mask=None):
    """Set masked steps to zero.

    Args:
        values: `(B, Tx, D)` tensor; masked steps may be NaN or inf.
        mask: `(B, Tx)` bool tensor, or `None` to keep all steps.

    Returns:
        A tensor shaped like `values`.
    """
    if mask is None:
        return values
    return ops.where(ops.expand_dims(mask, -1), values, ops.zeros_like(values))


def sequence_lengths(mask):
    """Return the number of kept steps in each row.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B,)` int32 tensor.
    """
    return ops.sum(ops.cast(mask, "int32"), axis=1)


def order_kept_first(mask):
    """Return the order of steps that moves the kept ones to the front.

    A sequence gathered in this order is padded at the right.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, Tx)` int32 tensor of step indices.

    Example:

    >>> import numpy as np
    >>> [int(step) for step in order_kept_first(np.array([[False, True, False, True]]))[0]]
    [1, 3, 0, 2]
    """
    steps = ops.shape(mask)[1]
    indices = ops.arange(steps, dtype="int32")
    return ops.cast(ops.argsort(ops.where(mask, indices, indices + steps), axis=1), "int32")


def index_among_kept(mask):
    """Return the index of each step among the kept steps of its row.

    A masked step has the index of the kept step before it. For kept steps this is the inverse of
    `order_kept_first`.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, Tx)` int32 tensor, -1 before the first kept step.

    Example:

    >>> import numpy as np
    >>> [int(index) for index in index_among_kept(np.array([[False, True, False, True]]))[0]]
    [-1, 0, 0, 1]
    """
    return ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1


def gather_steps(sequences, indices):
    """Gather steps of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        indices: `(B, T)` int32 tensor of step indices.

    Returns:
        `(B, T, D)` tensor.
    """
    return ops.take_along_axis(sequences, ops.expand_dims(indices, -1), axis=1)


def repeat_last_kept(sequences, mask=None):
    """Set each masked step to the last kept step before it, or to zero if there is none.

    `keras.layers.RNN` returns the same at masked steps.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None` to keep all steps.

    Returns:
        A tensor shaped like `sequences`.

    Example:

    >>> import numpy as np
    >>> outputs = np.array([[[1.0], [2.0], [3.0]]])
    >>> repeated = repeat_last_kept(outputs, np.array([[False, True, False]]))
    >>> [float(x) for x in repeated[0, :, 0]]
    [0.0, 2.0, 2.0]
    """
    if mask is None:
        return sequences
    rank = index_among_kept(mask)
    indices = ops.take_along_axis(order_kept_first(mask), ops.maximum(rank, 0), axis=1)
    return zero_masked(gather_steps(sequences, indices), rank >= 0)


def last_kept_index(mask):
    """Return the index of the last kept step in each row.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B,)` int32 tensor, -1 for a fully masked row.

    Example:

    >>> import numpy as np
    >>> [int(index) for index in last_kept_index(np.array([[True, False], [False, True]]))]
    [0, 1]
    """
    indices = ops.arange(ops.shape(mask)[1], dtype="int32")
    return reduce_last_axis(ops.max, ops.where(mask, indices, -1))


def last_kept_step(sequences, mask=None):
    """Return the last kept step of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None`.

    Returns:
        `(B, D)` tensor; for a fully masked row its first step.
    """
    if mask is None:
        return sequences[:, -1]
    last = ops.maximum(last_kept_index(mask), 0)
    return ops.squeeze(gather_steps(sequences, ops.expand_dims(last, -1)), axis=1)


def first_kept_step(sequences, mask):
    """Return the first kept step of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, D)` tensor; for a fully masked row its first step.
    """
    first = ops.argmax(ops.cast(mask, "int32"), axis=1)
    return ops.squeeze(gather_steps(sequences, ops.expand_dims(first, -1)), axis=1)


def reverse_by_length(sequences, lengths=None):
    """Reverse the first `lengths[b]` steps of each row and leave the padding in its place.

    Applied twice, it returns its input. With it a recurrent layer without a mask, which every
    backend runs fast, can read right-padded sequences backwards.

    Args:
        sequences: `(B, Tx, D)` tensor.
        lengths: `(B,)` int32 tensor, or `None` if no row is padded.

    Returns:
        A tensor shaped like `sequences`.

    Example:

    >>> import numpy as np
    >>> reversed_ = reverse_by_length(np.array([[[1.0], [2.0], [0.0]]]), np.array([2]))
    >>> [float(x) for x in reversed_[0, :, 0]]
    [2.0, 1.0, 0.0]
    """
    if lengths is None:
        return ops.flip(sequences, axis=1)
    steps = ops.expand_dims(ops.arange(ops.shape(sequences)[1], dtype="int32"), 0)
    lengths = ops.expand_dims(ops.cast(lengths, "int32"), 1)
    order = ops.where(steps < lengths, lengths - 1 - steps, steps)
    return gather_steps(sequences, order)


def reduce_last_axis(reduce, values, keepdims=False):
    """Return `ops.max` or `ops.min` over the last axis, also for an empty batch.

    Keras refuses to compute the extreme of an empty tensor. The sum has the same shape, and it is
    as empty.
    """
    is_empty = 0 in tuple(values.shape[:-1])
    return (ops.sum if is_empty else reduce)(values, axis=-1, keepdims=keepdims)


def call_masked(layer, sequences, mask, right_padded=False, **arguments):
    """Call a layer on masked sequences.

    A layer without a `mask` argument gets zeros at masked steps. So does a model, because its first
    layer may have no such argument.

    Args:
        layer: The layer or model.
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None`.
        right_padded: Passed to a layer whose `call` has an argument of this name.
        **arguments: Passed to the layer.
    """
    parameters = inspect.signature(layer.call).parameters
    has_kwargs = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    has_mask = has_kwargs or "mask" in parameters
    if isinstance(layer, keras.Model) or not has_mask:
        sequences = zero_masked(sequences, mask)
    if has_mask:
        arguments["mask"] = mask
    if "right_padded" in parameters:
        arguments["right_padded"] = right_padded
    return layer(sequences, **arguments)


def without_none(*outputs):
    """Return the outputs of a call that are not `None`: a tensor, or a tuple of several."""
    kept = tuple(output for output in outputs if output is not None)
    return kept if len(kept) > 1 else kept[0]


def as_list(outputs):
    """Return the outputs of a layer, one tensor or a tuple or list of tensors, as a list."""
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


# --- The loop over time ---------------------------------------------------------------------------


def run_over_time(step, inputs, state, dtype):
    """Run a step function over the time axis of `inputs`.

    TensorFlow and JAX run the loop of `keras.layers.RNN`, which they compile and differentiate
    well; torch runs a Python loop. The step function may close over tensors, such as a memory.
    Random numbers for all steps can be drawn before the loop and read at the step number.

    Args:
        step: `(t, inputs (B, M), state) -> (outputs, state)`. `t` is an int32 scalar tensor, 0 in
            the first step. `outputs` is a list of `(B, width)` tensors, of which only the last may
            have an unknown width while tracing. The returned `state` has the structure, shapes and
            dtypes of its input.
        inputs: `(B, T, M)` tensor.
        state: Nest of `(B, size)` tensors before the first step, of any dtypes.
        dtype: Dtype of the outputs, which are concatenated inside of the loop.

    Returns:
        A list of `(B, T, width)` tensors of `dtype`, one per output of the step.

    Example:

    >>> drawn, inputs = ops.ones((1, 3, 1)), ops.ones((1, 3, 1))
    >>> def step(t, x, total):
    ...     total = total + x + ops.take(drawn, t, axis=1)
    ...     return [total], total
    >>> (sums,) = run_over_time(step, inputs, ops.zeros((1, 1)), "float32")
    >>> [float(x) for x in sums[0, :, 0]]
    [2.0, 4.0, 6.0]
    """
    state = ops.convert_to_tensor(0, "int32"), tree.map_structure(ops.convert_to_tensor, state)
    if keras.config.backend() == "torch":
        return _run_python_loop(step, inputs, state, dtype)
    cell = _StepCell(step, state, dtype)
    loop = keras.layers.RNN(cell, return_sequences=True, dtype=dtype)
    outputs = loop.call(ops.convert_to_tensor(inputs), initial_state=flatten(state))
    # The last output has no end index: its width may be known only when the graph runs.
    ends = [sum(cell.widths[:i]) for i in range(len(cell.widths))] + [None]
    parts = [outputs[..., start:end] for start, end in itertools.pairwise(ends)]
    return [_restore_width(part, width) for part, width in zip(parts, cell.widths, strict=True)]


def _run_python_loop(step, inputs, state, dtype):
    """Run `step` in a Python loop, for torch.

    On torch `keras.layers.RNN` runs the first step twice. Unrolled it joins the outputs in every
    step and creates a layer in every call, which `torch.compile` does not support.
    """
    (t, state), steps = state, []
    for x in ops.unstack(ops.convert_to_tensor(inputs), axis=1):
        outputs, state = step(t, x, state)
        steps.append(outputs)
        t = t + 1
    return [ops.cast(ops.stack(parts, axis=1), dtype) for parts in zip(*steps, strict=True)]


def _restore_width(part, width):
    # On TensorFlow a slice of an axis of unknown length has an unknown length, too.
    return part if part.shape[-1] == width else ops.reshape(part, (*ops.shape(part)[:-1], width))


class _StepCell:
    """A step function as the cell of a `keras.layers.RNN`, with the step number in its state."""

    # Keras casts states to the dtype of the cell. `None` keeps the dtype of each state, so that
    # step numbers and attention weights are not rounded under half precision.
    compute_dtype = None
    # Keras creates no initial states here: they are passed to the loop.
    state_size = ()

    def __init__(self, step, state, dtype):
        self.step, self.state, self.dtype = step, state, dtype
        self.widths = []

    def call(self, inputs, states):
        t, state = pack(self.state, states)
        outputs, state = self.step(t, inputs, state)
        self.widths = [output.shape[-1] for output in outputs]
        outputs = [ops.cast(output, self.dtype) for output in outputs]
        return ops.concatenate(outputs, axis=-1), [t + 1, *flatten(state)]

    __call__ = call


def select_rows(keep, after, before):
    """Select the state after a step in kept rows, and the state before it in masked rows.

    Args:
        keep: `(B,)` bool tensor, False for masked rows.
        after: Nest of `(B, ...)` tensors.
        before: Nest of the same structure, shapes and dtypes.

    Returns:
        A nest of the same structure.
    """
    pairs = zip(flatten(after), flatten(before), strict=True)
    return pack(before, [_where_row(keep, *pair) for pair in pairs])


def _where_row(keep, after, before):
    return ops.where(ops.reshape(keep, (-1, *[1] * (len(after.shape) - 1))), after, before)


def flatten(nest):
    """Return the leaves of nested tuples and lists, in order.

    `keras.tree.flatten` supports any structure, but in a loop on torch it takes longer than the
    matrix products of a step.

    Example:

    >>> flatten((1, [2, ()], 3))
    [1, 2, 3]
    """
    if not isinstance(nest, (tuple, list)):
        return [nest]
    return [leaf for part in nest for leaf in flatten(part)]


def pack(template, leaves):
    """Return `template`, nested tuples and lists, with its leaves replaced by `leaves`.

    Example:

    >>> pack((0, [0, ()], 0), [1, 2, 3])
    (1, [2, ()], 3)
    """
    return _pack(template, iter(leaves))


def _pack(template, leaves):
    if not isinstance(template, (tuple, list)):
        return next(leaves)
    parts = [_pack(part, leaves) for part in template]
    return type(template)(*parts) if hasattr(template, "_fields") else type(template)(parts)
