"""What the examples share: their options, the check of a margin, and an export that must agree."""

import argparse
from pathlib import Path

import keras
import numpy as np


def options(name, doc, arguments=None, exports=True):
    """The options of an example, and what follows from them.

    Returns:
        `quick`, `export`, `seed`, the folder `output`, which is made, and two seeds of NumPy's
        generators: `training` for what is learnt from, `unseen` for what is measured on. The
        latter are the test data, or with `--validation` others, to choose settings on.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny, checks no margin, no export")
    if exports:
        flag = argparse.BooleanOptionalAction
        parser.add_argument("--export", action=flag, help="whether to; unless quick, it is done")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the first weights")
    parser.add_argument("--validation", action="store_true", help="spare the test data")
    parser.add_argument("--output", type=Path, default=Path("build/examples", name))
    found = parser.parse_args(arguments)
    if exports and found.export is None:
        found.export = not found.quick
    found.output.mkdir(parents=True, exist_ok=True)
    found.training, found.unseen = [found.seed, 0], [found.seed, 1 if found.validation else 2]
    keras.utils.set_random_seed(found.seed)
    return found


def require_margin(what, reached, baseline, margin, quick=False):
    """Prints both figures; ends the script unless the first is better by the margin.

    Args:
        what: Name of the figure.
        reached: The model's.
        baseline: The baseline's.
        margin: By how much the model's must be higher; negative where lower is better.
        quick: Whether nothing is required.
    """
    print(f"{what}: {reached:.3f}, the baseline {baseline:.3f} (margin asked for: {margin:+.2f})")
    if not quick and not (reached - baseline) / margin >= 1:  # NaN is no better than anything
        raise SystemExit(f"{what}: expected a difference of {margin:+.2f} to the baseline.")


def export_and_compare(model, inputs, folder, names, tolerance=1e-4):
    """Exports a functional model, runs the graph with onnxruntime, and holds it against Keras.

    Args:
        model: A Keras model.
        inputs: List of NumPy arrays, one for each of its inputs.
        folder: The artifact to make.
        names: Names of the graph's outputs.
        tolerance: Largest difference of any output.

    Returns:
        The graph's outputs.
    """
    import onnxruntime

    from keras_bahdanau_export import export

    export(model, folder, output_names=names, overwrite=True)
    session = onnxruntime.InferenceSession(Path(folder, "model.onnx"))
    feeds = {part.name: value for part, value in zip(model.inputs, inputs, strict=True)}
    by_graph = session.run(names, feeds)
    by_keras = keras.tree.flatten(model(keras.tree.pack_sequence_as(model.input, inputs)))
    pairs = zip(by_keras, by_graph, strict=True)
    gap = np.max([np.abs(keras.ops.convert_to_numpy(a) - b).max() for a, b in pairs])
    print(f"onnxruntime and Keras on {keras.config.backend()} differ by at most {gap:.1e}")
    assert gap <= tolerance, gap
    return by_graph
