"""The model repository for Triton, parsed with Triton's messages, and its `model.py`.

The tests run without Triton. `tests/service/test_triton_server.py` runs it.
"""

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import triton_python_backend_utils as triton
from copy_artifact import COPY, copy_graph, make, make_with_options
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import np_to_triton_dtype

from keras_bahdanau_export import write_triton_repository
from keras_bahdanau_runtime import CorruptArtifactError, Translator, UnsupportedArtifactError
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
    """An artifact without a search; with `data`, its weights are in a second file."""
    model = onnx.parser.parse_model(graph) if isinstance(graph, str) else graph
    for weights in model.graph.initializer:  # only raw bytes can be in a second file
        weights.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights), weights.name)
        )
    with publish(path) as folder:
        second = {"location": "model.onnx.data", "size_threshold": 0} if data else {}
        onnx.save_model(model, folder / "model.onnx", save_as_external_data=data, **second)
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
    assert names(tmp_path)[-1].startswith("models/")  # no other file is left


def test_an_artifact_without_a_tokenizer_becomes_a_graph_model_only(tmp_path):
    write_triton_repository(make(tmp_path / "copy", document=None), tmp_path / "models", "de.en")
    assert names(tmp_path / "models")[0] == "de.en-graph"
    assert config(tmp_path / "models" / "de.en-graph").name == "de.en-graph"


def test_weights_in_a_second_file_are_copied(tmp_path):
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


def test_the_text_model_is_configured_with_its_inputs_and_outputs(tmp_path):
    write_triton_repository(make(tmp_path / "copy"), tmp_path / "models", name="en-de")
    settings = config(tmp_path / "models" / "en-de")
    assert (settings.name, settings.backend, settings.max_batch_size) == ("en-de", "python", 64)
    kinds = model_config_pb2.DataType
    assert [(t.name, kinds.Name(t.data_type), t.optional, [*t.dims]) for t in settings.input] == [
        ("text", "TYPE_STRING", False, [1]),
        ("prefix", "TYPE_STRING", True, [1]),
        ("required", "TYPE_STRING", True, [1]),
    ]
    assert [(t.name, kinds.Name(t.data_type), list(t.dims)) for t in settings.output] == [
        ("translation", "TYPE_STRING", [-1]),
        ("score", "TYPE_FP32", [-1]),
        ("alignment", "TYPE_STRING", [-1]),
    ]
    policy = settings.dynamic_batching.default_queue_policy
    assert settings.dynamic_batching.max_queue_delay_microseconds == 5000
    assert (policy.default_timeout_microseconds, policy.allow_timeout_override) == (6e7, True)
    text = (tmp_path / "models" / "en-de" / "config.pbtxt").read_text("utf-8")
    assert "# Needs Triton 24.12 or later" in text  # before it, with numpy 2, a request is the end
    [group] = settings.instance_group
    assert (group.count, group.kind) == (1, model_config_pb2.ModelInstanceGroup.KIND_CPU)


def call_of(inputs, outputs, body):
    return f'<ir_version: 8, opset_import: ["" : 17]>\ncall ({inputs}) => ({outputs}) {{ {body} }}'


def hostile():
    """A graph whose input name would inject settings into a `config.pbtxt`."""
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
def test_a_graph_is_configured_with_the_shapes_and_types_of_onnxruntime(tmp_path, case):
    graph, batched = GRAPHS[case]
    if case == "search":
        artifact = make(tmp_path / "a")
    else:
        artifact = call_artifact(tmp_path / "a", graph)
    write_triton_repository(artifact, tmp_path / "models")
    folder = tmp_path / "models" / "a-graph"
    settings = config(folder)
    assert (settings.name, settings.backend) == ("a-graph", "onnxruntime")
    assert settings.max_batch_size == (64 if batched else 0)
    assert settings.HasField("dynamic_batching") == batched
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    model = onnx.load(folder / "1" / "model.onnx")
    for side, values, protos in (
        (settings.input, session.get_inputs(), model.graph.input),
        (settings.output, session.get_outputs(), model.graph.output),
    ):
        assert [tensor.name for tensor in side] == [value.name for value in values]
        for tensor, value, proto in zip(side, values, protos, strict=True):
            shape = [size if isinstance(size, int) else -1 for size in value.shape]
            assert [-1, *tensor.dims] == shape if batched else list(tensor.dims) == shape
            dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.type.tensor_type.elem_type)
            kind = model_config_pb2.DataType.Name(tensor.data_type)
            assert kind == f"TYPE_{np_to_triton_dtype(dtype)}"


def test_the_batch_size_is_limited_by_the_search(tmp_path):
    search = {"size": 2, "max_length": 2**28}
    write_triton_repository(make(tmp_path / "a", search=search), tmp_path / "models")
    assert config(tmp_path / "models" / "a-graph").max_batch_size == 3


