"""The order of hypotheses: the largest first, and of equals the first."""

import keras
from keras import ops

# The log-probability of what does not exist.
NEVER = float("-inf")


def best_first(values, k):
    """Return the `k` largest of the last axis and their places, int32; the first of equals first.

    TensorFlow and JAX promise this order. `torch.topk` does not, so on torch equal values are
    ordered afterwards, except for values of -inf: they rank what does not exist.
    """
    if keras.config.backend() != "torch":
        found, places = ops.top_k(values, k)
        return found, ops.cast(places, "int32")
    # One value more than asked for shows whether the last one wanted is tied, too.
    found, places = ops.top_k(values, min(k + 1, values.shape[-1]))
    if bool(ops.any(found[..., 1:] - found[..., :-1] == 0)):  # NaN for two of -inf
        found, places = _of_equals_the_first(values, found[..., :k], places[..., :k])
    return found[..., :k], ops.cast(places[..., :k], "int32")


def _of_equals_the_first(values, found, places):
    """The largest `values` in order, given their `found` numbers, `(..., k)`, and any `places`."""
    k, size = found.shape[-1], values.shape[-1]
    last = found[..., -1:]
    ids = ops.arange(size, dtype=places.dtype)
    equal, _ = ops.top_k(ops.where(values == last, -ids, -size), k)
    # Those above the last one and the first of its equals, at least k of them; `size` is nothing.
    places = ops.sort(ops.concatenate([ops.where(found > last, places, size), -equal], axis=-1))
    found = ops.take_along_axis(values, ops.minimum(places, size - 1), axis=-1)
    order = ops.argsort(ops.where(places < size, -found, -NEVER), axis=-1)[..., :k]
    return ops.take_along_axis(found, order, axis=-1), ops.take_along_axis(places, order, axis=-1)
