"""Responses conform to the OpenAPI document, for valid and invalid requests drawn from it.

`make test-soak` draws many more requests. It sets REQUESTS.
"""

import os

import hypothesis
import pytest
import schemathesis
from copy_artifact import COPY_STEPS, make
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from running_service import site
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from keras_bahdanau_runtime.service.settings import Limits

SOAK = "REQUESTS" in os.environ
REQUESTS = int(os.environ.get("REQUESTS", "50"))
NAMES = ("copy", "copy-graph", "none", "\N{SNOWMAN}")
CONFORMANCE = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = make(tmp_path_factory.mktemp("openapi") / "copy", steps=COPY_STEPS)
    limits = Limits(characters=500, tokens=200, texts=50, body=100_000, timeout=20)
    with site({"copy": path}, limits=limits) as service:
        yield service


def check_operation(operation, mode, count):
    """Draw requests of an operation and check each response."""

    @hypothesis.settings(
        max_examples=count,
        derandomize=not SOAK,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), name=st.sampled_from(NAMES))
    def check(case, name):
        # A random name would match no model.
        for part, value in (("name", name), ("version", "1")):
            if part in (case.path_parameters or {}):
                case.path_parameters[part] = value
        response = case.call()
        expected_errors = (503, 504)  # unloaded models and timeouts
        checks = [] if response.status_code in expected_errors else [not_a_server_error]
        case.validate_response(response, checks=[*checks, *CONFORMANCE])

    check()


def test_responses_conform_to_the_document(running):
    document = schemathesis.openapi.from_url(f"{running.service.url}/openapi.json")
    pairs = []
    for operation in (result.ok() for result in document.get_all_operations()):
        pairs.append((operation, GenerationMode.POSITIVE))
        if operation.body:  # only a body can be invalid
            pairs.append((operation, GenerationMode.NEGATIVE))
    pairs.sort(key=lambda pair: pair[0].path.endswith("/unload"))  # unload the models last
    for operation, mode in pairs:
        check_operation(operation, mode, max(1, REQUESTS // len(pairs)))
    assert {"/translate", "/v2/models/{name}/infer"} <= {operation.path for operation, _ in pairs}
    assert running.web.post("/v2/repository/models/copy/load").status_code == 200
    response = running.web.post("/translate", json={"text": "a man"})
    assert response.json()["translations"][0]["text"] == "a man"
