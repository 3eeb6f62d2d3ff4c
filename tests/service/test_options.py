"""Options of requests: search options, prefixes, scores, alignments and alternatives."""

import asyncio
import functools
import json
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from copy_artifact import (
    COPY_SCORE,
    COPY_STEPS,
    TOKENIZER,
    calibration,
    make,
    make_with_options,
)
from running_service import one_busy_thread, site
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from keras_bahdanau_runtime import SearchOptions, Tokenizer
from keras_bahdanau_runtime.request import TranslationRequest
from keras_bahdanau_runtime.service import models
from keras_bahdanau_runtime.service.schemas import TranslateRequest, parse_request
from keras_bahdanau_runtime.service.settings import Limits

# Both sides have "sleeps" as id 4. The ids 5 and 6 are words of the source.
COPIED_WORDS = Tokenizer.from_pieces(["sleeps"], copied_words=2)._document()
LIMITS = Limits(characters=60, tokens=30, texts=4)
TEXT = "a man on a bike"
LENGTH = 6  # of `TEXT` in tokens, including the end of sentence
WORDS = Tokenizer.train([TEXT], ["ein Mann ein Mann"], kind="words", min_frequency=1)._document()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    copied = {"document": COPIED_WORDS, "steps": COPY_STEPS, "score": COPY_SCORE}
    sources = {
        "copied": make_with_options(folder / "copied", **copied),
        "new": make_with_options(folder / "new", steps=COPY_STEPS, score=COPY_SCORE),
        "old": make(folder / "old"),
        "calibrated": make_with_options(folder / "calibrated", calibration=calibration()),
        "words": make_with_options(folder / "words", document=WORDS, steps=COPY_STEPS),
    }
    with site(sources, limits=LIMITS, grpc_port=0, parallel_batches=1, model_threads=1) as service:
        yield service


def _parameter(value):
    """Triton's gRPC client refuses floats."""
    return str(value) if isinstance(value, float) else value


def translate(running, text=TEXT, **options):
    return running.web.post("/translate", json={"text": text, "model": "new", **options})


def translation(running, text=TEXT, **options):
    response = translate(running, text, **options)
    assert response.status_code == 200, response.text
    return response.json()["translations"][0]


def problem(response, status, argument):
    body = response.json()
    assert (response.status_code, body["argument"]) == (status, argument), body
    return body["error"]


VOCABULARY = TOKENIZER.get_vocab()
VOCABULARY_SIZE = len(VOCABULARY)
A = VOCABULARY["a"] + VOCABULARY["Ġa"]  # sum of the ids that spell "a"


