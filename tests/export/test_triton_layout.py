"""A model repository for Triton: read by Triton's own messages, its `model.py` run as it stands.

Triton itself is not here: what it would do is taken from its documentation.
"""

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import triton_python_backend_utils as triton
from copy_artifact import COPY, copy_graph, make
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype

from keras_bahdanau_export import write_triton_repository
from keras_bahdanau_runtime import (
    CorruptArtifactError,
    Translator,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.manifest import read_manifest

ALL = ["translation", "score", "alignment"]
TEXT = "a man on a bike"


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def config(folder):
    text = (folder / "config.pbtxt").read_text("utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def call_artifact(path, graph, data=False):
    """An artifact of the call of a Keras model; with `data`, its weights stand in a second file."""
    model = onnx.parser.parse_model(graph) if isinstance(graph, str) else graph
    for weights in model.graph.initializer:  # as bytes, which can stand in a file
        weights.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights), weights.name)
        )
    with publish(path) as folder:
        beside = {"location": "model.onnx.data", "size_threshold": 0} if data else {}
        onnx.save_model(model, folder / "model.onnx", save_as_external_data=data, **beside)
        signature = {"model.onnx": {"inputs": [], "outputs": []}}
        write_manifest(folder, {"signatures": signature})
    return path


# The repository.


def test_a_repository_holds_both_models_of_an_artifact(tmp_path):
    artifact = make(tmp_path / "copy")
    write_triton_repository(artifact, tmp_path / "models")
    assert names(tmp_path / "models") == [
        "copy",
        "copy-graph",
        "copy-graph/1",
        "copy-graph/1/model.onnx",
        "copy-graph/config.pbtxt",
        "copy/1",
        "copy/1/artifact",
        "copy/1/artifact/manifest.json",
        "copy/1/artifact/model.onnx",
        "copy/1/artifact/tokenizer.json",
        "copy/1/model.py",
        "copy/config.pbtxt",
    ]
    copied = tmp_path / "models" / "copy" / "1" / "artifact"
    assert read_manifest(copied).files == read_manifest(artifact).files
    graph = tmp_path / "models" / "copy-graph" / "1" / "model.onnx"
    assert graph.read_bytes() == (artifact / "model.onnx").read_bytes()
    assert names(tmp_path)[-1].startswith("models/")  # and nothing is left beside it


def test_without_a_tokenizer_there_is_the_graph_alone(tmp_path):
    write_triton_repository(make(tmp_path / "copy", document=None), tmp_path / "models", "de.en")
    assert names(tmp_path / "models")[0] == "de.en-graph"
    assert config(tmp_path / "models" / "de.en-graph").name == "de.en-graph"


def test_weights_beside_a_graph_go_with_it(tmp_path):
    graph = """<ir_version: 8, opset_import: ["" : 17]>
    call (float[batch, 2] x) => (float[batch, 2] y) <float[2] w = {2.0, 3.0}> { y = Mul (x, w) }"""
    artifact = call_artifact(tmp_path / "call", graph, data=True)
    assert (artifact / "model.onnx.data").stat().st_size == 8
    write_triton_repository(artifact, tmp_path / "models")
    model = tmp_path / "models" / "call-graph" / "1" / "model.onnx"
    assert names(model.parent) == ["model.onnx", "model.onnx.data"]
    session = onnxruntime.InferenceSession(model)
    assert session.run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist() == [[2.0, 3.0]]


# The configurations.


def test_the_text_model_is_described_as_it_answers(tmp_path):
    write_triton_repository(make(tmp_path / "copy"), tmp_path / "models", name="en-de")
    found = config(tmp_path / "models" / "en-de")
    assert (found.name, found.backend, found.max_batch_size) == ("en-de", "python", 64)
    kinds = model_config_pb2.DataType
    assert [(t.name, kinds.Name(t.data_type), list(t.dims)) for t in found.input] == [
        ("text", "TYPE_STRING", [1])
    ]
    assert [(t.name, kinds.Name(t.data_type), list(t.dims)) for t in found.output] == [
        ("translation", "TYPE_STRING", [-1]),
        ("score", "TYPE_FP32", [-1]),
        ("alignment", "TYPE_STRING", [-1]),
    ]
    policy = found.dynamic_batching.default_queue_policy
    assert found.dynamic_batching.max_queue_delay_microseconds == 5000
    assert (policy.default_timeout_microseconds, policy.allow_timeout_override) == (6e7, True)
    [group] = found.instance_group
    assert (group.count, group.kind) == (1, model_config_pb2.ModelInstanceGroup.KIND_CPU)


