"""The order of hypotheses: the largest first, and of equals the first."""

import keras
from keras import ops

# The log-probability of what does not exist.
NEVER = float("-inf")


def best_first(values, k):
    """The `k` largest of the last axis and their places, int32; of equals the first comes first.

    TensorFlow and JAX promise this order; `torch.topk` promises none, so on torch a stable sort
    decides wherever two of the values found are equal.
    """
    if keras.config.backend() != "torch":
        found, places = ops.top_k(values, k)
        return found, ops.cast(places, "int32")
    # One value more than asked for shows whether the last one wanted is tied, too.
    found, places = ops.top_k(values, min(k + 1, values.shape[-1]))
    if bool(ops.any(found[..., 1:] == found[..., :-1])):
        places = ops.argsort(-values, axis=-1)
        found = ops.take_along_axis(values, places[..., :k], axis=-1)
    return found[..., :k], ops.cast(places[..., :k], "int32")
