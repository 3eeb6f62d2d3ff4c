"""Base class of the layers over sequences, and the masks and loops over time that they share."""

import functools
import inspect
import itertools
import json

import keras
from keras import ops, tree

from keras_bahdanau.layers.sublayers import deserialized, serialized


class SequenceLayer(keras.layers.Layer):
    """Names an input that a layer cannot read, before Keras builds the layer; a mixin of layers."""

    def __call__(self, *args, **kwargs):
        owner, names, required, takes_any = type(self).__name__, *_inputs(type(self).call)
        for name in kwargs:
            if name.endswith("mask") and name not in names and not takes_any:
                known = [each for each in names if each.endswith("mask") and each[:4] != "use_"]
                masks = " or ".join(known) or "no argument"
                raise ValueError(
                    f"{owner} has no argument `{name}`; write {masks} for a mask. "
                    f"Received: `{name}`"
                )
        given = dict(zip(names, args, strict=False)) | kwargs
        for name in required:
            if given.get(name) is None:
                raise ValueError(
                    f"Argument `{name}` of {owner} must be a tensor; call the layer with "
                    f"({', '.join(required)}). Received: None"
                )
        check_dense(owner, **given)
        return super().__call__(*args, **kwargs)


@functools.cache
def _inputs(call):
    """Names of the arguments of a layer's `call`, those without a default, and if it takes any."""
    parameters = list(inspect.signature(call).parameters.values())[1:]
    named = [
        part for part in parameters if part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD)
    ]
    required = [part.name for part in named if part.default is part.empty]
    takes_any = any(part.kind == part.VAR_KEYWORD for part in parameters)
    return [part.name for part in named], required, takes_any


def check_dense(owner, **tensors):
    """Raises a `ValueError` that names the first of `tensors` that is ragged or sparse.

    Args:
        owner: Name of the layer, for the message.
        **tensors: Tensors of any backend, or lists of them.
    """
    for name, tensor in tensors.items():
        for part in tensor if isinstance(tensor, (list, tuple)) else [tensor]:
            kind = _storage(part)
            if kind is not None:
                raise ValueError(
                    f"Argument `{name}` of {owner} must be a dense tensor; pad a ragged one at the "
                    "right, such as by TensorFlow's `to_tensor()`, and pass a mask of its real "
                    f"places. Received: a {kind} {type(part).__name__}"
                )


def _storage(tensor):
    """What a tensor is if it is not dense, "ragged" or "sparse"; else `None`."""
    # `keras.KerasTensor` has the first two of these, and each backend has its own.
    if any(getattr(tensor, name, False) is True for name in ("ragged", "is_nested")):
        return "ragged"
    if any(getattr(tensor, name, False) is True for name in ("sparse", "is_sparse")):
        return "sparse"
    if hasattr(tensor, "row_splits"):
        return "ragged"
    return "sparse" if hasattr(tensor, "dense_shape") or hasattr(tensor, "todense") else None


def check_widths(**shapes):
    """Raises a `ValueError` that names the first of `shapes` whose last axis is unknown."""
    for name, shape in shapes.items():
        if shape[-1] is None:
            raise ValueError(
                f"Argument `{name}` must have a known width, its last axis; write "
                f"keras.Input((None, 64)) for one of 64. Received: shape {tuple(shape)}"
            )


# Named tuples by their names, which configs hold.
_NAMED_TUPLES: dict[str, type] = {}


def named_in_configs(named_tuple):
    """Lets configs hold a named tuple of tensors; a decorator of its class."""
    _NAMED_TUPLES[named_tuple.__name__] = named_tuple
    return named_tuple