def inputs_of(module, **texts):
    """Return inputs of Triton's client, without those that are `None`."""
    inputs = []
    for name, values in texts.items():
        if values is not None:
            inputs.append(module.InferInput(name, [len(values)], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array([each.encode() for each in values], object))
    return inputs


class HttpClient:
    """Triton's messages over HTTP. Its own client is closed by any thread that collects it."""

    def __init__(self, web):
        self._web = web

    def infer(self, model, inputs, parameters):
        body, length = InferenceServerClient.generate_request_body(inputs, parameters=parameters)
        headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
        response = self._web.post(f"/v2/models/{model}/infer", content=body, headers=headers)
        if response.status_code != 200:
            raise InferenceServerException(response.json()["error"])
        length = response.headers.get("inference-header-content-length")
        return InferenceServerClient.parse_response_body(
            response.content, header_length=None if length is None else int(length)
        )


def infer(client, module, prefixes=None, required=None, model="new", **parameters):
    """Translate `TEXT` twice with Triton's client over HTTP or gRPC; return texts and scores."""
    inputs = inputs_of(module, text=[TEXT, TEXT], prefix=prefixes, required=required)
    result = client.infer(model, inputs, parameters=parameters)
    texts = result.as_numpy("translation").ravel()
    return [text.decode() for text in texts], result.as_numpy("score")


@pytest.fixture(scope="module", params=["http", "grpc"])
def triton(request, running):
    """Triton's client of the service, as a function with the arguments of `infer`."""
    if request.param == "http":
        yield functools.partial(infer, HttpClient(running.web), tritonclient.http)
        return
    with tritonclient.grpc.InferenceServerClient(running.service.grpc_address) as client:
        yield functools.partial(infer, client, tritonclient.grpc)


def test_options_set_the_inputs_of_the_graph(running):
    # The score is -length * length_penalty, that of the second hypothesis 1000 * beam_size + ids.
    assert translation(running)["score"] == -LENGTH
    assert translation(running, length_penalty=0.5)["score"] == -LENGTH / 2
    assert translation(running, length_penalty=None)["score"] == -LENGTH
    best = translation(running, n_best=2, suppressed=["a", 7], disable_unknown=True)
    assert [each["score"] for each in best] == [-LENGTH, 2000 + 1 + 7 + A]


def test_each_text_has_its_prefix(running):
    assert translation(running, prefix="a dog")["text"] == "a dog on a bike"
    body = {"text": [TEXT, TEXT, TEXT], "prefix": ["a dog", None, ""], "model": "new"}
    texts = running.web.post("/translate", json=body).json()["translations"]
    assert [each["text"] for each in texts] == ["a dog on a bike", TEXT, TEXT]


def test_text_that_the_tokenizer_cannot_spell_is_refused_by_every_endpoint(running, triton):
    body = {"text": TEXT, "prefix": "ein Hund", "model": "words"}
    for endpoint in ("/translate", "/translate/stream", "/alternatives"):
        response = running.web.post(endpoint, json=body)
        assert "'ein Hund', which it spells 'ein<unk>'" in problem(response, 400, "prefix")
    with pytest.raises(InferenceServerException, match="'Hund', which it spells '<unk>'"):
        triton(["Hund", ""], model="words")
    assert translation(running, prefix="ein M", model="words")["text"].startswith("ein Mann")


@pytest.mark.parametrize(
    ("body", "constraints"),
    [
        ({"text": "a", "required": ["b", "c"]}, {"required": [["b", "c"]]}),
        ({"text": ["a", "d"], "required": [["b"], None]}, {"required": [["b"], None]}),
        ({"text": "a", "prefix": "b"}, {"prefixes": ["b"]}),
        ({"text": ["a"], "prefix": [None]}, {"prefixes": [None]}),
        ({"text": "a", "suppressed": [7], "disable_unknown": True},
         {"suppressed": [7], "disable_unknown": True}),
        ({"text": "a", "prefix": None, "required": None, "suppressed": []}, {}),
    ],
)  # fmt: skip
def test_constraints_are_those_of_the_translator(body, constraints):
    request = parse_request(json.dumps(body).encode(), TranslateRequest, LIMITS)
    assert request.to_request().constraints == constraints


@pytest.mark.parametrize(("required", "status"), [([["b"]], 400), (["b", ["c"]], 422), ("b", 422)])
def test_required_phrases_of_one_text_are_a_list(running, required, status):
    message = problem(translate(running, required=required), status, "required")
    assert "a list of phrases" in message


def test_prefixes_are_encoded_outside_of_the_event_loop(running, monkeypatch):
    threads, encode = [], models.text_constraints

    def recording_encode(*arguments, **options):
        threads.append(threading.current_thread())
        return encode(*arguments, **options)

    monkeypatch.setattr(models, "text_constraints", recording_encode)
    translation(running, prefix="a ")
    assert running._thread not in threads and len(threads) == 1


def test_constraints_of_many_texts_are_encoded_in_parts(running, monkeypatch):
    # So that they take turns with those of other requests, and end with the time of the request.
    calls, encode = [], models.text_constraints

    def recording_encode(tokenizer, texts, **constraints):
        calls.append((threading.current_thread().name, len(texts), constraints))
        return encode(tokenizer, texts, **constraints)

    monkeypatch.setattr(models, "text_constraints", recording_encode)
    monkeypatch.setattr(models, "_TEXTS_AT_ONCE", 2 * VOCABULARY_SIZE + 6)
    prefixes = ["a", "a dog", "a dog", None]
    response = translate(running, [TEXT] * 4, prefix=prefixes, suppressed=["a"])
    texts = [each["text"] for each in response.json()["translations"]]
    assert texts == [TEXT, "a dog on a bike", "a dog on a bike", TEXT]
    shared = {"suppressed": ["a"]}
    assert [(size, constraints) for _, size, constraints in calls] == [
        (2, {"prefixes": prefixes[:2], **shared}),
        (2, {"prefixes": prefixes[2:], **shared}),
    ]
    assert all(name.startswith("keras_bahdanau preparing") for name, *_ in calls)


def test_the_protocol_has_the_same_options(triton):
    texts, scores = triton(prefixes=["a dog", ""], length_penalty="0.5")
    assert texts == ["a dog on a bike", TEXT]
    assert scores.tolist() == [-LENGTH / 2] * 2
    _, scores = triton(n_best=2, beam_size=2, suppressed='["a", 7]', disable_unknown=True)
    assert scores.tolist() == [[-LENGTH, 2000 + 1 + 7 + A]] * 2


def test_only_requests_with_equal_options_share_a_batch(running):
    def statistics():
        [counts] = running.web.get("/v2/models/new/stats").json()["model_stats"]
        return np.array([counts["inference_count"], counts["execution_count"]])

    model = running.service.repository.get("new")
    before = statistics()
    half = SearchOptions(length_penalty=0.5)
    options = [{}, {"options": half}, {}, {"options": replace(half)}, {"prefixes": ["a dog"]}]

    async def run_all():
        return await asyncio.gather(
            *(model.translate(TranslationRequest(texts=[TEXT], **each)) for each in options)
        )

    with one_busy_thread(running) as job:
        job.started.acquire()
        results = running.submit(run_all())
        for _ in range(3):
            running.call(asyncio.sleep(0))  # the requests enter the queue
        job.gate.set()
        scores = [hypotheses[0].score for [hypotheses] in results.result()]
    assert scores == [-LENGTH, -LENGTH / 2, -LENGTH, -LENGTH / 2, -LENGTH]
    assert (statistics() - before).tolist() == [5, 3]


INVALID = [
    ({"beam_size": 3}, "beam_size", "an int of at least 1 and at most 2. Received: 3"),
    ({"beam_size": 0}, "beam_size", "an int of at least 1 and at most 2. Received: 0"),
    (
        {"length_penalty": -1.0},
        "length_penalty",
        "a number of at least 0 and at most 5. Received: -1",
    ),
    ({"max_length": 41}, "max_length", "an int of at least 1 and at most 40. Received: 41"),
    ({"n_best": 2, "beam_size": 1}, "n_best", "from 1 to 1. Received: 2"),
]


@pytest.mark.parametrize(("options", "argument", "message"), INVALID)
def test_an_option_out_of_its_range_is_named_with_the_range(
    running, triton, options, argument, message
):
    message = f"Argument `{argument}` must be {message}"
    assert message in problem(translate(running, **options), 400, argument)
    with pytest.raises(InferenceServerException, match=re.escape(message)):
        triton(**{name: _parameter(value) for name, value in options.items()})


REFUSED = [
    ({"beam": 3}, 422, "beam", "is unknown. Use only"),
    ({"beam_size": "3"}, 422, "beam_size", "must be an int, the number of live hypotheses"),
    ({"beam_size": True}, 422, "beam_size", "must be an int"),
    ({"top_k": 3}, 422, "top_k", "must be left out for the model 'new'. Its options are"),
    ({"required": ["a"]}, 422, "required", "must be left out for the model 'new'"),
    ({"prefix": ["a", "b"]}, 400, "prefix", "with a list of texts, a list with one for each"),
    ({"prefix": "a " * 31}, 413, "prefix", "at most 60 characters each. Received: 62"),
    ({"prefix": "xyz" * 15}, 400, "prefix", "at most 40 tokens each"),
    ({"suppressed": [7] * 1025}, 413, "suppressed", "at most 1024 tokens. Received: 1025"),
    ({"suppressed": ["a " * 31]}, 413, "suppressed", "at most 60 characters each. Received: 62"),
    ({"suppressed": ["a man"]}, 400, "suppressed", "2 tokens"),
    ({"suppressed": [290]}, 400, "suppressed", "at least 0 and at most 275. Received: 290"),
]


@pytest.mark.parametrize(("options", "status", "argument", "message"), REFUSED)
def test_a_wrong_option_is_refused(running, options, status, argument, message):
    assert message in problem(translate(running, **options), status, argument)


WRONG_PARAMETERS = [
    ({"beamsize": 3}, "`beamsize` is unknown. Use only"),
    ({"beam_size": "2"}, "`beam_size` must be int. Received: '2'"),
    ({"length_penalty": "much"}, "`length_penalty` must be a number. Received: 'much'"),
    ({"suppressed": "a"}, "`suppressed` must be a JSON list of str or int. Received: 'a'"),
    ({"model": "old", "beam_size": 1}, "An older version exported it. Export it again"),
    ({"prefixes": ["a"]}, "`prefix` must have one str or None for each of 2 texts. Received: 1"),
    ({"required": ["a", "[]"]}, "`required` must be a JSON list of str. Received: 'a'"),
    ({"required": ['["a"]', ""]}, "`required` must be left out for the model 'new'"),
    ({"required": [f"[{'[],' * 2**14}7]"] * 2}, "`required` must have at most 65536 commas and"),
    ({"suppressed": f"[{'[],' * 2**15}7]"}, "`suppressed` must have at most 65536 commas and"),
]


@pytest.mark.parametrize(("parameters", "message"), WRONG_PARAMETERS)
def test_a_wrong_parameter_or_input_is_refused(triton, parameters, message):
    with pytest.raises(InferenceServerException, match=re.escape(message)):
        triton(**parameters)


def test_a_number_that_is_not_finite_is_refused(running):
    for value in ("NaN", "1e999"):
        content = f'{{"text": "a", "model": "new", "length_penalty": {value}}}'
        response = running.web.post("/translate", content=content)
        assert response.status_code in (400, 422)
    with (
        tritonclient.grpc.InferenceServerClient(running.service.grpc_address) as client,
        pytest.raises(InferenceServerException, match="`length_penalty` must be a number"),
    ):
        infer(client, tritonclient.grpc, length_penalty="nan")


def test_an_older_artifact_must_be_exported_again(running):
    response = translate(running, model="old", beam_size=1)
    assert "Export it again" in problem(response, 422, "beam_size")
    problem(translate(running, model="old", prefix="a"), 422, "prefix")
    assert translate(running, model="old", prefix=None).status_code == 200


def test_the_service_limits_the_beam(tmp_path):
    path = make_with_options(tmp_path / "new")
    with site({"new": path}, limits=Limits(beam_size=1)) as service:
        message = problem(translate(service, beam_size=2), 400, "beam_size")
        assert "at most 1. Received: 2" in message
        assert len(translate(service, n_best=2).json()["translations"][0]) == 2
        [model] = service.web.get("/models").json()["models"]
    assert model["max_beam_size"] == 1
    numbers = {"beam_size": 2, "length_penalty": None, "max_length": 40}
    assert model["options"] == {**numbers, "prefix": None, "suppressed": None}
    with pytest.raises(ValueError, match="`beam_size`"):
        Limits(beam_size=0)


def test_targets_are_scored(running):
    target = "a dog"
    body = {"text": TEXT, "target": target, "model": "new", "alignments": True}
    [score] = running.web.post("/score", json=body).json()["scores"]
    ids = TOKENIZER.encode(target).ids
    assert score["log_probs"] == [-index / 8 for index in ids]
    assert score["total"] == -sum(ids) / 8
    assert score["tokens"] == ["a", " dog", "</s>"]
    assert score["source_tokens"] == ["a", " man", " on", " a", " bike", "</s>"]
    assert score["alignment"] == np.eye(3, 6).tolist()
    body = {"text": [TEXT, "a dog"], "target": [target, TEXT], "model": "new"}
    scores = running.web.post("/score", json=body).json()["scores"]
    assert [len(each["tokens"]) for each in scores] == [3, 6]
    assert [each["alignment"] for each in scores] == [None, None]


def test_outputs_and_targets_have_the_words_of_their_texts(running):
    texts = ["Rex sleeps", "Ada sleeps Rex"]
    body = {"text": texts, "prefix": ["", "Re"], "model": "copied"}
    translations = running.web.post("/translate", json=body).json()["translations"]
    assert [each["text"] for each in translations] == ["Rex sleeps", "Rex sleeps Rex"]
    body = {"text": texts, "target": ["Rex", "Rex"], "model": "copied"}
    scores = running.web.post("/score", json=body).json()["scores"]
    assert [each["total"] for each in scores] == [-(5 + 3) / 8, -(6 + 3) / 8]
    assert [each["tokens"] for each in scores] == [["Rex", "</s>"]] * 2
    body = {"text": "Ada sleeps Rex", "prefix": "Ada sleeps", "count": 1, "model": "copied"}
    [word] = running.web.post("/alternatives", json=body).json()["alternatives"]
    assert word["text"] == " Rex"
    body = {"text": "Ada sleeps Rex", "model": "copied"}
    assert '"text":"Ada sleeps Rex"' in running.web.post("/translate/stream", json=body).text


def test_targets_are_aligned(running):
    body = {"text": [TEXT, "a dog"], "target": ["a dog", "a dog"], "model": "new"}
    links = running.web.post("/align", json=body).json()["links"]
    assert links == [[[0, 0], [1, 1]], [[0, 0], [1, 1]]]


PAIRS = [
    ("/score", {"text": TEXT}, 422, "target", "is missing"),
    (
        "/score",
        {"text": TEXT, "target": ["a"]},
        400,
        "target",
        "be a text, the given translation",
    ),
    (
        "/score",
        {"text": [TEXT], "target": "a"},
        400,
        "target",
        "with a list of texts, a list with one for each",
    ),
    ("/score", {"text": [TEXT], "target": ["a", "b"]}, 400, "target", "each of 1 texts"),
    ("/score", {"text": TEXT, "target": " "}, 400, "target", "must not be blank"),
    ("/score", {"text": "", "target": "a"}, 400, "text", "must not be blank"),
    ("/score", {"text": "a", "target": "b" * 61}, 413, "target", "at most 60 characters"),
    ("/score", {"text": "a", "target": "bx" * 30}, 413, "target", "at most 30 tokens"),
    ("/score", {"text": "a", "target": "a", "model": "old"}, 409, "model", "Export it again"),
    ("/align", {"text": "a", "target": "a", "threshold": 2}, 422, "threshold", "at most 1"),
    ("/alternatives", {"text": "a", "count": 21}, 422, "count", "an int from 1 to 20"),
    ("/alternatives", {"text": " "}, 400, "text", "must not be blank"),
    ("/alternatives", {"text": "a", "prefix": "xy" * 25}, 400, "prefix", "less than 40 tokens"),
    ("/alternatives", {"text": "a", "model": "old"}, 409, "model", "stepwise=True"),
    ("/translate/stream", {"text": "a", "prefix": "x y" * 20}, 400, "prefix", "at most 40"),
    ("/translate/stream", {"text": "a", "prefix": 1}, 422, "prefix", "a text, the beginning"),
]


@pytest.mark.parametrize(("path", "body", "status", "argument", "message"), PAIRS)
def test_wrong_requests_name_their_argument(running, path, body, status, argument, message):
    response = running.web.post(path, json={"model": "new", **body})
    assert message in problem(response, status, argument)


def test_alternatives_are_the_next_words(running):
    body = {"text": TEXT, "prefix": "a ", "model": "new", "count": 1}
    response = running.web.post("/alternatives", json=body)
    # The graph gives the next token of the source the log-probability 0.
    assert response.json() == {"alternatives": [{"text": "man", "probability": 1.0}]}
    with running.web.stream("POST", "/translate/stream", json={**body, "count": 1}) as refused:
        assert refused.status_code == 422


def test_a_stream_starts_with_its_prefix(running):
    body = {"text": TEXT, "prefix": "a dog", "model": "new"}
    response = running.web.post("/translate/stream", json=body)
    assert response.text.endswith('data: {"text":"a dog on a bike"}\n\n')


def test_calls_are_counted_by_their_name(running):
    running.web.post("/score", json={"text": "a", "target": "a", "model": "new"})
    text = running.web.get("/metrics").text
    assert 'requests_total{call="score",code="200",model="new"}' in text


# --- Confidences ----------------------------------------------------------------------------------


def test_a_translation_of_a_calibrated_model_has_its_confidence(running):
    hypothesis = translation(running, "a dog", model="calibrated")
    assert hypothesis["confidence"] == pytest.approx(0.049787, abs=1e-6)  # e^-3
    assert hypothesis["expected_errors"] == pytest.approx(0.2)
    assert hypothesis["token_confidences"] == pytest.approx([0.367879] * 3, abs=1e-6)
    assert hypothesis["uncalibrated"] is None
    assert "confidence" not in translation(running, "a dog")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"beam_size": 1}, "The confidence holds for beam_size=2. Received: 1."),
        ({"prefix": "a"}, "The confidence holds for outputs without a prefix"),
    ],
    ids=str,
)
def test_a_request_for_another_search_has_a_reason_instead(running, options, reason):
    hypothesis = translation(running, "a dog", model="calibrated", **options)
    assert hypothesis["confidence"] is hypothesis["token_confidences"] is None
    assert hypothesis["uncalibrated"].startswith(reason)


def test_inference_requests_return_confidences_of_the_best_hypotheses(triton):
    client, module = triton.args
    inputs = inputs_of(module, text=["a dog", "b"])
    result = client.infer("calibrated", inputs, parameters={"n_best": 2})
    confidence, errors = map(result.as_numpy, ("confidence", "expected_errors"))
    np.testing.assert_allclose(confidence, [[np.exp(-3), -1], [np.exp(-2), -1]], rtol=1e-5)
    np.testing.assert_allclose(errors, [[0.2, -1], [0.2, -1]], rtol=1e-5)


def test_models_without_a_calibration_have_no_such_outputs(triton):
    client, module = triton.args
    result = client.infer("new", inputs_of(module, text=["a dog"]), parameters={})
    assert result.as_numpy("score") is not None and result.as_numpy("confidence") is None
