"""Reduced precision of a written ONNX graph: float16 and dynamic int8.

    reduce_precision("model.onnx", "int8")         # replaces the file

Only weights and the products with them change. Scores, softmax, log-softmax and the search stay
float32.

- float16: products with weights are computed in half precision. Embeddings and the weights of GRU
  and LSTM operators are stored in float16, and computed with in float32.
- int8: products with weights are computed in int8, inside and outside of loops, with a scale for
  each column of the weights and one for the inputs, which is computed at run time. This includes
  products with the columns that a shortlist selects. Embeddings have a scale for each row. The
  probabilities of a shortlist are stored in float16, as are the weights of GRU and LSTM operators,
  which onnxruntime has no int8 kernels for.
"""

import logging
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxruntime.quantization import QuantType, quantize_dynamic

from keras_bahdanau_export.graph.canonical import save_model
from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    constant_array,
    insert_node,
    producer_of,
    remove_unused,
    replace_value,
)
from keras_bahdanau_export.graph.passes.loops import copy_constants_into_loops
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.signature import PRECISIONS, weights_file

# Weights with fewer elements, such as the vector of an attention, are not worth the loss.
_MIN_SIZE = 4096
# Weights have seven bits: a CPU without VNNI adds two eight-bit products in sixteen bits, which
# overflows, and the results must be the same on every CPU.
_MAX_INT8 = 63
_MAX_FLOAT16 = float(np.finfo(np.float16).max)  # 65,504; weights above it stay in float32
_RESHAPING = ("Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def reduce_precision(path, precision):
    """Rewrite a float32 graph in place.

    Args:
        path: An ONNX file.
        precision: "float32" (changes nothing), "float16" or "int8".

    Raises:
        ValueError: If `precision` is unknown.
    """
    if precision not in PRECISIONS:
        raise argument_error("precision", f"be one of {PRECISIONS}", precision)
    if precision == "float32":
        return
    model = ir.load(path)
    graphs = [model.graph, *model.graph.subgraphs()]
    for graph in graphs:  # first, because a selection of columns can look like an embedding
        for node in list(graph):
            if node.op_type == "MatMul":
                _reduce_matmul_with_selection(graph, node, precision)
    for graph in graphs:
        for node in list(graph):
            if node.op_type == "Gather":
                _reduce_embedding(graph, node, precision)
            elif node.op_type in ("GRU", "LSTM"):
                _reduce_recurrent_weights(graph, node)
            elif node.op_type == "MatMul":
                _reduce_matmul(graph, node, precision)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    copy_constants_into_loops(model)
    remove_unused(model)  # including constants of which only copies are read
    common.NameFixPass()(model)  # new values in two loops may have the same name
    path = Path(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        output = Path(scratch) / path.name
        external = save_model(model, output)
        if precision == "int8":
            quantized, final = (Path(scratch) / name / path.name for name in ("int8", "named"))
            quantized.parent.mkdir()
            final.parent.mkdir()
            _quantize_matmuls(output, quantized, _excluded_matmuls(model), external)
            save_model(ir.load(quantized), final)
            output = final
        path.with_name(weights_file(path.name)).unlink(missing_ok=True)
        for file in output.parent.glob(f"{path.name}*"):
            file.replace(path.with_name(file.name))


def _excluded_matmuls(model):
    """Return the names of the products that int8 leaves in float32."""
    matmuls = [node for node in model.graph.all_nodes() if node.op_type == "MatMul"]
    return [node.name for node in matmuls if not _is_weight_matrix(node.inputs[1])]


def _weights(value):
    """Return a float32 weight that is worth reducing as an array, or `None`."""
    array = _array(value)
    if array is None or array.dtype != np.float32 or array.size < _MIN_SIZE:
        return None
    return array if np.abs(array).max() <= _MAX_FLOAT16 else None


def _is_weight_matrix(value):
    """Whether a value is a weight that products in int8 can have."""
    array = _weights(value)
    return array is not None and array.ndim == 2


def _array(value):
    """Return a constant, or a slice or transpose of one; `None` if it depends on an input."""
    array = constant_array(value)
    if array is not None:
        return array
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in ("Transpose", "Slice"):
        return None
    source, *bounds = [_array(side) for side in node.inputs]
    if source is None or any(bound is None for bound in bounds):
        return None
    if node.op_type == "Transpose":  # an embedding tied to the output layer
        return source.transpose(
            node.attributes["perm"].value if "perm" in node.attributes else None
        )
    if len(bounds) < 3:  # without axes
        return None
    slices = [slice(None)] * source.ndim  # of some of the gates
    starts, ends, axes, *steps = bounds
    for i, axis in enumerate(axes):
        slices[axis] = slice(int(starts[i]), int(ends[i]), int(steps[0][i]) if steps else 1)
    return source[tuple(slices)]


def _reduce_embedding(graph, gather, precision):
    table = _weights(gather.inputs[0])
    is_rows = "axis" not in gather.attributes or gather.attributes["axis"].value == 0
    if table is None or table.ndim != 2 or not is_rows:
        return
    name, ids = gather.inputs[0].name, gather.inputs[1]
    # A shortlist adds up probabilities. With one int8 scale per row the small ones would be zero.
    precision = "float16" if _is_scattered(gather.outputs[0]) else precision
    _replace_node(graph, gather, _insert_reduced(graph, gather, precision, name, table, 1, ids))


def _is_scattered(value):
    """Whether a value is added up by index, as the probabilities of a shortlist are."""
    return any(
        node.op_type.startswith("Scatter")
        or (node.op_type in _RESHAPING and any(map(_is_scattered, node.outputs)))
        for node, _ in value.uses()
    )


def _insert_reduced(graph, before, precision, name, array, axis, ids=None):
    """Return weights, or their rows `ids`, in float32, computed from stored float16 or int8.

    int8 numbers have one scale for all numbers along `axis`.
    """
    if precision == "float16":
        value = _store(graph, name, array.astype(np.float16))
        if ids is not None:
            value = insert_node(graph, before, "Gather", value, ids)
        return insert_node(graph, before, "Cast", value, to=ir.DataType.FLOAT)
    scale = np.maximum(np.abs(array).max(axis=axis, keepdims=True), 1e-30) / 127
    integers = _store(graph, name, np.round(array / scale).astype(np.int8))
    scale = _store(graph, f"{name}_scale", scale.astype(np.float32))
    if ids is not None:
        integers, scale = (
            insert_node(graph, before, "Gather", part, ids) for part in (integers, scale)
        )
    floats = insert_node(graph, before, "Cast", integers, to=ir.DataType.FLOAT)
    return insert_node(graph, before, "Mul", floats, scale)


def _reduce_recurrent_weights(graph, node):
    for i in (1, 2):
        weights = _weights(node.inputs[i])
        if weights is not None:
            name = node.inputs[i].name
            reduced = _insert_reduced(graph, node, "float16", name, weights, 0)
            node.replace_input_with(i, reduced)


def _reduce_matmul(graph, matmul, precision):
    sides = [_weights(side) for side in matmul.inputs]
    if sides[1] is None or (precision == "int8" and sides[1].ndim != 2):
        return
    names = [side.name for side in matmul.inputs]
    if sides[0] is not None:  # onnxruntime computes this product in float32 when it opens the graph
        for i, array in enumerate(sides):
            reduced = _insert_reduced(graph, matmul, precision, names[i], array, 1 - i)
            matmul.replace_input_with(i, reduced)
        return
    weights = np.ascontiguousarray(sides[1])
    if precision == "int8":  # onnxruntime's quantizer does the rest, and needs constants
        matmul.replace_input_with(1, _store(graph, names[1], weights))
        return
    weights = _store(graph, names[1], weights.astype(np.float16))
    inputs = insert_node(graph, matmul, "Cast", matmul.inputs[0], to=ir.DataType.FLOAT16)
    product = insert_node(graph, matmul, "MatMul", inputs, weights)
    product = insert_node(graph, matmul, "Cast", product, to=ir.DataType.FLOAT)
    _replace_node(graph, matmul, product)


def _reduce_matmul_with_selection(graph, matmul, precision):
    """Reduce a product with columns of weights that are selected at run time.

    The selection is then made from reduced weights.
    """
    where = producer_of(matmul.inputs[1], "Where")
    columns = matmul.inputs[1] if where is None else where.inputs[2]
    transpose = producer_of(columns, "Transpose")
    gather = producer_of(columns if transpose is None else transpose.inputs[0], "Gather")
    array = None if gather is None else _weights(gather.inputs[0])
    if array is None or array.ndim != 2:
        return
    ids = gather.inputs[1]
    if ids.shape is None or len(ids.shape) != 1 or _permutation(transpose) != [1, 0]:
        return
    axis = gather.attributes["axis"].value if "axis" in gather.attributes else 0
    if axis != (1 if transpose is None else 0):
        return
    array = array.T if transpose is None else array  # one row for each id
    if where is not None:
        mean_id = _id_of_mean(where, gather, axis)
        if mean_id is None:
            return
        array = array.copy()
        array[mean_id] = array.mean(axis=0)
    own_graph, name = gather.graph, gather.inputs[0].name

    def select(array, name):
        stored = _store(own_graph, name, np.ascontiguousarray(array))
        return insert_node(own_graph, gather, "Gather", stored, ids)

    if precision == "float16":
        columns = select(array.astype(np.float16), f"{name}_rows")
        columns = insert_node(own_graph, gather, "Transpose", columns, perm=[1, 0])
        inputs = insert_node(graph, matmul, "Cast", matmul.inputs[0], to=ir.DataType.FLOAT16)
        product = insert_node(graph, matmul, "MatMul", inputs, columns)
        product = insert_node(graph, matmul, "Cast", product, to=ir.DataType.FLOAT)
        _replace_node(graph, matmul, product)
        return
    scale = np.maximum(np.abs(array).max(axis=1), 1e-30) / _MAX_INT8
    columns = select(np.round(array / scale[:, None]).astype(np.int8), f"{name}_rows")
    columns = insert_node(own_graph, gather, "Transpose", columns, perm=[1, 0])
    scale = select(scale.astype(np.float32), f"{name}_rows_scale")
    inputs, input_scale, zero_point = insert_node(
        graph, matmul, "DynamicQuantizeLinear", matmul.inputs[0], outputs=3
    )
    product = insert_node(graph, matmul, "MatMulInteger", inputs, columns, zero_point)
    product = insert_node(graph, matmul, "Cast", product, to=ir.DataType.FLOAT)
    scale = insert_node(graph, matmul, "Mul", input_scale, scale)
    _replace_node(graph, matmul, insert_node(graph, matmul, "Mul", product, scale))


def _id_of_mean(where, gather, axis):
    """Return the id whose column a selection replaces by the mean of all columns, or `None`.

    That id represents all ids that are not selected.
    """
    equal, mean = producer_of(where.inputs[0], "Equal"), where.inputs[1]
    if (reshape := producer_of(mean, "Reshape")) is not None:
        mean = reshape.inputs[0]
    mean = producer_of(mean, "ReduceMean")
    if equal is None or mean is None or equal.inputs[0] is not gather.inputs[1]:
        return None
    axes, mean_id = constant_array(mean.inputs[1]), constant_array(equal.inputs[1])
    if mean.inputs[0] is not gather.inputs[0] or axes is None or axes.tolist() != [axis]:
        return None
    return None if mean_id is None else mean_id.item()


def _permutation(transpose):
    """Return the permutation of a matrix transpose; `[1, 0]` for no node."""
    if transpose is None or "perm" not in transpose.attributes:
        return [1, 0]
    return list(transpose.attributes["perm"].value)


def _quantize_matmuls(path, output, excluded, external):
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # onnxruntime always recommends a preprocessing that was done here
    try:
        quantize_dynamic(
            path,
            output,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,  # to seven bits, see `_MAX_INT8`
            nodes_to_exclude=excluded,
            use_external_data_format=external,
            extra_options={"EnableSubgraph": True},
        )
    finally:
        root.setLevel(level)


def _store(graph, name, array):
    return add_initializer(graph, f"{name}_{array.dtype}", array)


def _replace_node(graph, node, value):
    replace_value(node.outputs[0], value)
    graph.remove(node, safe=True)
