"""The mean of the weights in several checkpoints of a run."""

import os
from pathlib import Path

import keras
import numpy as np

from keras_bahdanau_runtime.files import atomic_write


def average_checkpoints(paths, output):
    """Writes a model whose weights are the mean of those in several `.keras` files.

        theta = 1 / n sum_k theta_k

    The mean of the last checkpoints of a run often translates better than any of them (Gao et al.
    2022, arXiv 2210.11803); `RunCheckpoint(folder, keep=n)` keeps them. Sums are taken in float64.
    Weights that are not floating, such as counters, are those of the last of `paths`. The model
    written is not compiled and has no optimiser.

    Args:
        paths: Iterable of `.keras` files of the same model.
        output: The `.keras` file to write, first under another name and then renamed, so that it is
            whole or absent. It may be one of `paths`.

    Raises:
        ValueError: If `paths` is empty or a single file, `output` does not end with `.keras`, or
            the weights of a file have other names or shapes than those of the first.

    Example:

    ```python
    model.fit(data, epochs=20, callbacks=[score, RunCheckpoint("run", keep=5)])
    average_checkpoints(Path("run").glob("epoch-*.keras"), "run/average.keras")
    ```
    """
    single = isinstance(paths, str | os.PathLike)
    paths = paths if single else list(paths)
    if single or not paths:
        raise ValueError(
            f"Argument `paths` must be a list of at least one file. Received: {paths!r}"
        )
    output = Path(output)
    if output.suffix != ".keras":
        raise ValueError(f"Argument `output` must end with .keras. Received: {str(output)!r}")
    expected, sums = None, {}
    for path in paths:
        model = keras.saving.load_model(path, compile=False)
        # Paths would be too strict: layers without a name of their own are numbered as they load.
        found = [(weight.name, tuple(weight.shape)) for weight in model.weights]
        expected = found if expected is None else expected
        if found != expected:
            raise ValueError(
                f"Argument `paths` must be files of one model. {path} differs from {paths[0]}: "
                f"{_difference(found, expected)}"
            )
        for index, weight in enumerate(model.weights):
            if "float" in weight.dtype:
                value = np.asarray(keras.ops.convert_to_numpy(weight), "float64")
                sums[index] = sums.get(index, 0.0) + value
    weights = model.weights
    for index, total in sums.items():
        weights[index].assign(total / len(paths))
    with atomic_write(output) as writing:
        model.save(writing)


def _difference(found, expected):
    """The first weight that two lists of (name, shape) do not share."""
    for index, (of_found, of_expected) in enumerate(zip(found, expected, strict=False)):
        if of_found != of_expected:
            return f"weight {index} is {of_found}, not {of_expected}"
    return f"it has {len(found)} weights, not {len(expected)}"