def call_of(inputs, outputs, body):
    return f'<ir_version: 8, opset_import: ["" : 17]>\ncall ({inputs}) => ({outputs}) {{ {body} }}'


def hostile():
    """A graph whose input is named by somebody who knows the format of a `config.pbtxt`."""
    model = onnx.parser.parse_model(call_of("float[n, 2] x", "float[n, 2] y", "y = Neg (x)"))
    name = 'x" } \\"\n#é文 max_batch_size: 9 \t'
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    return model


TYPES = "float16[n, 2] a, double[n, m, 3] b, bool[n, 1] c, uint8[n, 1] d, int64[n, 1] e"
GRAPHS = {
    "search": (COPY, True),
    "types": (
        call_of(
            TYPES,
            "float16[n, 2] f, double[n, m, 3] g, bool[n, 1] h, uint8[n, 1] i, int64[n, 1] j",
            "f = Neg (a) g = Neg (b) h = Not (c) i = Identity (d) j = Neg (e)",
        ),
        True,
    ),
    "hostile": (hostile(), True),
    "batch last": (
        call_of("float[2, n] x", "float[n, 2] y", "y = Transpose <perm = [1, 0]> (x)"),
        False,
    ),
    "batch fixed": (call_of("float[3, 2] x", "float[3, 2] y", "y = Neg (x)"), False),
    "only a batch": (call_of("float[n] x", "float[n] y", "y = Neg (x)"), False),
    "two batches": (
        call_of("float[n, 2] x, float[m, 2] z", "float[n, 2] y, float[m, 2] w",
                "y = Neg (x) w = Neg (z)"),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_is_described_as_onnxruntime_sees_it(tmp_path, case):
    graph, batched = GRAPHS[case]
    if case == "search":
        artifact = make(tmp_path / "a")
    else:
        artifact = call_artifact(tmp_path / "a", graph)
    write_triton_repository(artifact, tmp_path / "models")
    folder = tmp_path / "models" / "a-graph"
    found = config(folder)
    assert (found.name, found.backend) == ("a-graph", "onnxruntime")
    assert found.max_batch_size == (64 if batched else 0)
    assert found.HasField("dynamic_batching") == batched
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    model = onnx.load(folder / "1" / "model.onnx")
    for side, values, described in (
        (found.input, session.get_inputs(), model.graph.input),
        (found.output, session.get_outputs(), model.graph.output),
    ):
        assert [tensor.name for tensor in side] == [value.name for value in values]
        for tensor, value, known in zip(side, values, described, strict=True):
            shape = [size if isinstance(size, int) else -1 for size in value.shape]
            assert [-1, *tensor.dims] == shape if batched else list(tensor.dims) == shape
            dtype = onnx.helper.tensor_dtype_to_np_dtype(known.type.tensor_type.elem_type)
            kind = model_config_pb2.DataType.Name(tensor.data_type)
            assert kind == f"TYPE_{np_to_triton_dtype(dtype)}"


def test_a_batch_is_no_larger_than_a_search_takes(tmp_path):
    search = {"size": 2, "max_length": 2**28}
    write_triton_repository(make(tmp_path / "a", search=search), tmp_path / "models")
    assert config(tmp_path / "models" / "a-graph").max_batch_size == 3


def test_joined_requests_of_a_search_have_their_own_answers(tmp_path):
    write_triton_repository(make(tmp_path / "a"), tmp_path / "models")
    session = onnxruntime.InferenceSession(tmp_path / "models" / "a-graph" / "1" / "model.onnx")
    requests = [np.array(rows, np.int32) for rows in ([[5, 3, 0]], [[7, 8, 3], [9, 3, 0]])]
    joined = session.run(None, {"source": np.concatenate(requests)})
    apart = [session.run(None, {"source": request}) for request in requests]
    for whole, parts in zip(joined, zip(*apart, strict=True), strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(parts))


# The model of texts.


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """An artifact whose graph fails for sources of eight ids and more, and takes forty."""
    graph = copy_graph(second_score="Add (score, score)").replace(
        "score = Neg (float_count)", "few = Gather (eight, count)\n    score = Neg (few)"
    )
    graph = graph.replace("<int32 pad", "<float[8] eight = {0, 1, 2, 3, 4, 5, 6, 7}, int32 pad")
    return make(tmp_path_factory.mktemp("triton") / "fragile", graph)


@pytest.fixture(scope="module")
def model(fragile):
    """The model of `model.py`, loaded and initialized as Triton does."""
    repository = fragile.parent / "models"
    write_triton_repository(fragile, repository)
    file = repository / "fragile" / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_instance_kind": "CPU", "model_instance_device_id": "0"})
    return model


def request(*texts, outputs=ALL, **parameters):
    array = np.array(
        [text if isinstance(text, bytes) else text.encode("utf-8") for text in texts], object
    ).reshape(-1, 1)
    return triton.InferenceRequest([triton.Tensor("text", array)], outputs, parameters or None)


def answer(response):
    assert response.error() is None, response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def test_the_text_model_says_what_the_translator_says(model, fragile):
    texts = [TEXT, "", "é a"]
    expected = Translator(fragile).translate(texts)
    [response] = model.execute([request(*texts)])
    found = answer(response)
    assert list(found) == ALL
    assert found["translation"].tolist() == [[one.text.encode("utf-8")] for one in expected]
    assert found["score"].dtype == np.float32
    assert found["score"].tolist() == [[one.score] for one in expected]
    for [text], one in zip(found["alignment"], expected, strict=True):
        np.testing.assert_array_equal(json.loads(text), one.alignment.tolist())


def test_one_call_answers_all_requests_that_triton_has_gathered(model, monkeypatch):
    calls = []

    class Counted(Translator):
        def translate(self, texts, **options):
            calls.append(list(texts))
            return super().translate(texts, **options)

    monkeypatch.setattr(model.translator, "__class__", Counted)
    responses = model.execute(
        [
            request("a", "", n_best=2, outputs=["score", "translation"]),
            request(b"\xff"),
            request("a bike", TEXT),
            request("a dog", outputs=["translation"]),
        ]
    )
    assert calls == [["a", "", "a bike", TEXT, "a dog"]]
    assert "utf-8" in responses[1].error().message()
    first, second, last = (answer(responses[place]) for place in (0, 2, 3))
    assert first["translation"].tolist() == [[b"a", b""], [b"", b""]]
    assert first["score"].tolist() == [[-2.0, -4.0], [0.0, float(np.finfo(np.float32).min)]]
    assert "alignment" not in first and "alignment" not in last
    assert second["translation"].tolist() == [[b"a bike"], [TEXT.encode()]]
    assert np.shape(json.loads(second["alignment"][0, 0])) == (3, 3)
    assert last["translation"].tolist() == [[b"a dog"]]


def test_nothing_but_wrong_requests_is_answered_too(model):
    [response] = model.execute([request("a", n_best=3)])
    assert "must be an int from 1 to 2. Received: 3" in response.error().message()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request("a", n_best=0), "Argument `n_best` must be an int from 1 to 2. Received: 0"),
        (request("a", n_best=True), "Argument `n_best`"),
        (request("a", n_best="2"), "Argument `n_best`"),
        (request("a", alignments=1), "Argument `alignments` must be a bool. Received: 1"),
        (request("a", b"\xed\xa0\x80"), "'utf-8' codec can't decode"),
        (request("a", "b" * 5001), "at most 5000 characters each. Received: 5001"),
        (request("a", "b " * 60), "at most 40 tokens each, end of sentence included"),
    ],
)
def test_a_wrong_request_is_told_so_and_disturbs_no_other(model, wrong, message):
    right = request("a dog")
    before, refused, after = model.execute([right, wrong, right])
    assert message in refused.error().message()
    assert refused.error().code() == triton.TritonError.INVALID_ARG
    for response in (before, after):
        assert answer(response)["translation"].tolist() == [[b"a dog"]]