def symbolic(method):
    """Calls a method of a layer as a layer of its own where it gets symbolic tensors; a decorator.

    A functional model tracks the weights of its layers alone, and a reshape of symbolic tensors has
    no number for an unknown batch size. A `MethodLayer` tracks the weights and runs the method on
    real tensors. With real tensors the method is called as it is.

    Args:
        method: A method whose arguments and results are tensors in nests of tuples and lists, and
            Python's constants.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if not (_has_symbolic(args) or _has_symbolic(list(kwargs.values()))):
            return method(self, *args, **kwargs)
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        del arguments[next(iter(signature.parameters))]  # self
        structure, tensors = _split(arguments)
        layer = MethodLayer(self, method.__name__, structure, dtype=self.dtype_policy)
        outputs = layer(tensors)
        return _join(layer.result, outputs)

    return call


def _has_symbolic(values):
    return any(isinstance(value, keras.KerasTensor) for value in flatten(values))


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class MethodLayer(keras.layers.Layer):
    """One method of a layer as a layer; what a method makes and calls of symbolic tensors.

    Args:
        layer: A built layer.
        method: Name of the method.
        arguments: The structure of its arguments, a JSON text that `_split` made.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        tensors: List of the tensors among the arguments.
        training: The method's `training`, unless its arguments have one.

    Returns:
        A list of the tensors in the method's result.

    Attributes:
        result: The structure of the method's result; `None` before the first call.

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
        # Each tensor keeps its dtype: attention states are float32 under mixed precision.
        super().__init__(autocast=False, **kwargs)
        self.layer = layer
        self.method = method
        self.arguments = arguments
        self.result = None

    def build(self, shapes):
        """Makes nothing: `layer` is built before its methods are called."""

    def call(self, tensors, training=None):
        method = getattr(self.layer, self.method)
        arguments = _join(self.arguments, tensors)
        if "training" in inspect.signature(method).parameters:
            arguments = {"training": training} | arguments
        self.result, outputs = _split(method(**arguments))
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


def _split(nest):
    """The structure of a nest as a JSON text, and the list of its tensors."""
    tensors = []

    def structure_of(value):
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"constant": value}
        if isinstance(value, dict):
            return {"dict": {name: structure_of(part) for name, part in value.items()}}
        if not isinstance(value, (tuple, list)):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        parts = [structure_of(part) for part in value]
        if hasattr(value, "_fields"):
            name = type(value).__name__
            if _NAMED_TUPLES.get(name) is not type(value):
                raise ValueError(
                    f"{name} must be a named tuple that configs can hold; decorate its class with "
                    "keras_bahdanau.layers.sequences.named_in_configs. "
                    f"Received: {type(value)!r}"
                )
            return {"named_tuple": name, "parts": parts}
        return {"parts": parts}

    return json.dumps(structure_of(nest)), tensors


def _join(structure, tensors):
    """The nest of a structure and the list of its tensors, with tuples for lists."""

    def nest_of(part):
        if "constant" in part:
            return part["constant"]
        if "tensor" in part:
            return tensors[part["tensor"]]
        if "dict" in part:
            return {name: nest_of(of) for name, of in part["dict"].items()}
        parts = [nest_of(of) for of in part["parts"]]
        name = part.get("named_tuple")
        return tuple(parts) if name is None else _NAMED_TUPLES[name](*parts)

    return nest_of(json.loads(structure))


