"""Initialisers that several weights share without sharing their numbers."""

import keras


def fresh(initializer):
    """A copy of an initialiser for one weight.

    A Keras initialiser without a seed draws one when it is made, and so returns the same numbers
    every time it is called; its clone draws another.

    Args:
        initializer: What `keras.initializers.get` returned.

    Example:

    >>> import keras
    >>> initializer = keras.initializers.RandomNormal()
    >>> bool((initializer((3,)) == fresh(initializer)((3,)))[0])
    False
    """
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.clone()
    return initializer
