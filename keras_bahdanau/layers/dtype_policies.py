"""Dtype policies of the layers of a model, changed after their construction."""

import contextlib

import keras

from keras_bahdanau_runtime.errors import argument_error

# Policies with float32 weights and computation in half precision.
MIXED_POLICIES = ("mixed_bfloat16", "mixed_float16")


def check_policy(argument, name):
    """Raise a `ValueError` unless a policy is float32 or has float32 weights."""
    if name not in ("float32", *MIXED_POLICIES):
        raise argument_error(argument, f"be one of {('float32', *MIXED_POLICIES)}", name)


def replace_policies(layer, new, old=None):
    """Give layers another dtype policy. Their weights stay as they are.

    Functions of the model that were compiled or traced before keep their dtypes.

    Args:
        layer: A layer or model, which is changed together with all layers inside of it.
        new: Name of the policy.
        old: Names of the policies to replace; all if `None`.

    Returns:
        A list of the layers that had one of these policies.

    Example:

    >>> cell = keras.layers.GRUCell(4, dtype="mixed_bfloat16")
    >>> layer = keras.layers.RNN(cell, dtype="mixed_bfloat16")
    >>> len(replace_policies(layer, "float32", old=MIXED_POLICIES)), cell.compute_dtype
    (2, 'float32')
    """
    policy = keras.dtype_policies.get(new)
    layers = _layers_with(layer, old)
    for inner in layers:
        inner.dtype_policy = policy
    return layers


@contextlib.contextmanager
def computing_in(policy, model):
    """Let the float32 layers of a model compute under another dtype policy in the block.

    Replicas of TensorFlow are threads that enter the block one after the other, before the first
    one leaves it. Only the first one finds layers to change and restores them.

    Args:
        policy: Name of a policy with float32 weights.
        model: The model.
    """
    if policy == "float32":
        yield
        return
    changed = _layers_with(model, ("float32",))
    try:
        for layer in changed:  # in the block, because a layer may refuse the policy
            layer.dtype_policy = policy
        yield
    finally:
        for layer in changed:
            layer.dtype_policy = "float32"


def _layers_with(layer, policies):
    """Return the layers, this one and all inside of it, that have one of these policies."""
    # A private method. The public `layers` of a model leaves out the layers inside of layers.
    return [
        inner
        for inner in layer._flatten_layers()
        if policies is None or inner.dtype_policy.name in policies
    ]
