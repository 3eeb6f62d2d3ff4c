"""Initializers for several weights, or for the gates of one weight."""

import keras
import numpy as np
from keras import ops

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error

__all__ = ["PerGate"]


def clone_initializer(initializer):
    """Return a copy of an initializer, for one of several weights.

    A Keras initializer without a seed draws one when it is created, so it returns the same numbers
    at every call. Its clone draws another seed. An initializer with a `SeedGenerator` returns other
    numbers at every call, and its clone would restart the sequence, so it is returned unchanged.

    Args:
        initializer: The result of `keras.initializers.get`.

    Example:

    >>> import keras
    >>> initializer = keras.initializers.RandomNormal()
    >>> bool((initializer((3,)) == clone_initializer(initializer)((3,)))[0])
    False
    """
    has_generator = isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator)
    if isinstance(initializer, keras.initializers.Initializer) and not has_generator:
        return initializer.clone()
    return initializer


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class PerGate(keras.initializers.Initializer):
    """Draws the matrix of each gate separately (arXiv 1409.0473, appendix B.1).

        kernel = [U_1 ; ... ; U_gates], side by side, each U_i from `initializer`

    Keras stores the matrices of all gates in one kernel and initializes them as one. The rows of a
    GRU's `(n, 3n)` recurrent kernel are then orthogonal, but its three `(n, n)` matrices are not.
    In the paper, each of `U`, `U_z` and `U_r` is orthogonal.

    Args:
        initializer: A Keras initializer or its name, called once for each matrix. If it has a seed,
            each gate gets a different one derived from it.
        gates: Number of matrices: 3 for a GRU, 4 for an LSTM.

    Call arguments:
        shape: `(..., gates * n)`.
        dtype: Dtype of the weights; Keras's `floatx` if `None`.

    Returns:
        A tensor of that shape.

    Raises:
        ValueError: If `gates` is not a positive integer, or does not divide the last axis.

    Example:

    >>> kernel = keras.ops.convert_to_numpy(PerGate("orthogonal", gates=3)((4, 12)))
    >>> [bool(np.allclose(u.T @ u, np.eye(4), atol=1e-6)) for u in np.split(kernel, 3, axis=1)]
    [True, True, True]
    """

    def __init__(self, initializer, gates: int):
        check_positive(gates=gates)
        self.initializer = keras.initializers.get(initializer)
        self.gates = gates

    @property
    def seed(self):
        """The seed of the initializer, or `None` if it has none."""
        return getattr(self.initializer, "seed", None)

    def __call__(self, shape, dtype=None):
        if shape[-1] % self.gates:
            raise argument_error(
                "shape", f"end in a multiple of `gates`, {self.gates}", received=str(tuple(shape))
            )
        gate_shape = (*shape[:-1], shape[-1] // self.gates)
        return ops.concatenate(
            [self._gate_initializer(gate)(gate_shape, dtype=dtype) for gate in range(self.gates)],
            axis=-1,
        )

    def _gate_initializer(self, gate):
        if not isinstance(self.seed, int):  # no seed, or a generator that advances at each call
            return self.initializer
        seed = int(np.random.SeedSequence([self.seed, gate]).generate_state(1)[0])
        config = {**self.initializer.get_config(), "seed": seed}
        return type(self.initializer).from_config(config)

    def get_config(self):
        return {
            "initializer": keras.initializers.serialize(self.initializer),
            "gates": self.gates,
        }
