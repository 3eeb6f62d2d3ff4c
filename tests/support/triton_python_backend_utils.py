"""The names of this module that `model.py` uses. The real module exists only inside Triton.

It follows the documentation of Triton's Python backend: requests and responses contain tensors, and
parameters are a JSON text, "" without parameters. A request that names no outputs gets all of them.
"""

import json


class Tensor:
    def __init__(self, name, numpy_array):
        assert numpy_array.dtype.kind != "U", "The backend takes texts as objects."
        self._name, self._array = name, numpy_array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class InferenceRequest:
    def __init__(self, inputs, requested_output_names, parameters=None):
        self._inputs, self._outputs = inputs, requested_output_names
        self._parameters = "" if parameters is None else json.dumps(parameters)

    def inputs(self):
        return self._inputs

    def requested_output_names(self):
        return self._outputs

    def parameters(self):
        return self._parameters


class TritonError:
    INTERNAL, INVALID_ARG = "INTERNAL", "INVALID_ARG"

    def __init__(self, message, code=INTERNAL):
        self._message, self._code = message, code

    def message(self):
        return self._message

    def code(self):
        return self._code


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._tensors

    def error(self):
        return self._error


def get_input_tensor_by_name(request, name):
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)
