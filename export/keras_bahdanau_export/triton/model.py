"""A text model for Triton's Python backend: a `Translator` of the artifact in the same folder.

It needs Triton 24.12 or later, and `pip install "keras-bahdanau[runtime]"` in the Python of that
backend, 3.11 or later. The backend of an earlier Triton crashes at the first request with numpy 2;
it needs numpy 1.26.

The input `text` is BYTES of shape `[n, 1]`, one UTF-8 sentence each. The outputs of shape
`[n, n_best]` are `translation` BYTES, `score` FP32, and `alignment` BYTES with the attention
weights as JSON. If a text has fewer hypotheses, its remaining texts are empty, and their scores the
smallest float32, as is the score of a blank text. A calibrated artifact has two more, `confidence`
and `expected_errors` FP32, which are -1 for hypotheses without a confidence.

Two more inputs `[n, 1]` are optional: `prefix`, the beginning of each translation, empty for none,
and `required`, a JSON list of the phrases that each translation contains, empty for none.

Request parameters: `n_best` (default 1), `alignments`, `disable_unknown`, `suppressed` (a JSON list
of tokens as texts or ids), and the fields of `SearchOptions`, such as `beam_size`. With
`alignments` set to `false`, the response to a request that names no outputs, and so asks for all,
omits the alignments. `timeout`, in microseconds, belongs to Triton: it refuses requests that waited
longer.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton

from keras_bahdanau_runtime import Translator, UnsupportedArtifactError
from keras_bahdanau_runtime.request import (
    CONFIDENCES,
    NO_CONFIDENCE,
    TranslationRequest,
    check_characters,
)
from keras_bahdanau_runtime.search_options import check_count
from keras_bahdanau_runtime.session import CPU, CUDA, available_cores

MAX_CHARACTERS = 5000  # of a text
MAX_SECONDS = 60.0  # of one run of the graph
NO_SCORE = np.finfo(np.float32).min  # JSON has no infinity


class TritonPythonModel:
    """The class that Triton creates an object of for each instance of the model."""

    def initialize(self, args):
        """Open the artifact, on a GPU if `instance_group` assigns one to the instance."""
        providers, parallel_batches = CPU, available_cores()
        if args["model_instance_kind"] == "GPU":
            device = {"device_id": args["model_instance_device_id"]}
            providers, parallel_batches = [(CUDA, device), CPU], 1
        artifact = Path(__file__).with_name("artifact")
        self.translator = Translator(
            artifact, providers, timeout=MAX_SECONDS, parallel_batches=parallel_batches
        )
        # The first run is the slowest. It also shows how many hypotheses the search returns.
        self.max_n_best = self.translator.translate_ids([[3]])["scores"].shape[1]

    def execute(self, requests):
        """Answer all requests of a batch, with one call of the `Translator` for equal options."""
        parsed = [self._parse(request) for request in requests]
        groups = {}
        for position, request in enumerate(parsed):
            if isinstance(request, TranslationRequest):
                key = request.options, tuple(request.suppressed), request.disable_unknown
                groups.setdefault(key, []).append(position)
        responses = [
            None
            if isinstance(request, TranslationRequest)
            else triton.InferenceResponse(error=request)
            for request in parsed
        ]
        for positions in groups.values():
            answers = self._translate([parsed[position] for position in positions])
            for position, response in zip(positions, answers, strict=True):
                responses[position] = response
        return responses

    def _translate(self, requests):
        """Return the responses to requests with equal options."""
        per_text = {
            name: [
                value
                for request in requests
                for value in getattr(request, name) or [None] * len(request.texts)
            ]
            for name in ("prefixes", "required")
        }
        translations = self.translator.translate(
            [text for request in requests for text in request.texts],
            n_best=max(request.n_best for request in requests),
            alignments=any(request.alignments for request in requests),
            on_error="keep",
            **_shared_options(requests[0]),
            **{name: values for name, values in per_text.items() if any(values)},
        )
        # For `n_best=1` the translator returns translations instead of lists of them.
        remaining = iter([best if isinstance(best, list) else [best] for best in translations])
        return [
            self._respond(request, [next(remaining)[: request.n_best] for _ in request.texts])
            for request in requests
        ]

    def _parse(self, request):
        """Return a `TranslationRequest`, or a `TritonError` for an invalid one."""
        try:
            parameters = json.loads(request.parameters() or "{}")
            parameters.pop("timeout", None)  # belongs to Triton
            inputs = {name: _texts(request, name) for name in ("text", "prefix", "required")}
            parsed = TranslationRequest.from_inputs(inputs, parameters, alignments=True)
            for name in ("prefixes", "required"):
                check_count(name, getattr(parsed, name) or None, len(parsed.texts))
            tokens = [each for each in parsed.suppressed if isinstance(each, str)]
            check_characters("suppressed", tokens, MAX_CHARACTERS)
            if options := _shared_options(parsed):
                self.translator.translate([], **options)  # checks the options
            parsed.check_n_best(self.max_n_best)
            # Encoded per request, so that the index in an error message is that of its text.
            self.translator.encode(parsed.texts)
        except (ValueError, UnsupportedArtifactError) as error:  # includes UnicodeDecodeError
            message = str(error).replace("`prefixes`", "`prefix`")
            return triton.TritonError(message, triton.TritonError.INVALID_ARG)
        is_requested = "alignment" in request.requested_output_names()
        return replace(parsed, alignments=is_requested and parsed.alignments)

    def _respond(self, request, hypotheses):
        """Return the response to a request, from the hypotheses for each of its texts."""
        shape = len(hypotheses), request.n_best
        translation, alignment = np.full(shape, b"", object), np.full(shape, b"", object)
        score = np.full(shape, NO_SCORE, np.float32)
        confidences = {name: np.full(shape, NO_CONFIDENCE, np.float32) for name in CONFIDENCES}
        for row, best in enumerate(hypotheses):
            for column, hypothesis in enumerate(best):
                if hypothesis.error is not None:
                    return triton.InferenceResponse(error=triton.TritonError(hypothesis.error))
                translation[row, column] = hypothesis.text.encode("utf-8")
                if hypothesis.score is not None:
                    score[row, column] = hypothesis.score
                if hypothesis.confidence is not None:
                    for name, values in confidences.items():
                        values[row, column] = getattr(hypothesis, name)
                if request.alignments:
                    weights = json.dumps(hypothesis.alignment.tolist())
                    alignment[row, column] = weights.encode("utf-8")
        tensors = [triton.Tensor("translation", translation), triton.Tensor("score", score)]
        if request.alignments:
            tensors.append(triton.Tensor("alignment", alignment))
        if self.translator.calibration is not None:
            tensors += [triton.Tensor(name, values) for name, values in confidences.items()]
        return triton.InferenceResponse(output_tensors=tensors)


def _texts(request, name):
    """Return the texts of an input, an empty list if the request does not have it."""
    tensor = triton.get_input_tensor_by_name(request, name)
    texts = [] if tensor is None else [text.decode("utf-8") for text in tensor.as_numpy().ravel()]
    check_characters(name, texts, MAX_CHARACTERS)
    return texts


def _shared_options(request):
    """Return the arguments of `Translator.translate` that all texts of a call share."""
    names = request.constraints.keys() & {"suppressed", "disable_unknown"}
    return {**request.options.values(), **{name: request.constraints[name] for name in names}}
