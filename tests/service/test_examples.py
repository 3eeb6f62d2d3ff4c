"""The examples of examples/service, each run as it stands against a real service."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from copy_artifact import COPY_STEPS, make
from service.site import site

pytestmark = pytest.mark.once

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "service"
TEXT = "a man on a bike"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    artifact = make(tmp_path_factory.mktemp("examples") / "copy", steps=COPY_STEPS)
    with site({"copy": artifact}, grpc_port=0) as found:
        yield found.service


def said(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed.")
    environment = {**os.environ, "no_proxy": "*"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_tritons_client(running):
    http = running.url.removeprefix("http://")
    script = EXAMPLES / "triton_client.py"
    lines = said(sys.executable, script, "copy", TEXT, http, running.grpc_address).splitlines()
    assert lines[:2] == ["server: keras_bahdanau", "models: ['copy', 'copy-graph']"]
    assert lines[2] == f"HTTP, JSON: {TEXT} (-6.00)"
    assert lines[3] == f"HTTP, binary: {TEXT} (-6.00)"
    assert lines[4] == f"gRPC: {TEXT} (-6.00); alignment of shape (6, 6)"
    assert lines[5].startswith("an error: There is no model")


def test_curl(running):
    lines = said("sh", EXAMPLES / "translate.sh", TEXT, running.url).split("\n", 1)
    assert json.loads(lines[0])["translations"][0]["text"] == TEXT
    assert lines[1].endswith(f'data: {{"text": "{TEXT}"}}\n\n')


def test_javascript(running):
    assert said("node", EXAMPLES / "translate.mjs", TEXT, running.url) == f"{TEXT}\n"
