"""Initialisers that several weights, or the gates of one weight, share without sharing numbers."""

import keras
import numpy as np
from keras import ops

from keras_bahdanau_runtime.checks import check_positive

__all__ = ["PerGate"]


def clone_initializer(initializer):
    """A copy of an initialiser for one weight.

    A Keras initialiser without a seed draws one when it is made, and so returns the same numbers
    every time it is called; its clone draws another. One with a `SeedGenerator` moves on by itself,
    and its clone would begin anew: it is given back as it is.

    Args:
        initializer: What `keras.initializers.get` returned.

    Example:

    >>> import keras
    >>> initializer = keras.initializers.RandomNormal()
    >>> bool((initializer((3,)) == clone_initializer(initializer)((3,)))[0])
    False
    """
    moves_on = isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator)
    if isinstance(initializer, keras.initializers.Initializer) and not moves_on:
        return initializer.clone()
    return initializer


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class PerGate(keras.initializers.Initializer):
    """Draws the matrix of each gate by itself (arXiv 1409.0473, appendix B.1).

        kernel = [U_1 ; ... ; U_gates], side by side, each U_i from `initializer`

    Keras keeps the matrices of all gates in one kernel and so draws them as one: the rows of a
    GRU's `(n, 3n)` recurrent kernel are orthogonal, its three `(n, n)` matrices are not. The paper
    draws each of `U`, `U_z` and `U_r` orthogonal.

    Args:
        initializer: A Keras initialiser or its name, called for each matrix. Its seed, if it has
            one, is made another for each gate.
        gates: Number of matrices: 3 for a GRU, 4 for an LSTM.

    Call arguments:
        shape: `(..., gates * n)`.
        dtype: Dtype of the numbers, or `None` for Keras's `floatx`.

    Returns:
        A tensor of that shape.

    Raises:
        ValueError: If `gates` is not a positive integer, or divides no last axis it meets.

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
        """That of the initialiser; `None` if it has none."""
        return getattr(self.initializer, "seed", None)

    def __call__(self, shape, dtype=None):
        if shape[-1] % self.gates:
            raise ValueError(
                f"Argument `shape` must end in a multiple of `gates`, {self.gates}. "
                f"Received: {tuple(shape)}"
            )
        matrix = (*shape[:-1], shape[-1] // self.gates)
        return ops.concatenate(
            [self._of_gate(gate)(matrix, dtype=dtype) for gate in range(self.gates)], axis=-1
        )

    def _of_gate(self, gate):
        if not isinstance(self.seed, int):  # constants have none; a generator moves on by itself
            return self.initializer
        own = int(np.random.SeedSequence([self.seed, gate]).generate_state(1)[0])
        config = {**self.initializer.get_config(), "seed": own}
        return type(self.initializer).from_config(config)

    def get_config(self):
        return {
            "initializer": keras.initializers.serialize(self.initializer),
            "gates": self.gates,
        }
