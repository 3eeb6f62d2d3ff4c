"""Run each example of examples/service against a real service."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from copy_artifact import COPY_STEPS, make
from running_service import site

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "service"
TEXT = "a man on a bike"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    artifact = make(tmp_path_factory.mktemp("examples") / "copy", steps=COPY_STEPS)
    with site({"copy": artifact}, grpc_port=0) as service:
        yield service.service


def output_of(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed.")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_tritons_client_translates_over_http_and_grpc(running):
    http = running.url.removeprefix("http://")
    script = EXAMPLES / "triton_client.py"
    lines = output_of(sys.executable, script, "copy", TEXT, http, running.grpc_address).splitlines()
    assert lines[:5] == [
        "server: keras_bahdanau",
        "models: ['copy', 'copy-graph']",
        f"HTTP, JSON: {TEXT} (-6.00)",
        f"HTTP, binary: {TEXT} (-6.00)",
        f"gRPC: {TEXT} (-6.00); alignment of shape (6, 6)",
    ]
    assert lines[5].startswith("an error: There is no model")


def test_curl_translates_and_streams(running):
    lines = output_of("sh", EXAMPLES / "translate.sh", TEXT, running.url).split("\n", 1)
    assert json.loads(lines[0])["translations"][0]["text"] == TEXT
    assert lines[1].endswith(f'data: {{"text":"{TEXT}"}}\n\n')


def test_javascript_translates(running):
    assert output_of("node", EXAMPLES / "translate.mjs", TEXT, running.url) == f"{TEXT}\n"


def test_manifests_have_the_options_ports_and_paths_of_the_service(running):
    _, _, template = (ROOT / "Dockerfile").read_text().partition("ENTRYPOINT ")
    start = json.loads(template.splitlines()[0])
    deployment, service = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    help_text = output_of(sys.executable, "-m", "keras_bahdanau_cli", "serve", "--help")
    for option in [*start, *container["args"]]:
        assert not option.startswith("--") or option in help_text
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert httpx.get(f"{running.url}{path}").status_code == 200
    assert [port["containerPort"] for port in container["ports"]] == [8000, 8001]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http", "grpc"]
    arguments = container["args"]
    delay, grace = (
        int(arguments[arguments.index(flag) + 1]) for flag in ("--drain-delay", "--grace")
    )
    assert delay > 0 and pod["terminationGracePeriodSeconds"] > delay + grace
