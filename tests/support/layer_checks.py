"""What the tests of all layers share: random weights, comparisons, saving and precision."""

from contextlib import contextmanager

import keras
import numpy as np
import pytest
from gradients import differentiate
from keras import ops, tree

POLICIES = ["mixed_float16", "mixed_bfloat16"]

compiled_alone = pytest.mark.skipif(
    keras.config.backend() == "torch", reason="torch compiles nothing: it is the eager call again"
)


def any_size(size):
    """Shape of an axis of any length, but of `size` on torch.

    There Keras tries a layer out with 89 places for a length that it is not told, which takes a
    mechanism that goes step by step seconds; `test_dynamic_shapes` has them on torch, too.
    """
    return (size if keras.config.backend() == "torch" else None,)


def array(rng, *shape):
    """Float32 numbers of a normal distribution."""
    return rng.normal(size=shape).astype("float32")


def numpy(outputs):
    """Every tensor of a nested structure as a NumPy array."""
    return tree.map_structure(ops.convert_to_numpy, outputs)


def randomize(layer, rng, scale=0.5):
    """Gives every weight, biases too, random values, so that none of them can hide."""
    layer.set_weights([rng.normal(scale=scale, size=w.shape) for w in layer.get_weights()])
    return layer


def right_mask(lengths, steps):
    """The `(B, Tx)` bool mask of right-padded sequences."""
    return np.arange(steps)[None, :] < np.asarray(lengths)[:, None]


def assert_close(actual, expected, atol=1e-5):
    """A tensor, or every tensor of a sequence, is within `atol` of what is expected of it."""
    if isinstance(actual, (list, tuple)):
        for part, of in zip(actual, expected, strict=True):
            assert_close(part, of, atol)
    else:
        actual, expected = (ops.convert_to_numpy(x) for x in (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def spoiled(values, kept):
    """Copies of `values` with NaN, then with infinities, at the places that `kept` drops."""
    for garbage in ([np.nan], [np.inf, -np.inf]):
        copy = values.copy()
        copy[~kept] = np.resize(garbage, copy[~kept].shape)
        yield copy


def assert_garbage_is_ignored(layer, arrays, at, kept, **arguments):
    """What stands at masked places of `arrays[at]` changes no output and no gradient.

    Args:
        layer: A built layer.
        arrays: Float arrays, the layer's positional arguments.
        at: Which of them has masked places.
        kept: Bool array over its first axes, False where the garbage goes.
        **arguments: Passed on, the mask among them.
    """
    run, arrays = differentiate(layer, **arguments), list(arrays)
    outputs, gradients = run(*arrays)
    assert all(np.isfinite(part).all() for part in gradients)
    assert not gradients[at][~kept].any()
    for copy in spoiled(arrays[at], kept):
        arrays[at] = copy
        again, derivatives = run(*arrays)
        assert_close(again, outputs, 1e-6)
        for actual, expected in zip(derivatives, gradients, strict=True):
            np.testing.assert_allclose(actual, expected, 1e-5, 1e-6)


def assert_survives_saving(model, inputs, tmp_path):
    """A model saved to `.keras` and loaded without custom objects gives the same outputs."""
    expected = numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(inputs), expected, 1e-6)


def assert_config_round_trip(layer):
    """`from_config(get_config())` makes a layer with the same config, and so does Keras."""
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_bahdanau>{type(layer).__name__}"
    assert keras.saving.deserialize_keras_object(serialized).get_config() == config


@contextmanager
def dtype_policy(name):
    """Makes `name` the global dtype policy, as users of mixed precision do."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
