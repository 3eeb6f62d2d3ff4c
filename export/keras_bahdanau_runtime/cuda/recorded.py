"""The shapes that CUDA records steps for: few, as each keeps a graph and its buffers."""

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.ids import PAD

MOST_SHAPES = 32  # of sources, whose recorded steps are kept
_LENGTHS = 16


def padded_length(source: NDArray[np.int32]) -> NDArray[np.int32]:
    """`source` `(B, Tx)` int32, padded to the next multiple of 16 tokens.

    Example:

    >>> padded_length(np.ones((2, 17), np.int32)).shape
    (2, 32)
    """
    return np.pad(source, ((0, 0), (0, -source.shape[1] % _LENGTHS)), constant_values=PAD)
