"""Conversion of a traced function to an ONNX file, by tf2onnx and the passes.

Keras, TensorFlow, tf2onnx and onnx-ir are imported inside functions, so that the command `inspect`
can use `gpu_fallbacks` without Keras. This is the only module that imports the folder `cuda`.
"""

import contextlib
import logging

import numpy as np

from keras_bahdanau_export.garbage_collection import without_garbage_collection
from keras_bahdanau_runtime.errors import UnsupportedArtifactError, UnsupportedModelError, require
from keras_bahdanau_runtime.operators import check_onnx_file
from keras_bahdanau_runtime.signature import CUDA_GRAPH_FILES, weights_file

logger = logging.getLogger("keras_bahdanau_export")

# tf2onnx supports no later operator set. CUDA has kernels for operators of earlier ones, too.
OPSET = 18
# The tf2onnx optimizers that shrink the graph beyond what our own passes do.
_OPTIMIZERS = ("ConstFoldOptimizer",)
# The other two remove transposes between convolutions. They are slow for nested conditions.
_CONVOLUTION_OPTIMIZERS = ("TransposeOptimizer", "ConstFoldOptimizer", "BackToBackOptimizer")
_WEIGHT_INPUT = "given_weight_"


@without_garbage_collection()
def write_onnx(
    function, signature, path, variables=(), description="", defaults=None, skip_ended=False
):
    """Write an ONNX graph with native recurrent operators and optimized loops.

    Weights above 2 GB, the limit of an ONNX file, are written to a second file whose name adds
    `.data`.

    Args:
        function: A `tf.function` with an input signature; see `trace`.
        signature: Its `Signature`.
        path: The file to write.
        variables: The Keras variables of its model.
        description: A sentence on the graph for people who open the file.
        defaults: Arrays by name, the defaults of the signature's options.
        skip_ended: Whether to compute logits only for hypotheses that have not ended.

    Raises:
        MissingDependencyError: If tf2onnx, onnx or onnx-ir is not installed.
        UnsupportedModelError: If ONNX has no operator for a part of the model, or `skip_ended` does
            not apply to the graph.
    """
    model = _convert_to_ir(function, signature, variables)
    from keras_bahdanau_export.graph.passes.ended_rows import skip_ended_rows  # needs onnx_ir
    from keras_bahdanau_export.graph.passes.optimizer import optimize

    optimize(model)
    if skip_ended:
        skip_ended_rows(model)
    _set_defaults(model, defaults or {})
    _save_checked(model, path, description)


@without_garbage_collection()
def write_cuda_graphs(function, signature, folder, variables=(), description=""):
    """Write a search without options as `CUDA_GRAPH_FILES`, split at its loop.

    The arguments are those of `write_onnx`, with a folder instead of the file.

    Returns:
        The signatures of the files by name.
    """
    model = _convert_to_ir(function, signature, variables)
    from keras_bahdanau_export.cuda.graphs import part_signature, split_search

    signatures, titles = {}, ("The start", "One step", "The end")
    for name, title, part in zip(CUDA_GRAPH_FILES, titles, split_search(model), strict=True):
        signatures[name] = part_signature(part)
        _save_checked(part, folder / name, f"{title} of: {description}")
    return signatures


def gpu_fallbacks(model):
    """Return what CUDA would leave to the CPU or copy in every step of a loop, one line per kind.

    Args:
        model: An `onnx_ir.Model`. Its types are inferred in place.
    """
    require("onnx_ir", extra="export")
    from keras_bahdanau_export.cuda.placement import find_fallbacks, summarize

    return summarize(find_fallbacks(model))


def _set_defaults(model, defaults):
    """Give inputs of a graph defaults, so that they are optional: they become initializers, too.

    This comes after the passes, which must not compute with the defaults.
    """
    import onnx_ir as ir

    values = {value.name: value for value in model.graph.inputs}
    for name, array in defaults.items():
        values[name].const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(values[name])


