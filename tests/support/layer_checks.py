"""Random weights, comparisons, saving and mixed precision, for tests of layers."""

from contextlib import contextmanager

import keras
import numpy as np
import pytest
from gradients import differentiate
from keras import ops, tree

POLICIES = ["mixed_float16", "mixed_bfloat16"]
# JAX has no float64 without its own option.
WIDE_POLICIES = [*POLICIES] if keras.config.backend() == "jax" else [*POLICIES, "float64"]

compiled_alone = pytest.mark.skipif(
    keras.config.backend() == "torch", reason="torch compiles nothing: it is the eager call again"
)


def any_size(size):
    """Shape of an axis of unknown length, or of `size` on torch.

    On torch Keras calls a layer with 89 positions to find the shape of an unknown axis. That takes
    seconds for a mechanism that runs step by step. tests/conformance has unknown axes on torch.
    """
    return (size if keras.config.backend() == "torch" else None,)


def array(rng, *shape):
    """Return float32 numbers from a normal distribution."""
    return rng.normal(size=shape).astype("float32")


def numpy(outputs):
    """Every tensor of a nested structure as a NumPy array."""
    return tree.map_structure(ops.convert_to_numpy, outputs)


def randomize(layer, rng, scale=0.5):
    """Set every weight, biases included, to random values, so that each has an effect."""
    layer.set_weights([rng.normal(scale=scale, size=w.shape) for w in layer.get_weights()])
    return layer


def right_mask(lengths, steps):
    """The `(B, Tx)` bool mask of right-padded sequences."""
    return np.arange(steps)[None, :] < np.asarray(lengths)[:, None]


def assert_close(actual, expected, atol=1e-5):
    """Check that a tensor, or each tensor of a sequence, is within `atol` of the expected one."""
    if isinstance(actual, (list, tuple)):
        for part, other in zip(actual, expected, strict=True):
            assert_close(part, other, atol)
    else:
        actual, expected = (ops.convert_to_numpy(x) for x in (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def with_garbage(values, mask):
    """Yield copies of `values` with NaN, then with infinities, at the masked positions."""
    for garbage in ([np.nan], [np.inf, -np.inf]):
        copy = values.copy()
        copy[~mask] = np.resize(garbage, copy[~mask].shape)
        yield copy


def assert_garbage_is_ignored(layer, arrays, at, mask, /, **arguments):
    """Check that values at masked positions of `arrays[at]` change no output and no gradient.

    Args:
        layer: A built layer.
        arrays: Float arrays, the layer's positional arguments.
        at: Index of the array with masked positions.
        mask: Bool array over its first axes, False at masked positions.
        **arguments: Keyword arguments of the call, with the mask among them.
    """
    assert_run_ignores_garbage(differentiate(layer, **arguments), arrays, at, mask)


def assert_run_ignores_garbage(run, arrays, at, mask):
    """The same for a function of `differentiate`, which a backend then compiles only once."""
    outputs, gradients = run(*arrays)
    assert all(np.isfinite(part).all() for part in gradients)
    assert not gradients[at][~mask].any()
    for copy in with_garbage(arrays[at], mask):
        repeated, derivatives = run(*arrays[:at], copy, *arrays[at + 1 :])
        assert_close(repeated, outputs, 1e-6)
        for actual, expected in zip(derivatives, gradients, strict=True):
            np.testing.assert_allclose(actual, expected, 1e-5, 1e-6)


def assert_survives_saving(model, inputs, tmp_path):
    """Check that a saved model, loaded without custom objects, gives the same outputs."""
    expected = numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(inputs), expected, 1e-6)


def assert_config_round_trip(layer):
    """Check that `from_config` and Keras's deserialization give a layer with the same config."""
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_bahdanau>{type(layer).__name__}"
    assert keras.saving.deserialize_keras_object(serialized).get_config() == config


@contextmanager
def dtype_policy(name):
    """Set the global dtype policy in the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
