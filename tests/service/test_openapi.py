"""What the OpenAPI document promises is held: requests that are drawn from it, fitting and not.

`make test-soak` draws many more of them: the number is taken from REQUESTS.
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

from keras_bahdanau_runtime.service.engine import Limits

SOAK = "REQUESTS" in os.environ
REQUESTS = int(os.environ.get("REQUESTS", "50"))
NAMES = ("copy", "copy-graph", "none", "\N{SNOWMAN}")
PROMISED = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = make(tmp_path_factory.mktemp("openapi") / "copy", steps=COPY_STEPS)
    limits = Limits(characters=500, tokens=200, texts=50, body=100_000, seconds=20)
    with site({"copy": path}, limits=limits) as found:
        yield found


def asked(operation, mode, count):
    """Draws requests of an operation and asserts that each answer is one of the promised."""

    @hypothesis.settings(
        max_examples=count,
        derandomize=not SOAK,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), name=st.sampled_from(NAMES))
    def ask(case, name):
        # One that is drawn would be that of no model.
        for part, value in (("name", name), ("version", "1")):
            if part in (case.path_parameters or {}):
                case.path_parameters[part] = value
        answer = case.call()
        if answer.status_code not in (503, 504):
            case.validate_response(answer, checks=[not_a_server_error, *PROMISED])
        else:
            case.validate_response(answer, checks=PROMISED)

    ask()


def test_answers_are_those_of_the_document(running):
    document = schemathesis.openapi.from_url(f"{running.service.url}/openapi.json")
    drawn = []
    for operation in (found.ok() for found in document.get_all_operations()):
        drawn.append((operation, GenerationMode.POSITIVE))
        if operation.body:  # without one there is nothing to spoil
            drawn.append((operation, GenerationMode.NEGATIVE))
    # The last one takes the models away.
    drawn.sort(key=lambda one: one[0].path.endswith("/unload"))
    for operation, mode in drawn:
        asked(operation, mode, max(1, REQUESTS // len(drawn)))
    assert {"/translate", "/v2/models/{name}/infer"} <= {one.path for one, _ in drawn}
    assert running.web.post("/v2/repository/models/copy/load").status_code == 200
    answer = running.web.post("/translate", json={"text": "a man"})
    assert answer.json()["translations"][0]["text"] == "a man"