def test_batched_requests_give_the_results_of_single_requests(tmp_path):
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
    """An artifact that accepts forty ids, whose graph fails for eight or more."""
    graph = copy_graph(second_score="Add (score, score)").replace(
        "score = Neg (float_count)", "few = Gather (eight, count)\n    score = Neg (few)"
    )
    graph = graph.replace("<int32 pad", "<float[8] eight = {0, 1, 2, 3, 4, 5, 6, 7}, int32 pad")
    return make(tmp_path_factory.mktemp("triton") / "fragile", graph)


def load(artifact):
    """The model of `model.py`, loaded and initialized as Triton does."""
    repository = artifact.parent / "models"
    write_triton_repository(artifact, repository)
    file = repository / artifact.name / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_instance_kind": "CPU", "model_instance_device_id": "0"})
    return model


@pytest.fixture(scope="module")
def model(fragile):
    return load(fragile)


@pytest.fixture(scope="module")
def model_with_options(tmp_path_factory):
    return load(make_with_options(tmp_path_factory.mktemp("options") / "copy"))


def request(*texts, outputs=ALL, prefix=None, required=None, **parameters):
    inputs = []
    for name, values in (("text", texts), ("prefix", prefix), ("required", required)):
        if values is not None:
            data = [each if isinstance(each, bytes) else each.encode("utf-8") for each in values]
            inputs.append(triton.Tensor(name, np.array(data, object).reshape(-1, 1)))
    return triton.InferenceRequest(inputs, outputs, parameters or None)


def outputs_of(response):
    assert response.error() is None, response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def test_the_text_model_gives_the_translations_of_the_translator(model, fragile):
    texts = [TEXT, "", "é a"]
    expected = Translator(fragile).translate(texts)
    [response] = model.execute([request(*texts)])
    outputs = outputs_of(response)
    assert list(outputs) == ALL
    assert outputs["translation"].tolist() == [[each.text.encode("utf-8")] for each in expected]
    assert outputs["score"].dtype == np.float32
    no_score = float(np.finfo(np.float32).min)
    scores = [no_score if each.score is None else each.score for each in expected]
    assert outputs["score"].ravel().tolist() == scores and scores[1] == no_score
    for [text], translation in zip(outputs["alignment"], expected, strict=True):
        np.testing.assert_array_equal(json.loads(text), translation.alignment.tolist())


def test_the_requests_of_a_batch_are_translated_in_one_call(model, monkeypatch):
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
    first, second, last = (outputs_of(responses[place]) for place in (0, 2, 3))
    assert first["translation"].tolist() == [[b"a", b""], [b"", b""]]
    assert first["score"].tolist() == [[-2.0, -4.0], [float(np.finfo(np.float32).min)] * 2]
    assert "alignment" not in first and "alignment" not in last
    assert second["translation"].tolist() == [[b"a bike"], [TEXT.encode()]]
    assert np.shape(json.loads(second["alignment"][0, 0])) == (3, 3)
    assert last["translation"].tolist() == [[b"a dog"]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request("a", n_best=0), "Argument `n_best` must be from 1 to 2. Received: 0"),
        (request("a", n_best=3), "Argument `n_best` must be from 1 to 2. Received: 3"),
        (request("a", n_best=True), "Argument `n_best`"),
        (request("a", n_best="2"), "Argument `n_best`"),
        (request("a", alignments=1), "Argument `alignments` must be bool. Received: 1"),
        (request("a", b"\xed\xa0\x80"), "'utf-8' codec can't decode"),
        (request("a", "b" * 5001), "at most 5000 characters each. Received: 5001"),
        (request("a", "b " * 60), "at most 40 tokens each, including the end of sentence"),
    ],
)
def test_an_invalid_request_gets_an_error_and_other_requests_their_results(model, wrong, message):
    right = request("a dog")
    [refused] = model.execute([wrong])
    assert message in refused.error().message()
    before, refused, after = model.execute([right, wrong, right])
    assert message in refused.error().message()
    assert refused.error().code() == triton.TritonError.INVALID_ARG
    for response in (before, after):
        assert outputs_of(response)["translation"].tolist() == [[b"a dog"]]


def test_requests_with_equal_options_are_translated_in_one_call(model_with_options, monkeypatch):
    calls = []

    class Counted(Translator):
        def translate(self, texts, **options):
            if texts:
                calls.append(list(texts))
            return super().translate(texts, **options)

    monkeypatch.setattr(model_with_options.translator, "__class__", Counted)
    responses = model_with_options.execute(
        [
            request(TEXT),
            request(TEXT, length_penalty="0.5", timeout=7, triton_final=True),
            request(TEXT, prefix=["a dog"]),
            request(TEXT, "a", length_penalty=0.5),
        ]
    )
    assert calls == [[TEXT, TEXT], [TEXT, TEXT, "a"]]
    outputs = [outputs_of(response) for response in responses]
    scores = [each["score"].ravel().tolist() for each in outputs]
    assert scores == [[-6.0], [-3.0], [-6.0], [-3.0, -1.0]]
    assert outputs[2]["translation"].tolist() == [[b"a dog on a bike"]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request("a", beam_size=3), "`beam_size` must be an int of at least 1 and at most 2"),
        (request("a", beam=3), "`beam` is unknown. Use only"),
        (request("a", top_k=3), "no input 'top_k': a BeamSearch has no such option"),
        (request("a", n_best=2, beam_size=1), "`n_best` must be from 1 to 1. Received: 2"),
        (
            request("a", suppressed='["a man"]'),
            "Argument `suppressed` must hold texts that are one",
        ),
        (
            request("a", suppressed=f'["{"a" * 5001}"]'),
            "`suppressed` must have at most 5000 characters each. Received: 5001",
        ),
        (
            request("a", suppressed="3"),
            "must be a JSON list of str or int. Received: '3'",
        ),
        (
            request("a", prefix=["a", "b"]),
            "`prefix` must have one str or None for each of 1 texts",
        ),
    ],
)
def test_a_wrong_option_gets_an_error(model_with_options, wrong, message):
    [refused] = model_with_options.execute([wrong])
    assert message in refused.error().message()
    assert refused.error().code() == triton.TritonError.INVALID_ARG


