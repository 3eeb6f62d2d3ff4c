"""Writes the ONNX graph: the traced search, converted by tf2onnx."""

import contextlib
import logging

import numpy as np

from keras_bahdanau_export.errors import require
from keras_bahdanau_export.saved_model import search_function, signature_of

# Kernels registered for older operator sets are found on CUDA, too; tf2onnx knows none above 18.
OPSET = 18


def write_onnx(model, path, search, max_length):
    """Writes `model.onnx`: tokens in; tokens, scores, lengths and alignments out.

    Args:
        model: A `keras_bahdanau.Seq2Seq` on the TensorFlow backend.
        path: The file to write.
        search: The search that goes into the graph.
        max_length: Number of tokens after which hypotheses are cut, an int.

    Raises:
        MissingDependencyError: If tf2onnx or onnx is not installed.
    """
    onnx = require("onnx", extra="export")
    tf2onnx = require("tf2onnx.convert", extra="export")
    function = search_function(model, search, max_length)
    with _numpy_object(), _quiet("tf2onnx", "tf2onnx.tfonnx", "tf2onnx.optimizer"):
        graph, _ = tf2onnx.from_function(
            function, input_signature=function.input_signature, opset=OPSET
        )
    _name_tensors(graph.graph, signature_of(search))
    onnx.checker.check_model(graph)
    onnx.save(graph, str(path))


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
                value.type.tensor_type.shape.dim.add().dim_param = str(axis)
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
def _quiet(*names):
    # tf2onnx logs every optimiser pass at INFO; its warnings still come through.
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
