"""Writes an ONNX graph: a traced function, converted by tf2onnx and made lean."""

import contextlib
import logging

import keras
import numpy as np

from keras_bahdanau_export.graph.recurrent_operators import RECURRENT_HANDLERS, recurrent_operators
from keras_bahdanau_runtime.errors import UnsupportedArtifactError, UnsupportedModelError, require
from keras_bahdanau_runtime.operators import check_onnx_file
from keras_bahdanau_runtime.signature import BEAM_FILES, weights_file

logger = logging.getLogger("keras_bahdanau_export")

# Kernels registered for older operator sets are found on CUDA, too; tf2onnx knows none above 18.
OPSET = 18
# Of the twelve, those that make the graph smaller than `passes` would alone.
_OPTIMIZERS = ("TransposeOptimizer", "ConstFoldOptimizer", "BackToBackOptimizer")
_GIVEN = "given_weight_"
_PARTS = dict(zip(BEAM_FILES, ("The start", "One step", "The end"), strict=True))


def write_onnx(function, signature, path, variables=(), captured=False, description=""):
    """Writes an ONNX graph with native recurrent operators and lean loops.

    Weights beyond 2 GB, which no ONNX file holds, stand beside it in a file of the same name and
    `.data`.

    Args:
        function: A `tf.function` with an input signature; see `trace`.
        signature: Its `Signature`.
        path: The file to write.
        variables: The Keras variables of its model.
        captured: Whether it is a search, to be written cut at its loop, too: `BEAM_FILES`, in the
            folder of `path`. See `captured`.
        description: What the graph computes, for those who open the file.

    Returns:
        The signatures of the files beside `path`, by name; empty unless `captured`.

    Raises:
        MissingDependencyError: If tf2onnx, onnx or onnx-ir is not installed.
        UnsupportedModelError: If ONNX has no operator for a part of it.
    """
    model = _converted(function, signature, variables)
    from keras_bahdanau_export.cuda.captured import signature_of  # these need onnx_ir
    from keras_bahdanau_export.graph.passes.optimizer import optimize

    parts = _cut(model.clone()) if captured else {}
    optimize(model)
    _save(model, path, description)
    for name, part in parts.items():
        _save(part, path.with_name(name), f"{_PARTS[name]} of: {description}")
    return {name: signature_of(part) for name, part in parts.items()}


def _cut(model):
    """The graph of a search, as it was converted, cut at its loop: `onnx_ir.Model`s by file."""
    from keras_bahdanau_export.cuda.captured import cut_at_loop
    from keras_bahdanau_export.graph.passes.loops import scanned_histories
    from keras_bahdanau_export.graph.passes.optimizer import PASSES, optimize

    # The rows of a history that a loop collects are states of its step.
    optimize(model, [one for one in PASSES if one is not scanned_histories])
    return dict(zip(BEAM_FILES, cut_at_loop(model), strict=True))