def test_the_error_has_the_index_of_the_text_in_its_own_request(model):
    _, refused = model.execute([request("a", "a"), request("a", "b " * 60)])
    assert "at index 1" in refused.error().message()


def test_a_failed_run_fails_only_the_request_with_its_text(model):
    right, failed, last = model.execute(
        [request("a dog"), request("a", "x y z u v w k"), request("a bike")]
    )
    assert failed.error().code() == triton.TritonError.INTERNAL
    assert failed.error().message().startswith("RunError: onnxruntime could not run the graph")
    assert outputs_of(right)["translation"].tolist() == [[b"a dog"]]
    assert outputs_of(last)["translation"].tolist() == [[b"a bike"]]


def test_alignments_can_be_left_out(model):
    [response] = model.execute([request("a", alignments=False)])
    assert list(outputs_of(response)) == ["translation", "score"]


def test_an_instance_on_a_gpu_uses_cuda(model):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("This onnxruntime has CUDA.")
    with pytest.raises(ValueError, match="CUDAExecutionProvider"):
        type(model)().initialize({"model_instance_kind": "GPU", "model_instance_device_id": "0"})


# Refused arguments, and existing repositories.


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "a/b", "../a", 'a"', "a\n", "a b", "é", "a" * 101]
)
def test_an_invalid_name_is_refused_before_any_file_is_written(tmp_path, name):
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
def test_a_tensor_that_triton_does_not_accept_is_refused(tmp_path, outputs, body):
    graph = call_of("float[n, 2] x", outputs, body)
    graph = graph.replace(" { y", " <int64[1] zero = {0}, int64[1] one = {1}> { y")
    artifact = call_artifact(tmp_path / "call", graph)
    with pytest.raises(
        UnsupportedArtifactError, match="'y': expected a tensor that Triton supports"
    ):
        write_triton_repository(artifact, tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["call"]


@pytest.mark.parametrize(
    ("make_artifact", "error"),
    [
        (lambda path: (make(path) / "tokenizer.json").write_text("{}"), CorruptArtifactError),
        (lambda path: make(path, graph=None), UnsupportedArtifactError),
    ],
    ids=["damaged", "without a graph"],
)
def test_an_unusable_artifact_leaves_no_files(tmp_path, make_artifact, error):
    make_artifact(tmp_path / "copy")
    with pytest.raises(error):
        write_triton_repository(tmp_path / "copy", tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_repository_is_replaced_only_with_overwrite(tmp_path):
    artifact, models = make(tmp_path / "copy"), tmp_path / "models"
    write_triton_repository(artifact, models, "old")
    with pytest.raises(ValueError, match="`overwrite`"):
        write_triton_repository(artifact, models, "new")
    assert (models / "old").exists()
    write_triton_repository(artifact, models, "new", overwrite=True)
    assert sorted(path.name for path in models.iterdir()) == ["new", "new-graph"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "models"]


def add_model(models):
    (models / "theirs" / "1").mkdir(parents=True)
    (models / "theirs" / "config.pbtxt").write_text('name: "theirs"')


@pytest.mark.parametrize(
    "add",
    [
        add_model,
        lambda models: (models / "notes.txt").write_text("mine"),
        lambda models: (models / "copy" / "2").mkdir(),
        lambda models: (models / "link").symlink_to(models / "copy"),
    ],
    ids=["model", "file", "version", "link"],
)
def test_a_repository_with_files_of_others_is_not_replaced(tmp_path, add):
    artifact, models = make(tmp_path / "copy"), tmp_path / "models"
    write_triton_repository(artifact, models)
    add(models)
    before = names(models)
    with pytest.raises(ValueError, match="a Triton model repository of this package or an empty"):
        write_triton_repository(artifact, models, overwrite=True)
    assert names(models) == before


def test_an_artifact_is_not_replaced_by_a_repository(tmp_path):
    artifact = make(tmp_path / "copy")
    with pytest.raises(ValueError, match="which is neither"):
        write_triton_repository(artifact, artifact, overwrite=True)
    assert read_manifest(artifact).files
