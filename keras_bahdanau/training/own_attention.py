"""The attention mechanism of a run that the user has written."""

import inspect

from keras_bahdanau.layers.attention.base import Attention
from keras_bahdanau.layers.attention.check import check_attention
from keras_bahdanau.user_modules import import_user_module, split_class
from keras_bahdanau_runtime.errors import argument_error


def attention_class(text):
    """Import the class that the option `attention` names.

    Args:
        text: MODULE:CLASS or FILE.py:CLASS.

    Raises:
        ValueError: If the module or the class does not exist, or is not an `Attention`.
    """
    module, name = split_class("attention", text)
    value = getattr(import_user_module("attention", module), name, None)
    if not (isinstance(value, type) and issubclass(value, Attention)):
        raise argument_error(
            "attention",
            "name a subclass of keras_bahdanau.layers.Attention",
            received=f"{text!r}, which {'does not exist' if value is None else f'is {value!r}'}",
        )
    return value


def own_attention(options):
    """Return a new layer of the class that `options.attention` names.

    Args:
        options: `TrainingOptions` with `attention`.

    Raises:
        ValueError: As `attention_class`, or if the class needs other arguments than `units`.
    """
    cls = attention_class(options.attention)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    kinds = inspect.Parameter
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is kinds.empty
        and parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    takes_keras_arguments = any(parameter.kind == kinds.VAR_KEYWORD for parameter in parameters)
    if not {*required} <= {"units"} or not takes_keras_arguments:
        raise argument_error(
            "attention",
            "name a class with no required arguments except `units`, and with **kwargs for "
            "keras.layers.Layer",
            received=f"{options.attention!r}, with the arguments "
            f"({', '.join(map(str, parameters))})",
        )
    arguments = {"units": options.attention_units} if required else {}
    return cls(**arguments, name="attention", dtype="float32")


def check_own_attention(options, attention):
    """Raise a `ValueError` of one line unless the built layer passes `check_attention`."""
    try:
        check_attention(attention)
    except ValueError as error:
        raise argument_error(
            "attention",
            "pass `check_attention`, because it would decode wrongly or could not be exported",
            received=f"{options.attention!r}: {' '.join(str(error).splitlines())}",
        ) from error