def _convert_to_ir(function, signature, variables):
    """Convert a function to an `onnx_ir.Model`, with the names and axes of its signature."""
    require("onnx", extra="export")
    onnx_ir = require("onnx_ir", extra="export")
    from keras_bahdanau_export.graph.canonical import canonicalize
    from keras_bahdanau_export.graph.passes.editing import MAX_WEIGHT_BYTES
    from keras_bahdanau_export.graph.recurrent_operators import recurrent_operators

    large = _large_variables(variables, MAX_WEIGHT_BYTES)
    with recurrent_operators():
        model = convert(_with_weight_inputs(function, large))
    model = onnx_ir.serde.deserialize_model(model)
    for value in [value for value in model.graph.inputs if value.name.startswith(_WEIGHT_INPUT)]:
        index = int(value.name.removeprefix(_WEIGHT_INPUT).split(":")[0])
        value.const_value = onnx_ir.tensor(np.asarray(large[index]), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    for tensors, values in (
        ((*signature.inputs, *signature.options), model.graph.inputs),
        (signature.outputs, model.graph.outputs),
    ):
        by_name = {value.name.split(":")[0]: value for value in values}
        values[:] = [by_name[tensor.name] for tensor in tensors]
        for tensor, value in zip(tensors, values, strict=True):
            value.name, value.shape = tensor.name, onnx_ir.Shape(tensor.axes)
    canonicalize(model)  # so that the passes visit equal graphs in the same order
    return model


def _save_checked(model, path, description):
    """Write a graph, warn about operators that a GPU would leave to the CPU, and check the file."""
    import onnx

    from keras_bahdanau_export.graph.canonical import save_model

    for line in gpu_fallbacks(model):
        logger.warning("%s: on a GPU the CPU has to do %s.", path.name, line)
    model.graph.name, model.doc_string, model.graph.doc_string = path.stem, description, None
    save_model(model, path)
    try:
        onnx.checker.check_model(str(path))
        weights = path.with_name(weights_file(path.name))
        sizes = {weights.name: weights.stat().st_size} if weights.exists() else {}
        check_onnx_file(path.read_bytes(), path, sizes)
    except (onnx.checker.ValidationError, UnsupportedArtifactError) as error:
        raise UnsupportedModelError(
            f"The model uses an operation that ONNX has no operator for: {error}"
        ) from error


def _large_variables(variables, limit):
    """Return the largest variables, so many that the others need at most half of the limit.

    Empty if all variables together are below the limit, in bytes.
    """
    sizes = {id(v): int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables}
    total, large = sum(sizes.values()), []
    if total > limit:
        for variable in sorted(variables, key=lambda v: sizes[id(v)], reverse=True):
            if total > limit / 2:
                large.append(variable)
                total -= sizes[id(variable)]
    return large


def _with_weight_inputs(function, variables):
    """Return the function with variables as inputs: a TensorFlow graph cannot contain 2 GB."""
    import keras
    import tensorflow as tf

    specs = [
        tf.TensorSpec(v.shape, v.dtype, f"{_WEIGHT_INPUT}{i}") for i, v in enumerate(variables)
    ]
    count = len(function.input_signature)

    def with_weights(*inputs):
        with keras.StatelessScope(list(zip(variables, inputs[count:], strict=True))):
            return function.python_function(*inputs[:count])

    signature = [*function.input_signature, *specs]
    return tf.function(with_weights, input_signature=signature, autograph=False)


def convert(function):
    """Trace a function and convert it by tf2onnx, without our passes.

    Args:
        function: A `tf.function` with an input signature.

    Returns:
        An `onnx.ModelProto`.
    """
    tf2onnx = require("tf2onnx.convert", extra="export")
    import tensorflow as tf
    from tf2onnx import optimizer, tf_loader, tfonnx

    from keras_bahdanau_export.graph.fast_tf2onnx import fast_tf2onnx, without_messages
    from keras_bahdanau_export.graph.recurrent_operators import RECURRENT_HANDLERS

    concrete = function.get_concrete_function(*function.input_signature)
    # Captured variables and constants follow the arguments. They become initializers.
    arguments = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    inputs, outputs = (
        [tensor.name for tensor in tensors] for tensors in (arguments, concrete.outputs)
    )
    # As `tf2onnx.convert.from_function`, which runs all of its optimizers, each on a copy.
    with numpy_object(), _quiet_tf2onnx(), fast_tf2onnx(), tf.device("/cpu:0"):
        # Without `large_model` tf2onnx would build another function, and import its graph twice.
        frozen = tf_loader.from_function(concrete, inputs, outputs, large_model=True)
        frozen = tf_loader.fix_freezing_errors_part2(frozen)
        with tf.Graph().as_default():
            frozen = tf_loader.tf_optimize(inputs, outputs, frozen)
        _set_argument_shapes(frozen)
        with tf.Graph().as_default() as traced, without_messages():
            tf.import_graph_def(frozen, name="")
            graph = tfonnx.process_tf_graph(
                traced,
                continue_on_error=True,  # the check of the file names all unsupported operators
                opset=OPSET,
                custom_op_handlers={
                    **RECURRENT_HANDLERS,
                    "ScatterNd": (_convert_scatter_nd, []),
                    "SelectV2": (_convert_select, []),
                    "Bitcast": (_convert_sign_bit, []),
                },
                input_names=inputs,
                output_names=outputs,
                tensors_to_rename=tf2onnx.tensor_names_from_structed(concrete, inputs, outputs),
            )
            _check_converted(graph)
            names = _CONVOLUTION_OPTIMIZERS if _has_convolution(frozen) else _OPTIMIZERS
            optimizers = {name: getattr(optimizer, name) for name in names}
            graph = optimizer.optimize_graph(graph, catch_errors=False, optimizers=optimizers)
        return graph.make_model(concrete.name)


def _check_converted(graph):
    """Raise an `UnsupportedModelError` for nodes that tf2onnx renamed, but failed to convert.

    They have the name of an ONNX operator, so the check of the file accepts them.
    """
    import onnx

    graphs, failed = [graph], []
    while graphs:
        part = graphs.pop()
        graphs += [inner for bodies in part.contained_graphs.values() for inner in bodies.values()]
        failed += [
            node.name
            for node in part.get_nodes()
            if onnx.defs.has(node.type, OPSET)
            # tf2onnx makes loops and conditions before it converts nodes.
            and not (node.need_skip() or node.is_const() or node.get_body_graphs())
        ]
    if failed:
        raise UnsupportedModelError(
            "The model uses an operation in a way that tf2onnx cannot convert to ONNX: "
            f"{', '.join(sorted(failed)):.400}"
        )


def _has_convolution(graph_def):
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return any("Conv" in node.op or "Pool" in node.op for node in nodes)


def _set_argument_shapes(graph_def):
    """Record the shapes of the arguments in the functions of loops and conditions, in place.

    TensorFlow's optimizer drops them where a loop contains a condition, and tf2onnx needs them.
    """
    import tensorflow as tf
    from tf2onnx.tf_loader import function_def_to_graph

    functions = {function.signature.name: function for function in graph_def.library.function}

    def record(graph):
        for operation in graph.get_operations():
            for attribute in ("cond", "body", "then_branch", "else_branch"):
                if attribute not in operation.node_def.attr:
                    continue
                function = functions[operation.node_def.attr[attribute].func.name]
                # The first input of a condition is no argument.
                first = len(operation.inputs) - len(function.signature.input_arg)
                shapes = [value.shape for value in operation.inputs[first:]]
                for i, shape in enumerate(shapes):
                    recorded = function.arg_attr[i].attr["_output_shapes"].list
                    recorded.ClearField("shape")
                    recorded.shape.append(shape.as_proto())
                record(function_def_to_graph(function, input_shapes=shapes))

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        record(graph)


def _convert_scatter_nd(graph, node, name, arguments):
    """Convert `tf.scatter_nd`, which adds updates of equal indices; tf2onnx does not add them."""
    import onnx

    indices, updates, shape = node.input
    dtype = graph.get_dtype(updates)
    zero = onnx.helper.make_tensor("value", dtype, [1], [0])
    shape, indices = (
        graph.make_node("Cast", [value], attr={"to": onnx.TensorProto.INT64}).output[0]
        for value in (shape, indices)
    )
    zeros = graph.make_node("ConstantOfShape", [shape], attr={"value": zero}).output[0]
    output_shapes = [graph.get_shape(output) for output in node.output]
    graph.remove_node(node.name)
    graph.make_node(
        "ScatterND",
        [zeros, indices, updates],
        attr={"reduction": "add"},
        outputs=node.output,
        name=node.name,
        shapes=output_shapes,
        dtypes=[dtype],
    )


def _convert_select(graph, node, name, arguments):
    """Convert `tf.where(condition, x, y)` to `Where`.

    tf2onnx adds products with the condition, which are NaN where the other value is infinite.
    """
    import onnx

    condition, *values = node.input
    [output] = node.output
    if graph.get_dtype(output) == onnx.TensorProto.BOOL:  # onnxruntime selects no bools
        number = onnx.TensorProto.INT32
        values = [graph.make_node("Cast", [v], attr={"to": number}).output[0] for v in values]
        graph.insert_new_node_on_output("Cast", output, to=onnx.TensorProto.BOOL)
        graph.set_dtype(output, number)
    dtype, shape = graph.get_dtype(output), graph.get_shape(output)
    graph.remove_node(node.name)
    graph.make_node(
        "Where",
        [condition, *values],
        outputs=[output],
        name=node.name,
        shapes=[shape],
        dtypes=[dtype],
        skip_conversion=True,
    )


def _convert_sign_bit(graph, node, name, arguments):
    """Convert `bitcast(x) & int32.min`, the sign bit of a float32, which Keras's `argmax` reads.

    ONNX has no bitcast. Other uses are left to the check of the file, which names them.
    """
    import onnx

    mask = np.iinfo("int32").min
    for reader in graph.find_output_consumers(node.output[0]):
        constants = [value for value in reader.inputs if value.is_const()]
        if reader.type != "BitwiseAnd" or [c.get_tensor_value() for c in constants] != [mask]:
            return
    zero, number, bit = (
        graph.make_const(f"{node.name}_{i}", np.array(value)).output[0]
        for i, value in enumerate((np.float32(0), np.int32(0), np.int32(mask)))
    )
    [x], [bits], shape = node.input, node.output, graph.get_shape(node.output[0])
    graph.remove_node(node.name)

    def make(operator, inputs, dtype=onnx.TensorProto.BOOL, **options):
        options |= {"shapes": [shape], "dtypes": [dtype], "skip_conversion": True}
        return graph.make_node(operator, inputs, **options).output[0]

    # The inverse of -0 is -inf.
    inverse = make("Reciprocal", [x], onnx.TensorProto.FLOAT)
    is_negative = make("Or", [make("Less", [x, zero]), make("Less", [inverse, zero])])
    make("Where", [is_negative, bit, number], onnx.TensorProto.INT32, outputs=[bits])


@contextlib.contextmanager
def numpy_object():
    """Let tf2onnx 1.17 use `np.object`, which numpy 2 no longer has."""
    is_missing = "object" not in vars(np)
    if is_missing:
        np.object = object
    try:
        yield
    finally:
        if is_missing:
            del np.object


@contextlib.contextmanager
def _quiet_tf2onnx():
    # tf2onnx logs every pass at INFO, and warns of operators whose shapes it cannot infer.
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
