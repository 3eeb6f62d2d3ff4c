"""Shared by the examples: command-line options, a margin check, and an export check."""

import argparse
from pathlib import Path

import keras
import numpy as np


def parse_options(name, doc, arguments=None, exports=True, data=None):
    """Parse the options of an example and seed Keras.

    Args:
        name: Name of the example, for the default output folder.
        doc: Help text.
        arguments: List of strings; `None` reads `sys.argv`.
        exports: Whether the example has an `--export` option.
        data: Help text of the argument `data`, a path; `None` if the example generates its data.

    Returns:
        The parsed options: `quick`, `export`, `seed`, the folder `output`, which is created, and
        two seeds for NumPy generators: `training` for training data and `unseen` for the data to
        evaluate on. `unseen` gives the test data, or with `--validation` separate validation data.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if data is not None:
        parser.add_argument("data", type=Path, help=data)
    parser.add_argument(
        "--quick", action="store_true", help="train a tiny model; no margin check, no export"
    )
    if exports:
        flag = argparse.BooleanOptionalAction
        parser.add_argument("--export", action=flag, help="export to ONNX (default: unless quick)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the data and the initial weights"
    )
    parser.add_argument(
        "--validation", action="store_true", help="evaluate on validation data, not on test data"
    )
    parser.add_argument("--output", type=Path, default=Path("build/examples", name))
    args = parser.parse_args(arguments)
    if exports and args.export is None:
        args.export = not args.quick
    args.output.mkdir(parents=True, exist_ok=True)
    args.training, args.unseen = [args.seed, 0], [args.seed, 1 if args.validation else 2]
    keras.utils.set_random_seed(args.seed)
    return args


def require_margin(metric, value, baseline, margin, quick=False):
    """Print both values and exit with an error if the difference is below the margin.

    Args:
        metric: Name of the metric.
        value: Value of the model.
        baseline: Value of the baseline.
        margin: Required difference; negative if lower is better.
        quick: Whether to skip the check.
    """
    print(f"{metric}: {value:.3f}, the baseline {baseline:.3f} (margin asked for: {margin:+.2f})")
    if not quick and not (value - baseline) / margin >= 1:  # also rejects NaN
        raise SystemExit(f"{metric}: expected a difference of {margin:+.2f} to the baseline.")


def export_and_compare(model, inputs, folder, names, tolerance=1e-4):
    """Export a functional model, run the graph with onnxruntime and compare it with Keras.

    Args:
        model: A Keras model.
        inputs: List of NumPy arrays, one per input of the model.
        folder: The artifact to write.
        names: Names of the graph's outputs.
        tolerance: Largest allowed absolute difference of any output.

    Returns:
        The outputs of the graph.
    """
    import onnxruntime

    from keras_bahdanau_export import export

    export(model, folder, output_names=names, overwrite=True)
    session = onnxruntime.InferenceSession(Path(folder, "model.onnx"))
    feeds = {tensor.name: value for tensor, value in zip(model.inputs, inputs, strict=True)}
    graph_outputs = session.run(names, feeds)
    keras_outputs = keras.tree.flatten(model(keras.tree.pack_sequence_as(model.input, inputs)))
    pairs = zip(keras_outputs, graph_outputs, strict=True)
    difference = np.max([np.abs(keras.ops.convert_to_numpy(a) - b).max() for a, b in pairs])
    print(f"onnxruntime and Keras on {keras.config.backend()} differ by at most {difference:.1e}")
    assert difference <= tolerance, difference
    return graph_outputs
