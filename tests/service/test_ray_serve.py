"""The service on Ray Serve, if Ray is installed: responses are those of the service itself."""

import json
import os
import socket
import sys
import urllib.error
import urllib.request

import pytest
from copy_artifact import COPY_STEPS, make

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.ray import serve as ray_serve
from keras_bahdanau_runtime.service.settings import Settings

KEY = "a-key-of-sixteen-letters"
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([os.path.abspath("export"), os.path.abspath(".")]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_niceness": "5",
}


def test_the_error_without_ray_names_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[ray\]"'):
        ray_serve.build({"copy": str(tmp_path)})


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Yield the address of a deployment with at most two replicas."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "keys").write_text(f"{KEY}\n")
    artifact = make(folder / "artifact", steps=COPY_STEPS)
    settings = Settings({"copy": artifact}, api_key_file=folder / "keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        # Ray reads the variables when it is imported.
        ray = pytest.importorskip("ray", reason="Ray is not installed.")
        serve = pytest.importorskip("ray.serve", reason="Ray is not installed.")
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20,
            logging_level="warning", log_to_driver=False,
        )  # fmt: skip
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_serve.application(settings, {"min_replicas": 1, "max_replicas": 2}))
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


def ask(url, path, body=None, key=KEY):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_responses_are_those_of_the_service(url):
    status, body = ask(url, "/translate", {"text": ["a man", "a dog"]})
    assert status == 200
    translations = json.loads(body)["translations"]
    assert [translation["text"] for translation in translations] == ["a man", "a dog"]
    status, body = ask(url, "/v2/models/copy")
    assert (status, json.loads(body)["name"]) == (200, "copy")
    assert ask(url, "/v2/health/ready")[0] == 200
    status, body = ask(url, "/translate/stream", {"text": "a man on a bike"})
    assert status == 200
    events = [json.loads(line.removeprefix("data: ")) for line in body.split("\n\n") if line]
    assert events[-1] == {"text": "a man on a bike"} and len(events) > 2


@pytest.mark.parametrize(
    ("path", "body", "key", "status", "code"),
    [
        ("/translate", {"text": 1}, KEY, 422, "unprocessable"),
        ("/translate", {"text": "a"}, "another", 401, "unauthenticated"),
        ("/nowhere", None, KEY, 404, "not_found"),
        ("/translate", {"text": "a", "model": "b"}, KEY, 404, "not_found"),
    ],
)
def test_errors_are_those_of_the_service(url, path, body, key, status, code):
    response_status, response_body = ask(url, path, body, key)
    assert (response_status, json.loads(response_body)["code"]) == (status, code)
