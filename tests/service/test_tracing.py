"""Spans of requests: what a collector of OpenTelemetry receives from a service."""

import http.server
import itertools
import json
import signal
import sys
import threading

import grpc
import httpx
import pytest
from copy_artifact import make
from running_service import site
from service_process import ENVIRONMENT, serving
from tritonclient.grpc import service_pb2, service_pb2_grpc

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.service.server import Service
from keras_bahdanau_runtime.service.settings import Settings

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
ID = {"x-request-id": "abc"}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("tracing") / "copy")


@pytest.fixture
def collector(monkeypatch):
    """Yield the list of spans that services of the test send."""
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    spans = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            request = messages.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                assert names["service.name"] == "keras_bahdanau"
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "keras_bahdanau")
        yield spans
        server.shutdown()
        thread.join()


def attributes(span):
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def test_a_request_has_spans_of_its_queue_run_and_decode(collector, artifact):
    with site({"copy": artifact}, tracing=True) as service:
        headers = {"traceparent": TRACEPARENT, **ID}
        body = {"text": ["a man", "a dog"]}
        answer = service.web.post("/translate", json=body, headers=headers)
        service.web.get("/v2")  # no span
    by_name = {span.name: span for span in collector}
    assert len(collector) == 4
    request = by_name.pop("translate")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert answer.headers["traceparent"] == f"00-{TRACE}-{request.span_id.hex()}-01"
    expected = {"request_id": "abc", "model": "copy", "texts": 2, "tokens": 6}
    assert attributes(request) == {
        **expected,
        "http.response.status_code": 200,
    }
    parts = [by_name[name] for name in ("queue", "run", "decode")]
    assert {(part.trace_id, part.parent_span_id) for part in parts} == {
        (request.trace_id, request.span_id)
    }
    times = [
        time for part in parts for time in (part.start_time_unix_nano, part.end_time_unix_nano)
    ]
    ends = (request.start_time_unix_nano, *times, request.end_time_unix_nano)
    # The clock of spans may be set between two of its readings.
    assert all(later - earlier > -1e6 for earlier, later in itertools.pairwise(ends))


def test_a_grpc_call_that_fails_has_a_span_with_its_error(collector, artifact):
    with (
        site({"copy": artifact}, grpc_port=0, tracing=True) as service,
        grpc.insecure_channel(service.service.grpc_address) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            request = service_pb2.ModelInferRequest(model_name="copy")
            stub.ModelInfer(request, metadata=[("traceparent", TRACEPARENT), *ID.items()])
    [span] = collector
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == (
        "ModelInfer", TRACE, PARENT
    )  # fmt: skip
    assert span.status.code == 2  # an error
    assert attributes(span) == {
        "request_id": "abc",
        "model": "copy",
        "rpc.response.status_code": "INVALID_ARGUMENT",
        "error.type": "invalid",
    }


def test_a_trace_that_is_not_sampled_has_no_spans(collector, artifact):
    with site({"copy": artifact}, tracing=True) as service:
        headers = {"traceparent": TRACEPARENT.removesuffix("01") + "00"}
        answer = service.web.post("/translate", json={"text": "a"}, headers=headers)
        assert answer.headers["traceparent"].split("-")[1] == TRACE
    assert collector == []


def test_errors_of_the_exporter_are_lines_of_the_json_log(collector, artifact):
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    environment = {**ENVIRONMENT, **variables, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    options = ("--port", 0, "--tracing", "--log-format", "json")
    with serving(artifact, *options, env=environment) as (process, url):
        httpx.post(f"{url}/translate", json={"text": "a man"})
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    messages = [json.loads(line)["message"] for line in process.log_lines]
    assert any("export" in message for message in messages)


def test_tracing_without_its_packages_names_the_extra(artifact, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[tracing\]"'):
        Service(Settings({"copy": artifact}, tracing=True))
