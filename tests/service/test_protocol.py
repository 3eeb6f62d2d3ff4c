"""Bodies of the Open Inference Protocol: Triton's client's own, and damaged ones."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from keras_bahdanau_runtime.service import protocol
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.protocol import (
    DATATYPES,
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    TensorSpec,
    as_json,
    json_array,
    parse_object,
    parse_raw,
    parse_rest,
    render_rest,
)

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = NAMES | st.booleans() | st.integers(-(2**63), 2**63)


@given(hnp.arrays(np.float32, hnp.array_shapes(max_side=4), elements=st.floats(0, 1, width=32)))
def test_an_array_in_parts_is_the_same_json(array):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "_NUMBERS_AT_ONCE", 3)
        received = as_json({"x": json_array(array), "y": 1})
    decoded = json.loads(received)
    assert decoded["y"] == 1 and np.shape(decoded["x"]) == array.shape
    assert (np.array(decoded["x"], np.float32) == array).all()


@st.composite
def tensors(draw, finite):
    """Draw a datatype and an array of it; with `finite`, one that JSON can represent."""
    datatype = draw(st.sampled_from([*DATATYPES]))
    shape = draw(SHAPES)
    if datatype == "BYTES":
        texts = st.text(st.characters(codec="utf-8"), max_size=5).map(str.encode)
        size = int(np.prod(shape))
        items = draw(
            st.lists(texts if finite else st.binary(max_size=5), min_size=size, max_size=size)
        )
        return datatype, np.array(items, object).reshape(shape)
    dtype = DATATYPES[datatype]
    options = {"allow_nan": False, "allow_infinity": False} if finite else {}
    elements = hnp.from_dtype(dtype, **(options if dtype.kind == "f" else {}))
    return datatype, draw(hnp.arrays(dtype, shape, elements=elements))


@st.composite
def inputs(draw):
    """Draw inputs of Triton's client, in JSON or raw, and their arrays."""
    pairs = []
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        binary = draw(st.booleans())
        datatype, array = draw(tensors(finite=not binary))
        tensor = InferInput(name, [*array.shape], datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        pairs.append((tensor, array))
    return pairs


def raw_size(array):
    return sum(4 + len(item) for item in array.flat) if array.dtype == object else array.nbytes


def assert_equal(array, expected):
    assert array.shape == expected.shape
    if expected.dtype == object:
        assert array.ravel().tolist() == expected.ravel().tolist()
    else:
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@settings(max_examples=60)
@given(
    inputs(),
    st.lists(st.tuples(NAMES, st.booleans()), max_size=3, unique_by=lambda pair: pair[0]),
    NAMES,
    st.dictionaries(NAMES.map("p{}".format), SCALARS, max_size=3),
)
def test_requests_of_tritons_client_are_parsed(pairs, outputs, name, parameters):
    body, length = InferenceServerClient.generate_request_body(
        [tensor for tensor, _ in pairs],
        [InferRequestedOutput(output, binary_data=binary) for output, binary in outputs],
        name,
        parameters=parameters,
    )
    request = parse_rest(body, length)
    assert request.id == name
    default = {} if outputs else {"binary_data_output": True}
    assert request.parameters == {**default, **parameters}
    parsed_outputs = [(output.name, output.parameters["binary_data"]) for output in request.outputs]
    assert parsed_outputs == outputs
    for parsed, (tensor, array) in zip(request.inputs, pairs, strict=True):
        assert (parsed.name, parsed.datatype) == (tensor.name(), tensor.datatype())
        assert parsed.parameters == {}
        assert_equal(parsed.data, array)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(tensors(finite=True), st.sampled_from([None, False, True])), max_size=3),
    st.booleans(),
    NAMES,
    st.dictionaries(NAMES, SCALARS, max_size=2),
)
def test_responses_are_parsed_by_tritons_client(outputs, default, name, parameters):
    request = InferRequest([], [], name, {"binary_data_output": default})
    tensors = []
    for place, ((datatype, array), binary) in enumerate(outputs):
        tensors.append(Tensor(f"ä{place}", datatype, array, dict(parameters)))
        if binary is not None:
            request.outputs.append(RequestedOutput(tensors[-1].name, {"binary_data": binary}))
    body, length = render_rest(InferResponse("a model", "7", tensors, name, parameters), request)
    raw = [default if binary is None else binary for _, binary in outputs]
    assert (length is not None) == any(raw)
    result = InferenceServerClient.parse_response_body(body, header_length=length)
    response = result.get_response()
    assert (response["model_name"], response["model_version"]) == ("a model", "7")
    assert response.get("id", "") == name and response.get("parameters", {}) == parameters
    for output, tensor, is_raw in zip(response["outputs"], tensors, raw, strict=True):
        assert output["name"] == tensor.name and output["shape"] == list(tensor.data.shape)
        assert ("data" in output) is not is_raw
        size = {"binary_data_size": raw_size(tensor.data)} if is_raw else {}
        assert output.get("parameters", {}) == {**parameters, **size}
        if tensor.data.size:  # the client loses the dtype of an empty array
            array = result.as_numpy(tensor.name)
            if array.dtype == object and not is_raw:
                array = np.array([item.encode() for item in array.ravel()], object)
                array = array.reshape(tensor.data.shape)
            assert_equal(array, tensor.data)


