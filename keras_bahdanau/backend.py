"""Imports Keras first of all, or says which backend to install."""

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("tensorflow", "jax", "torch"):
        raise
    raise ImportError(
        f"Keras is set to the backend {error.name!r}, which is not installed. Install it with: "
        f'pip install "keras-bahdanau[{error.name}]", or set KERAS_BACKEND to another '
        '("tensorflow", "jax" or "torch").',
        name=error.name,
    ) from error