def checked_mask(name, mask, sequences):
    """A mask over the time axis of `sequences` as a tensor, after a look at its shape and dtype.

    Args:
        name: What the caller calls the mask, for the message.
        mask: `(B, T)` bool, True = keep, or `None`.
        sequences: `(B, T, D)` tensor.

    Returns:
        The mask as a tensor, or `None`.

    Raises:
        ValueError: If the mask is not bool or not shaped like the sequences.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    expected = tuple(sequences.shape[:2])
    fits = len(mask.shape) == 2 and all(
        None in (size, of) or size == of for size, of in zip(mask.shape, expected, strict=True)
    )
    if not fits or keras.backend.standardize_dtype(mask.dtype) != "bool":
        raise ValueError(
            f"Argument `{name}` must be bool of shape {expected}, True = keep. "
            f"Received: {keras.backend.standardize_dtype(mask.dtype)} of shape {tuple(mask.shape)}"
        )
    return mask


def zero_masked(values, mask=None):
    """Sets the rows of `values` that `mask` drops to zero, whatever they held.

    Args:
        values: `(B, Tx, D)` tensor; NaN and inf at masked places do not survive.
        mask: `(B, Tx)` bool tensor, or `None` to keep everything.

    Returns:
        A tensor shaped like `values`.
    """
    if mask is None:
        return values
    return ops.where(ops.expand_dims(mask, -1), values, ops.zeros_like(values))


def sequence_lengths(mask):
    """Number of kept steps in each row.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B,)` int32 tensor.
    """
    return ops.sum(ops.cast(mask, "int32"), axis=1)


def kept_first(mask):
    """An order of the steps in which the kept ones come first, and keep their order.

    Gathered in this order, a sequence with any mask is one that is padded at the right.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, Tx)` int32 tensor of step numbers.

    Example:

    >>> import numpy as np
    >>> [int(step) for step in kept_first(np.array([[False, True, False, True]]))[0]]
    [1, 3, 0, 2]
    """
    steps = ops.shape(mask)[1]
    places = ops.arange(steps, dtype="int32")
    return ops.cast(ops.argsort(ops.where(mask, places, places + steps), axis=1), "int32")


def kept_so_far(mask):
    """The number of the last kept step up to each step, counted among the kept ones from 0.

    For kept steps it is the inverse of `kept_first`.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B, Tx)` int32 tensor, -1 before the first kept step.

    Example:

    >>> import numpy as np
    >>> [int(number) for number in kept_so_far(np.array([[False, True, False, True]]))[0]]
    [-1, 0, 0, 1]
    """
    return ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1


def take_steps(sequences, steps):
    """Gather steps of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        steps: `(B, T)` int32 tensor of step numbers.

    Returns:
        `(B, T, D)` tensor.
    """
    return ops.take_along_axis(sequences, ops.expand_dims(steps, -1), axis=1)


def repeat_kept(sequences, mask=None):
    """Sets each masked step to the kept step before it, or to zero where there is none.

    It is what `keras.layers.RNN` returns at masked steps.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None` if every step is kept.

    Returns:
        A tensor shaped like `sequences`.

    Example:

    >>> import numpy as np
    >>> outputs = np.array([[[1.0], [2.0], [3.0]]])
    >>> repeated = repeat_kept(outputs, np.array([[False, True, False]]))
    >>> [float(x) for x in repeated[0, :, 0]]
    [0.0, 2.0, 2.0]
    """
    if mask is None:
        return sequences
    number = kept_so_far(mask)
    places = ops.take_along_axis(kept_first(mask), ops.maximum(number, 0), axis=1)
    return zero_masked(take_steps(sequences, places), number >= 0)


def reduce_last_axis(extreme, values, keepdims=False):
    """`ops.max` or `ops.min` over the last axis, which Keras refuses to compute of an empty batch.

    The sum of an empty batch has the same shape, and like the extreme no numbers.
    """
    is_empty = 0 in tuple(values.shape[:-1])
    return (ops.sum if is_empty else extreme)(values, axis=-1, keepdims=keepdims)


def last_places(mask):
    """The last kept place of each row, wherever its padding stands.

    Args:
        mask: `(B, Tx)` bool tensor.

    Returns:
        `(B,)` int32 tensor, -1 for a row that is masked as a whole.

    Example:

    >>> import numpy as np
    >>> [int(place) for place in last_places(np.array([[True, False], [False, True]]))]
    [0, 1]
    """
    places = ops.arange(ops.shape(mask)[1], dtype="int32")
    return reduce_last_axis(ops.max, ops.where(mask, places, -1))


def last_step(sequences, mask=None):
    """The last kept step of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor, or `None`. A fully masked row yields its first step.

    Returns:
        `(B, D)` tensor.
    """
    if mask is None:
        return sequences[:, -1]
    last = ops.maximum(last_places(mask), 0)
    return ops.squeeze(take_steps(sequences, ops.expand_dims(last, -1)), axis=1)


def first_step(sequences, mask):
    """The first kept step of each row.

    Args:
        sequences: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool tensor. A fully masked row yields its first step.

    Returns:
        `(B, D)` tensor.
    """
    first = ops.argmax(ops.cast(mask, "int32"), axis=1)
    return ops.squeeze(take_steps(sequences, ops.expand_dims(first, -1)), axis=1)


def reverse_by_length(sequences, lengths=None):
    """Reverses the first `lengths[b]` steps of each row and leaves the padding where it is.

    Applying it twice gives the input back. It lets an unmasked recurrent layer, which every
    backend runs fast, read sequences padded at the right backwards.

    Args:
        sequences: `(B, Tx, D)` tensor.
        lengths: `(B,)` int32 tensor, or `None` when every row is full.

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
    return take_steps(sequences, order)


def call_masked(layer, sequences, mask, right_padded=False, **arguments):
    """What a layer makes of sequences.

    One that takes no mask reads zeros at masked places, as does a model, whose first layer may take
    none. `right_padded` is passed to a layer whose `call` has an argument of this name.
    """
    parameters = inspect.signature(layer.call).parameters
    anything = any(of.kind == of.VAR_KEYWORD for of in parameters.values())
    takes_mask = anything or "mask" in parameters
    if isinstance(layer, keras.Model) or not takes_mask:
        sequences = zero_masked(sequences, mask)
    if takes_mask:
        arguments["mask"] = mask
    if "right_padded" in parameters:
        arguments["right_padded"] = right_padded
    return layer(sequences, **arguments)


