"""A text model for Triton's Python backend: a `Translator` of the artifact in the same folder.

It needs Triton 24.12 or later, and `pip install "keras-bahdanau[runtime]"` in the Python of that
backend, 3.11 or later. The backend of an earlier Triton crashes at the first request with numpy 2;
it needs numpy 1.26.

The input `text` is BYTES of shape `[n, 1]`, one UTF-8 sentence each. The outputs of shape
`[n, n_best]` are `translation` BYTES, `score` FP32, and `alignment` BYTES with the attention
weights as JSON. If a text has fewer hypotheses, its remaining texts are empty, and their scores the
smallest float32.

Request parameters: `n_best` (default 1), and `alignments`. With `alignments` set to `false`, the
response to a request that names no outputs, and so asks for all, omits the alignments. `timeout`,
in microseconds, belongs to Triton: it refuses requests that waited longer.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import triton_python_backend_utils as triton

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.session import CPU, CUDA, available_cores

MAX_CHARACTERS = 5000  # of a text
MAX_SECONDS = 60.0  # of one run of the graph
NO_SCORE = np.finfo(np.float32).min  # JSON has no infinity


class Request(NamedTuple):
    """A parsed request.

    Attributes:
        texts: The texts to translate.
        n_best: Number of hypotheses for each text.
        alignments: Whether the response contains alignments.
    """

    texts: list[str]
    n_best: int
    alignments: bool


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
        """Answer all requests of a batch with one call of the `Translator`."""
        parsed = [self._parse(request) for request in requests]
        valid = [request for request in parsed if isinstance(request, Request)]
        translations = self.translator.translate(
            [text for request in valid for text in request.texts],
            n_best=max((request.n_best for request in valid), default=1),
            alignments=any(request.alignments for request in valid),
            on_error="keep",
        )
        # For `n_best=1` the translator returns translations instead of lists of them.
        remaining = iter([best if isinstance(best, list) else [best] for best in translations])
        return [
            self._respond(request, [next(remaining)[: request.n_best] for _ in request.texts])
            if isinstance(request, Request)
            else triton.InferenceResponse(error=request)
            for request in parsed
        ]

    def _parse(self, request):
        """Return a `Request`, or a `TritonError` for an invalid one."""
        try:
            parameters = json.loads(request.parameters() or "{}")
            n_best = parameters.get("n_best", 1)
            if type(n_best) is not int or not 1 <= n_best <= self.max_n_best:
                raise ValueError(
                    f"Argument `n_best` must be an int from 1 to {self.max_n_best}. "
                    f"Received: {n_best!r}"
                )
            alignments = parameters.get("alignments", True)
            if not isinstance(alignments, bool):
                raise ValueError(
                    f"Argument `alignments` must be a bool. Received: {alignments!r:.80}"
                )
            tensor = triton.get_input_tensor_by_name(request, "text").as_numpy().ravel()
            texts = [text.decode("utf-8") for text in tensor]
            longest = max(map(len, texts), default=0)
            if longest > MAX_CHARACTERS:
                raise ValueError(
                    f"Argument `text` must have at most {MAX_CHARACTERS} characters each. "
                    f"Received: {longest}"
                )
            # Encoded per request, so that the index in an error message is that of its text.
            self.translator.encode(texts)
        except ValueError as error:  # includes UnicodeDecodeError
            return triton.TritonError(str(error), triton.TritonError.INVALID_ARG)
        is_requested = "alignment" in request.requested_output_names()
        return Request(texts, n_best, is_requested and alignments)

    def _respond(self, request, hypotheses):
        """Return the response to a request, from the hypotheses for each of its texts."""
        shape = len(hypotheses), request.n_best
        translation, alignment = np.full(shape, b"", object), np.full(shape, b"", object)
        score = np.full(shape, NO_SCORE, np.float32)
        for row, best in enumerate(hypotheses):
            for column, hypothesis in enumerate(best):
                if hypothesis.error is not None:
                    return triton.InferenceResponse(error=triton.TritonError(hypothesis.error))
                translation[row, column] = hypothesis.text.encode("utf-8")
                score[row, column] = hypothesis.score
                if request.alignments:
                    weights = json.dumps(hypothesis.alignment.tolist())
                    alignment[row, column] = weights.encode("utf-8")
        tensors = [triton.Tensor("translation", translation), triton.Tensor("score", score)]
        if request.alignments:
            tensors.append(triton.Tensor("alignment", alignment))
        return triton.InferenceResponse(output_tensors=tensors)
