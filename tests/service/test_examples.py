"""Run each example of examples/service against a real service."""

import json
import os
import re
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
    manifests = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    deployment, service, scaler, budget = manifests
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    options = dict(option.split("=") for option in container["args"])
    help_text = output_of(sys.executable, "-m", "keras_bahdanau_cli", "serve", "--help")
    for option in [*start, *options]:
        assert not option.startswith("--") or option in help_text
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert httpx.get(f"{running.url}{path}").status_code == 200
    assert [port["containerPort"] for port in container["ports"]] == [8000, 8001]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http", "grpc"]
    assert options["--parallel-batches"] == "$(CPUS)" and container["env"][0]["name"] == "CPUS"
    delay, grace = int(options["--drain-delay"]), int(options["--grace"])
    assert delay > 0 and pod["terminationGracePeriodSeconds"] > delay + grace
    name, labels = deployment["metadata"]["name"], deployment["spec"]["selector"]["matchLabels"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == name
    assert labels == service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"]


def test_alerts_and_the_dashboard_use_metrics_and_labels_of_the_service(running):
    httpx.post(f"{running.url}/translate", json={"text": TEXT}).raise_for_status()
    httpx.post(f"{running.url}/translate", json={"text": 9000 * "a"})  # counts an error
    metrics = httpx.get(f"{running.url}/metrics").text
    scraped = yaml.safe_load((EXAMPLES / "prometheus.yaml").read_text())
    [group] = yaml.safe_load((EXAMPLES / scraped["rule_files"][0]).read_text())["groups"]
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
    queries = [target for panel in dashboard["panels"] for target in panel["targets"]]
    expressions = [rule["expr"] for rule in group["rules"]] + [each["expr"] for each in queries]
    assert len(group["rules"]) == 3 and len(expressions) > 15
    for expression in expressions:
        for name in re.findall(r"\b(?:keras_bahdanau|process)_\w+", expression):
            if name.startswith("process_") and sys.platform != "linux":
                continue
            samples = [line for line in metrics.splitlines() if re.match(rf"{name}\b", line)]
            assert samples, name
            # Prometheus adds "pod" and "job", see prometheus.yaml.
            groups = re.findall(r"by \(([\w, ]+)\)", expression)
            selected = re.findall(r"(\w+)(?:=~|!=|=)", "".join(re.findall(r"{(.*?)}", expression)))
            labels = {*", ".join(groups).split(", "), *selected} - {"", "pod", "job"}
            assert all(f'{label}="' in samples[0] for label in labels), expression


def test_the_load_test_counts_answers_and_their_times(running, tmp_path):
    texts = tmp_path / "texts"
    texts.write_text(f"{TEXT}\n\n{9000 * 'a'}\n")
    options = ("--url", running.url, "--clients", "1", "3", "--requests", "10")
    lines = output_of(sys.executable, EXAMPLES / "load_test.py", texts, *options).splitlines()
    assert lines[0].split() == "clients texts/s median ms p95 ms p99 ms others".split()
    assert [line.split()[0] for line in lines[1:]] == ["1", "3"]
    assert all(line.endswith("  413: 5") for line in lines[1:])