@settings(max_examples=60)
@given(tensors(finite=False))
def test_raw_tensors_transfer_values_that_json_cannot(pair):
    datatype, array = pair
    response = InferResponse("m", "1", [Tensor("y", datatype, array)])
    request = InferRequest([], [RequestedOutput("y", {"binary_data": True})])
    body, length = render_rest(response, request)
    # Outputs and inputs have the same format.
    header = json.loads(body[:length])
    text = json.dumps({"inputs": header["outputs"]}).encode()
    assert_equal(parse_input(text, body[length:]), array)


def tensor(**changes):
    return {"name": "x", "datatype": "INT32", "shape": [2], "data": [1, 2], **changes}


def body_of(*inputs, **rest):
    return json.dumps({"inputs": inputs, **rest}).encode()


def raw_tensor(size, **changes):
    without_data = tensor(parameters={"binary_data_size": size}, **changes)
    del without_data["data"]
    return without_data


def parse_input(header, raw=None):
    """Parse a body with one input; return its array."""
    body, length = (header, None) if raw is None else (header + raw, len(header))
    [parsed] = parse_rest(body, length).inputs
    return parsed.data


def test_data_may_be_flat_or_nested():
    for data in ([1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]):
        array = parse_input(body_of(tensor(shape=[2, 3], data=data)))
        assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    for shape, data in (([], [7]), ([0], []), ([2, 0], [[], []]), ([2, 0], []), ([0, 3], [])):
        assert parse_input(body_of(tensor(shape=shape, data=data))).shape == tuple(shape)


@pytest.mark.parametrize("item", ["[]", "[[[]]]", "1", '""', "{}"])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(item):
    body = f'{{"x": [{",".join([item] * (2**20 + 2))}]}}'
    with pytest.raises(ServiceError, match="at most 1048576 commas") as caught:
        parse_object(body[:-4].encode())  # the parser would refuse it, too
    assert caught.value.kind == "too_large"


def test_half_a_million_numbers_in_arrays_are_few_enough():
    data = [[1]] * 500_000
    assert parse_object(json.dumps({"x": data}).encode())["x"] == data


def test_optional_entries_may_be_null_and_unknown_ones_are_ignored():
    request = parse_rest(
        body_of(tensor(parameters=None), id=None, outputs=None, parameters=None, more=[{}]), None
    )
    assert (request.id, request.outputs, request.parameters) == ("", [], {})


def test_raw_arrays_are_aligned():
    text = body_of(raw_tensor(8))
    for spaces in range(8):
        array = parse_input(text + b" " * spaces, struct.pack("<2i", 3, -4))
        assert array.flags.aligned and array.tolist() == [3, -4]


