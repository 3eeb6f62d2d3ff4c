"""The mean of the weights in several checkpoints of a run."""

import os
from pathlib import Path

import keras
import numpy as np

from keras_bahdanau.models.saved_models import load_saved_model
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write


def average_checkpoints(paths, output):
    """Write a model whose weights are the mean of those in several `.keras` files.

        theta = 1 / n sum_k theta_k

    The mean of the last checkpoints of a run often translates better than any of them (Gao et al.
    2022, arXiv 2210.11803). `RunCheckpoint(folder, keep=n)` keeps them. Sums are computed in
    float64. Non-floating weights, such as counters, are those of the last file. The written model
    is not compiled and has no optimizer.

    Args:
        paths: Iterable of `.keras` files of the same model.
        output: The `.keras` file to write. It is written under a temporary name and then renamed,
            so it may be one of `paths`.

    Raises:
        ValueError: If `paths` is empty or a single path, `output` does not end with `.keras`, or
            the weights of a file have other names or shapes than those of the first, or NaN or
            infinity.

    Example:

    ```python
    model.fit(data, epochs=20, callbacks=[score, RunCheckpoint("run", keep=5)])
    average_checkpoints(Path("run").glob("epoch-*.keras"), "run/average.keras")
    ```
    """
    is_single = isinstance(paths, str | os.PathLike)
    paths = paths if is_single else list(paths)
    if is_single or not paths:
        raise argument_error("paths", "be a list of at least one file", paths)
    output = Path(output)
    if output.suffix != ".keras":
        raise argument_error("output", "end with .keras", str(output))
    expected, sums = None, {}
    for path in paths:
        model = load_saved_model(path, "paths")
        # Not the paths of weights: Keras numbers layers without a name as they are loaded.
        weights = [(weight.name, tuple(weight.shape)) for weight in model.weights]
        expected = weights if expected is None else expected
        if weights != expected:
            raise ValueError(
                f"Argument `paths` must be files of one model. {path} differs from {paths[0]}: "
                f"{_difference(weights, expected)}"
            )
        for index, weight in enumerate(model.weights):
            if "float" in weight.dtype:
                value = np.asarray(keras.ops.convert_to_numpy(weight), "float64")
                sums[index] = sums.get(index, 0.0) + value
    for index, total in sums.items():
        model.weights[index].assign(total / len(paths))
    with atomic_write(output) as temporary_path:
        model.save(temporary_path)


def _difference(weights, expected):
    """Describe the first difference of two lists of (name, shape)."""
    for index, (actual, reference) in enumerate(zip(weights, expected, strict=False)):
        if actual != reference:
            return f"weight {index} is {actual}, not {reference}"
    return f"it has {len(weights)} weights, not {len(expected)}"
