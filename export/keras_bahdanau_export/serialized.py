"""What the serialized form of a model tells, and the model made anew from it in float32."""

import logging

import keras

logger = logging.getLogger("keras_bahdanau_export")

# Their weights are float32, and only what is computed with them is not.
_TRAINED_IN = ("mixed_bfloat16", "mixed_float16")
# Those of which there are operators in onnxruntime, and those that become float32.
_POLICIES = ("float32", "float64", "float16", *_TRAINED_IN)


def serialized_parts(model):
    """Every dict in the model's serialized form, but of what it was compiled with."""
    left = [keras.saving.serialize_keras_object(model)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left.extend(of for key, of in part.items() if key != "compile_config")
        elif isinstance(part, (list, tuple)):
            left.extend(part)


def lacking_elsewhere(model, imports):
    """What of a model's parts only this process has, and why.

    Args:
        model: A Keras model.
        imports: Whether another process imports modules beside those of the parts, which may
            register what is of `__main__` here.

    Returns:
        A sorted list of str.
    """
    return sorted(set(_lacking(model, imports)))


def _lacking(model, imports):
    for part in serialized_parts(model):
        kind, module = part.get("class_name"), str(part.get("module"))
        if kind == "__lambda__":
            yield "a lambda"
        elif kind == "function" and isinstance(part.get("config"), str):
            name = part["config"]
            found = keras.saving.get_registered_object(name)
            if found is None and not _is_of_keras(part):
                yield f"the function {name} (not registered)"
            elif getattr(found, "__module__", None) == "__main__" and not imports:
                yield f"the function {name} (of __main__)"
        elif "registered_name" in part and module.split(".")[0] != "keras":
            name = part["registered_name"]
            if name is not None and keras.saving.get_registered_object(name) is None:
                yield f"the class {kind} (not registered)"
            # Keras writes no module for what is of `__main__`.
            elif part.get("module") is None and name is not None and not imports:
                yield f"the class {kind} (of __main__)"


def _is_of_keras(function):
    """Whether this is the serialized form of a function of Keras, which has no module."""
    try:
        return keras.saving.deserialize_keras_object(function) is not None
    except TypeError:
        return False


def dtype_policies(model):
    """The names of the dtype policies that the model's layers compute by, a set of str."""
    return {_policy(part) for part in serialized_parts(model)} - {None}


def _policy(part):
    """The name of a serialized dtype policy; `None` of anything else."""
    if "DTypePolicy" not in str(part.get("class_name")):
        return None
    config = part.get("config", {})
    return str(config.get("name") or config.get("mode"))


def check_policies(model):
    """Raises a `ValueError` unless `in_float32` makes a model that onnxruntime has operators of."""
    policies = dtype_policies(model)
    if not policies <= set(_POLICIES):
        raise ValueError(
            f"Argument `model` must compute by the dtype policies {_POLICIES}. "
            f"Received: {sorted(policies)}. Make it anew with dtype='float32' and give it the "
            "weights: new.set_weights(model.get_weights())."
        )


def in_float32(model):
    """The model, or one with its weights that computes in float32 what it does in a mixture.

    Half precision with weights of float32 is for training: onnxruntime has no operators of bfloat16
    on a CPU, and what float16 rounds otherwise on another machine would make other translations.

    Args:
        model: A built Keras model; one with layers of the policy "mixed_bfloat16" or
            "mixed_float16" is made anew from its configuration.

    Raises:
        ValueError: It is to be made anew, and holds what Keras cannot: a class or function that is
            not registered, or a lambda.
    """
    mixed = sorted(dtype_policies(model) & set(_TRAINED_IN))
    if not mixed:
        return model
    logger.info("The model computes in %s: in float32 from here on.", " and ".join(mixed))
    lacking = lacking_elsewhere(model, imports=True)
    if lacking:
        raise ValueError(
            f"Argument `model`, which computes in {mixed[0]}, must hold only classes and functions "
            "under @keras.saving.register_keras_serializable(), so that it can be made anew. "
            f"Received: {', '.join(lacking)}"
        )
    usual = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # of layers that layers make without one of their own
    try:
        new = keras.saving.deserialize_keras_object(
            _in_float32(keras.saving.serialize_keras_object(model))
        )
        if not new.built:
            new.build()
    finally:
        keras.config.set_dtype_policy(usual)
    new.set_weights(model.get_weights())
    if getattr(model, "tokenizer", None) is not None:  # which no configuration holds
        new.tokenizer = model.tokenizer
    return new


def _in_float32(part):
    """A serialized form with another policy, and without what it was compiled with."""
    if isinstance(part, dict):
        if _policy(part) in _TRAINED_IN:
            part = {**part, "config": {**part["config"], "name": "float32"}}
        return {key: _in_float32(of) for key, of in part.items() if key != "compile_config"}
    if isinstance(part, (list, tuple)):
        return type(part)(map(_in_float32, part))
    return part