FP64_TENSOR = tensor(datatype="FP64", data=[1, 2])
NESTED = b'{"inputs": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
DAMAGED = {
    "no json": (b"", "body"),
    "half": (b'{"inputs": [', "body"),
    "two": (b'{"inputs": []} {}', "body"),
    "list": (b"[]", "body"),
    "latin": (b'{"inputs": [], "id": "\xe4"}', "body"),
    "surrogate in utf-8": (b'{"inputs": [], "id": "\xed\xa0\x80"}', "body"),
    "utf-16": ('{"inputs": []}'.encode("utf-16"), "body"),
    "deep": (NESTED, "body"),
    "digits": (b'{"inputs": ' + b"1" * 10_000 + b"}", "body"),
    "key twice": (b'{"inputs": [], "inputs": []}', "body"),
    "key of a tensor twice": (body_of(tensor()).replace(b'"shape"', b'"data": 1, "shape"'), "body"),
    "key with a surrogate twice": (b'{"inputs": [], "\\ud800": 1, "\\ud800": 2}', "body"),
    "constant": (b'{"inputs": NaN}', "body"),
    "no inputs": (b"{}", "inputs"),
    "inputs no list": (b'{"inputs": {}}', "inputs"),
    "input no object": (b'{"inputs": [1]}', "inputs"),
    "twice": (body_of(tensor(), tensor()), "inputs"),
    "outputs twice": (body_of(tensor(), outputs=[{"name": "y"}, {"name": "y"}]), "outputs"),
    "outputs no list": (body_of(tensor(), outputs={}), "outputs"),
    "output without a name": (body_of(tensor(), outputs=[{}]), "outputs[0].name"),
    "id no text": (body_of(tensor(), id=3), "id"),
    "id with a surrogate": (body_of(tensor(), id="\ud800"), "id"),
    "name no text": (body_of(tensor(name=["x"])), "inputs[0].name"),
    "name with a surrogate": (body_of(tensor(name="\udfff")), "inputs[0].name"),
    "datatype unknown": (body_of(tensor(datatype="BF16")), "inputs[0].datatype"),
    "datatype no text": (body_of(tensor(datatype=["INT32"])), "inputs[0].datatype"),
    "no shape": (body_of(tensor(shape=None)), "inputs[0].shape"),
    "shape of floats": (body_of(tensor(shape=[2.0])), "inputs[0].shape"),
    "shape of bools": (body_of(tensor(shape=[True, 2])), "inputs[0].shape"),
    "shape negative": (body_of(tensor(shape=[-1, -2])), "inputs[0].shape"),
    "shape long": (body_of(tensor(shape=[1] * 16 + [2])), "inputs[0].shape"),
    "shape overflows": (body_of(tensor(shape=[2**32, 2**32])), "inputs[0].shape"),
    "shape large and empty": (body_of(tensor(shape=[0, 2**70], data=[])), "inputs[0].shape"),
    "shape larger than data": (body_of(tensor(shape=[10**6, 10**6])), "inputs[0]"),
    "too many data": (body_of(tensor(data=[1, 2, 3])), "inputs[0]"),
    "no data": (body_of(tensor(data=None)), "inputs[0].data"),
    "ragged": (body_of(tensor(shape=[2, 2], data=[[1, 2, 3], [4]])), "inputs[0].data"),
    "too deep": (body_of(tensor(data=[[1], [2]])), "inputs[0].data"),
    "half nested": (body_of(tensor(shape=[2, 2], data=[[1, 2], 3, 4])), "inputs[0].data"),
    "half flat": (body_of(tensor(shape=[2, 2], data=[1, 2, [3, 4]])), "inputs[0].data"),
    "nested but scalar": (body_of(tensor(shape=[], data=[[1]])), "inputs[0].data"),
    "float as int": (body_of(tensor(data=[1, 2.0])), "inputs[0].data"),
    "bool as int": (body_of(tensor(data=[1, True])), "inputs[0].data"),
    "text as int": (body_of(tensor(data=[1, "2"])), "inputs[0].data"),
    "null as int": (body_of(tensor(data=[1, None])), "inputs[0].data"),
    "int as bool": (body_of(tensor(datatype="BOOL", data=[1, 0])), "inputs[0].data"),
    "bool as float": (body_of(tensor(datatype="FP32", data=[1, True])), "inputs[0].data"),
    "text as float": (body_of(tensor(datatype="FP32", data=["1", "2"])), "inputs[0].data"),
    "int as text": (body_of(tensor(datatype="BYTES", data=["1", 2])), "inputs[0].data"),
    "surrogate": (body_of(tensor(datatype="BYTES", data=["a", "\ud83d"])), "inputs[0].data"),
    "int too large": (body_of(tensor(datatype="INT8", data=[1, 128])), "inputs[0].data"),
    "uint negative": (body_of(tensor(datatype="UINT64", data=[1, -1])), "inputs[0].data"),
    "int far too large": (body_of(tensor(data=[1, 10**4000])), "inputs[0].data"),
    "float16 too large": (body_of(tensor(datatype="FP16", data=[1, 70000])), "inputs[0].data"),
    "float32 too large": (body_of(tensor(datatype="FP32", data=[1, 1e39])), "inputs[0].data"),
    "float64 too large": (body_of(FP64_TENSOR).replace(b"[1, 2]", b"[1, 1e999]"), "inputs[0].data"),
    "int too large for float": (body_of({**FP64_TENSOR, "data": [1, 10**4000]}), "inputs[0].data"),
    "NaN": (body_of(tensor(datatype="FP32", data=[1, float("nan")])), "body"),
    "infinity": (body_of(tensor(datatype="FP32", data=[1, float("inf")])), "body"),
    "parameters no object": (body_of(tensor(parameters=[])), "inputs[0].parameters"),
    "parameter nested": (body_of(tensor(), parameters={"a": {}}), "parameters"),
    "parameter null": (body_of(tensor(), parameters={"a": None}), "parameters"),
    "parameter infinite": (
        body_of(tensor(), parameters={"a": 1}).replace(b'"a": 1', b'"a": -1e999'),
        "parameters",
    ),
    "parameter with a surrogate": (body_of(tensor(), parameters={"a": "\ud800"}), "parameters"),
    "parameter of such a name": (body_of(tensor(), parameters={"\ud800": 1}), "parameters"),
    "binary output no bool": (
        body_of(tensor(), parameters={"binary_data_output": 1}),
        "parameters.binary_data_output",
    ),
    "binary output no bool, one": (
        body_of(tensor(), outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]),
        "outputs[0].parameters.binary_data",
    ),
    "raw without a length": (body_of(raw_tensor(8)), "inputs[0].parameters.binary_data_size"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_bodies_are_refused(name):
    body, argument = DAMAGED[name]
    with pytest.raises(ServiceError) as caught:
        parse_rest(body, None)
    assert (caught.value.kind, caught.value.argument) == ("invalid", argument)
    assert len(caught.value.message.encode("utf-8")) < 1000


SIZE = "inputs[0].parameters.binary_data_size"


@pytest.mark.parametrize(
    ("tensor", "raw", "argument"),
    [
        (raw_tensor(9), bytes(8), SIZE),
        (raw_tensor(-1), bytes(8), SIZE),
        (raw_tensor(2**70), bytes(8), SIZE),
        (raw_tensor(8.0), bytes(8), SIZE),
        (raw_tensor(True), bytes(8), SIZE),
        (raw_tensor("8"), bytes(8), SIZE),
        (raw_tensor(7), bytes(7), "inputs[0]"),
        (raw_tensor(8), bytes(9), "body"),
        (raw_tensor(0, shape=[10**6, 10**6]), b"", "inputs[0]"),
        (raw_tensor(2, datatype="BOOL"), b"\x00\x02", "inputs[0]"),
        (raw_tensor(8, datatype="BYTES"), b"\xff\xff\xff\xff" * 2, "inputs[0]"),
        (raw_tensor(9, datatype="BYTES"), bytes(9), "inputs[0]"),
        (raw_tensor(4, datatype="BYTES"), bytes(4), "inputs[0]"),
        (raw_tensor(8, datatype="BYTES", shape=[2**40]), bytes(8), "inputs[0]"),
        ({**tensor(), **raw_tensor(8), "data": [1, 2]}, bytes(8), "inputs[0].data"),
        (tensor(), b"\0", "body"),
    ],
)
def test_damaged_raw_tensors_are_refused(tensor, raw, argument):
    header = body_of(tensor)
    with pytest.raises(ServiceError) as caught:
        parse_rest(header + raw, len(header))
    assert (caught.value.kind, caught.value.argument) == ("invalid", argument)


INT32 = b"\x03\0\0\0\x04\0\0\0"  # 3 and 4


@pytest.mark.parametrize(
    ("datatype", "shape", "body", "expected"),
    [
        ("INT32", (-1,), INT32, [3, 4]),
        ("INT32", (2,), INT32, [3, 4]),
        ("INT32", (-1, -1), INT32, [[3, 4]]),
        ("INT32", (-1, 1), INT32, [[3], [4]]),
        ("INT32", (2, -1), INT32, [[3], [4]]),
        ("INT32", (-1, -1), b"", [[]]),
        ("BYTES", (-1,), INT32, [INT32]),
        ("BYTES", (-1, 1), b"", [[b""]]),
    ],
)
def test_the_shape_of_a_body_without_json_follows_from_its_size(datatype, shape, body, expected):
    request = parse_raw(body, [TensorSpec("x", datatype, shape)])
    [tensor] = request.inputs
    assert (tensor.name, tensor.datatype, tensor.data.tolist()) == ("x", datatype, expected)
    assert request.parameters == {"binary_data_output": True}


@pytest.mark.parametrize(
    ("specs", "argument"),
    [
        ([("INT32", (-1, 3))], "x"),
        ([("INT64", (-1, -1, 2))], "x"),
        ([("INT32", (-1, 0))], "x"),
        ([("BOOL", (-1,))], "x"),
        ([("BYTES", (2,))], "x"),
        ([("INT32", (2, -1, -1))], "Inference-Header-Content-Length"),
        ([("INT32", (-1, -1, -1))], "Inference-Header-Content-Length"),
        ([("INT32", (-1,)), ("INT32", (-1,))], "Inference-Header-Content-Length"),
        ([], "Inference-Header-Content-Length"),
    ],
)
def test_a_body_without_json_must_have_one_possible_shape(specs, argument):
    with pytest.raises(ServiceError) as caught:
        parse_raw(INT32, [TensorSpec("x", *spec) for spec in specs])
    assert (caught.value.kind, caught.value.argument) == ("invalid", argument)


@pytest.mark.parametrize("length", [-1, 10**30, len(body_of(tensor())) + 1])
def test_a_header_length_outside_of_the_body_is_refused(length):
    with pytest.raises(ServiceError) as caught:
        parse_rest(body_of(tensor()), length)
    assert caught.value.argument == "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    "body",
    [
        body_of(tensor(parameters={"shared_memory_region": "r"})),
        body_of(tensor(parameters={"shared_memory_byte_size": 8})),
        body_of(tensor(), outputs=[{"name": "y", "parameters": {"shared_memory_offset": 0}}]),
        body_of(tensor(), outputs=[{"name": "y", "parameters": {"classification": 3}}]),
    ],
)
def test_shared_memory_and_classification_are_unsupported(body):
    with pytest.raises(ServiceError, match="must be left out") as caught:
        parse_rest(body, None)
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize(
    ("datatype", "items"),
    [("FP32", [1, np.nan]), ("FP64", [-np.inf, 1]), ("BYTES", [b"a", b"\xff"])],
)
def test_an_output_that_json_cannot_represent_is_an_error(datatype, items):
    data = np.array(items, DATATYPES[datatype])
    response = InferResponse("m", "1", [Tensor("y", datatype, data)])
    with pytest.raises(ServiceError, match="'y' has values that JSON cannot represent") as caught:
        render_rest(response, InferRequest([], []))
    assert caught.value.kind == "unprocessable"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
NEARLY_TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | JSON,
        "datatype": st.sampled_from([*DATATYPES]) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        "data": JSON,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_size": st.integers(-1, 40) | JSON, "a": JSON}
        )
        | JSON,
    },
)


def check_parsed_or_refused(body, length):
    try:
        request = parse_rest(body, length)
    except ServiceError as error:
        assert error.kind in ("invalid", "unsupported")
        error.message.encode("utf-8")
        return
    outputs = InferRequest([], [], parameters={"binary_data_output": True})
    render_rest(InferResponse("m", "1", request.inputs, request.id, request.parameters), outputs)


@settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {"inputs": st.lists(NEARLY_TENSORS, max_size=3) | JSON},
        optional={"outputs": JSON, "id": JSON, "parameters": JSON},
    )
    | JSON,
    st.binary(max_size=40),
)
def test_any_json_parses_or_is_refused(message, raw):
    text = json.dumps(message).encode()
    check_parsed_or_refused(text, None)
    check_parsed_or_refused(text + raw, len(text))


@settings(max_examples=100)
@given(st.binary(max_size=100), st.none() | st.integers(-5, 110) | st.integers())
def test_any_bytes_parse_or_are_refused(body, length):
    check_parsed_or_refused(body, length)