def run_over_time(step, inputs, state, dtype):
    """Runs `step` over the time axis of `inputs`.

    `keras.layers.RNN` has the loop that TensorFlow and JAX run, differentiate and compile well,
    but no place for what a step reads besides its state; torch has Python's.
    The step given here may close over tensors, such as a memory, so nothing is kept on a layer
    between calls; and it is told its number `t`, by which it takes its row of what was drawn for
    all steps beforehand.

    Args:
        step: `(t, inputs (B, M), state) -> (outputs, state)`; `t` is an int32 scalar tensor, 0 at
            first; `outputs` is a list of `(B, width)` tensors, of which only the last may have a
            width that is unknown while tracing; `state` is a nest of the same structure, shapes
            and dtypes as the one given.
        inputs: `(B, T, M)` tensor.
        state: Nest of `(B, size)` tensors before the first step, each of any dtype.
        dtype: Dtype of the outputs, which leave the loop together.

    Returns:
        A list of `(B, T, width)` tensors of `dtype`, one for each output of the step.

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
        return _run_in_python(step, inputs, state, dtype)
    cell = _StepCell(step, state, dtype)
    loop = keras.layers.RNN(cell, return_sequences=True, dtype=dtype)
    emitted = loop.call(ops.convert_to_tensor(inputs), initial_state=flatten(state))
    # The last output reaches to the end: its width may be known only when the graph runs.
    ends = [sum(cell.widths[:i]) for i in range(len(cell.widths))] + [None]
    parts = [emitted[..., start:end] for start, end in itertools.pairwise(ends)]
    return [_with_width(part, width) for part, width in zip(parts, cell.widths, strict=True)]


def _run_in_python(step, inputs, state, dtype):
    """The loop on torch, where any is one of Python.

    That of Keras takes the first step twice or, unrolled, joins the outputs of each step and makes
    a layer at every call, which `torch.compile` refuses.
    """
    (t, state), emitted = state, []
    for x in ops.unstack(ops.convert_to_tensor(inputs), axis=1):
        outputs, state = step(t, x, state)
        emitted.append(outputs)
        t = t + 1
    return [ops.cast(ops.stack(parts, axis=1), dtype) for parts in zip(*emitted, strict=True)]


def _with_width(part, width):
    # A slice of an axis of unknown length has an unknown length itself on TensorFlow.
    return part if part.shape[-1] == width else ops.reshape(part, (*ops.shape(part)[:-1], width))


class _StepCell:
    """A step function, with its number as one more state, as the cell of a `keras.layers.RNN`."""

    # Keras casts states to the dtype of the cell. Without one each keeps its own, so that under
    # half precision no number of a step and no weight of an attention is rounded.
    compute_dtype = None
    # Keras makes no first states here: they are given.
    state_size = ()

    def __init__(self, step, state, dtype):
        self.step, self.state, self.dtype = step, state, dtype
        self.widths = []

    def call(self, inputs, states):
        t, state = pack(self.state, states)
        outputs, state = self.step(t, inputs, state)
        self.widths = [part.shape[-1] for part in outputs]
        outputs = [ops.cast(part, self.dtype) for part in outputs]
        return ops.concatenate(outputs, axis=-1), [t + 1, *flatten(state)]

    __call__ = call


def held(kept, after, before):
    """The state after a step, and the one before it in rows whose step is masked.

    Args:
        kept: `(B,)` bool tensor, False for a row whose step is masked.
        after: Nest of `(B, ...)` tensors.
        before: Nest of the same structure, shapes and dtypes.

    Returns:
        A nest of the same structure.
    """
    pairs = zip(flatten(after), flatten(before), strict=True)
    return pack(before, [_where_row(kept, *pair) for pair in pairs])


def _where_row(kept, new, old):
    return ops.where(ops.reshape(kept, (-1, *[1] * (len(new.shape) - 1))), new, old)


def flatten(state):
    """The tensors of a nest of tuples and lists, in order.

    `keras.tree` takes any structure, and in a loop on torch more time than the products of a step.

    Example:

    >>> flatten((1, [2, ()], 3))
    [1, 2, 3]
    """
    if not isinstance(state, (tuple, list)):
        return [state]
    return [tensor for part in state for tensor in flatten(part)]


def pack(template, tensors):
    """The nest `template`, of tuples and lists, with one of `tensors` in each of its places.

    Example:

    >>> pack((0, [0, ()], 0), [1, 2, 3])
    (1, [2, ()], 3)
    """
    return _pack(template, iter(tensors))


def _pack(template, tensors):
    if not isinstance(template, (tuple, list)):
        return next(tensors)
    parts = [_pack(part, tensors) for part in template]
    return type(template)(*parts) if hasattr(template, "_fields") else type(template)(parts)
