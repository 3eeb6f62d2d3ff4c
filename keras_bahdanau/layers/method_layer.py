"""Methods of layers on the symbolic tensors of a functional model."""

import functools
import inspect
import json

import keras

from keras_bahdanau.layers.parts import deserialized, serialized
from keras_bahdanau.layers.recurrence import flatten

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
                    "keras_bahdanau.layers.method_layer.named_in_configs. "
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