def test_the_place_of_a_long_text_is_that_in_its_own_request(model):
    _, refused = model.execute([request("a", "a"), request("a", "b " * 60)])
    assert "at index 1" in refused.error().message()


def test_a_run_that_fails_costs_only_the_request_of_its_text(model):
    right, failed, last = model.execute(
        [request("a dog"), request("a", "x y z u v w k"), request("a bike")]
    )
    assert failed.error().code() == triton.TritonError.INTERNAL
    assert failed.error().message().startswith("RunError: onnxruntime could not run the graph")
    assert answer(right)["translation"].tolist() == [[b"a dog"]]
    assert answer(last)["translation"].tolist() == [[b"a bike"]]


def test_alignments_can_be_left_out_where_no_outputs_are_named(model):
    [response] = model.execute([request("a", alignments=False)])
    assert list(answer(response)) == ["translation", "score"]


def test_a_gpu_is_used_where_the_instance_has_one(model, fragile):
    other = type(model)()
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("There is one.")
    with pytest.raises(ValueError, match="CUDAExecutionProvider"):
        other.initialize({"model_instance_kind": "GPU", "model_instance_device_id": "0"})


# What is refused, and what stays.


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "a/b", "../a", 'a"', "a\n", "a b", "é", "a" * 101]
)
def test_a_name_that_is_none_is_refused_before_anything_is_made(tmp_path, name):
    artifact = make(tmp_path / "copy")
    with pytest.raises(ValueError, match="Argument `name` must be"):
        write_triton_repository(artifact, tmp_path / "models", name=name)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("float[n, 0] y", "y = Slice (x, zero, zero, one)"),
        ("float y", "y = ReduceSum <keepdims = 0> (x)"),
    ],
)
def test_what_triton_does_not_take_is_refused(tmp_path, outputs, body):
    graph = call_of("float[n, 2] x", outputs, body)
    graph = graph.replace(" { y", " <int64[1] zero = {0}, int64[1] one = {1}> { y")
    artifact = call_artifact(tmp_path / "call", graph)
    with pytest.raises(UnsupportedArtifactError, match="'y': expected a tensor that Triton takes"):
        write_triton_repository(artifact, tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["call"]


def damaged(path):
    (make(path) / "tokenizer.json").write_text("{}")


def without_graph(path):
    make(path, graph=None)


@pytest.mark.parametrize(
    ("made", "error"),
    [(damaged, CorruptArtifactError), (without_graph, UnsupportedArtifactError)],
)
def test_an_artifact_that_cannot_be_used_leaves_nothing(tmp_path, made, error):
    made(tmp_path / "copy")
    with pytest.raises(error):
        write_triton_repository(tmp_path / "copy", tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_repository_is_replaced_only_when_asked(tmp_path):
    artifact, models = make(tmp_path / "copy"), tmp_path / "models"
    write_triton_repository(artifact, models, "old")
    with pytest.raises(ValueError, match="`overwrite`"):
        write_triton_repository(artifact, models, "new")
    assert (models / "old").exists()
    write_triton_repository(artifact, models, "new", overwrite=True)
    assert sorted(path.name for path in models.iterdir()) == ["new", "new-graph"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "models"]


def add_file(models):
    (models / "notes.txt").write_text("mine")


def add_model(models):
    (models / "theirs" / "1").mkdir(parents=True)
    (models / "theirs" / "config.pbtxt").write_text('name: "theirs"')


def add_version(models):
    (models / "copy" / "2").mkdir()


def add_link(models):
    (models / "link").symlink_to(models / "copy")


@pytest.mark.parametrize("add", [add_file, add_model, add_version, add_link])
def test_what_somebody_added_to_a_repository_is_never_lost(tmp_path, add):
    artifact, models = make(tmp_path / "copy"), tmp_path / "models"
    write_triton_repository(artifact, models)
    add(models)
    before = names(models)
    with pytest.raises(ValueError, match="a Triton model repository of this package or an empty"):
        write_triton_repository(artifact, models, overwrite=True)
    assert names(models) == before


def test_an_artifact_is_no_repository(tmp_path):
    artifact = make(tmp_path / "copy")
    with pytest.raises(ValueError, match="which is neither"):
        write_triton_repository(artifact, artifact, overwrite=True)
    assert read_manifest(artifact).files
