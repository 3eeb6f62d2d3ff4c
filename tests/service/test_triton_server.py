"""The model repository on Triton's own server, if nvidia-pytriton, which contains it, is installed.

It contains Triton 24.10, whose Python backend needs numpy below 2. So this is an environment of its
own: `pip install ".[runtime]" nvidia-pytriton pytest hypothesis "onnx<1.18"`.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from copy_artifact import make
from service_process import free_port

from keras_bahdanau_export import write_triton_repository
from keras_bahdanau_runtime import Translator

TEXTS = ["a man on a bike", "", "नमस्ते 🙂", "a dog"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("triton") / "copy")


@pytest.fixture(scope="module")
def client(artifact):
    """A client of Triton, which serves the text model. It has no backend for the graph."""
    pytriton = pytest.importorskip("pytriton", reason="nvidia-pytriton is not installed.")
    write_triton_repository(artifact, artifact.parent / "models")
    server = Path(pytriton.__file__).with_name("tritonserver")
    backends = artifact.parent / "backends"
    shutil.copytree(server / "backends", backends)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, backends / "python")
    address = f"127.0.0.1:{free_port()}"
    command = [
        server / "bin" / "tritonserver",
        f"--model-repository={artifact.parent / 'models'}",
        f"--backend-directory={backends}",
        "--model-control-mode=explicit",
        "--load-model=copy",
        f"--http-port={address.rpartition(':')[2]}",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]
    libraries = [str(server.parents[1] / "nvidia_pytriton.libs"), os.environ.get("LD_LIBRARY_PATH")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]]),
    }
    log = artifact.parent / "log"
    with log.open("wb") as file, subprocess.Popen(command, env=environment, stderr=file) as process:
        try:
            with tritonclient.http.InferenceServerClient(address) as client:
                ready = False
                while not ready:
                    assert process.poll() is None, log.read_text()
                    with contextlib.suppress(OSError):
                        ready = client.is_model_ready("copy")
                yield client
                assert process.poll() is None, log.read_text()
        finally:
            process.kill()


def translate(client, texts, **parameters):
    array = np.array([[text.encode()] for text in texts], object)
    tensor = tritonclient.http.InferInput("text", array.shape, "BYTES")
    tensor.set_data_from_numpy(array)
    return client.infer("copy", [tensor], parameters=parameters)


def test_translations_are_those_of_the_translator(client, artifact):
    expected = Translator(artifact).translate(TEXTS)
    result = translate(client, TEXTS)
    assert result.as_numpy("translation").tolist() == [
        [translation.text.encode()] for translation in expected
    ]
    scores = [translation.score for translation in expected]
    scores[TEXTS.index("")] = float(np.finfo(np.float32).min)
    assert result.as_numpy("score").ravel().tolist() == scores
    for [text], translation in zip(result.as_numpy("alignment"), expected, strict=True):
        np.testing.assert_array_equal(json.loads(text), translation.alignment.tolist())


def test_parameters_of_a_request_are_read(client):
    result = translate(client, ["a man"], n_best=2, alignments=False)
    assert result.as_numpy("translation").tolist() == [[b"a man", b""]]
    assert result.as_numpy("alignment") is None


def test_an_invalid_request_gets_an_error(client):
    with pytest.raises(tritonclient.utils.InferenceServerException, match="from 1 to 2"):
        translate(client, ["a man"], n_best=3)
