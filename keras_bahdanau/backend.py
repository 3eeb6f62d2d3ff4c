"""Imports Keras first of all, or says what to install."""

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise ImportError(
            "keras_bahdanau needs Keras and a backend. Install both with: "
            'pip install "keras-bahdanau[tensorflow]", or with [jax] or [torch]. An artifact runs '
            "without Keras: import keras_bahdanau_runtime.",
            name=error.name,
        ) from error
    if error.name not in ("tensorflow", "jax", "torch"):
        raise
    raise ImportError(
        f"Keras is set to the backend {error.name!r}, which is not installed. Install it with: "
        f'pip install "keras-bahdanau[{error.name}]", or set KERAS_BACKEND to another '
        '("tensorflow", "jax" or "torch").',
        name=error.name,
    ) from error
