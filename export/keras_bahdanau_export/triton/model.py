"""A model of texts for Triton's Python backend: the `Translator` of the artifact beside this file.

Needs Triton 24.12 or later, and `pip install "keras-bahdanau[runtime]"` in the Python that it runs,
3.11 or later. The Python backend of an earlier Triton ends at the first request with numpy 2: it
needs numpy 1.26.

Input `text` is BYTES of shape `[n, 1]`, one UTF-8 sentence each. Outputs are `translation` BYTES
and `score` FP32 of shape `[n, n_best]`, and `alignment` BYTES of the same, each the attention
weights as JSON. Where a text has fewer hypotheses, the rest is empty, with the least float32 as
score.

Parameters of a request: `n_best`, 1 if absent; and `alignments`: `false` leaves the alignments out
of an answer to a request that names no outputs, for which Triton asks for all. `timeout`, in
microseconds, is Triton's own: a request that has waited longer is refused.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import triton_python_backend_utils as triton

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.session import CPU, CUDA, available_cores

MOST_CHARACTERS = 5000  # of a text
MOST_SECONDS = 60.0  # of one run of the graph
NO_SCORE = np.finfo(np.float32).min  # JSON has no infinity


class Asked(NamedTuple):
    """What a request asks for."""

    texts: list[str]
    n_best: int
    aligned: bool


class TritonPythonModel:
    """What Triton makes one of for each instance of the model."""

    def initialize(self, args):
        """Opens the artifact, on the GPU if the instance has one by `instance_group`."""
        providers, parallel_batches = CPU, available_cores()
        if args["model_instance_kind"] == "GPU":
            device = {"device_id": args["model_instance_device_id"]}
            providers, parallel_batches = [(CUDA, device), CPU], 1
        artifact = Path(__file__).with_name("artifact")
        self.translator = Translator(
            artifact, providers, timeout=MOST_SECONDS, parallel_batches=parallel_batches
        )
        # The first run is slower than the others, and tells how many hypotheses the search keeps.
        self.most = self.translator.translate_ids([[3]])["scores"].shape[1]

    def execute(self, requests):
        """Answers all requests that Triton has gathered with one call of the `Translator`."""
        asked = [self._asked(request) for request in requests]
        valid = [one for one in asked if isinstance(one, Asked)]
        found = self.translator.translate(
            [text for one in valid for text in one.texts],
            n_best=max([one.n_best for one in valid], default=1),
            alignments=any(one.aligned for one in valid),
            on_error="keep",
        )
        found = iter([best if isinstance(best, list) else [best] for best in found])
        return [
            self._answer(one, [next(found)[: one.n_best] for _ in one.texts])
            if isinstance(one, Asked)
            else triton.InferenceResponse(error=one)
            for one in asked
        ]

    def _asked(self, request):
        """What a request asks for, or the `TritonError` that says why there is no answer."""
        try:
            parameters = json.loads(request.parameters() or "{}")
            n_best = parameters.get("n_best", 1)
            if type(n_best) is not int or not 1 <= n_best <= self.most:
                raise ValueError(
                    f"Argument `n_best` must be an int from 1 to {self.most}. Received: {n_best!r}"
                )
            alignments = parameters.get("alignments", True)
            if not isinstance(alignments, bool):
                raise ValueError(
                    f"Argument `alignments` must be a bool. Received: {alignments!r:.80}"
                )
            given = triton.get_input_tensor_by_name(request, "text").as_numpy().ravel()
            texts = [text.decode("utf-8") for text in given]
            longest = max(map(len, texts), default=0)
            if longest > MOST_CHARACTERS:
                raise ValueError(
                    f"Argument `text` must have at most {MOST_CHARACTERS} characters each. "
                    f"Received: {longest}"
                )
            self.translator.encode(texts)  # of one request: the index in its message is the text's
        except ValueError as error:  # what is no UTF-8 is one, too
            return triton.TritonError(str(error), triton.TritonError.INVALID_ARG)
        named = "alignment" in request.requested_output_names()
        return Asked(texts, n_best, named and alignments)

    def _answer(self, asked, found):
        """The response to a request, of the hypotheses for each of its texts."""
        shape = len(found), asked.n_best
        translation, alignment = np.full(shape, b"", object), np.full(shape, b"", object)
        score = np.full(shape, NO_SCORE, np.float32)
        for row, best in enumerate(found):
            for column, one in enumerate(best):
                if one.error is not None:
                    return triton.InferenceResponse(error=triton.TritonError(one.error))
                translation[row, column] = one.text.encode("utf-8")
                score[row, column] = one.score
                if asked.aligned:
                    alignment[row, column] = json.dumps(one.alignment.tolist()).encode("utf-8")
        tensors = [triton.Tensor("translation", translation), triton.Tensor("score", score)]
        if asked.aligned:
            tensors.append(triton.Tensor("alignment", alignment))
        return triton.InferenceResponse(output_tensors=tensors)
