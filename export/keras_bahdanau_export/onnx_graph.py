"""Writes an ONNX graph: a traced function, converted by tf2onnx and made lean."""

import contextlib
import logging

import numpy as np

from keras_bahdanau_export.errors import UnsupportedModelError, require
from keras_bahdanau_export.recurrent import HANDLERS, recurrent_operators

# Kernels registered for older operator sets are found on CUDA, too; tf2onnx knows none above 18.
OPSET = 18


def write_onnx(function, signature, path):
    """Writes an ONNX graph with native recurrent operators and lean loops.

    Args:
        function: A `tf.function` with an input signature; see `functions`.
        signature: Its `Signature`.
        path: The file to write.

    Raises:
        MissingDependencyError: If tf2onnx, onnx or onnx-ir is not installed.
        UnsupportedModelError: If ONNX has no operator for a part of it.
    """
    onnx = require("onnx", extra="export")
    onnx_ir = require("onnx_ir", extra="export")
    from keras_bahdanau_export.passes import optimize  # which needs onnx_ir

    with recurrent_operators():
        graph = convert(function)
    model = onnx_ir.serde.deserialize_model(graph)
    optimize(model)
    graph = onnx_ir.serde.serialize_model(model)
    _name_tensors(graph.graph, signature)
    try:
        onnx.checker.check_model(graph)
    except onnx.checker.ValidationError as error:
        raise UnsupportedModelError(
            f"The model uses what ONNX has no operator for: {error}"
        ) from error
    onnx.save(graph, str(path))


def convert(function):
    """Traces a function and converts it by tf2onnx, and no more.

    Args:
        function: A `tf.function` with an input signature.

    Returns:
        An `onnx.ModelProto`.
    """
    tf2onnx = require("tf2onnx.convert", extra="export")
    with _numpy_object(), _quiet_tf2onnx():
        graph, _ = tf2onnx.from_function(
            function,
            input_signature=function.input_signature,
            opset=OPSET,
            custom_op_handlers=HANDLERS,
        )
    return graph


def _name_tensors(graph, signature):
    """Gives inputs, outputs and their axes the names of the signature."""
    renamed = {}
    for tensors, values in ((signature.inputs, graph.input), (signature.outputs, graph.output)):
        by_name = {value.name.split(":")[0]: value for value in values}
        for tensor in tensors:
            value = by_name[tensor.name]
            renamed[value.name] = value.name = tensor.name
            del value.type.tensor_type.shape.dim[:]
            for axis in tensor.axes:
                dim = value.type.tensor_type.shape.dim.add()
                if isinstance(axis, int):
                    dim.dim_value = axis
                else:
                    dim.dim_param = axis
        order = [by_name[tensor.name] for tensor in tensors]
        copies = [type(value).FromString(value.SerializeToString()) for value in order]
        del values[:]
        values.extend(copies)
    _rename(graph, renamed)


def _rename(graph, names):
    for node in graph.node:
        for values in (node.input, node.output):
            for i, name in enumerate(values):
                values[i] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)


@contextlib.contextmanager
def _numpy_object():
    # tf2onnx 1.17 reads `np.object`, which numpy 2 no longer has.
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
