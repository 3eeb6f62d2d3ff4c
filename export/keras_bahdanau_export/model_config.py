"""Checks of a model's serialized configuration, and conversion of mixed precision to float32."""

import logging

import keras

from keras_bahdanau_runtime.errors import argument_error

logger = logging.getLogger("keras_bahdanau_export")

# Policies with float32 weights and half-precision computation.
_MIXED_POLICIES = ("mixed_bfloat16", "mixed_float16")
# Policies that onnxruntime has operators for, and those that `to_float32` converts.
_SUPPORTED_POLICIES = ("float32", "float64", "float16", *_MIXED_POLICIES)


def config_dicts(model):
    """Yield every dict in the model's serialized configuration, except its `compile_config`."""
    stack = [keras.saving.serialize_keras_object(model)]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(value for key, value in node.items() if key != "compile_config")
        elif isinstance(node, (list, tuple)):
            stack.extend(node)


def unloadable_objects(model, imports):
    """Return the classes and functions of a model that another process could not load, and why.

    Args:
        model: A Keras model.
        imports: Whether the process imports modules in addition to those of the model's layers.
            These may register what is defined in `__main__` here.

    Returns:
        A sorted list of str.
    """
    return sorted(set(_unloadable_objects(model, imports)))


def _unloadable_objects(model, imports):
    for config in config_dicts(model):
        kind, module = config.get("class_name"), str(config.get("module"))
        if kind == "__lambda__":
            yield "a lambda"
        elif kind == "function" and isinstance(config.get("config"), str):
            name = config["config"]
            registered = keras.saving.get_registered_object(name)
            if registered is None and not _is_keras_function(config):
                yield f"the function {name} (not registered)"
            elif getattr(registered, "__module__", None) == "__main__" and not imports:
                yield f"the function {name} (of __main__)"
        elif "registered_name" in config and module.split(".")[0] != "keras":
            name = config["registered_name"]
            if name is not None and keras.saving.get_registered_object(name) is None:
                yield f"the class {kind} (not registered)"
            # Keras writes no module for classes of `__main__`.
            elif config.get("module") is None and name is not None and not imports:
                yield f"the class {kind} (of __main__)"


def _is_keras_function(config):
    """Whether a function's configuration, which has no module, is that of a Keras function."""
    try:
        return keras.saving.deserialize_keras_object(config) is not None
    except TypeError:
        return False


def dtype_policies(model):
    """Return the names of the dtype policies of the model's layers, a set of str."""
    return {_policy_name(config) for config in config_dicts(model)} - {None}


def _policy_name(config):
    """Return the name of a serialized dtype policy; `None` for any other configuration."""
    if "DTypePolicy" not in str(config.get("class_name")):
        return None
    policy = config.get("config", {})
    return str(policy.get("name") or policy.get("mode"))


def check_policies(model):
    """Raise a `ValueError` unless onnxruntime has operators for the result of `to_float32`."""
    policies = dtype_policies(model)
    if not policies <= set(_SUPPORTED_POLICIES):
        raise argument_error(
            "model",
            f"use the dtype policies {_SUPPORTED_POLICIES}",
            received=(
                f"{sorted(policies)}. Create the model again with dtype='float32' and copy the "
                "weights: new.set_weights(model.get_weights())."
            ),
        )


def to_float32(model):
    """Return the model, or a float32 copy of a model with mixed precision.

    Half-precision computation with float32 weights is for training: onnxruntime has no bfloat16
    operators on a CPU, and float16 results differ between machines, which changes translations.

    Args:
        model: A built Keras model. One with layers of the policy "mixed_bfloat16" or
            "mixed_float16" is rebuilt from its configuration.

    Raises:
        ValueError: If the model must be rebuilt, but contains a lambda or an unregistered class or
            function.
    """
    mixed = sorted(dtype_policies(model) & set(_MIXED_POLICIES))
    if not mixed:
        return model
    logger.info("The model computes in %s. It is exported in float32.", " and ".join(mixed))
    unloadable = unloadable_objects(model, imports=True)
    if unloadable:
        raise argument_error(
            "model",
            "contain only classes and functions under "
            "@keras.saving.register_keras_serializable(), so that a float32 copy of a model that "
            f"computes in {mixed[0]} can be made",
            received=", ".join(unloadable),
        )
    global_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # for sublayers created without a policy
    try:
        copy = keras.saving.deserialize_keras_object(
            _with_float32_policies(keras.saving.serialize_keras_object(model))
        )
        if not copy.built:
            copy.build()
    finally:
        keras.config.set_dtype_policy(global_policy)
    copy.set_weights(model.get_weights())
    if getattr(model, "tokenizer", None) is not None:  # not part of the configuration
        copy.tokenizer = model.tokenizer
    return copy


def _with_float32_policies(config):
    """Return a configuration with float32 for mixed policies, without `compile_config`."""
    if isinstance(config, dict):
        if _policy_name(config) in _MIXED_POLICIES:
            config = {**config, "config": {**config["config"], "name": "float32"}}
        return {
            key: _with_float32_policies(value)
            for key, value in config.items()
            if key != "compile_config"
        }
    if isinstance(config, (list, tuple)):
        return type(config)(map(_with_float32_policies, config))
    return config
