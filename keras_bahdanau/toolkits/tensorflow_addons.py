"""Attention layers with the weights of TensorFlow Addons, passed as arrays."""

import numpy as np

from keras_bahdanau.layers.attention.bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention.luong import LuongAttention
from keras_bahdanau.layers.attention.monotonic import MonotonicAttention
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.errors import argument_error


def bahdanau_from_tfa(
    query_kernel, memory_kernel, attention_v, attention_g=None, attention_b=None, **kwargs
):
    """Return a `BahdanauAttention` with the weights of `tfa.seq2seq.BahdanauAttention`.

        e_ij = v . tanh(s_i W_query + h_j W_memory)
        e_ij = g v / |v| . tanh(s_i W_query + h_j W_memory + b)        with normalize=True

    `BahdanauMonotonicAttention` has the same weights; see `monotonic_from_tfa`.

    Args:
        query_kernel: `(N, U)` array, `query_layer.kernel`.
        memory_kernel: `(D, U)` array, `memory_layer.kernel`.
        attention_v: `(U,)` array.
        attention_g: A number, for `normalize=True`, or `None`.
        attention_b: `(U,)` array, for `normalize=True`, or `None`.
        **kwargs: Passed to `BahdanauAttention`, except `units`, `normalize` and `num_heads`, which
            follow from the weights.

    Returns:
        The layer, built for queries of width `N` and annotations of width `D`.

    Raises:
        ValueError: If a shape is not as above, or only one of `attention_g` and `attention_b` is
            `None`.

    Example:

    >>> import numpy as np
    >>> attention = bahdanau_from_tfa(np.eye(2, 3), np.eye(4, 3), [1.0, 2.0, 0.0])
    >>> tuple(attention(np.ones((1, 2)), np.ones((1, 5, 4))).shape)
    (1, 4)
    """
    memory_kernel = _checked("memory_kernel", memory_kernel, "memory_width units")
    units = memory_kernel.shape[1]
    query_kernel = _checked("query_kernel", query_kernel, "query_width units", units=units)
    attention_v = _checked("attention_v", attention_v, "units", units=units)
    normalize = attention_g is not None
    if normalize != (attention_b is not None):
        raise argument_error(
            ("attention_g", "attention_b"),
            "be passed together",
            received=f"attention_g={attention_g!r}, attention_b={attention_b!r}",
        )
    layer = BahdanauAttention(units, normalize=normalize, num_heads=1, **kwargs)
    _build(layer, len(query_kernel), len(memory_kernel))
    layer.query_kernel.assign(query_kernel)
    layer.key_kernel.assign(memory_kernel)
    layer.score_kernel.assign(attention_v[:, None])
    if normalize:
        layer.gain.assign(_checked("attention_g", attention_g, "")[None])
        layer.bias.assign(_checked("attention_b", attention_b, "units", units=units))
    return layer


def luong_from_tfa(memory_kernel, attention_g=None, **kwargs):
    """Return a `LuongAttention` with the weights of `tfa.seq2seq.LuongAttention`.

        e_ij = [g] s_i . (h_j W_memory)

    `LuongMonotonicAttention` has the same weights; see `monotonic_from_tfa`.

    Args:
        memory_kernel: `(D, N)` array, `memory_layer.kernel`. TFA's `units` is the query width `N`.
        attention_g: A number, `scale_weight` of `scale=True`, or `None`.
        **kwargs: Passed to `LuongAttention`, except `score` and `scale`, which follow from the
            weights.

    Returns:
        The layer, built for queries of width `N` and annotations of width `D`.

    Raises:
        ValueError: If a shape is not as above.

    Example:

    >>> import numpy as np
    >>> attention = luong_from_tfa(np.eye(4, 2), attention_g=0.5)
    >>> tuple(attention(np.ones((1, 2)), np.ones((1, 5, 4))).shape)
    (1, 4)
    """
    memory_kernel = _checked("memory_kernel", memory_kernel, "memory_width query_width")
    scale = None if attention_g is None else "learned"
    layer = LuongAttention("general", scale=scale, **kwargs)
    _build(layer, memory_kernel.shape[1], len(memory_kernel))
    layer.key_kernel.assign(memory_kernel)
    if scale is not None:
        layer.scale_weight.assign(_checked("attention_g", attention_g, ""))
    return layer


def monotonic_from_tfa(attention, attention_score_bias, **kwargs):
    """Return a `MonotonicAttention` with the weights of a monotonic attention of TFA.

    Args:
        attention: Layer with the other weights, returned by `bahdanau_from_tfa` or
            `luong_from_tfa`.
        attention_score_bias: A number.
        **kwargs: Passed to `MonotonicAttention`, except `score_bias`. TFA's modes "parallel" and
            "recursive" correspond to `mode="soft"`.

    Returns:
        The layer, built for the widths of `attention`.

    Raises:
        ValueError: If `attention_score_bias` is not a number, or `attention` is not built or not
            accepted by `MonotonicAttention`.

    Example:

    >>> import numpy as np
    >>> inner = luong_from_tfa(np.eye(4, 2))
    >>> attention = monotonic_from_tfa(inner, attention_score_bias=-1.0, mode="soft")
    >>> tuple(attention(np.ones((1, 3, 2)), np.ones((1, 5, 4))).shape)
    (1, 3, 4)
    """
    bias = float(_checked("attention_score_bias", attention_score_bias, ""))
    layer = MonotonicAttention(attention, score_bias=bias, **kwargs)
    if not attention.built:
        raise argument_error(
            "attention",
            "be built; use a layer from `bahdanau_from_tfa` or `luong_from_tfa`",
            attention,
        )
    _build(layer, attention._query_width, attention._value_width)
    return layer


def _build(layer, query_width, value_width):
    layer.build((None, query_width), (None, None, value_width))


def _checked(name, array, pattern, **sizes):
    """Return `array` as a NumPy array, after a check of its shape."""
    array = np.asarray(array)
    check_shape(name, array, pattern, **sizes)
    return array