def _converted(function, signature, variables):
    """A function as an `onnx_ir.Model`, as it is converted."""
    require("onnx", extra="export")
    onnx_ir = require("onnx_ir", extra="export")
    from keras_bahdanau_export.graph.passes.graph import LARGEST_FILE  # which needs onnx_ir

    given = _too_large(variables, LARGEST_FILE)
    with recurrent_operators():
        model = convert(_with_weights_given(function, given))
    model = onnx_ir.serde.deserialize_model(model)
    for value in [value for value in model.graph.inputs if value.name.startswith(_GIVEN)]:
        numbers = np.asarray(given[int(value.name.removeprefix(_GIVEN).split(":")[0])])
        value.const_value = onnx_ir.tensor(numbers, name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    for tensors, values in (
        (signature.inputs, model.graph.inputs),
        (signature.outputs, model.graph.outputs),
    ):
        by_name = {value.name.split(":")[0]: value for value in values}
        values[:] = [by_name[tensor.name] for tensor in tensors]
        for tensor, value in zip(tensors, values, strict=True):
            value.name, value.shape = tensor.name, onnx_ir.Shape(tensor.axes)
    return model


def _save(model, path, description):
    """Writes a graph, says what of it a GPU would leave to the CPU, and checks what was written."""
    import onnx

    from keras_bahdanau_export.cuda.placement import on_host, summary
    from keras_bahdanau_export.graph.passes.graph import save

    for line in summary(on_host(model)):
        logger.warning("%s: on a GPU the CPU has to do %s.", path.name, line)
    model.graph.name, model.doc_string, model.graph.doc_string = path.stem, description, None
    save(model, path)
    try:
        onnx.checker.check_model(str(path))
        beside = path.with_name(weights_file(path.name))
        sizes = {beside.name: beside.stat().st_size} if beside.exists() else {}
        check_onnx_file(path.read_bytes(), path, sizes)
    except (onnx.checker.ValidationError, UnsupportedArtifactError) as error:
        raise UnsupportedModelError(
            f"The model uses what ONNX has no operator for: {error}"
        ) from error


def _too_large(variables, limit):
    """The largest variables, as many as it takes for the others to be far below the limit."""
    sizes = {id(v): int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables}
    total, found = sum(sizes.values()), []
    if total > limit:
        for variable in sorted(variables, key=lambda v: sizes[id(v)], reverse=True):
            if total > limit / 2:
                found.append(variable)
                total -= sizes[id(variable)]
    return found


def _with_weights_given(function, variables):
    """The function, not traced yet, with weights as inputs: TensorFlow's graphs hold no 2 GB."""
    import tensorflow as tf

    specs = [tf.TensorSpec(v.shape, v.dtype, f"{_GIVEN}{i}") for i, v in enumerate(variables)]
    count = len(function.input_signature)

    def fed(*inputs):
        with keras.StatelessScope(list(zip(variables, inputs[count:], strict=True))):
            return function.python_function(*inputs[:count])

    return tf.function(fed, input_signature=[*function.input_signature, *specs], autograph=False)


def convert(function):
    """Traces a function and converts it by tf2onnx, and no more.

    Args:
        function: A `tf.function` with an input signature.

    Returns:
        An `onnx.ModelProto`.
    """
    tf2onnx = require("tf2onnx.convert", extra="export")
    import tensorflow as tf
    from tf2onnx import optimizer, tf_loader, tfonnx

    concrete = function.get_concrete_function(*function.input_signature)
    inputs, outputs = (
        [tensor.name for tensor in tensors if tensor.dtype != tf.resource]
        for tensors in (concrete.inputs, concrete.outputs)
    )
    # As `tf2onnx.convert.from_function`, which runs every optimizer it has, each on a copy.
    with numpy_object(), _quiet_tf2onnx(), tf.device("/cpu:0"):
        frozen = tf_loader.from_function(concrete, inputs, outputs)
        with tf.Graph().as_default() as traced:
            tf.import_graph_def(frozen, name="")
            graph = tfonnx.process_tf_graph(
                traced,
                continue_on_error=True,  # what has no operator is refused by name, all of it
                opset=OPSET,
                custom_op_handlers={**RECURRENT_HANDLERS, "ScatterNd": (_sum_scattered, [])},
                input_names=inputs,
                output_names=outputs,
                tensors_to_rename=tf2onnx.tensor_names_from_structed(concrete, inputs, outputs),
            )
            chosen = {name: getattr(optimizer, name) for name in _OPTIMIZERS}
            graph = optimizer.optimize_graph(graph, catch_errors=False, optimizers=chosen)
            return graph.make_model(concrete.name)


def _sum_scattered(graph, node, name, arguments):
    """Writes `tf.scatter_nd`, which sums where indices repeat; tf2onnx forgets that it does."""
    import onnx

    indices, updates, shape = node.input
    kind = graph.get_dtype(updates)
    zero = onnx.helper.make_tensor("value", kind, [1], [0])
    shape, indices = (
        graph.make_node("Cast", [each], attr={"to": onnx.TensorProto.INT64}).output[0]
        for each in (shape, indices)
    )
    zeros = graph.make_node("ConstantOfShape", [shape], attr={"value": zero}).output[0]
    places = [graph.get_shape(output) for output in node.output]
    graph.remove_node(node.name)
    graph.make_node(
        "ScatterND",
        [zeros, indices, updates],
        attr={"reduction": "add"},
        outputs=node.output,
        name=node.name,
        shapes=places,
        dtypes=[kind],
    )


@contextlib.contextmanager
def numpy_object():
    """Lets tf2onnx 1.17 read `np.object`, which numpy 2 no longer has."""
    added = "object" not in vars(np)
    if added:
        np.object = object
    try:
        yield
    finally:
        if added:
            del np.object


@contextlib.contextmanager
def _quiet_tf2onnx():
    # tf2onnx logs every pass at INFO, and warns of operators whose shapes only ONNX will infer.
    levels = {"tf2onnx": logging.WARNING, "tf2onnx.tfonnx": logging.WARNING}
    levels |= {"tf2onnx.optimizer": logging.WARNING, "tf2onnx.shape_inference": logging.ERROR}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
